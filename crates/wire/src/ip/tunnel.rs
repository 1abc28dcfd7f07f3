//! ECN in tunnels (RFC 6040, normal mode).

use super::Ecn;

/// Returns the ECN codepoint of the outer header at the tunnel ingress: the inner one (section 4.1).
#[inline]
pub const fn encapsulated_ecn(inner: Ecn) -> Ecn {
    inner
}

/// Severity of an ECN combination that no standard tunnel ingress produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Currently unused combination, to be counted.
    Unused,
    /// Congestion marks were lost or forged in the tunnel; to be counted and investigated.
    Dangerous,
}

/// ECN handling of a packet at the tunnel egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecapsulatedEcn {
    /// Codepoint of the forwarded packet. `None` if the packet must be dropped because its transport does
    /// not support ECN.
    pub ecn: Option<Ecn>,
    /// Severity of an invalid combination.
    pub alarm: Option<Alarm>,
}

/// Returns the ECN handling at the tunnel egress (section 4.2, figure 4).
#[inline]
pub const fn decapsulated_ecn(inner: Ecn, outer: Ecn) -> DecapsulatedEcn {
    use Ecn::{Capable0, Capable1, CongestionExperienced, NotCapable};
    let (ecn, alarm) = match (inner, outer) {
        (_, NotCapable) => (Some(inner), None),
        (NotCapable, Capable0 | Capable1) => (Some(NotCapable), Some(Alarm::Dangerous)),
        (NotCapable, CongestionExperienced) => (None, Some(Alarm::Dangerous)),
        (Capable0, _) => (Some(outer), None),
        (Capable1, Capable0) => (Some(Capable1), Some(Alarm::Unused)),
        (Capable1, _) => (Some(outer), None),
        (CongestionExperienced, Capable1) => (Some(CongestionExperienced), Some(Alarm::Dangerous)),
        (CongestionExperienced, _) => (Some(CongestionExperienced), None),
    };
    DecapsulatedEcn { ecn, alarm }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecn::{Capable0, Capable1, CongestionExperienced as Ce, NotCapable as Not};

    #[test]
    fn ecn_matches_every_cell_of_figure_4() {
        for inner in Ecn::ALL {
            assert_eq!(encapsulated_ecn(inner), inner);
        }
        let (unused, danger) = (Some(Alarm::Unused), Some(Alarm::Dangerous));
        // RFC 6040 figure 4, row by row.
        let table = [
            (Not, Not, Some(Not), None),
            (Not, Capable0, Some(Not), danger),
            (Not, Capable1, Some(Not), danger),
            (Not, Ce, None, danger),
            (Capable0, Not, Some(Capable0), None),
            (Capable0, Capable0, Some(Capable0), None),
            (Capable0, Capable1, Some(Capable1), None),
            (Capable0, Ce, Some(Ce), None),
            (Capable1, Not, Some(Capable1), None),
            (Capable1, Capable0, Some(Capable1), unused),
            (Capable1, Capable1, Some(Capable1), None),
            (Capable1, Ce, Some(Ce), None),
            (Ce, Not, Some(Ce), None),
            (Ce, Capable0, Some(Ce), None),
            (Ce, Capable1, Some(Ce), danger),
            (Ce, Ce, Some(Ce), None),
        ];
        for (inner, outer, ecn, alarm) in table {
            assert_eq!(
                decapsulated_ecn(inner, outer),
                DecapsulatedEcn { ecn, alarm },
                "{inner:?} in {outer:?}"
            );
        }
    }
}
