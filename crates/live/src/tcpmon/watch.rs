//! What happens to the windows of a run's TCP flows, as the kernel tells it.
//!
//! Flows are known by their ends before they begin. Where they are sent from, in namespaces of this
//! machine or on this host, is the caller's business.

use super::filter::{Filter, MOST};
use super::flows::Flows;
use super::programs::Programs;
use crate::clock::Epoch;
use crate::netns::Namespace;
use crate::obstacle::Obstacle;
use crate::results::{EndedWindow, Watched};
use crate::task::{Assignment, FlowTask, Side, Transport};
use netstage_core::tcp::history::{Bin, History};
use netstage_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

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
    /// Its number.
    pub id: u32,
    /// The sender's address.
    pub source: IpAddr,
    /// Where the receiver listens.
    pub destination: SocketAddr,
}

impl WatchSpec {
    /// The flows that assignments send and of which the kernel can tell: those of one connection, whose
    /// ends are known. None where nobody asks for it, or there are none.
    pub fn of<'a>(assignments: impl IntoIterator<Item = &'a Assignment>) -> Option<WatchSpec> {
        let mut spec: Option<WatchSpec> = None;
        for assignment in assignments.into_iter().filter(|assignment| assignment.tcp_events) {
            let flows = assignment.flows.iter().filter(|flow| is_told_of(flow)).map(|flow| FlowSpec {
                id: flow.id,
                source: flow.source.ip(),
                destination: flow.destination,
            });
            let Assignment { interval, duration, .. } = *assignment;
            let bins = (duration.0 / interval.0) as usize;
            let spec = spec.get_or_insert(WatchSpec { flows: Vec::new(), interval, bins });
            spec.flows.extend(flows);
        }
        spec.filter(|spec| !spec.flows.is_empty())
    }
}

/// Whether the kernel can tell of a flow's windows.
pub fn is_told_of(flow: &FlowTask) -> bool {
    let is_connection = matches!(flow.transport, Transport::Tcp(_)) && flow.traffic.pattern().is_some();
    flow.side == Side::Send && is_connection
}

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
        let known: BTreeMap<(IpAddr, SocketAddr), usize> =
            spec.flows.iter().enumerate().map(|(at, flow)| ((flow.source, flow.destination), at)).collect();
        let mut histories = vec![History::new(spec.interval, spec.bins); spec.flows.len()];
        let mut flows = Flows::new(epoch.0);
        let mut told = 0;
        loop {
            // What came before the end is taken too.
            let over = over.load(Ordering::Relaxed);
            let now = epoch.now();
            programs.poll(|record, told| {
                flows.handle(record, told, &mut |flow, event| {
                    if let Some(&at) = known.get(&(flow.local.ip(), flow.remote)) {
                        histories[at].handle(event);
                    }
                });
            });
            while told < spec.bins && Instant::ZERO + spec.interval * (told as u64 + 1) <= now {
                for (flow, history) in spec.flows.iter().zip(&histories) {
                    tell(EndedWindow { flow: flow.id, bin: told as u32, window: history.ended(told) });
                }
                told += 1;
            }
            if over {
                break;
            }
            thread::sleep(LOOK);
        }
        let end = Instant::ZERO + spec.interval * spec.bins as u64;
        let bins = histories.into_iter().map(|history| history.finish(end));
        let flows: Vec<(u32, Vec<Bin>)> = spec.flows.iter().map(|flow| flow.id).zip(bins).collect();
        Watched { flows, lost: programs.lost(), missing: programs.missing().to_vec() }
    }
}
