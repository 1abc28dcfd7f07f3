//! Connection of the controller to one agent: version, clock offset, heartbeats and report.

use super::address::AgentAddress;
use super::error::ControllerError;
use netstage_agent_api::path::NatMapping;
use netstage_agent_api::protocol::generated::agent_client::AgentClient;
use netstage_agent_api::protocol::generated::{
    ClockState, CollectRequest, Heartbeat, HelloReply, HelloRequest, KeptRequest, Progress, ReadClockReply,
    ReadClockRequest, ReportHead, report_chunk::Content,
};
use netstage_agent_api::protocol::{
    HEARTBEAT, MAX_REPORT_BYTES, MAX_UNANSWERED_HEARTBEATS, OrderRefusal, VERSIONS, common_version,
    displayable, read_report,
};
use netstage_agent_api::results::{AgentReport, CompletedBins};
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::Lease;
use netstage_core::measure::{ClockOffset, Exchange, OffsetEstimator};
use netstage_host::clock::{self, monotonic_ns};
use std::collections::BTreeSet;
use std::error::Error as _;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// Time limit of a call that needs no work at the agent.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of clock exchanges. The one with the shortest round trip determines the offset.
const CLOCK_EXCHANGES: u32 = 8;
/// Maximum number of attempts to fetch a report from an agent that is repeatedly absent.
const COLLECT_ATTEMPTS: u32 = 10;
/// Time after a failed call within which the absence of the agent is noticed.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time in addition to its lease in which an absent agent has to return. It stops its run, and dials again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which all sockets of a killed controller are closed.
const HUB_END: Duration = Duration::from_millis(50);
/// Interval of attempts to reach an absent agent, and the time limit of an attempt.
const REJOIN_DELAYS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(3));
/// Maximum number of messages from an agent between two heartbeats. It reports each change, and ten bins.
const MAX_MESSAGES: u32 = 100;
/// Maximum size of the parts of a report, bytes: of the agent and of each flow with its histograms, of each
/// bin of a flow, and of each bin of a router with all its VPNs.
const REPORT_BYTES: u64 = 16 << 20;
const BIN_BYTES: u64 = 4 << 10;
const VPN_BYTES: u64 = 256 << 10;

/// Run that an earlier controller started, and the assignment of an agent in it.
pub type ResumedRun = (u64, Assignment);

/// Connection to an agent that this controller owns.
#[derive(Clone)]
pub struct AgentConnection {
    /// Name of the agent.
    pub name: String,
    /// gRPC client of the current connection.
    client: Arc<Mutex<AgentClient<Channel>>>,
    /// Offset of the agent's clock from the controller's.
    pub clock: ClockOffset,
    /// Addresses of the agent's host that flows may use, where the agent announces them.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the agent's host as the fleet's controller sees them.
    pub mappings: Vec<NatMapping>,
    /// Identifier of the agent's clock.
    identity: String,
    /// Bins the agent may report, and those it has reported.
    reported: Arc<Mutex<ReportedBins>>,
    /// Lease of the started run, nanoseconds; zero if it has none.
    lease_ns: Arc<AtomicU64>,
    seen: watch::Receiver<AgentState>,
}

/// Last state of an agent.
#[derive(Clone, Debug, Default)]
pub struct AgentState {
    /// Last progress message.
    pub progress: Progress,
    /// Time of the loss (nanoseconds of the controller's monotonic clock), and its reason.
    pub lost: Option<(u64, String)>,
    /// Time since which the agent, whose run has a lease, is absent.
    pub absent_since: Option<u64>,
    /// Start and end of each absence that is over.
    pub absences: Vec<(u64, u64)>,
    /// Run that ended while the agent was absent, and whose report it stores.
    pub stored_run: Option<u64>,
}

