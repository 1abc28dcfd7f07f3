//! RSVP-TE speakers in small networks, explored exhaustively: messages are lost, duplicated and reordered, and requests,
//! removals and timers come at any point. In larger networks, the same checks follow random runs.

use crate::network::{DELAY, InFlight, Network, config, router_id};
use netstage_core::rng::RandomStream;
use netstage_core::rsvp::{EgressLabel, RsvpConfig, TunnelRequest};
use netstage_core::time::{Duration, Instant};
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::route::RouteHop;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash as _, Hasher as _};

/// Time after which all state without refreshes is gone, and all labels have left their quarantine.
const SETTLED: Duration = Duration::from_secs(900);
/// Time before the end of that within which a tunnel without an LSP has reported a failure: two refresh periods.
const REPORTED: Duration = Duration::from_secs(120);

/// A change from outside.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Sets tunnel 1 of the first router to the last one, with a bandwidth.
    Set(u64),
    Remove,
    Link(usize, bool),
    Restart(usize),
}

fn change(network: &mut Network, change: Change) {
    match change {
        Change::Set(bandwidth) => {
            let routers: Vec<usize> = (0..network.speakers.len()).collect();
            let request = network.request(routers.len() - 1, network.strict(&routers), bandwidth);
            network.set_tunnel((0, 1), request);
        }
        Change::Remove => network.remove_tunnel((0, 1)),
        Change::Link(link, is_up) => network.set_link(link, is_up),
        Change::Restart(router) => network.restart(router),
    }
}

/// Faults and timeouts that remain.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Budget {
    losses: usize,
    duplicates: usize,
    timeouts: usize,
}

/// Exhaustive exploration of a network.
struct Explorer {
    changes: Vec<Change>,
    seen: HashSet<u64>,
    settled: usize,
}

impl Explorer {
    fn explore(&mut self, network: &Network, next_change: usize, budget: Budget) {
        if !self.seen.insert(fingerprint(network, next_change, budget)) {
            return;
        }
        network.check();
        for position in 0..network.in_flight.len() {
            let packet = network.in_flight[position].clone();
            let mut delivered = network.clone();
            delivered.in_flight.remove(position);
            let lost = delivered.clone();
            delivered.deliver(&packet);
            self.explore(&delivered, next_change, budget);
            if budget.losses > 0 {
                self.explore(&lost, next_change, Budget { losses: budget.losses - 1, ..budget });
            }
            if budget.duplicates > 0 {
                delivered.in_flight.push(packet);
                self.explore(&delivered, next_change, Budget { duplicates: budget.duplicates - 1, ..budget });
            }
        }
        if let Some(next) = self.changes.get(next_change) {
            let mut changed = network.clone();
            change(&mut changed, *next);
            self.explore(&changed, next_change + 1, budget);
        }
        if budget.timeouts > 0 && network.next_timeout() < Instant::NEVER {
            let mut later = network.clone();
            later.now = later.now.max(later.next_timeout());
            later.handle_timeouts();
            self.explore(&later, next_change, Budget { timeouts: budget.timeouts - 1, ..budget });
        }
        if network.in_flight.is_empty() && next_change == self.changes.len() {
            let mut settled = network.clone();
            settle(&mut settled);
            self.settled += 1;
        }
    }
}

/// Returns a hash of the state, without the times at which timers expire, but with their order at each router.
fn fingerprint(network: &Network, next_change: usize, budget: Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    let message = |packet: &InFlight| (packet.to, packet.interface, packet.message.bytes.clone());
    let mut in_flight: Vec<_> = network.in_flight.iter().map(message).collect();
    in_flight.sort();
    (in_flight, next_change, budget).hash(&mut hasher);
    for speaker in &network.speakers {
        let text = format!("{speaker:?}");
        let state = text.find("neighbors: ").expect("neighbors");
        let agenda = text.find("agenda: ").expect("agenda");
        let ordered = agenda + text[agenda..].find("ordered: ").expect("ordered timers");
        let random = text.find("random: ").expect("random numbers");
        text[state..agenda].hash(&mut hasher);
        text[ordered..random]
            .split(", ")
            .filter(|part| !is_time(part))
            .for_each(|part| part.hash(&mut hasher));
    }
    hasher.finish()
}

/// Returns whether a part of a formatted set of timers is a time, such as "{(1.000000000s".
fn is_time(part: &str) -> bool {
    part.contains('(') && part.ends_with('s') && part.contains('.')
}

