//! Provider edge router as part of an agent's work. It forwards from the preparation of the run on, and is
//! sampled while the run lasts.

use super::work::{RunningTotals, wait};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::{CompletedVpn, ControlSample, Usage, VpnResult};
use netstage_agent_api::task::{Assignment, EdgeTask};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_pe::daemon::snapshot::FlowState;
use netstage_pe::daemon::{Level, PeDaemon, PeError};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Samples of the queues per bin.
const SAMPLES_PER_BIN: u64 = 10;

/// Forwarding router.
///
/// Dropping it stops the router, because a prepared run may never start.
pub struct ForwardingRouter {
    /// Present until the router is shut down.
    daemon: Option<PeDaemon>,
    alarms: Arc<Mutex<Vec<String>>>,
}

impl ForwardingRouter {
    /// Starts to forward.
    pub fn start(task: &EdgeTask) -> Result<ForwardingRouter, OrderRefusal> {
        let alarms = Arc::new(Mutex::new(Vec::new()));
        let logged = Arc::clone(&alarms);
        let log = move |level, line: &str| {
            if level == Level::Alarm {
                logged.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
            }
        };
        let daemon = PeDaemon::begin_text(&task.configuration, Arc::new(log)).map_err(refusal)?;
        Ok(ForwardingRouter { daemon: Some(daemon), alarms })
    }

    /// Samples the router from `epoch` until the assignment is over or `stop` becomes true, and reports
    /// completed bins.
    pub fn watch(
        &self,
        assignment: &Assignment,
        epoch: Epoch,
        stop: &AtomicBool,
        totals: &RunningTotals,
    ) -> RouterObservations {
        let bins = assignment.duration.0 / assignment.interval.0;
        let mut watched = RouterObservations::default();
        let mut seen: Vec<VpnObservations> = Vec::new();
        if wait(epoch, Instant::ZERO, stop) {
            watched.usage.push(usage());
        }
        for sample in 1..=bins * SAMPLES_PER_BIN {
            if !wait(epoch, Instant(assignment.interval.0 / SAMPLES_PER_BIN * sample), stop) {
                break;
            }
            let Some(snapshot) = self.daemon.as_ref().and_then(PeDaemon::show) else { break };
            if seen.is_empty() {
                seen.extend(snapshot.flows.iter().map(VpnObservations::new));
            }
            let ends_bin = sample % SAMPLES_PER_BIN == 0;
            for (seen, flow) in seen.iter_mut().zip(&snapshot.flows) {
                seen.look(flow, ends_bin);
            }
            if ends_bin {
                watched.usage.push(usage());
                let bin = (sample / SAMPLES_PER_BIN - 1) as u32;
                seen.iter().for_each(|seen| totals.end_vpn(seen.ended(bin)));
            }
        }
        watched.vpns = seen.into_iter().map(|seen| seen.result).collect();
        watched
    }

    /// Stops the router and returns its alarms.
    pub fn stop(mut self) -> Vec<String> {
        self.daemon.take().map(PeDaemon::end);
        std::mem::take(&mut *self.alarms.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ForwardingRouter {
    fn drop(&mut self) {
        self.daemon.take().map(PeDaemon::end);
    }
}

/// Observations of a router during a run.
#[derive(Default)]
pub struct RouterObservations {
    /// VPN flows.
    pub vpns: Vec<VpnResult>,
    /// Resources used by the process at the start and at the end of each bin.
    pub usage: Vec<Usage>,
}

/// Accumulated observations of one VPN flow.
struct VpnObservations {
    result: VpnResult,
    waiting: u64,
    drops: u64,
}

impl VpnObservations {
    fn new(flow: &FlowState) -> VpnObservations {
        let result = VpnResult { vpn: flow.peer.clone(), ..VpnResult::default() };
        VpnObservations { result, waiting: 0, drops: 0 }
    }

    fn look(&mut self, flow: &FlowState, ends_bin: bool) {
        self.waiting += flow.queue;
        if !ends_bin {
            return;
        }
        let drops = flow.queue_drops();
        self.result.queue.push(self.waiting as f64 / SAMPLES_PER_BIN as f64);
        self.result.queue_drops.push(drops - self.drops);
        (self.waiting, self.drops) = (0, drops);
        let window = flow.window.as_ref().map(|window| ControlSample {
            window: window.packets,
            increase: window.increase,
            decrease: window.decrease,
            permitted_bps: 0.0,
            loss: window.loss.unwrap_or_default(),
            round_trip_ns: window.round_trip_ns,
            lost: window.lost,
        });
        let rate = flow.rate.as_ref().map(|rate| ControlSample {
            permitted_bps: rate.permitted_bps,
            loss: rate.loss,
            round_trip_ns: rate.round_trip_ns,
            lost: rate.lost,
            ..ControlSample::default()
        });
        self.result.control.extend(window.or(rate));
    }

    /// Returns the last completed bin.
    fn ended(&self, bin: u32) -> CompletedVpn {
        let VpnResult { vpn, queue, queue_drops, control } = &self.result;
        CompletedVpn {
            vpn: vpn.clone(),
            bin,
            queue: queue.last().copied().unwrap_or_default(),
            queue_drops: queue_drops.last().copied().unwrap_or_default(),
            control: control.last().copied(),
        }
    }
}

/// Returns the resources this process has used so far.
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

fn refusal(error: PeError) -> OrderRefusal {
    match error {
        PeError::Configuration(errors) => OrderRefusal::new(OrderRefusalKind::Assignment, errors.to_string()),
        PeError::Machine(obstacle) => super::work::refusal(obstacle),
    }
}
