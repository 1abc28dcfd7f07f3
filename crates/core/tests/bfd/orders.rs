//! Two speakers, explored exhaustively: packets are delivered in any order, lost and duplicated, and timeouts,
//! restarts and changes of the configuration come at any point. From every state, both sessions come up.

use crate::link::{PEERS, digest};
use netstage_core::bfd::{BfdAuthenticationConfig, BfdEvent, BfdSessionConfig, BfdSpeaker, TTL};
use netstage_core::time::{Duration, Instant};
use netstage_wire::bfd::{BfdPacket, BfdState, DigestKind};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};

/// Time after which both sessions are up.
const SETTLED: Duration = Duration::from_secs(20);

/// A change from outside.
#[derive(Clone, Copy, Debug)]
enum Change {
    Restart(usize),
    Enable(usize, bool),
    Interval(usize, u64),
}

/// Faults and timeouts that remain.
#[derive(Clone, Copy, Debug, Hash)]
struct Budget {
    losses: usize,
    duplicates: usize,
    timeouts: usize,
}

#[derive(Clone)]
struct World {
    now: Instant,
    speakers: [BfdSpeaker; 2],
    configs: [BfdSessionConfig; 2],
    /// Receiver and bytes of packets.
    in_flight: VecDeque<(usize, Vec<u8>)>,
    is_up: [bool; 2],
}

impl World {
    fn new(authentication: &BfdAuthenticationConfig) -> World {
        let config =
            BfdSessionConfig { authentication: authentication.clone(), ..BfdSessionConfig::default() };
        let mut world = World {
            now: Instant::ZERO,
            speakers: [BfdSpeaker::new(1, 1), BfdSpeaker::new(1, 2)],
            configs: [config.clone(), config],
            in_flight: VecDeque::new(),
            is_up: [false; 2],
        };
        for system in 0..2 {
            world.configure(system);
        }
        world
    }

    fn configure(&mut self, system: usize) {
        self.speakers[system].set_session(PEERS[system], self.configs[system].clone()).unwrap();
        self.drain(system);
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Restart(system) => {
                self.speakers[system] = BfdSpeaker::new(1, 3);
                self.is_up[system] = false;
                self.configure(system);
            }
            Change::Enable(system, is_enabled) => {
                self.configs[system].is_enabled = is_enabled;
                self.configure(system);
            }
            Change::Interval(system, milliseconds) => {
                self.configs[system].desired_min_tx = Duration::from_millis(milliseconds);
                self.configure(system);
            }
        }
    }

    fn deliver(&mut self, (to, bytes): &(usize, Vec<u8>)) {
        self.speakers[*to].handle_packet(self.now, PEERS[*to], TTL, bytes, Some(&digest));
        self.drain(*to);
    }

    fn next_timeout(&self) -> Instant {
        self.speakers[0].poll_timeout().min(self.speakers[1].poll_timeout())
    }

    fn handle_timeouts(&mut self) {
        self.now = self.now.max(self.next_timeout());
        for system in 0..2 {
            self.speakers[system].handle_timeout(self.now);
            self.drain(system);
        }
    }

    /// Collects packets and events, and checks that the events alternate.
    fn drain(&mut self, system: usize) {
        let speaker = &mut self.speakers[system];
        while let Some(transmit) = speaker.poll_transmit(self.now, Some(&digest)) {
            let packet = BfdPacket::read(&transmit.bytes).unwrap();
            assert!(!(packet.is_poll && packet.is_final));
            self.in_flight.push_back((1 - system, transmit.bytes));
        }
        while let Some(event) = speaker.poll_event() {
            let is_up = matches!(event, BfdEvent::Up { .. });
            assert_ne!(is_up, self.is_up[system]);
            self.is_up[system] = is_up;
        }
        assert_eq!(self.is_up[system], speaker.session(PEERS[system]).unwrap().state == BfdState::Up);
        assert!(speaker.poll_timeout() > self.now);
    }

    /// Runs without faults, and checks that both sessions are up and stay up.
    fn settle(&mut self) {
        let end = self.now + SETTLED;
        let mut last_down = self.now;
        while self.now < end {
            match self.in_flight.pop_front() {
                Some(packet) => self.deliver(&packet),
                None => self.handle_timeouts(),
            }
            if self.is_up != [true; 2] {
                last_down = self.now;
            }
        }
        assert!(last_down + Duration::from_secs(10) < end, "not up since {last_down:?}, end {end:?}");
    }

    /// Returns a hash of the state without times.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut in_flight: Vec<_> = self.in_flight.iter().collect();
        in_flight.sort();
        in_flight.hash(&mut hasher);
        for speaker in &self.speakers {
            let text = format!("{speaker:?}");
            let end = text.find("random: ").expect("random numbers");
            let is_time = |part: &str| part.contains('s') && part.contains('.') || part.contains("jitter");
            text[..end].split(", ").filter(|part| !is_time(part)).for_each(|part| part.hash(&mut hasher));
        }
        hasher.finish()
    }
}

