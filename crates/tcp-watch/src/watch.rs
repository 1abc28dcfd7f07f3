//! What happens to the windows of a run's TCP flows, as the kernel tells it.
//!
//! Flows are known by their ends before they begin. Where they are sent from, in namespaces of this
//! machine or on this host, is the caller's business.

use super::filter::{Filter, MOST};
use super::flows::{Flow, Flows};
use super::programs::Programs;
use netstage_agent_api::results::{EndedWindow, Watched};
use netstage_agent_api::watch::{FlowSpec, WatchSpec};
use netstage_core::tcp::event::{FlowEvent, Kind};
use netstage_core::tcp::history::{Bin, History, Joined};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How often the kernel's ring is emptied: it holds what comes in many times as long.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// Programs in the kernel that tell of the flows.
pub struct Watch {
    spec: WatchSpec,
    programs: Box<Programs>,
}

impl Watch {
    /// Has the kernel tell from now on of senders in these network namespaces, by their numbers.
    pub fn start(spec: WatchSpec, namespaces: Vec<u64>) -> Result<Watch, Obstacle> {
        // In the kernel such a number has 32 bits.
        let mut namespaces: Vec<u32> = namespaces.into_iter().map(|number| number as u32).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        // Of more senders all that the kernel tells is looked through.
        if namespaces.len() > MOST {
            namespaces.clear();
        }
        let programs = Programs::load(Filter { namespaces, ..Filter::default() });
        let programs = programs.map_err(|obstacle| Obstacle {
            message: format!("[measure] tcp = \"events\": {}", obstacle.message),
            ..obstacle
        })?;
        Ok(Watch { spec, programs: Box::new(programs) })
    }

    /// The same, of senders in the network namespace of this thread.
    pub fn start_here(spec: WatchSpec) -> Result<Watch, Obstacle> {
        let own = Namespace::of_this_thread().and_then(|own| own.number());
        // Without its number all that the kernel tells is looked through.
        Watch::start(spec, own.into_iter().collect())
    }

    /// Watches until `over` is set; times count from `epoch`. `tell` hears of each bin of each flow soon
    /// after its end.
    pub fn run(self, epoch: Epoch, over: &AtomicBool, mut tell: impl FnMut(EndedWindow)) -> Watched {
        let Watch { spec, mut programs } = self;
        let mut seen = Seen::new(&spec);
        let mut flows = Flows::new(epoch.0);
        let mut told = 0;
        loop {
            // What came before the end is taken too.
            let over = over.load(Ordering::Relaxed);
            let now = epoch.now();
            programs.poll(|record, told| {
                flows.handle(record, told, &mut |flow, event| seen.handle(flow, event));
            });
            while told < spec.bins && Instant::ZERO + spec.interval * (told as u64 + 1) <= now {
                seen.ended(told, &mut tell);
                told += 1;
            }
            if over {
                break;
            }
            thread::sleep(LOOK);
        }
        Watched { flows: seen.finish(), lost: programs.lost(), missing: programs.missing().to_vec() }
    }
}

/// What was seen of each flow so far: of connections that are over, and of those under way.
struct Seen<'a> {
    spec: &'a WatchSpec,
    /// By the addresses of both ends, the flows between them.
    between: BTreeMap<(IpAddr, IpAddr), Vec<usize>>,
    joined: Vec<Joined>,
    /// By their numbers among those seen.
    open: BTreeMap<usize, (usize, History)>,
}

impl<'a> Seen<'a> {
    fn new(spec: &'a WatchSpec) -> Seen<'a> {
        let mut between: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, flow) in spec.flows.iter().enumerate() {
            between.entry((flow.source.address, flow.destination.address)).or_default().push(at);
        }
        let joined = vec![Joined::new(spec.interval, spec.bins); spec.flows.len()];
        Seen { spec, between, joined, open: BTreeMap::new() }
    }

    fn handle(&mut self, flow: &Flow, event: &FlowEvent) {
        if event.kind == Kind::Began
            && let Some(at) = self.whose(flow)
        {
            self.open.insert(flow.id, (at, History::growing(self.spec.interval, self.spec.bins)));
        }
        let Some((_, history)) = self.open.get_mut(&flow.id) else { return };
        history.handle(event);
        if event.kind == Kind::Ended
            && let Some((at, history)) = self.open.remove(&flow.id)
        {
            self.joined[at].add(&history.finish(event.time));
        }
    }

    /// The flow a connection is of, seen from its sender.
    fn whose(&self, flow: &Flow) -> Option<usize> {
        let candidates = self.between.get(&(flow.local.ip(), flow.remote.ip()))?;
        let is_of = |at: &&usize| {
            let FlowSpec { source, destination, .. } = &self.spec.flows[**at];
            source.is(flow.local) && destination.is(flow.remote)
        };
        candidates.iter().find(is_of).copied()
    }

    /// A bin of each flow as it stands, told under the flow's subject.
    fn ended(&self, bin: usize, tell: &mut impl FnMut(EndedWindow)) {
        for (at, flow) in self.spec.flows.iter().enumerate() {
            let mut joined = self.joined[at].only(bin);
            for (_, history) in self.open.values().filter(|(of, _)| *of == at) {
                joined.add(&[history.ended(bin)]);
            }
            let window = joined.finish()[0];
            tell(EndedWindow { subject: flow.subject.clone(), bin: bin as u32, window });
        }
    }

    fn finish(mut self) -> Vec<(String, Vec<Bin>)> {
        let end = Instant::ZERO + self.spec.interval * self.spec.bins as u64;
        for (at, history) in self.open.into_values() {
            self.joined[at].add(&history.finish(end));
        }
        let subjects = self.spec.flows.iter().map(|flow| flow.subject.clone());
        subjects.zip(self.joined.into_iter().map(Joined::finish)).collect()
    }
}