pub fn settle(network: &mut Network) {
    network.run(SETTLED);
    let reported = Instant(network.now.0 - REPORTED.0);
    network.check_settled(reported);
}

pub fn explore(network: &Network, changes: &[Change], budget: Budget) -> (usize, usize) {
    let mut explorer = Explorer { changes: changes.to_vec(), seen: HashSet::new(), settled: 0 };
    explorer.explore(network, 0, budget);
    println!("{changes:?} {budget:?}: {} states, {} final ones", explorer.seen.len(), explorer.settled);
    (explorer.seen.len(), explorer.settled)
}

/// Budgets of losses, duplicates and timeouts.
pub const fn budget(losses: usize, duplicates: usize, timeouts: usize) -> Budget {
    Budget { losses, duplicates, timeouts }
}

#[test]
fn setup_and_teardown_in_every_order() {
    for (routers, reduces_refreshes, budget) in [
        (2, false, budget(2, 2, 2)),
        (3, false, budget(1, 1, 1)),
        (4, false, budget(1, 1, 0)),
        (2, true, budget(1, 1, 1)),
        (3, true, budget(1, 0, 0)),
        (4, true, budget(0, 0, 0)),
    ] {
        let network = Network::chain(routers, reduces_refreshes);
        let (states, settled) = explore(&network, &[Change::Set(0), Change::Remove], budget);
        assert!(states > 100 && settled > 1, "{states} states");
    }
}

#[test]
fn an_lsp_is_replaced_in_every_order() {
    for (routers, reduces_refreshes, budget) in
        [(2, false, budget(1, 0, 0)), (2, true, budget(0, 0, 0)), (3, false, budget(0, 0, 0))]
    {
        let mut network = Network::chain(routers, reduces_refreshes);
        change(&mut network, Change::Set(1000));
        network.run(Duration::from_secs(1));
        assert!(network.is_up((0, 1)));
        let changes = [Change::Set(2000), Change::Set(500), Change::Remove];
        explore(&network, &changes[usize::from(reduces_refreshes)..], budget);
    }
}

#[test]
fn routers_and_links_fail_in_every_order() {
    for reduces_refreshes in [false, true] {
        let network = Network::chain(3, reduces_refreshes);
        for router in 0..3 {
            let losses = usize::from(!reduces_refreshes);
            explore(&network, &[Change::Set(0), Change::Restart(router)], budget(losses, 0, 0));
        }
        let flap = [Change::Set(0), Change::Link(1, false), Change::Link(1, true), Change::Remove];
        explore(&network, &flap, budget(0, 0, usize::from(!reduces_refreshes)));
    }
}

/// A random run in a random network.
pub struct RandomRun {
    /// Links have bypasses, and tunnels are protected and have strict routes.
    is_protected: bool,
    /// Routers have few labels. They then do not restart, because a new instance would soon allocate a label that its
    /// neighbors still use.
    has_few_labels: bool,
    pub random: RandomStream,
    pub network: Network,
    loss: f64,
    duplicates: f64,
    max_delay: u64,
}

impl RandomRun {
    pub fn new(seed: u64, is_protected: bool) -> RandomRun {
        let mut random = RandomStream::new(seed, "rsvp network");
        let routers = 2 + random.below(7) as usize;
        let mut links: Vec<(usize, usize)> =
            (1..routers).map(|router| (random.below(router as u64) as usize, router)).collect();
        for _ in 0..random.below(routers as u64) + if is_protected { 3 } else { 0 } {
            let (first, second) =
                (random.below(routers as u64) as usize, random.below(routers as u64) as usize);
            if first != second {
                links.push((first.min(second), first.max(second)));
            }
        }
        let has_few_labels = random.chance(0.5);
        let last = if has_few_labels { LabelValue::new(18).unwrap() } else { LabelValue::MAX };
        let hello = random.chance(0.5).then_some(Duration::from_secs(9));
        let configs = (0..routers).map(|router| RsvpConfig {
            reduces_refreshes: random.chance(0.7),
            labels: LabelValue::FIRST_UNRESERVED..=last,
            hello,
            seed: seed + router as u64,
            max_paths: 1 + random.below(10) as usize,
            egress: [EgressLabel::ImplicitNull, EgressLabel::ExplicitNull, EgressLabel::Own]
                [random.below(3) as usize],
            ..config(router)
        });
        let configs = configs.collect();
        let capacity = random.chance(0.5).then_some(1000);
        let mut network = Network::new(configs, &links, capacity);
        for link in 0..links.len() {
            network.set_bypass(link, random.chance(if is_protected { 0.8 } else { 0.3 }));
        }
        let (loss, duplicates) = (random.uniform() * 0.3, random.uniform() * 0.2);
        let max_delay = [DELAY.0, 100_000_000, 2_000_000_000][random.below(3) as usize];
        RandomRun { is_protected, has_few_labels, random, network, loss, duplicates, max_delay }
    }

