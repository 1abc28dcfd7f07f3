//! Forwarding plane manager that is hostile or cut off: its messages are read or rejected, and its routes are
//! removed exactly once when their hold time ends.
//!
//! Steps: the kind of step, the number of its bytes, and the bytes.

use netstage_core::time::{Duration, Instant};
use netstage_routing::source::fpm::{FpmRoutes, HOLD};
use netstage_routing::source::path::SourceChange;
use netstage_routing::source::route::KernelIds;
use std::collections::BTreeSet;

/// Routes and labels known by the reported changes.
#[derive(Default)]
struct KnownRoutes(BTreeSet<String>);

impl KnownRoutes {
    fn apply_changes(&mut self, manager: &mut FpmRoutes) {
        while let Some(change) = manager.poll_change() {
            let (subject, exists) = match change {
                SourceChange::Route(prefix, to) => (format!("{prefix:?}"), to.is_some()),
                SourceChange::Label(label, to) => (format!("{label:?}"), to.is_some()),
            };
            match exists {
                true => drop(self.0.insert(subject)),
                false => assert!(self.0.remove(&subject), "{subject} was known"),
            }
        }
    }
}

pub fn run(bytes: &[u8]) {
    let names = KernelIds {
        interfaces: [(3, 0), (4, 1)].into(),
        loopback: Some(1),
        tables: [(254, 0), (10, 1)].into(),
    };
    let (mut manager, mut now, mut known) = (FpmRoutes::new(names), Instant::ZERO, KnownRoutes::default());
    let mut rest = bytes;
    while let [kind, length, tail @ ..] = rest {
        let (head, tail) = tail.split_at(tail.len().min((*length).into()));
        match kind & 3 {
            0 => {
                if manager.handle_bytes(now, head).is_err() {
                    manager.handle_closed(now);
                }
            }
            1 => manager.handle_connected(now),
            2 => manager.handle_closed(now),
            _ => {
                now += Duration::from_millis(u64::from(*length) * 100);
                manager.handle_timeout(now);
            }
        }
        known.apply_changes(&mut manager);
        rest = tail;
    }
    manager.handle_closed(now);
    manager.handle_timeout(now + HOLD);
    known.apply_changes(&mut manager);
    assert!(known.0.is_empty() && manager.poll_timeout() == Instant::NEVER);
}
