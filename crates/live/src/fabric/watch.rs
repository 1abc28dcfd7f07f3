//! What happens to the windows of a run's TCP flows, as the kernel tells it.

use super::process::Failed;
use crate::clock::Epoch;
use crate::netns::Namespace;
use crate::obstacle::Obstacle;
use crate::tcpmon::filter::{Filter, MOST};
use crate::tcpmon::flows::Flows;
use crate::tcpmon::programs::Programs;
use netstage_core::tcp::history::{Bin, History};
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

/// A flow to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// Its number among the plan's.
    pub id: usize,
    /// Index of its sender's node.
    pub node: usize,
    /// The sender's address.
    pub source: IpAddr,
    /// Where the receiver listens.
    pub destination: SocketAddr,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// Of each flow, by its number.
    pub flows: Vec<(usize, Vec<Bin>)>,
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
    let known: BTreeMap<(IpAddr, SocketAddr), usize> =
        spec.flows.iter().enumerate().map(|(at, flow)| ((flow.source, flow.destination), at)).collect();
    let mut histories = vec![History::new(spec.interval, spec.bins); spec.flows.len()];
    let mut flows = Flows::new(epoch.0);
    loop {
        // What came before the end is taken too.
        let over = stop.load(Ordering::Relaxed);
        programs.poll(|record, told| {
            flows.handle(record, told, &mut |flow, event| {
                if let Some(&at) = known.get(&(flow.local.ip(), flow.remote)) {
                    histories[at].handle(event);
                }
            });
        });
        if over {
            break;
        }
        thread::sleep(LOOK);
    }
    let end = Instant::ZERO + spec.interval * spec.bins as u64;
    let bins = histories.into_iter().map(|history| history.finish(end));
    Watched {
        flows: spec.flows.iter().map(|flow| flow.id).zip(bins).collect(),
        lost: programs.lost(),
        missing: programs.missing().to_vec(),
    }
}
