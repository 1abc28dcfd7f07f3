//! Agent's side of the protocol. Requests arrive by gRPC, the session state machine decides on them, and runs
//! are carried out by threads.

use super::clocks::{ClockProber, ClockResponder};
use super::end_reason::{EndReason, end};
use super::guard::RunGuard;
use super::run::{self, RunHandle, RunInput, RunReport};
use super::spool::Spool;
use super::work::{PacketSums, RunningTotals, Worker};
use netstage_agent_api::protocol::generated::{self as wire, agent_server};
use netstage_agent_api::protocol::generated::{
    AgreeReply, AgreeRequest, ClockState, CollectRequest, CompareClocksReply, CompareClocksRequest,
    ComparedClock, FinishReply, FinishRequest, Heartbeat, HelloReply, HelloRequest, KeptReply, KeptReport,
    KeptRequest, PathsReply, PathsRequest, PrepareReply, PrepareRequest, Progress, ReadClockReply,
    ReadClockRequest, ReceivingPort, ReleaseReply, ReleaseRequest, ReportChunk, ReportHead, StartReply,
    StartRequest, StopReply, StopRequest, report_chunk::Content,
};
use netstage_agent_api::protocol::{
    CHUNK_BYTES, HEARTBEAT_CHECK_INTERVAL, MAX_MISSED_CHECKS, MAX_SILENCE, OrderRefusal, OrderRefusalKind,
    VERSIONS, read_assignment,
};
use netstage_agent_api::results::CompletedBins;
use netstage_agent_api::task::{self, Assignment};
use netstage_core::fleet::{AgentSession, Lease, RunPhase};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::Instant;
use netstage_host::clock::{self, Epoch, monotonic_ns};
use netstage_host::shared_key::ConnectionAddresses;
use netstage_traffic::stamp::WallClock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::{mpsc as channel, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// State shared by all connections and the threads of runs.
pub struct AgentShared {
    spool: Arc<Spool>,
    worker: Arc<dyn Worker>,
    /// Admission control, for an agent that serves controllers of other hosts.
    guard: Option<Arc<dyn RunGuard>>,
    /// Totals of all runs of the agent.
    sums: Arc<PacketSums>,
    state: Mutex<AgentSharedState>,
    /// Notified whenever the phase changes.
    changed: watch::Sender<()>,
    /// Reason why the agent is to end.
    pub end: watch::Sender<Option<EndReason>>,
    /// Set when the last replies are being sent.
    pub closing: watch::Sender<bool>,
}

#[derive(Default)]
struct AgentSharedState {
    session: AgentSession,
    /// Number of Attend streams so far. The latest one counts.
    attendance: u64,
    run: Option<RunHandle>,
    /// Numbers and paths of the reports that no controller has released.
    kept: Vec<(u64, PathBuf)>,
    problems: Vec<String>,
}

impl AgentShared {
    pub fn new(
        spool: Arc<Spool>,
        worker: Arc<dyn Worker>,
        end: watch::Sender<Option<EndReason>>,
        guard: Option<Arc<dyn RunGuard>>,
        sums: Arc<PacketSums>,
    ) -> AgentShared {
        let (changed, closing) = (watch::Sender::new(()), watch::Sender::new(false));
        let state = AgentSharedState {
            session: AgentSession::after(spool.accepted()),
            ..AgentSharedState::default()
        };
        AgentShared { spool, worker, guard, sums, state: Mutex::new(state), changed, end, closing }
    }

    fn state(&self) -> MutexGuard<'_, AgentSharedState> {
        // No invariant spans several of its fields.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a run in progress, and discards one that is ready.
    pub fn stop(&self) {
        let mut state = self.state();
        state.session.forget();
        if let Some(run) = &mut state.run {
            run.stop.store(true, Ordering::Relaxed);
            // A run without a start time need not wait for one; a run with a start time ends at once.
            run.start = None;
            run.clocks = None;
        }
    }

    /// Waits until no run is in progress.
    pub async fn wait_until_idle(&self) {
        let mut changed = self.changed.subscribe();
        while self.state().session.phase() == RunPhase::Running && changed.changed().await.is_ok() {}
    }

    /// Reports whether a controller owns this agent.
    pub fn is_attended(&self) -> bool {
        self.state().session.is_locked()
    }

    /// Returns the time for which the run continues unless its controller is heard; `None` if it does not.
    fn left_of_lease(&self) -> Option<Duration> {
        let expiry = self.state().session.lease_expiry()?;
        Some(Duration::from_nanos(expiry.since(now()).0)).filter(|left| !left.is_zero())
    }

    fn is_latest(&self, attendance: u64) -> bool {
        self.state().attendance == attendance
    }

    /// Returns the reports that no controller has released, and the problems that occurred.
    pub fn unreleased_reports(&self) -> (Vec<PathBuf>, Vec<String>) {
        let mut state = self.state();
        let mut problems = std::mem::take(&mut state.problems);
        if state.session.phase() == RunPhase::Running {
            problems.push("the run did not stop in time; its report is lost".into());
        }
        (state.kept.iter().map(|(_, path)| path.clone()).collect(), problems)
    }

    /// Returns the spooled report of an earlier run, or of the current one when that is over.
    fn earlier_report(&self, state: &AgentSharedState, run: u64) -> Option<PathBuf> {
        if state.session.run() == run && state.session.phase() != RunPhase::Done {
            return None;
        }
        self.spool.stored_reports().into_iter().find_map(|(kept, path)| (kept == run).then_some(path))
    }

    pub(super) fn progress(&self) -> Progress {
        let state = self.state();
        let totals = state.run.as_ref().map(|run| run.totals.read());
        let [sent, sent_bytes, received, received_bytes, lost] = totals.unwrap_or_default();
        Progress {
            phase: wire::Phase::from(state.session.phase()).into(),
            run: state.session.run(),
            sent,
            sent_bytes,
            received,
            received_bytes,
            lost,
            ..Progress::default()
        }
    }

    /// Returns the bins completed since the previous call.
    fn take_ended(&self) -> CompletedBins {
        self.state().run.as_ref().map(|run| run.totals.take_completed()).unwrap_or_default()
    }

    /// Carries out a run from its preparation to its report. This is the body of the run's thread.
    fn carry_out(&self, number: u64, orders: RunInput, ready: oneshot::Sender<PreparationResult>) {
        let node = orders.assignment.node.clone();
        let clocks = orders.assignment.clocks.clone();
        let stop = Arc::clone(&orders.stop);
        let prepared = |result: PreparationResult| {
            let mut state = self.state();
            // The controller may be gone by now. It could then no longer stop the run.
            let result = match stop.load(Ordering::Relaxed) {
                true => Err(OrderRefusal::new(
                    OrderRefusalKind::Order,
                    "the run was stopped during its preparation",
                )),
                false => result,
            };
            let is_ready = result.is_ok();
            if let (Some(guard), Err(refusal)) = (&self.guard, &result) {
                guard.could_not_prepare(number, refusal);
            }
            state.session.finish_preparing(number, is_ready);
            if let Some(run) = state.run.as_mut().filter(|_| is_ready) {
                run.clocks = clocks.as_ref().and_then(ClockResponder::start);
            }
            drop(state);
            self.changed.send_replace(());
            let _ = ready.send(result);
            is_ready
        };
        if let Some(guard) = &self.guard
            && let Err(refusal) =
                guard.confine().and_then(|()| guard.confirm(number, &orders.assignment, &orders.stop))
        {
            prepared(Err(refusal));
            return;
        }
        let journal = |assignment: &Assignment| self.spool.journal(number, assignment);
        let started = Cell::new(None);
        let begin = |epoch: Epoch| {
            started.set(Some(epoch));
            self.state().session.begin(epoch.0)
        };
        let report = run::run(self.worker.as_ref(), self.guard.as_deref(), orders, prepared, journal, begin);
        let Some(mut report) = report else { return };
        // The worker cannot know why it was stopped.
        let fault = match *self.end.borrow() {
            Some(EndReason::Interrupted) => Some("was interrupted during the run"),
            Some(EndReason::ControllerGone) => Some("lost its controller, so the run was interrupted"),
            Some(EndReason::Finished) | None => None,
        };
        let at = started.get().map_or(FaultTime::BeforeStart, |epoch: Epoch| FaultTime::At(epoch.now()));
        report.void.extend(fault.map(|fault| VoidReason::new(format!("agent {node}"), fault, at)));
        let report = serde_json::to_vec(&report).expect("reports have string keys only");
        let spooled = self.spool.store(&node, number, &report);
        let mut state = self.state();
        match &spooled {
            Ok(path) => state.kept.extend(path.clone().map(|path| (number, path))),
            Err(problem) => state.problems.push(problem.clone()),
        }
        if let Some(run) = &mut state.run {
            run.outcome = Some(Arc::new(RunReport { report, spooled }));
        }
        state.session.finish_run();
        drop(state);
        self.changed.send_replace(());
    }
}

/// Result of a preparation: number and port of each received flow, or the refusal.
type PreparationResult = Result<Vec<(u32, u16)>, OrderRefusal>;

/// gRPC service of the agent; each connection has a copy.
pub struct AgentService(pub Arc<AgentShared>);

impl AgentService {
    /// Starts to prepare a run. The result is sent through the returned channel.
    fn prepare_run(
        &self,
        request: &PrepareRequest,
        peer: Option<ConnectionAddresses>,
    ) -> Result<oneshot::Receiver<PreparationResult>, OrderRefusal> {
        let mut assignment = read_assignment(request.task_version, &request.assignment)?;
        let mut state = self.0.state();
        state.session.prepare(request.controller, request.run, assignment.lease)?;
        let allowed = match &self.0.guard {
            Some(guard) => require_peer(peer)
                .and_then(|peer| guard.prepare(request.run, &mut assignment, &request.consents, peer)),
            None => Ok(()),
        };
        let taken = allowed.and_then(|()| {
            let taken = self.0.spool.record_accepted(state.session.accepted());
            taken.map_err(|problem| OrderRefusal::new(OrderRefusalKind::System, problem))
        });
        if let Err(refusal) = taken {
            state.session.finish_preparing(request.run, false);
            return Err(refusal);
        }
        let before = state.run.take().map(|run| run.thread);
        let (start, started) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let totals = Arc::new(RunningTotals::new(Arc::clone(&self.0.sums), request.report_bins));
        let orders =
            RunInput { assignment, start: started, stop: stop.clone(), totals: totals.clone(), before };
        let (ready, answer) = oneshot::channel();
        let (shared, number) = (Arc::clone(&self.0), request.run);
        let thread = thread::Builder::new()
            .name("run".into())
            .spawn(move || shared.carry_out(number, orders, ready))
            .map_err(|error| {
                state.session.finish_preparing(number, false);
                OrderRefusal::new(OrderRefusalKind::System, format!("cannot start a thread: {error}"))
            })?;
        state.run = Some(RunHandle { start: Some(start), stop, totals, outcome: None, clocks: None, thread });
        Ok(answer)
    }

    /// Returns the agent's signed consent to the flows it is to receive.
    fn consents(&self, request: &AgreeRequest) -> Result<Vec<wire::Consent>, OrderRefusal> {
        self.0.state().session.check_owner(request.controller)?;
        let assignment = read_assignment(request.task_version, &request.assignment)?;
        match &self.0.guard {
            Some(guard) => Arc::clone(guard).agree(request.run, &assignment),
            // Clients of this socket are fully trusted, and need no consents.
            None => Ok(Vec::new()),
        }
    }

    /// Returns the guard for a request about the paths of a run, and the decoded content of the request.
    fn path_request<T: DeserializeOwned>(
        &self,
        request: &PathsRequest,
    ) -> Result<(Arc<dyn RunGuard>, T), OrderRefusal> {
        self.0.state().session.check_owner(request.controller)?;
        let refused = |reason: String| OrderRefusal::new(OrderRefusalKind::Assignment, reason);
        if request.task_version != task::VERSION {
            return Err(refused(format!(
                "version {} of path searches is not supported",
                request.task_version
            )));
        }
        let content = serde_json::from_slice(&request.content).map_err(|error| refused(error.to_string()))?;
        let guard = self.0.guard.clone();
        Ok((guard.ok_or_else(|| refused("this agent does not search paths through NATs".into()))?, content))
    }

    /// Returns the prober of other hosts' clocks, or `None` if the run compares none.
    fn asker(&self, request: CompareClocksRequest) -> Result<Option<ClockProber>, OrderRefusal> {
        let state = self.0.state();
        state.session.check_owner(request.controller)?;
        let is_this = state.session.run() == request.run;
        let clocks = state.run.as_ref().filter(|_| is_this).and_then(|run| run.clocks.as_ref());
        Ok(clocks.map(ClockResponder::prober))
    }

    fn start_run(&self, request: StartRequest) -> Result<(), OrderRefusal> {
        let mut state = self.0.state();
        state.session.start(request.controller, request.run, request.at_ns, monotonic_ns())?;
        if let Some(start) = state.run.as_ref().and_then(|run| run.start.as_ref()) {
            // If the same start is repeated, the run has begun, and its receiver is closed.
            let _ = start.send(Epoch(request.at_ns));
        }
        Ok(())
    }

    fn stop_run(&self, request: StopRequest) -> Result<(), OrderRefusal> {
        self.0.state().session.stop(request.controller, request.run)?;
        self.0.stop();
        Ok(())
    }

    /// Returns the report of the current run, or the spooled one of an earlier run.
    fn outcome(&self, request: CollectRequest) -> Result<Arc<RunReport>, OrderRefusal> {
        let state = self.0.state();
        match state.session.collect(request.controller, request.run) {
            Ok(()) => {
                let outcome = state.run.as_ref().and_then(|run| run.outcome.clone());
                Ok(outcome.expect("a completed run has a report"))
            }
            Err(refusal) => {
                state.session.check_owner(request.controller)?;
                let path = self.0.earlier_report(&state, request.run).ok_or(refusal)?;
                let report = std::fs::read(&path).map_err(|error| {
                    OrderRefusal::new(
                        OrderRefusalKind::System,
                        format!("cannot read {}: {error}", path.display()),
                    )
                })?;
                Ok(Arc::new(RunReport { report, spooled: Ok(Some(path)) }))
            }
        }
    }

    fn release_run(&self, request: ReleaseRequest) -> Result<(), OrderRefusal> {
        let mut state = self.0.state();
        if let Err(refusal) = state.session.release(request.controller, request.run) {
            state.session.check_owner(request.controller)?;
            let path = self.0.earlier_report(&state, request.run).ok_or(refusal)?;
            let _ = std::fs::remove_file(path);
            return Ok(());
        }
        if let Some(run) = &mut state.run {
            run.outcome = None;
        }
        let released = state.kept.extract_if(.., |(run, _)| *run == request.run);
        for (_, path) in released {
            // The controller has the report: a copy that cannot be removed does no harm.
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }

    /// Notifies of a state change, and converts a refusal into its wire form.
    fn answer(&self, result: Result<(), OrderRefusal>) -> Option<wire::Refusal> {
        self.0.changed.send_replace(());
        result.err().map(Into::into)
    }
}

#[tonic::async_trait]
impl agent_server::Agent for AgentService {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { starts, changes, authority, .. } = request.into_inner();
        if let Some(guard) = &self.0.guard {
            guard.greeted(&starts, &changes, &authority).map_err(Status::failed_precondition)?;
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let addresses = self.0.guard.iter().flat_map(|guard| guard.addresses());
        Ok(Response::new(HelloReply {
            oldest_version: *VERSIONS.start(),
            newest_version: *VERSIONS.end(),
            task_version: task::VERSION,
            tool: env!("CARGO_PKG_VERSION").into(),
            host: host.trim().into(),
            clock: clock::identity(),
            capabilities: self.0.guard.iter().flat_map(|guard| guard.capabilities()).collect(),
            addresses: addresses.map(|address| address.to_string()).collect(),
            taken: self.0.is_attended(),
            mappings: self.0.guard.iter().flat_map(|guard| guard.mappings()).collect(),
        }))
    }

    async fn read_clock(&self, _: Request<ReadClockRequest>) -> Result<Response<ReadClockReply>, Status> {
        let received_ns = monotonic_ns();
        let WallClock { synchronized, error_ns } = WallClock::read();
        let state = Some(ClockState { synchronized, error_ns });
        Ok(Response::new(ReadClockReply { received_ns, answered_ns: monotonic_ns(), state }))
    }

    async fn compare_clocks(
        &self,
        request: Request<CompareClocksRequest>,
    ) -> Result<Response<CompareClocksReply>, Status> {
        let (found, refusal) = match self.asker(request.into_inner()) {
            Ok(Some(asker)) => {
                let guard = self.0.guard.clone();
                let probe = move || match guard.map_or(Ok(()), |guard| guard.confine()) {
                    Ok(()) => Ok(asker.probe()),
                    Err(refusal) => Err(refusal),
                };
                // Not a thread of the runtime, which would keep the limits of the run.
                let probed = spawn_blocking(|| thread::spawn(probe).join());
                match probed.await {
                    Ok(Ok(Ok(found))) => (found, None),
                    Ok(Ok(Err(refusal))) => (Vec::new(), Some(refusal.into())),
                    _ => (Vec::new(), None),
                }
            }
            Ok(None) => (Vec::new(), None),
            Err(refusal) => (Vec::new(), Some(refusal.into())),
        };
        let found = found.into_iter().map(|(address, offset)| ComparedClock {
            address: address.to_string(),
            offset_ns: offset.offset_ns,
            error_ns: offset.error_ns,
        });
        Ok(Response::new(CompareClocksReply { refusal, clocks: found.collect() }))
    }

    type AttendStream = ReceiverStream<Result<Progress, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<Heartbeat>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let peer = request.extensions().get::<ConnectionAddresses>().copied();
        let mut heartbeats = request.into_inner();
        let Ok(Ok(Some(first))) = timeout(MAX_SILENCE, heartbeats.message()).await else {
            return Err(Status::invalid_argument("an Attend stream must begin with a heartbeat"));
        };
        let (progress, out) = channel::channel(16);
        let attended = {
            let mut state = self.0.state();
            let attended = state.session.attend(first.controller, now());
            attended.map(|()| {
                state.attendance += 1;
                state.attendance
            })
        };
        match attended {
            Err(refusal) => {
                let refused = Progress { refusal: Some(refusal.into()), ..Progress::default() };
                let _ = progress.try_send(Ok(refused));
            }
            Ok(attendance) => {
                if let (Some(guard), Some(peer)) = (&self.0.guard, peer) {
                    guard.taken(peer);
                }
                self.0.changed.send_replace(());
                let shared = Arc::clone(&self.0);
                tokio::spawn(attend_until_gone(shared, heartbeats, progress, attendance));
            }
        }
        Ok(Response::new(ReceiverStream::new(out)))
    }

    async fn prepare(&self, request: Request<PrepareRequest>) -> Result<Response<PrepareReply>, Status> {
        let peer = request.extensions().get::<ConnectionAddresses>().copied();
        let result = match self.prepare_run(request.get_ref(), peer) {
            Err(refusal) => Err(refusal),
            Ok(ready) => ready.await.unwrap_or_else(|_| {
                Err(OrderRefusal::new(OrderRefusalKind::System, "the thread of the run ended unexpectedly"))
            }),
        };
        let ports = result.iter().flatten().map(|&(flow, port)| ReceivingPort { flow, port: port.into() });
        let ports = ports.collect();
        Ok(Response::new(PrepareReply { refusal: self.answer(result.map(|_| ())), ports }))
    }

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<StartReply>, Status> {
        let result = self.start_run(request.into_inner());
        Ok(Response::new(StartReply { refusal: self.answer(result) }))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        let result = self.stop_run(request.into_inner());
        Ok(Response::new(StopReply { refusal: self.answer(result) }))
    }

    type CollectStream = ReceiverStream<Result<ReportChunk, Status>>;

    async fn collect(
        &self,
        request: Request<CollectRequest>,
    ) -> Result<Response<Self::CollectStream>, Status> {
        let (chunks, out) = channel::channel(4);
        let outcome = self.outcome(request.into_inner());
        tokio::spawn(send_report(outcome, chunks));
        Ok(Response::new(ReceiverStream::new(out)))
    }

    async fn kept(&self, request: Request<KeptRequest>) -> Result<Response<KeptReply>, Status> {
        let belongs = self.0.state().session.check_owner(request.get_ref().controller);
        let refusal = belongs.err().map(Into::into);
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let reports = match refusal {
            Some(_) => Vec::new(),
            None => {
                let kept = self.0.spool.stored_reports().into_iter();
                kept.map(|(run, path)| KeptReport { run, length: length(&path) }).collect()
            }
        };
        Ok(Response::new(KeptReply { refusal, reports }))
    }

    async fn agree(&self, request: Request<AgreeRequest>) -> Result<Response<AgreeReply>, Status> {
        let (consents, refusal) = match self.consents(request.get_ref()) {
            Ok(consents) => (consents, None),
            Err(refusal) => (Vec::new(), Some(refusal.into())),
        };
        Ok(Response::new(AgreeReply { refusal, consents }))
    }

    async fn open_paths(&self, request: Request<PathsRequest>) -> Result<Response<PathsReply>, Status> {
        let peer = request.extensions().get::<ConnectionAddresses>().copied();
        let request = request.into_inner();
        let opened = self.path_request(&request).and_then(|(guard, search)| {
            let controller = require_peer(peer)?.remote.ip();
            Ok(spawn_blocking(move || guard.open_paths(request.run, search, controller)))
        });
        Ok(Response::new(paths_reply(opened).await))
    }

    async fn check_paths(&self, request: Request<PathsRequest>) -> Result<Response<PathsReply>, Status> {
        let request = request.into_inner();
        let checked = self.path_request(&request);
        let checked =
            checked.map(|(guard, peers)| spawn_blocking(move || guard.check_paths(request.run, peers)));
        Ok(Response::new(paths_reply(checked).await))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let result = self.release_run(request.into_inner());
        Ok(Response::new(ReleaseReply { refusal: self.answer(result) }))
    }

    async fn finish(&self, request: Request<FinishRequest>) -> Result<Response<FinishReply>, Status> {
        let result = self.0.state().session.finish(request.get_ref().controller);
        if result.is_ok() {
            end(&self.0.end, EndReason::Finished);
        }
        Ok(Response::new(FinishReply { refusal: self.answer(result) }))
    }
}

/// Returns the reply to a request about paths, once the work for it has ended.
async fn paths_reply<T: Serialize>(
    work: Result<JoinHandle<Result<T, OrderRefusal>>, OrderRefusal>,
) -> PathsReply {
    let result = match work {
        Ok(work) => work.await.unwrap_or_else(|error| {
            Err(OrderRefusal::new(OrderRefusalKind::System, format!("the search for paths failed: {error}")))
        }),
        Err(refusal) => Err(refusal),
    };
    match result {
        Ok(content) => {
            let content = serde_json::to_vec(&content).expect("paths have string keys only");
            PathsReply { refusal: None, content }
        }
        Err(refusal) => PathsReply { refusal: Some(refusal.into()), content: Vec::new() },
    }
}

/// Returns the endpoints of a connection between hosts, or refuses a connection without them.
fn require_peer(peer: Option<ConnectionAddresses>) -> Result<ConnectionAddresses, OrderRefusal> {
    let unknown =
        || OrderRefusal::new(OrderRefusalKind::System, "the remote address of the connection is unknown");
    peer.ok_or_else(unknown)
}

/// Reads the monotonic clock.
fn now() -> Instant {
    Instant(monotonic_ns())
}

/// Serves an Attend stream. When it ends, the session ends: at once, or when the lease of the run expires before
/// the controller opens another stream.
async fn attend_until_gone(
    shared: Arc<AgentShared>,
    heartbeats: Streaming<Heartbeat>,
    progress: channel::Sender<Result<Progress, Status>>,
    attendance: u64,
) {
    if !send_progress_until_silent(&shared, heartbeats, progress, attendance).await {
        return;
    }
    if let (Some(guard), Some(left)) = (&shared.guard, shared.left_of_lease()) {
        guard.left_alone(left);
    }
    let mut changed = shared.changed.subscribe();
    while shared.is_latest(attendance)
        && let Some(left) = shared.left_of_lease()
    {
        // The run may end before its lease, or the controller return.
        let _ = timeout(left, changed.changed()).await;
    }
    if shared.is_latest(attendance) {
        end(&shared.end, EndReason::ControllerGone);
    }
}

/// Sends progress in answer to each heartbeat and after each change, until the controller ends its stream or
/// its heartbeats stop. Missing heartbeats are counted in ticks instead of time, because an agent that was
/// itself delayed could not receive them; a lease is a time. Returns false if the agent closes the session, or
/// another stream has replaced this one.
async fn send_progress_until_silent(
    shared: &AgentShared,
    mut heartbeats: Streaming<Heartbeat>,
    progress: channel::Sender<Result<Progress, Status>>,
    attendance: u64,
) -> bool {
    let (mut changed, mut closing) = (shared.changed.subscribe(), shared.closing.subscribe());
    let mut tick = interval(HEARTBEAT_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lease = Lease::new(MAX_MISSED_CHECKS);
    let send_progress = || {
        // Progress for a slow reader is skipped: the next message contains the same bins and later ones.
        if let Ok(room) = progress.try_reserve() {
            let mut progress = shared.progress();
            shared.take_ended().put(&mut progress);
            room.send(Ok(progress));
        }
    };
    send_progress();
    loop {
        let has_changed = tokio::select! {
            biased;
            message = heartbeats.message() => match message {
                Ok(Some(_)) if shared.is_latest(attendance) => {
                    lease.renew();
                    tick.reset();
                    shared.state().session.handle_heartbeat(now());
                    true
                }
                Ok(Some(_)) => return false,
                Ok(None) | Err(_) => return true,
            },
            _ = closing.wait_for(|closing| *closing) => return false,
            _ = changed.changed() => true,
            _ = tick.tick() => match lease.tick() || shared.left_of_lease().is_some() {
                true => false,
                false => return true,
            },
        };
        if has_changed {
            send_progress();
        }
    }
}

async fn send_report(
    outcome: Result<Arc<RunReport>, OrderRefusal>,
    chunks: channel::Sender<Result<ReportChunk, Status>>,
) {
    let head = match &outcome {
        Err(refusal) => ReportHead { refusal: Some(refusal.clone().into()), ..ReportHead::default() },
        Ok(outcome) => {
            let (spooled, spool_error) = match &outcome.spooled {
                Ok(path) => {
                    let path = path.as_ref().map(|path| path.display().to_string());
                    (path.unwrap_or_default(), String::new())
                }
                Err(error) => (String::new(), error.clone()),
            };
            let length = outcome.report.len() as u64;
            ReportHead { refusal: None, task_version: task::VERSION, length, spooled, spool_error }
        }
    };
    let mut open = chunks.send(Ok(ReportChunk { content: Some(Content::Head(head)) })).await.is_ok();
    for piece in outcome.iter().flat_map(|outcome| outcome.report.chunks(CHUNK_BYTES)) {
        if !open {
            return;
        }
        open = chunks.send(Ok(ReportChunk { content: Some(Content::Bytes(piece.to_vec())) })).await.is_ok();
    }
}