impl AgentConnection {
    /// Connects, negotiates the version, acquires the agent and estimates its clock offset, all before
    /// `deadline`. The agent may be in progress with the run and assignment of `resumed`.
    pub async fn connect(
        name: String,
        place: AgentAddress,
        controller: u64,
        resumed: Option<ResumedRun>,
        deadline: Instant,
    ) -> Result<AgentConnection, ControllerError> {
        let at = place.to_string();
        let unreachable =
            |reason: String| ControllerError::Unreachable { agent: name.clone(), place: at.clone(), reason };
        let within = deadline.duration_since(Instant::now());
        let no_answer = || unreachable(format!("connected, but no answer within {within:.1?}"));

        let hub = if let AgentAddress::Fleet(socket) = &place { Some(socket.clone()) } else { None };
        let channel = place.dial(&name, deadline).await?;
        let mut client = AgentClient::new(channel);
        let hello = timeout_at(deadline, query_identity(&mut client)).await.map_err(|_| no_answer())?;
        let hello = hello.map_err(|status| unreachable(describe(&status)))?;
        if common_version(hello.oldest_version, hello.newest_version).is_none() {
            let speaks = (hello.oldest_version, hello.newest_version);
            return Err(ControllerError::Version { agent: name, tool: displayable(&hello.tool), speaks });
        }
        let attended =
            timeout_at(deadline, attend(&mut client, controller)).await.map_err(|_| no_answer())?;
        let (heartbeats, mut progress) = attended.map_err(|status| unreachable(describe(&status)))?;
        let first = timeout_at(deadline, progress.message()).await.map_err(|_| no_answer())?;
        let first = match first {
            Ok(Some(first)) => first,
            Ok(None) => return Err(unreachable("the agent ended".into())),
            Err(status) => return Err(unreachable(describe(&status))),
        };
        if let Some(refusal) = first.refusal {
            return Err(ControllerError::Refused(vec![(name, refusal.into())]));
        }
        // From here on the agent needs heartbeats, even while the clocks of many other agents are read.
        let (watched, seen) = watch::channel(AgentState { progress: first, ..AgentState::default() });
        let keeper = Attendance {
            name: name.clone(),
            hub,
            controller,
            client: Arc::new(Mutex::new(client.clone())),
            watched,
            reported: Arc::new(Mutex::new(
                resumed.map_or_else(ReportedBins::default, |(run, assignment)| {
                    ReportedBins::of(run, &assignment, true)
                }),
            )),
            lease_ns: Arc::default(),
        };
        let (reported, lease_ns) = (Arc::clone(&keeper.reported), Arc::clone(&keeper.lease_ns));
        let current = Arc::clone(&keeper.client);
        let kept = tokio::spawn(keeper.keep(heartbeats, progress));
        let read = timeout_at(deadline, offset(&mut client, &hello.clock)).await;
        let clock = read.map_err(|_| no_answer()).and_then(|clock| clock.map_err(unreachable));
        let clock = clock.inspect_err(|_| kept.abort())?;
        let addresses = hello.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let mappings = hello.mappings.iter().filter_map(|mapping| mapping.try_into().ok()).collect();
        let identity = hello.clock;
        Ok(AgentConnection {
            name,
            client: current,
            clock,
            addresses,
            mappings,
            identity,
            reported,
            lease_ns,
            seen,
        })
    }

    /// Returns a client of the current connection.
    pub fn client(&self) -> AgentClient<Channel> {
        lock(&self.client).clone()
    }

