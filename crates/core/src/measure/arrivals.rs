//! Rate at which packets arrive. A queue that is filled by an overload drains at the rate of the line after the sender has
//! stopped. Divided by the time of sending, the packets of a trial would therefore exceed what the path carries.

use super::trial::OfferedLoad;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Packets that arrived within a window, and the time from the first to the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Packets, without duplicates.
    pub packets: u64,
    /// Time from the first arrival to the last one.
    pub span: Duration,
}

impl Arrivals {
    /// Returns the rate of arrival; `None` if fewer than two packets arrived at different times.
    pub fn rate(&self) -> Option<OfferedLoad> {
        let gaps = self.packets.checked_sub(1).filter(|gaps| *gaps > 0)?;
        (self.span > Duration::ZERO).then(|| OfferedLoad(gaps as f64 / self.span.as_secs_f64()))
    }
}

/// Counts the packets that arrive within a window as long as the time of sending. The window begins with the first arrival.
///
/// ```
/// use netstage_core::measure::ArrivalWindow;
/// use netstage_core::time::{Duration, Instant};
///
/// let mut window = ArrivalWindow::new(Duration(100));
/// for at in [50, 75, 100, 125, 150, 175] {
///     window.record(Instant(at));
/// }
/// let arrivals = window.arrivals();
/// assert_eq!((arrivals.packets, arrivals.span), (5, Duration(100)), "what drains afterwards does not count");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ArrivalWindow {
    length: Duration,
    first: Option<Instant>,
    last: Instant,
    packets: u64,
}

impl ArrivalWindow {
    /// Creates a window of this length.
    pub fn new(length: Duration) -> ArrivalWindow {
        ArrivalWindow { length, first: None, last: Instant::ZERO, packets: 0 }
    }

    /// Records an arrival.
    #[inline]
    pub fn record(&mut self, at: Instant) {
        let first = *self.first.get_or_insert(at);
        if at.since(first) <= self.length {
            self.packets += 1;
            self.last = self.last.max(at);
        }
    }

    /// Returns the arrivals within the window.
    pub fn arrivals(&self) -> Arrivals {
        let span = self.first.map_or(Duration::ZERO, |first| self.last.since(first));
        Arrivals { packets: self.packets, span }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn single_packets_have_no_rate() {
        let mut window = ArrivalWindow::new(Duration(10));
        assert_eq!(window.arrivals().rate(), None);
        window.record(Instant(3));
        assert_eq!(window.arrivals().rate(), None);
    }

    proptest! {
        /// Packets leave a line with at least one serialization time between them.
        #[test]
        fn no_rate_exceeds_that_of_the_line(
            serialization in 1u64..10_000,
            idle in proptest::collection::vec(0u64..5_000, 2..200),
            length in 1u64..1_000_000,
        ) {
            let mut window = ArrivalWindow::new(Duration(length));
            let mut at = 0;
            for idle in idle {
                at += serialization + idle;
                window.record(Instant(at));
            }
            if let Some(rate) = window.arrivals().rate() {
                prop_assert!(rate.0 <= 1e9 / serialization as f64 * (1.0 + 1e-12));
            }
        }
    }
}
