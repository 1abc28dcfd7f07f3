//! A forwarding plane manager, hostile or cut off: what it tells is read or refused, and goes again, once,
//! when its time is over.
//!
//! Steps: what happens, how many bytes belong to it, and those.

use netstage_core::time::{Duration, Instant};
use netstage_routing::source::fpm::{HOLD, Manager};
use netstage_routing::source::path::Change;
use netstage_routing::source::route::Names;
use std::collections::BTreeSet;

/// What is known, by the changes that were told.
#[derive(Default)]
struct Known(BTreeSet<String>);

impl Known {
    fn hear(&mut self, manager: &mut Manager) {
        while let Some(change) = manager.poll_change() {
            let (subject, is_there) = match change {
                Change::Route(prefix, to) => (format!("{prefix:?}"), to.is_some()),
                Change::Label(label, to) => (format!("{label:?}"), to.is_some()),
            };
            match is_there {
                true => drop(self.0.insert(subject)),
                false => assert!(self.0.remove(&subject), "{subject} was there"),
            }
        }
    }
}

pub fn run(bytes: &[u8]) {
    let names =
        Names { interfaces: [(3, 0), (4, 1)].into(), loopback: Some(1), tables: [(254, 0), (10, 1)].into() };
    let (mut manager, mut now, mut known) = (Manager::new(names), Instant::ZERO, Known::default());
    let mut rest = bytes;
    while let [what, length, tail @ ..] = rest {
        let (head, tail) = tail.split_at(tail.len().min((*length).into()));
        match what & 3 {
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
        known.hear(&mut manager);
        rest = tail;
    }
    manager.handle_closed(now);
    manager.handle_timeout(now + HOLD);
    known.hear(&mut manager);
    assert!(known.0.is_empty() && manager.poll_timeout() == Instant::NEVER);
}