    /// Sets the lease of the run that has started, or zero for none. If the agent is lost, its return is awaited.
    pub fn set_lease(&self, lease: Duration) {
        self.lease_ns.store(lease.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Waits after a failed call until the agent is back. Returns false if it is not absent, or lost.
    async fn has_returned(&self) -> bool {
        let mut seen = self.seen.clone();
        let is_away = |seen: &AgentState| seen.absent_since.is_some() || seen.lost.is_some();
        // The failure may be noticed before the absence.
        let away = timeout(NOTICE_TIMEOUT, seen.wait_for(is_away)).await.is_ok_and(|away| away.is_ok());
        let back = seen.wait_for(|seen| seen.absent_since.is_none());
        away && back.await.is_ok_and(|seen| seen.lost.is_none())
    }

    /// Sets the run for which the agent may report bins. Called before the agent prepares the run.
    pub fn expect_bins(&self, run: u64, assignment: &Assignment, report_bins: bool) {
        let mut reported = lock(&self.reported);
        *reported = ReportedBins { previous: reported.run, ..ReportedBins::of(run, assignment, report_bins) };
    }

    /// Returns the maximum size of the agent's report for the run, bytes.
    pub fn max_report_bytes(&self) -> u64 {
        lock(&self.reported).longest_report
    }

    /// Returns the bins reported since the previous call.
    pub fn take_completed(&self) -> CompletedBins {
        std::mem::take(&mut lock(&self.reported).ended)
    }

    /// Returns the identifier of its clock, equal for all agents that read the same clock. Empty if the agent
    /// does not announce it.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Measures the clock offset again.
    pub async fn read_clock(&self) -> Result<ClockOffset, String> {
        if let Some((_, reason)) = self.state().lost {
            return Err(reason);
        }
        let mut client = self.client();
        timeout(ANSWER_TIMEOUT, offset(&mut client, &self.identity))
            .await
            .map_err(|_| format!("no answer within {ANSWER_TIMEOUT:.0?}"))?
    }

    /// Returns the last state of the agent.
    pub fn state(&self) -> AgentState {
        self.seen.borrow().clone()
    }

    /// Waits for the answer to a call, until the timeout or the loss of the agent.
    pub async fn answer<T>(
        &self,
        within: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, String> {
        let mut seen = self.seen.clone();
        tokio::select! {
            biased;
            answer = timeout(within, call) => match answer {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(describe(&status)),
                Err(_) => Err(format!("no answer within {within:.0?}")),
            },
            lost = seen.wait_for(|seen| seen.lost.is_some()) => Err(match lost {
                Ok(seen) => seen.lost.clone().expect("the condition implies a loss").1,
                Err(_) => "the connection is closed".into(),
            }),
        }
    }

    /// Fetches the report of a completed run, with at most `max_bytes` bytes. Also returns the reason why the
    /// agent could not spool the report, or an empty string. If the agent is absent, waits for its return.
    pub async fn collect(
        &self,
        controller: u64,
        run: u64,
        max_bytes: u64,
    ) -> Result<(AgentReport, String), String> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_collect(controller, run, max_bytes).await {
                Err(_) if attempts < COLLECT_ATTEMPTS && self.has_returned().await => {}
                result => return result,
            }
        }
    }

    async fn try_collect(
        &self,
        controller: u64,
        run: u64,
        max_bytes: u64,
    ) -> Result<(AgentReport, String), String> {
        let mut client = self.client();
        let request = CollectRequest { controller, run };
        let mut chunks = self.answer(ANSWER_TIMEOUT, client.collect(request)).await?;
        let mut head = None;
        let mut bytes = Vec::new();
        loop {
            let next = timeout(ANSWER_TIMEOUT, chunks.message());
            let next = next.await.map_err(|_| format!("report transfer stalled for {ANSWER_TIMEOUT:.0?}"))?;
            match next.map_err(|status| describe(&status))?.map(|chunk| chunk.content) {
                None => break,
                Some(Some(Content::Head(first))) => head = Some(first),
                Some(Some(Content::Bytes(piece))) => bytes.extend(piece),
                Some(None) => {}
            }
            let length = head.as_ref().map_or(0, |head: &ReportHead| head.length);
            if (bytes.len() as u64).max(length) > max_bytes {
                return Err(format!("report exceeds {max_bytes} bytes"));
            }
        }
        let head = head.ok_or("no report received")?;
        if let Some(refusal) = head.refusal {
            return Err(OrderRefusal::from(refusal).to_string());
        }
        if bytes.len() as u64 != head.length {
            return Err(format!("report truncated after {} of {} bytes", bytes.len(), head.length));
        }
        // A long report takes time to decode, during which heartbeats of other agents have to continue.
        let version = head.task_version;
        let read = spawn_blocking(move || read_report(version, &bytes)).await;
        Ok((read.map_err(|error| error.to_string())??, displayable(&head.spool_error)))
    }
}

/// Maximum number of VPN flows of a router that are reported during a run.
const MAX_VPNS: u64 = 4096;

/// Bins an agent may report during its run, and those it has reported.
#[derive(Debug, Default)]
struct ReportedBins {
    run: u64,
    /// Run before, or zero.
    previous: u64,
    flows: BTreeSet<u32>,
    /// Subjects of the watched windows.
    windows: BTreeSet<String>,
    bins_each: u32,
    /// Numbers of bins that may still be reported: of flows, of windows, of VPN flows.
    left: [u64; 3],
    ended: CompletedBins,
    longest_report: u64,
}

impl ReportedBins {
    fn of(run: u64, assignment: &Assignment, report_bins: bool) -> ReportedBins {
        let bins_each = assignment.duration.0.div_ceil(assignment.interval.0.max(1));
        let all = assignment.flows.len() as u64 * bins_each;
        let vpns = if assignment.edge.is_some() { MAX_VPNS * bins_each } else { 0 };
        let routed = if assignment.edge.is_some() { VPN_BYTES * bins_each } else { 0 };
        let windows = assignment.watch.len() as u64 * bins_each;
        let longest =
            REPORT_BYTES * (1 + assignment.flows.len() as u64) + BIN_BYTES * (all + windows) + routed;
        ReportedBins {
            run,
            previous: 0,
            flows: assignment.flows.iter().map(|flow| flow.id).collect(),
            bins_each: u32::try_from(bins_each).unwrap_or(u32::MAX),
            windows: assignment.watch.iter().map(|flow| flow.subject.clone()).collect(),
            left: match report_bins {
                // Both halves of a one-ended flow report each bin.
                true => [2 * (all + assignment.flows.len() as u64), windows, vpns],
                false => [0; 3],
            },
            ended: CompletedBins::default(),
            longest_report: longest.min(MAX_REPORT_BYTES),
        }
    }

