//! What happens to the windows of a run's TCP flows, as the kernel tells it.

use super::process::Failed;
use crate::clock::Epoch;
use crate::netns::Namespace;
use crate::obstacle::Obstacle;
use crate::tcpmon::filter::{Filter, MOST};
use crate::tcpmon::flows::{Flow, Flows};
use crate::tcpmon::programs::Programs;
use netstage_core::tcp::event::{FlowEvent, Kind};
use netstage_core::tcp::history::{Bin, History, Joined};
use netstage_core::time::{Duration, Instant};
use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// How often the kernel's ring is emptied: it holds what comes in many times as long.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// Flows to watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchSpec {
    /// Each flow.
    pub flows: Vec<FlowSpec>,
    /// Width of a bin.
    pub interval: Duration,
    /// Their number.
    pub bins: usize,
}

/// What one end of a flow sends: to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// The subject of what is seen.
    pub subject: String,
    /// Index of its sender's node.
    pub node: usize,
    /// The sender's end.
    pub source: End,
    /// The receiver's.
    pub destination: End,
}

/// One end of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Its port; none where programs choose.
    pub port: Option<u16>,
}

impl End {
    /// Of any port.
    pub fn any(address: IpAddr) -> End {
        End { address, port: None }
    }

    /// At one.
    pub fn at(address: SocketAddr) -> End {
        End { address: address.ip(), port: Some(address.port()) }
    }

    fn is(&self, end: SocketAddr) -> bool {
        self.address == end.ip() && self.port.is_none_or(|port| port == end.port())
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// Of each flow, by its subject.
    pub flows: Vec<(String, Vec<Bin>)>,
    /// What the kernel had no room to tell.
    pub lost: u64,
    /// What this kernel does not tell.
    pub missing: Vec<String>,
}

/// Programs in the kernel that tell of the flows.
pub struct Watch {
    spec: WatchSpec,
    state: State,
}

enum State {
    Loaded(Box<Programs>),
    Running(JoinHandle<Watched>),
    Over,
}

impl Watch {
    /// Has the kernel tell from now on. `nodes` are the network's namespaces.
    pub fn start(spec: WatchSpec, nodes: &[Option<Namespace>]) -> Result<Watch, Failed> {
        let mut namespaces: Vec<u32> = Vec::new();
        for flow in &spec.flows {
            let namespace = nodes[flow.node].as_ref().expect("a node with a flow is used");
            let number = fstat(namespace.as_fd()).map_err(|e| {
                Failed::broken(format!("[measure] tcp: cannot tell network namespaces apart: {e}"))
            })?;
            namespaces.push(number.st_ino as u32);
        }
        namespaces.sort_unstable();
        namespaces.dedup();
        // Of more senders all that the kernel tells is looked through.
        if namespaces.len() > MOST {
            namespaces.clear();
        }
        let programs = Programs::load(Filter { namespaces, ..Filter::default() });
        let programs = programs.map_err(|Obstacle { message, remedy, is_missing }| Failed {
            missing: is_missing,
            message: format!("[measure] tcp = \"events\": {message}"),
            remedy,
        })?;
        Ok(Watch { spec, state: State::Loaded(Box::new(programs)) })
    }

    /// Times count from `epoch`; it goes on until `stop` is set.
    pub fn run(&mut self, epoch: Epoch, stop: &Arc<AtomicBool>) {
        let State::Loaded(programs) = std::mem::replace(&mut self.state, State::Over) else { return };
        let (spec, stop) = (self.spec.clone(), Arc::clone(stop));
        self.state = State::Running(thread::spawn(move || watch(&spec, *programs, epoch, &stop)));
    }

    /// What was seen, once `stop` was set.
    pub fn finish(&mut self) -> Watched {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Running(thread) => thread.join().unwrap_or_default(),
            State::Loaded(_) | State::Over => Watched::default(),
        }
    }
}

fn watch(spec: &WatchSpec, mut programs: Programs, epoch: Epoch, stop: &AtomicBool) -> Watched {
    let mut seen = Seen::new(spec);
    let mut flows = Flows::new(epoch.0);
    loop {
        // What came before the end is taken too.
        let over = stop.load(Ordering::Relaxed);
        programs.poll(|record, told| {
            flows.handle(record, told, &mut |flow, event| seen.handle(flow, event));
        });
        if over {
            break;
        }
        thread::sleep(LOOK);
    }
    Watched { flows: seen.finish(), lost: programs.lost(), missing: programs.missing().to_vec() }
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

    fn finish(mut self) -> Vec<(String, Vec<Bin>)> {
        let end = Instant::ZERO + self.spec.interval * self.spec.bins as u64;
        for (at, history) in self.open.into_values() {
            self.joined[at].add(&history.finish(end));
        }
        let subjects = self.spec.flows.iter().map(|flow| flow.subject.clone());
        subjects.zip(self.joined.into_iter().map(Joined::finish)).collect()
    }
}