struct Explorer {
    changes: Vec<Change>,
    seen: HashSet<u64>,
    settled: usize,
}

impl Explorer {
    fn explore(&mut self, world: &World, next_change: usize, budget: Budget) {
        let mut hasher = DefaultHasher::new();
        (world.fingerprint(), next_change, budget).hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        for position in 0..world.in_flight.len() {
            let mut delivered = world.clone();
            let packet = delivered.in_flight.remove(position).unwrap();
            if budget.losses > 0 {
                self.explore(&delivered, next_change, Budget { losses: budget.losses - 1, ..budget });
            }
            if budget.duplicates > 0 {
                let mut duplicated = delivered.clone();
                duplicated.deliver(&packet);
                duplicated.in_flight.push_back(packet.clone());
                self.explore(
                    &duplicated,
                    next_change,
                    Budget { duplicates: budget.duplicates - 1, ..budget },
                );
            }
            delivered.deliver(&packet);
            self.explore(&delivered, next_change, budget);
        }
        if let Some(change) = self.changes.get(next_change) {
            let mut changed = world.clone();
            changed.change(*change);
            self.explore(&changed, next_change + 1, budget);
        } else {
            self.settled += 1;
            world.clone().settle();
        }
        if budget.timeouts > 0 {
            let mut later = world.clone();
            later.handle_timeouts();
            self.explore(&later, next_change, Budget { timeouts: budget.timeouts - 1, ..budget });
        }
    }
}

fn explore(world: &World, changes: &[Change], budget: Budget) {
    let mut explorer = Explorer { changes: changes.to_vec(), seen: HashSet::new(), settled: 0 };
    explorer.explore(world, 0, budget);
    println!("{changes:?} {budget:?}: {} states, {} final ones", explorer.seen.len(), explorer.settled);
    assert!(explorer.seen.len() > 50 && explorer.settled > 10);
}

const BUDGET: Budget = Budget { losses: 1, duplicates: 1, timeouts: 2 };

#[test]
fn sessions_come_up_in_every_order() {
    let meticulous = BfdAuthenticationConfig::Digest { kind: DigestKind::MeticulousSha1, key: 1 };
    for authentication in [BfdAuthenticationConfig::None, meticulous] {
        explore(&World::new(&authentication), &[], BUDGET);
    }
}

#[test]
fn sessions_recover_from_changes_in_every_order() {
    let mut up = World::new(&BfdAuthenticationConfig::None);
    up.settle();
    let fewer = Budget { duplicates: 0, timeouts: 1, ..BUDGET };
    for (changes, budget) in [
        (&[Change::Restart(0)][..], BUDGET),
        (&[Change::Interval(0, 2_000), Change::Interval(0, 100)], BUDGET),
        (&[Change::Enable(1, false), Change::Enable(1, true)], Budget { timeouts: 1, ..BUDGET }),
        (&[Change::Enable(0, false), Change::Restart(1), Change::Enable(0, true)], fewer),
    ] {
        explore(&up, changes, budget);
    }
}
