//! Admission of runs by what is left of a limit of bytes per day (UTC). Only loads that are certain count, so a run that is
//! refused could not have been carried out.

use super::{OrderRefusal, OrderRefusalKind};
use crate::time::Duration;
use alloc::format;
use alloc::string::String;

const DAY: Duration = Duration::from_secs(86_400);
/// Maximum time between the check of a run and its start.
const MAX_LEAD: Duration = Duration::from_secs(60);
/// Relative error of rates: gaps and payload rates are rounded.
const RATE_ERROR: f64 = 1e-4;
/// Headers of IPv4 and UDP, the shortest of the packets that count.
const MIN_PACKET: f64 = 28.0;

/// Rest of a limit of bytes per day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayBudget {
    /// Bytes left on this day.
    pub left: u64,
    /// Time until the next day begins.
    pub ends_in: Duration,
}

/// Lower bound of what a flow is to send, with IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CertainLoad {
    /// Constant rate, bits per second.
    pub rate: f64,
    /// Start of the flow in the run.
    pub start: Duration,
    /// End of the flow in the run.
    pub stop: Duration,
    /// Bytes in addition to the rate, at any time.
    pub bytes: u64,
}

impl CertainLoad {
    /// Returns the bytes at the constant rate within a part of the run.
    fn between(&self, from: Duration, to: Duration) -> f64 {
        let time = self.stop.min(to) - self.start.max(from);
        self.rate * time.as_secs_f64() / 8.0
    }
}

impl DayBudget {
    /// Refuses a run of this duration whose loads certainly exceed what is left of `per_day` bytes today, or the budget
    /// of a later day.
    pub(super) fn check(
        &self,
        per_day: u64,
        duration: Duration,
        loads: impl Iterator<Item = CertainLoad> + Clone,
    ) -> Result<(), OrderRefusal> {
        let is_one_day = duration + MAX_LEAD <= self.ends_in;
        let today = if is_one_day { duration } else { self.ends_in - MAX_LEAD };
        let sent_today = |load: CertainLoad| {
            let at_any_time = if is_one_day { load.bytes } else { 0 };
            (load.between(Duration::ZERO, today) + at_any_time as f64).max(MIN_PACKET)
        };
        let asked = loads.clone().map(sent_today).sum();
        if exceeds(asked, self.left) {
            return Err(refuse(format!(
                "the run sends at least {asked:.0} B today with IP headers; {} B are left of `bytes_per_day` = {per_day} B \
                 in this agent's policy",
                self.left
            )));
        }
        let mut from = self.ends_in;
        while from < duration {
            let to = (from + DAY - MAX_LEAD).min(duration);
            let asked = loads.clone().map(|load| load.between(from, to)).sum();
            if exceeds(asked, per_day) {
                return Err(refuse(format!(
                    "the run sends at least {asked:.0} B on one day with IP headers; this agent's policy allows `bytes_per_day` = \
                     {per_day} B"
                )));
            }
            from = from + DAY;
        }
        Ok(())
    }
}

fn exceeds(asked: f64, left: u64) -> bool {
    asked * (1.0 - RATE_ERROR) > left as f64
}

fn refuse(reason: String) -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Policy, reason).remedy(
        "reduce the rates or `duration`, run it on a later day (UTC), or raise `bytes_per_day` in the policy",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec;
    use alloc::vec::Vec;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns the load of a flow that sends 1 MB/s for the whole run.
    fn constant() -> CertainLoad {
        CertainLoad { rate: 8e6, start: Duration::ZERO, stop: HOUR * 1000, bytes: 0 }
    }

    fn asked(
        left: u64,
        ends_in: Duration,
        duration: Duration,
        loads: &[CertainLoad],
    ) -> Result<(), OrderRefusal> {
        DayBudget { left, ends_in }.check(10_000_000_000, duration, loads.iter().copied())
    }

    #[test]
    fn only_loads_that_certainly_exceed_the_budget_of_a_day_are_refused() {
        let noon = HOUR * 12;
        let transfer = CertainLoad { bytes: 5_000_000, ..CertainLoad::default() };
        let late = CertainLoad { start: Duration::from_secs(8), ..constant() };
        let run = Duration::from_secs(10);
        for (left, ends_in, duration, loads, is_admitted) in [
            (10_000_000, noon, run, vec![constant()], true),
            (9_900_000, noon, run, vec![constant()], false),
            (2_000_000, noon, run, vec![late], true),
            (1_900_000, noon, run, vec![late], false),
            (15_000_000, noon, run, vec![constant(), transfer], true),
            (14_900_000, noon, run, vec![constant(), transfer], false),
            // Traffic of unknown volume is at least a packet.
            (28, noon, run, vec![CertainLoad::default()], true),
            (27, noon, run, vec![CertainLoad::default()], false),
            (0, noon, run, Vec::new(), true),
            // The run may begin up to a minute later, and a transfer after midnight.
            (0, Duration::from_secs(30), run, vec![], true),
            (100, Duration::from_secs(30), run, vec![constant(), transfer], true),
            (10_000_000, Duration::from_secs(90), HOUR, vec![constant()], false),
            (30_000_000, Duration::from_secs(90), HOUR, vec![constant()], true),
            // The second day of a run takes 14.4 GB, and 86.4 GB as a whole.
            (10_000_000_000, HOUR, HOUR * 3, vec![constant()], true),
            (10_000_000_000, HOUR, HOUR * 5, vec![constant()], false),
        ] {
            let result = asked(left, ends_in, duration, &loads);
            assert_eq!(result.is_ok(), is_admitted, "{left} {ends_in:?} {duration:?} {loads:?}: {result:?}");
        }
    }

    #[test]
    fn a_refusal_contains_rule_value_and_what_is_left() {
        let refusal = asked(9_000_000, HOUR, Duration::from_secs(10), &[constant()]).unwrap_err().to_string();
        for part in ["at least 10000000 B", "9000000 B are left", "`bytes_per_day` = 10000000000 B", "raise"]
        {
            assert!(refusal.contains(part), "{refusal}");
        }
    }
}