    /// Delays, duplicates or drops the messages that were sent since the last call.
    fn disturb(&mut self, old: usize) {
        for packet in self.network.in_flight.split_off(old) {
            let copies = 1 + usize::from(self.random.chance(self.duplicates));
            for _ in 0..copies {
                if !self.random.chance(self.loss) {
                    let delay = Duration(1 + self.random.below(self.max_delay));
                    self.network
                        .in_flight
                        .push(InFlight { arrives: self.network.now + delay, ..packet.clone() });
                }
            }
        }
    }

    fn change(&mut self) {
        let routers = self.network.speakers.len() as u64;
        let router = self.random.below(routers) as usize;
        let key = (router, 1 + self.random.below(3) as u16);
        match self.random.below(10) {
            0..=5 => {
                let endpoint = self.random.below(routers) as usize;
                let bandwidth = self.random.below(700);
                let via = self.random.below(routers) as usize;
                let strict = self.network.shortest(router, endpoint);
                let route = match self.random.below(if self.is_protected { 8 } else { 4 }) {
                    0 => [].into(),
                    1 | 2 => [RouteHop::loose(router_id(via))].into(),
                    _ => strict.unwrap_or_default(),
                };
                let request = self.network.request(endpoint, route, bandwidth);
                let is_protected = self.random.chance(if self.is_protected { 0.9 } else { 0.5 });
                self.network.set_tunnel(key, TunnelRequest { is_protected, ..request });
            }
            6 | 7 => self.network.remove_tunnel(key),
            8 => {
                let link = self.random.below(self.network.links.len() as u64) as usize;
                let is_up = self.network.up[link];
                self.network.set_link(link, !is_up);
            }
            _ if self.has_few_labels => {}
            _ => self.network.restart(router),
        }
    }

    /// Makes random changes, without an end of the losses.
    pub fn run(&mut self, changes: usize) {
        for _ in 0..changes {
            let old = self.network.in_flight.len();
            self.change();
            let old = old.min(self.network.in_flight.len());
            self.disturb(old);
            self.network.check();
            let end = self.network.now + Duration(self.random.below(60_000_000_000));
            while self.step(end) {}
        }
    }

    /// Ends all failures and losses, and checks the state that remains.
    pub fn settle(&mut self) {
        for link in 0..self.network.links.len() {
            if !self.network.up[link] {
                self.network.set_link(link, true);
            }
        }
        settle(&mut self.network);
    }

    /// Handles the next arrival or timeout before `end`.
    fn step(&mut self, end: Instant) -> bool {
        let first = self.network.in_flight.iter().enumerate().min_by_key(|(_, packet)| packet.arrives);
        let (position, arrival) =
            first.map_or((0, Instant::NEVER), |(position, packet)| (position, packet.arrives));
        let next = arrival.min(self.network.next_timeout());
        self.network.now = self.network.now.max(next.min(end));
        if next > end {
            return false;
        }
        let is_arrival = arrival <= next;
        let packet = is_arrival.then(|| self.network.in_flight.swap_remove(position));
        let old = self.network.in_flight.len();
        match packet {
            Some(packet) => self.network.deliver(&packet),
            None => self.network.handle_timeouts(),
        }
        self.disturb(old);
        self.network.check();
        true
    }
}

/// Number of random runs of a test.
pub fn seeds() -> u64 {
    std::env::var("NETSTAGE_RSVP_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

#[test]
fn random_runs_settle() {
    let seeds = seeds();
    let first = netstage_harness::seed("RSVP-TE networks");
    let mut reports = BTreeMap::new();
    for seed in 0..seeds {
        let seed = first.wrapping_add(seed);
        println!("seed {seed}");
        let mut run = RandomRun::new(seed, false);
        run.run(20);
        run.settle();
        for (name, count) in run.network.reports {
            *reports.entry(name).or_insert(0) += count;
        }
    }
    println!("{reports:?}");
    if seeds >= 200 {
        for name in [
            "up",
            "down",
            "failed",
            "forward",
            "discard",
            "repaired",
            "neighbor up",
            "neighbor down",
            "limited",
        ] {
            assert!(reports.contains_key(name), "{name}: {reports:?}");
        }
    }
}
