//! Whether frames that the program in the kernel redirects arrive.
//!
//! A veth takes redirected frames only where its other end has a program, or receive offload, on, and loses
//! them without an error otherwise. What it took it counts, so a frame of our own tells, and each time
//! frames leave and none is counted, another one does. Interfaces that lose them are the slow path's.

use super::forward::Loop;
use netstage_core::time::{Duration, Instant};
use netstage_host::log::Level;
use netstage_host::netns::ethtool;
use std::collections::BTreeMap;

/// Where frames were lost is tried again this often.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How a veth counts redirected frames it took, and those it had no room for: `tx_queue_0_xdp_xmit` and so on.
const COUNTED_AS: [&str; 2] = ["_xdp_xmit", "_xdp_xmit_errors"];

/// What is known of each interface.
#[derive(Debug, Default)]
pub(super) struct Egress(BTreeMap<u32, Watched>);

#[derive(Debug)]
enum Watched {
    /// So many were redirected when it had counted so many; none where it does not count.
    Arrives { redirected: u64, taken: Option<u64> },
    /// They are lost; when this is tried again.
    Lost(Instant),
}

impl Egress {
    /// An interface has changed.
    pub fn forget(&mut self, number: u32) {
        self.0.remove(&number);
    }

    /// Whether frames redirected to an interface are lost.
    pub fn is_lost(&self, number: u32) -> bool {
        matches!(self.0.get(&number), Some(Watched::Lost(_)))
    }
}

impl Loop {
    /// Looks at all interfaces by which the program in the kernel sends.
    pub(super) fn watch(&mut self, now: Instant) {
        let Some(fast_path) = self.slow_path.tables().fast_path() else { return };
        let attached: Vec<(u32, bool)> = fast_path.attached().collect();
        let any_native = attached.iter().any(|(_, is_native)| *is_native);
        for number in 0..self.seen.len() as u32 {
            let mode = attached.iter().find(|(served, _)| *served == number).map(|(_, is_native)| *is_native);
            if let Some(is_native) = mode {
                self.watch_one(now, number);
                // A driver that cannot have a program need not take what others redirect either.
                let is_shaped = self.router.interfaces[number as usize].shaping.is_some();
                let is_slow = is_shaped || (any_native && !is_native) || self.egress.is_lost(number);
                self.slow_path.tables_mut().set_slow(number, is_slow);
            } else {
                self.slow_path.tables_mut().set_slow(number, true);
            }
        }
    }

    fn watch_one(&mut self, now: Instant, number: u32) {
        // Where the link is down nothing arrives in any case.
        if !self.seen[number as usize].as_ref().is_some_and(|seen| seen.is_up) {
            return;
        }
        let Some(fast_path) = self.slow_path.tables().fast_path() else { return };
        let redirected = fast_path.sent(number).packets;
        let lost = match self.egress.0.get(&number) {
            Some(Watched::Arrives { taken: None, .. }) => return,
            Some(Watched::Arrives { redirected: before, .. }) if *before == redirected => return,
            Some(Watched::Arrives { taken: Some(before), .. }) => {
                let taken = self.taken(number);
                if taken.is_none_or(|taken| taken > *before) {
                    self.egress.0.insert(number, Watched::Arrives { redirected, taken });
                    return;
                }
                self.probe(number)
            }
            Some(Watched::Lost(again)) if now < *again => return,
            Some(Watched::Lost(_)) | None => self.probe(number),
        };
        let was_lost = self.egress.is_lost(number);
        let watched = match lost {
            true => Watched::Lost(now + TRY_AGAIN),
            false => Watched::Arrives { redirected, taken: self.taken(number) },
        };
        self.egress.0.insert(number, watched);
        let name = &self.router.interfaces[number as usize].name;
        if lost && !was_lost {
            let line = format!(
                "{name}: frames that the program in the kernel sends there are lost, so the slow path sends them; \
                 at the other end of this veth: ethtool -K INTERFACE gro on"
            );
            (self.log)(Level::Alarm, &line);
        } else if was_lost && !lost {
            (self.log)(
                Level::Note,
                &format!("{name}: frames that the program in the kernel sends there arrive"),
            );
        }
    }

    /// Whether a frame that is redirected to an interface is lost.
    fn probe(&mut self, number: u32) -> bool {
        let Some(mac) = self.seen[number as usize].as_ref().map(|seen| seen.mac) else { return false };
        let Some(before) = self.taken(number) else { return false };
        let probed = match self.slow_path.tables_mut().fast_path_mut() {
            Some(fast_path) => fast_path.probe(number, mac),
            None => return false,
        };
        probed.is_ok() && self.taken(number) == Some(before)
    }

    /// Redirected frames an interface took; none where it does not count them.
    fn taken(&self, number: u32) -> Option<u64> {
        let name = &self.router.interfaces[number as usize].name;
        let counts = ethtool::statistics(&self.machine.namespace, name).ok()?;
        let is_one = |name: &str| {
            name.starts_with("tx_queue_") && COUNTED_AS.iter().any(|ending| name.ends_with(ending))
        };
        let counts: Vec<u64> =
            counts.iter().filter(|(name, _)| is_one(name)).map(|(_, count)| *count).collect();
        (!counts.is_empty()).then(|| counts.iter().sum())
    }
}
