//! A provider edge router as part of an agent's work: forwards from when the run is prepared,
//! and is looked at while it lasts.

use super::work::{Totals, wait};
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::results::{EndedVpn, Usage, VpnResult, WindowSample};
use netstage_agent_api::task::{Assignment, EdgeTask};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_pe::daemon::snapshot::FlowState;
use netstage_pe::daemon::{Daemon, Error, Level};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Looks at the queues in one bin.
const LOOKS: u64 = 10;

/// A router that forwards.
///
/// It ends with this value, too: what is prepared need not begin.
pub struct Edge {
    /// There until the end.
    daemon: Option<Daemon>,
    alarms: Arc<Mutex<Vec<String>>>,
}

impl Edge {
    /// Begins to forward.
    pub fn begin(task: &EdgeTask) -> Result<Edge, Refusal> {
        let alarms = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&alarms);
        let log = move |level, line: &str| {
            if level == Level::Alarm {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
            }
        };
        let daemon = Daemon::begin_text(&task.configuration, Arc::new(log)).map_err(refusal)?;
        Ok(Edge { daemon: Some(daemon), alarms })
    }

    /// Looks at it from `epoch` until the assignment is over or `stop` becomes true, and tells of bins as
    /// they end.
    pub fn watch(
        &self,
        assignment: &Assignment,
        epoch: Epoch,
        stop: &AtomicBool,
        totals: &Totals,
    ) -> Watched {
        let bins = assignment.duration.0 / assignment.interval.0;
        let mut watched = Watched::default();
        let mut seen: Vec<Seen> = Vec::new();
        if wait(epoch, Instant::ZERO, stop) {
            watched.usage.push(usage());
        }
        for look in 1..=bins * LOOKS {
            if !wait(epoch, Instant(assignment.interval.0 / LOOKS * look), stop) {
                break;
            }
            let Some(snapshot) = self.daemon.as_ref().and_then(Daemon::show) else { break };
            if seen.is_empty() {
                seen.extend(snapshot.flows.iter().map(Seen::new));
            }
            let ends_bin = look % LOOKS == 0;
            for (seen, flow) in seen.iter_mut().zip(&snapshot.flows) {
                seen.look(flow, ends_bin);
            }
            if ends_bin {
                watched.usage.push(usage());
                let bin = (look / LOOKS - 1) as u32;
                seen.iter().for_each(|seen| totals.end_vpn(seen.ended(bin)));
            }
        }
        watched.vpns = seen.into_iter().map(|seen| seen.result).collect();
        watched
    }

    /// Ends it; gives what it had to complain of.
    pub fn end(mut self) -> Vec<String> {
        self.daemon.take().map(Daemon::end);
        std::mem::take(&mut *self.alarms.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.daemon.take().map(Daemon::end);
    }
}

/// What was seen of a router in a run.
#[derive(Default)]
pub struct Watched {
    /// Its VPN flows.
    pub vpns: Vec<VpnResult>,
    /// What it took: at the start, and at the end of each bin.
    pub usage: Vec<Usage>,
}

/// What has been seen of a VPN flow.
struct Seen {
    result: VpnResult,
    waiting: u64,
    drops: u64,
}

impl Seen {
    fn new(flow: &FlowState) -> Seen {
        let result = VpnResult { vpn: flow.peer.clone(), ..VpnResult::default() };
        Seen { result, waiting: 0, drops: 0 }
    }

    fn look(&mut self, flow: &FlowState, ends_bin: bool) {
        self.waiting += flow.queue;
        if !ends_bin {
            return;
        }
        let drops = flow.counters.get("queue_full").copied().unwrap_or_default();
        self.result.queue.push(self.waiting as f64 / LOOKS as f64);
        self.result.queue_drops.push(drops - self.drops);
        (self.waiting, self.drops) = (0, drops);
        self.result.window.extend(flow.window.as_ref().map(|window| WindowSample {
            window: window.packets,
            increase: window.increase,
            decrease: window.decrease,
            loss: window.loss.unwrap_or_default(),
            round_trip_ns: window.round_trip_ns,
            lost: window.lost,
        }));
    }

    /// The bin that ended last.
    fn ended(&self, bin: u32) -> EndedVpn {
        let VpnResult { vpn, queue, queue_drops, window } = &self.result;
        EndedVpn {
            vpn: vpn.clone(),
            bin,
            queue: queue.last().copied().unwrap_or_default(),
            queue_drops: queue_drops.last().copied().unwrap_or_default(),
            window: window.last().copied(),
        }
    }
}

/// What this process has taken so far.
fn usage() -> Usage {
    let nanoseconds = |time: TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64;
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or_default();
    let Ok(taken) = getrusage(UsageWho::RUSAGE_SELF) else { return Usage::default() };
    Usage {
        user_ns: nanoseconds(taken.user_time()),
        system_ns: nanoseconds(taken.system_time()),
        resident: resident * page,
    }
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Configuration(errors) => Refusal::new(RefusalKind::Assignment, errors.to_string()),
        Error::Machine(obstacle) => super::work::refusal(obstacle),
    }
}
