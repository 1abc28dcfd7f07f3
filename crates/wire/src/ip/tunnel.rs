//! What a tunnel does with congestion marks (RFC 6040, normal mode).

use super::Ecn;

/// The outer header's codepoint at the tunnel's beginning (section 4.1): the inner one's.
#[inline]
pub const fn encapsulated_ecn(inner: Ecn) -> Ecn {
    inner
}

/// How worrying a combination is that no tunnel of today should bring forth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Not used at present; to be counted.
    Unused,
    /// Marks were lost or made up on the way; to be counted and looked into.
    Dangerous,
}

/// What to do with a packet at the tunnel's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decapsulated {
    /// The codepoint it goes on with; none where it must be dropped, since its transport would
    /// not understand the mark.
    pub ecn: Option<Ecn>,
    /// Whether the combination is worth an alarm.
    pub alarm: Option<Alarm>,
}

/// What to do at the tunnel's end (section 4.2, figure 4).
#[inline]
pub const fn decapsulated_ecn(inner: Ecn, outer: Ecn) -> Decapsulated {
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
    Decapsulated { ecn, alarm }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecn::{Capable0, Capable1, CongestionExperienced as Ce, NotCapable as Not};

    #[test]
    fn every_cell_of_the_tables() {
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
            assert_eq!(decapsulated_ecn(inner, outer), Decapsulated { ecn, alarm }, "{inner:?} in {outer:?}");
        }
    }
}
