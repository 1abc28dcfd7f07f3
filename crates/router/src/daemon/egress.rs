//! Detects whether frames redirected by the XDP program arrive.
//!
//! A veth accepts redirected frames only if its other end has an XDP program or generic receive offload (GRO)
//! enabled, and silently drops them otherwise. Since it counts accepted frames, a probe frame detects the
//! loss. A probe is sent whenever frames leave and the counter stands still. Only the slow path sends to
//! interfaces that lose redirected frames.

use super::forward::RouterForwardingLoop;
use netstage_core::time::{Duration, Instant};
use netstage_host::log::Level;
use netstage_host::netns::ethtool;
use std::collections::BTreeMap;

/// Interval between probes of an interface that loses frames.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Suffixes of a veth's counters of redirected frames accepted and dropped for lack of room:
/// `tx_queue_0_xdp_xmit` and so on.
const COUNTER_SUFFIXES: [&str; 2] = ["_xdp_xmit", "_xdp_xmit_errors"];

/// Result of the last check of each interface.
#[derive(Debug, Default)]
pub(super) struct Egress(BTreeMap<u32, EgressCheck>);

#[derive(Debug)]
enum EgressCheck {
    /// Frames arrive. Counters of redirected and accepted frames; `None` if the interface does not count
    /// them.
    Arrives { redirected: u64, taken: Option<u64> },
    /// Frames are lost; time of the next probe.
    Lost(Instant),
}

impl Egress {
    /// Forgets the result for an interface that has changed.
    pub fn forget(&mut self, number: u32) {
        self.0.remove(&number);
    }

    /// Returns whether frames redirected to an interface are lost.
    pub fn is_lost(&self, number: u32) -> bool {
        matches!(self.0.get(&number), Some(EgressCheck::Lost(_)))
    }
}

impl RouterForwardingLoop {
    /// Checks all interfaces the XDP program sends to.
    pub(super) fn watch(&mut self, now: Instant) {
        let Some(fast_path) = self.slow_path.tables().fast_path() else { return };
        let attached: Vec<(u32, bool)> = fast_path.attached().collect();
        let any_native = attached.iter().any(|(_, is_native)| *is_native);
        for number in 0..self.interface_states.len() as u32 {
            let mode = attached.iter().find(|(served, _)| *served == number).map(|(_, is_native)| *is_native);
            if let Some(is_native) = mode {
                self.watch_one(now, number);
                // A driver without native XDP may not accept frames redirected by others.
                let is_shaped = self.router.interfaces[number as usize].shaping.is_some();
                let is_slow = is_shaped || (any_native && !is_native) || self.egress.is_lost(number);
                self.slow_path.tables_mut().set_slow(number, is_slow);
            } else {
                self.slow_path.tables_mut().set_slow(number, true);
            }
        }
    }

    fn watch_one(&mut self, now: Instant, number: u32) {
        // Nothing arrives on a link that is down.
        if !self.interface_states[number as usize].as_ref().is_some_and(|seen| seen.is_up) {
            return;
        }
        let Some(fast_path) = self.slow_path.tables().fast_path() else { return };
        let redirected = fast_path.sent(number).packets;
        let lost = match self.egress.0.get(&number) {
            Some(EgressCheck::Arrives { taken: None, .. }) => return,
            Some(EgressCheck::Arrives { redirected: before, .. }) if *before == redirected => return,
            Some(EgressCheck::Arrives { taken: Some(before), .. }) => {
                let taken = self.taken(number);
                if taken.is_none_or(|taken| taken > *before) {
                    self.egress.0.insert(number, EgressCheck::Arrives { redirected, taken });
                    return;
                }
                self.probe(number)
            }
            Some(EgressCheck::Lost(again)) if now < *again => return,
            Some(EgressCheck::Lost(_)) | None => self.probe(number),
        };
        let was_lost = self.egress.is_lost(number);
        let watched = match lost {
            true => EgressCheck::Lost(now + PROBE_INTERVAL),
            false => EgressCheck::Arrives { redirected, taken: self.taken(number) },
        };
        self.egress.0.insert(number, watched);
        let name = &self.router.interfaces[number as usize].name;
        if lost && !was_lost {
            let line = format!(
                "{name}: redirected frames are lost, so the slow path sends to it; \
                 at the other end of this veth: ethtool -K INTERFACE gro on"
            );
            (self.log)(Level::Alarm, &line);
        } else if was_lost && !lost {
            (self.log)(Level::Note, &format!("{name}: redirected frames arrive"));
        }
    }

    /// Sends a probe and returns whether it is lost.
    fn probe(&mut self, number: u32) -> bool {
        let Some(mac) = self.interface_states[number as usize].as_ref().map(|seen| seen.mac) else {
            return false;
        };
        let Some(before) = self.taken(number) else { return false };
        let probed = match self.slow_path.tables_mut().fast_path_mut() {
            Some(fast_path) => fast_path.probe(number, mac),
            None => return false,
        };
        probed.is_ok() && self.taken(number) == Some(before)
    }

    /// Returns the number of redirected frames an interface accepted; `None` if it does not count them.
    fn taken(&self, number: u32) -> Option<u64> {
        let name = &self.router.interfaces[number as usize].name;
        let counts = ethtool::statistics(&self.machine.namespace, name).ok()?;
        let is_one = |name: &str| {
            name.starts_with("tx_queue_") && COUNTER_SUFFIXES.iter().any(|ending| name.ends_with(ending))
        };
        let counts: Vec<u64> =
            counts.iter().filter(|(name, _)| is_one(name)).map(|(_, count)| *count).collect();
        (!counts.is_empty()).then(|| counts.iter().sum())
    }
}