    /// Records reported bins. Returns false if there are more than the run has.
    fn take(&mut self, run: u64, mut ended: CompletedBins) -> bool {
        let counts = [ended.bins.len(), ended.windows.len(), ended.vpns.len()];
        if run != self.run {
            // Bins of the previous run may still be in transit.
            return counts == [0; 3] || run == self.previous;
        }
        for (left, count) in self.left.iter_mut().zip(counts) {
            let Some(remaining) = left.checked_sub(count as u64) else { return false };
            *left = remaining;
        }
        ended.bins.retain(|bin| self.flows.contains(&bin.flow) && bin.bin < self.bins_each);
        ended.windows.retain(|window| self.windows.contains(&window.subject) && window.bin < self.bins_each);
        ended.vpns.retain(|vpn| vpn.bin < self.bins_each);
        self.ended.extend(ended);
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks an agent for its identity and versions.
pub(crate) async fn query_identity(client: &mut AgentClient<Channel>) -> Result<HelloReply, Status> {
    greet(client, greeting()).await
}

/// Returns the greeting of a controller that belongs to no fleet.
pub(crate) fn greeting() -> HelloRequest {
    HelloRequest {
        oldest_version: *VERSIONS.start(),
        newest_version: *VERSIONS.end(),
        tool: env!("CARGO_PKG_VERSION").into(),
        ..HelloRequest::default()
    }
}

/// Greets an agent, and returns its identity.
pub(crate) async fn greet(
    client: &mut AgentClient<Channel>,
    greeting: HelloRequest,
) -> Result<HelloReply, Status> {
    Ok(client.hello(greeting).await?.into_inner())
}

async fn attend(
    client: &mut AgentClient<Channel>,
    controller: u64,
) -> Result<(mpsc::Sender<Heartbeat>, Streaming<Progress>), Status> {
    let (heartbeats, out) = mpsc::channel(4);
    heartbeats.try_send(Heartbeat { controller }).expect("the channel is empty");
    Ok((heartbeats, client.attend(ReceiverStream::new(out)).await?.into_inner()))
}

/// Measures the clock offset. If both sides announce the same clock and the first exchanges do not contradict
/// this, no estimate is needed.
async fn offset(client: &mut AgentClient<Channel>, identity: &str) -> Result<ClockOffset, String> {
    let mut estimator = OffsetEstimator::default();
    let same = clock::is_own_clock(identity);
    for _ in 0..CLOCK_EXCHANGES {
        exchange_clocks(client, &mut estimator).await.map_err(|status| describe(&status))?;
        if same && estimator.offset().is_some_and(ClockOffset::may_be_zero) {
            return Ok(ClockOffset::SAME_CLOCK);
        }
    }
    estimator.offset().ok_or_else(|| "the agent's clock runs backward".into())
}

/// Performs one clock exchange. Returns the synchronization state of the agent's wall clock.
pub(crate) async fn exchange_clocks(
    client: &mut AgentClient<Channel>,
    estimator: &mut OffsetEstimator,
) -> Result<Option<ClockState>, Status> {
    let asked_ns = monotonic_ns();
    let reply = client.read_clock(ReadClockRequest {}).await?;
    let returned_ns = monotonic_ns();
    let ReadClockReply { received_ns, answered_ns, state } = reply.into_inner();
    estimator.handle_exchange(Exchange {
        request_sent_ns: asked_ns,
        request_received_ns: received_ns,
        response_sent_ns: answered_ns,
        response_received_ns: returned_ns,
    });
    Ok(state)
}

/// Keeps an agent by heartbeats. If it is lost during a run with a lease, waits for its return.
struct Attendance {
    name: String,
    /// Socket of the hub of the agent's fleet. Other connections cannot be restored.
    hub: Option<PathBuf>,
    controller: u64,
    client: Arc<Mutex<AgentClient<Channel>>>,
    watched: watch::Sender<AgentState>,
    reported: Arc<Mutex<ReportedBins>>,
    lease_ns: Arc<AtomicU64>,
}

/// Both directions of an Attend stream.
type AttendStreams = (mpsc::Sender<Heartbeat>, Streaming<Progress>);

impl Attendance {
    /// Keeps the agent until it is lost for good.
    async fn keep(self, mut heartbeats: mpsc::Sender<Heartbeat>, mut progress: Streaming<Progress>) {
        loop {
            let mut heard_ns = monotonic_ns();
            let mut reason = self.attend(&heartbeats, &mut progress, &mut heard_ns).await;
            if self.has_controller_ended().await {
                reason = "the controller of the fleet ended, which interrupted the run".into();
            }
            let lease = Duration::from_nanos(self.lease_ns.load(Ordering::Relaxed));
            if let Some(hub) = self.hub.as_ref().filter(|_| !lease.is_zero()) {
                self.watched.send_modify(|seen| seen.absent_since = Some(heard_ns));
                match timeout(lease + RETURN_TIMEOUT, self.rejoin(hub)).await {
                    Ok(Ok(streams)) => {
                        (heartbeats, progress) = streams;
                        self.watched.send_modify(|seen| {
                            seen.absences.push((heard_ns, monotonic_ns()));
                            seen.absent_since = None;
                        });
                        continue;
                    }
                    Ok(Err(why)) => reason += &format!("; {why}"),
                    Err(_) => reason += &format!("; not back within {:.0?}", lease + RETURN_TIMEOUT),
                }
            }
            self.watched.send_modify(|seen| {
                seen.absent_since = None;
                seen.lost = Some((monotonic_ns(), reason));
            });
            return;
        }
    }

    /// Returns whether the hub of the agent's fleet is gone, rather than the agent.
    async fn has_controller_ended(&self) -> bool {
        let Some(hub) = &self.hub else { return false };
        // A process that is killed may close the connection before the socket.
        sleep(HUB_END).await;
        UnixStream::connect(hub).await.is_err()
    }

    /// Sends heartbeats and receives progress until the agent does not answer. Returns the reason, and sets the
    /// time of the last answer. Missing answers are counted in ticks of the controller instead of time, because
    /// a delayed controller could not have received them.
    async fn attend(
        &self,
        heartbeats: &mpsc::Sender<Heartbeat>,
        progress: &mut Streaming<Progress>,
        heard_ns: &mut u64,
    ) -> String {
        let mut tick = interval(HEARTBEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lease = Lease::new(MAX_UNANSWERED_HEARTBEATS);
        let mut messages = 0;
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    if !lease.tick() {
                        let silence = HEARTBEAT * MAX_UNANSWERED_HEARTBEATS;
                        return format!("no answer to heartbeats for {silence:.0?}");
                    }
                    messages = 0;
                    // A full channel means that the agent does not read; its missing answers will show that.
                    let _ = heartbeats.try_send(Heartbeat { controller: self.controller });
                }
                message = progress.message() => match message {
                    Ok(Some(mut progress)) => {
                        lease.renew();
                        *heard_ns = monotonic_ns();
                        messages += 1;
                        if messages > MAX_MESSAGES {
                            return format!("more than {MAX_MESSAGES} messages within {HEARTBEAT:.2?}");
                        }
                        let ended = CompletedBins::take(&mut progress);
                        if !lock(&self.reported).take(progress.run, ended) {
                            return "more bins reported than the run has".into();
                        }
                        self.watched.send_modify(|seen| seen.progress = progress);
                    }
                    Ok(None) => return "the agent ended".into(),
                    Err(status) => return describe(&status),
                },
            }
        }
    }

    /// Connects to the agent through its hub again and again. The error is final.
    async fn rejoin(&self, hub: &Path) -> Result<AttendStreams, String> {
        loop {
            sleep(REJOIN_DELAYS.0).await;
            if let Ok(Some(result)) = timeout(REJOIN_DELAYS.1, self.try_rejoin(hub)).await {
                return result;
            }
        }
    }

    /// Connects to the agent, and finds out what has become of the run. Returns `None` if it cannot be reached.
    async fn try_rejoin(&self, hub: &Path) -> Option<Result<AttendStreams, String>> {
        let deadline = Instant::now() + REJOIN_DELAYS.1;
        let channel = AgentAddress::Fleet(hub.to_owned()).dial(&self.name, deadline).await.ok()?;
        let mut client = AgentClient::new(channel);
        let (heartbeats, mut progress) = attend(&mut client, self.controller).await.ok()?;
        let first = progress.message().await.ok()??;
        if first.refusal.is_some() {
            return None;
        }
        let run = lock(&self.reported).run;
        if first.run != run {
            let request = KeptRequest { controller: self.controller };
            let kept = client.kept(request).await.ok()?.into_inner();
            if !kept.reports.iter().any(|kept| kept.run == run) {
                return Some(Err("it is back, but without the run and its report".into()));
            }
            self.watched.send_modify(|seen| seen.stored_run = Some(run));
        }
        *lock(&self.client) = client;
        Some(Ok((heartbeats, progress)))
    }
}

/// Describes a failed call.
fn describe(status: &Status) -> String {
    match status.source() {
        Some(_) => format!("the agent's process ended or the connection broke ({})", deepest(status)),
        None if status.message().is_empty() => format!("gRPC status {:?}", status.code()),
        None => displayable(status.message()),
    }
}

pub(super) fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
