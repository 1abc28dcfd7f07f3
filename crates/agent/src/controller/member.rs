//! One agent, seen from the controller: connecting, its clock, its signs of life, its report.

use super::error::Error;
use super::place::Place;
use netstage_agent_api::protocol::generated::agent_client::AgentClient;
use netstage_agent_api::protocol::generated::{
    ClockState, CollectRequest, Heartbeat, HelloReply, HelloRequest, Progress, ReadClockReply,
    ReadClockRequest, ReportHead, report_chunk::Content,
};
use netstage_agent_api::protocol::{
    AGENT_BEATS, HEARTBEAT, MAX_REPORT_BYTES, Refusal, VERSIONS, common_version, plain, read_report,
};
use netstage_agent_api::results::{Ended, Report};
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::Lease;
use netstage_core::measure::{ClockOffset, Exchange, OffsetEstimator};
use netstage_host::clock::{self, monotonic_ns};
use std::collections::BTreeSet;
use std::error::Error as _;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// How long an answer may take that needs no work.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Times the clock is asked: the fastest exchange counts.
const CLOCK_EXCHANGES: u32 = 8;
/// Most messages of an agent from one sign of life to the next: it tells of each change, and of ten bins.
const MOST_MESSAGES: u32 = 100;
/// Most bytes of a report: of the agent and of each flow with its histograms, of each bin of a flow, and of
/// each bin of a router with all its VPNs.
const REPORT_BYTES: u64 = 16 << 20;
const BIN_BYTES: u64 = 4 << 10;
const VPN_BYTES: u64 = 256 << 10;

/// An agent that is connected and attended.
#[derive(Clone)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The way to it.
    pub client: AgentClient<Channel>,
    /// Its clock against ours.
    pub clock: ClockOffset,
    /// Addresses of its host that flows may use, where it tells.
    pub addresses: Vec<IpAddr>,
    /// Name of that clock.
    identity: String,
    /// What it may tell of the run, and the bins it has told of.
    told: Arc<Mutex<Told>>,
    seen: watch::Receiver<Seen>,
}

/// What was last seen of an agent.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How far it is.
    pub progress: Progress,
    /// When it was lost (nanoseconds of our monotonic clock), and how.
    pub lost: Option<(u64, String)>,
}

impl Member {
    /// Connects, agrees on a version, estimates the clock and attends, all before `deadline`.
    pub async fn connect(
        name: String,
        place: Place,
        controller: u64,
        deadline: Instant,
    ) -> Result<Member, Error> {
        let at = place.to_string();
        let unreachable =
            |reason: String| Error::Unreachable { agent: name.clone(), place: at.clone(), reason };
        let within = deadline.duration_since(Instant::now());
        let silent = || unreachable(format!("it listens, but does not answer within {within:.1?}"));

        let channel = place.dial(&name, deadline).await?;
        let mut client = AgentClient::new(channel);
        let hello = timeout_at(deadline, greet(&mut client)).await.map_err(|_| silent())?;
        let hello = hello.map_err(|status| unreachable(describe(&status)))?;
        if common_version(hello.oldest_version, hello.newest_version).is_none() {
            let speaks = (hello.oldest_version, hello.newest_version);
            return Err(Error::Version { agent: name, tool: plain(&hello.tool), speaks });
        }
        let attended = timeout_at(deadline, attend(&mut client, controller)).await.map_err(|_| silent())?;
        let (heartbeats, mut progress) = attended.map_err(|status| unreachable(describe(&status)))?;
        let first = timeout_at(deadline, progress.message()).await.map_err(|_| silent())?;
        let first = match first {
            Ok(Some(first)) => first,
            Ok(None) => return Err(unreachable("it ended".into())),
            Err(status) => return Err(unreachable(describe(&status))),
        };
        if let Some(refusal) = first.refusal {
            return Err(Error::Refused(vec![(name, refusal.into())]));
        }
        // From here on it wants signs of life, also while a thousand others have their clocks read.
        let (watched, seen) = watch::channel(Seen { progress: first, lost: None });
        let told = Arc::default();
        let kept = tokio::spawn(keep(controller, heartbeats, progress, watched, Arc::clone(&told)));
        let read = timeout_at(deadline, offset(&mut client, &hello.clock)).await;
        let clock = read.map_err(|_| silent()).and_then(|clock| clock.map_err(unreachable));
        let clock = clock.inspect_err(|_| kept.abort())?;
        let addresses = hello.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Ok(Member { name, client, clock, addresses, identity: hello.clock, told, seen })
    }

    /// It is about to be asked for this part of a run: no more than that may it tell of.
    pub fn expect(&self, run: u64, assignment: &Assignment, tell_bins: bool) {
        *lock(&self.told) = Told::of(run, assignment, tell_bins);
    }

    /// Longest report its part of the run can have, bytes.
    pub fn longest_report(&self) -> u64 {
        lock(&self.told).longest_report
    }

    /// Bins told of since the last call.
    pub fn take_ended(&self) -> Ended {
        std::mem::take(&mut lock(&self.told).ended)
    }

    /// Name of its clock: the same of all that read it. Empty where it does not tell.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Asks the clock again.
    pub async fn read_clock(&self) -> Result<ClockOffset, String> {
        if let Some((_, how)) = self.seen().lost {
            return Err(how);
        }
        let mut client = self.client.clone();
        timeout(ANSWER_WITHIN, offset(&mut client, &self.identity))
            .await
            .map_err(|_| format!("no answer within {ANSWER_WITHIN:.0?}"))?
    }

    /// What was last seen of it.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// What it answers, or why it does not. An agent that is lost does not keep us waiting.
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
                Ok(seen) => seen.lost.clone().expect("waited for").1,
                Err(_) => "the connection is closed".into(),
            }),
        }
    }

    /// Fetches the report of a run that is over, of so many bytes at most, and why it could not be
    /// spooled.
    pub async fn collect(&self, controller: u64, run: u64, most: u64) -> Result<(Report, String), String> {
        let mut client = self.client.clone();
        let request = CollectRequest { controller, run };
        let mut chunks = self.answer(ANSWER_WITHIN, client.collect(request)).await?;
        let mut head = None;
        let mut bytes = Vec::new();
        loop {
            let next = timeout(ANSWER_WITHIN, chunks.message());
            let next = next.await.map_err(|_| format!("its report stalled for {ANSWER_WITHIN:.0?}"))?;
            match next.map_err(|status| describe(&status))?.map(|chunk| chunk.content) {
                None => break,
                Some(Some(Content::Head(first))) => head = Some(first),
                Some(Some(Content::Bytes(piece))) => bytes.extend(piece),
                Some(None) => {}
            }
            let length = head.as_ref().map_or(0, |head: &ReportHead| head.length);
            if (bytes.len() as u64).max(length) > most {
                return Err(format!("its report is longer than {most} bytes"));
            }
        }
        let head = head.ok_or("it sent no report")?;
        if let Some(refusal) = head.refusal {
            return Err(Refusal::from(refusal).to_string());
        }
        if bytes.len() as u64 != head.length {
            return Err(format!("its report ended after {} of {} bytes", bytes.len(), head.length));
        }
        // Long ones take their time to be read, which others' signs of life do not have.
        let version = head.task_version;
        let read = spawn_blocking(move || read_report(version, &bytes)).await;
        Ok((read.map_err(|error| error.to_string())??, plain(&head.spool_error)))
    }
}

/// Most VPN flows of a router that are told of while a run goes on.
const MOST_VPNS: u64 = 4096;

/// What an agent may tell while its run goes on, and what it has told.
#[derive(Debug, Default)]
struct Told {
    run: u64,
    flows: BTreeSet<u32>,
    /// Subjects of watched windows.
    windows: BTreeSet<String>,
    bins_each: u32,
    /// So many more bins can there be: of flows, of windows, of VPN flows.
    left: [u64; 3],
    ended: Ended,
    longest_report: u64,
}

impl Told {
    fn of(run: u64, assignment: &Assignment, tell_bins: bool) -> Told {
        let bins_each = assignment.duration.0.div_ceil(assignment.interval.0.max(1));
        let all = assignment.flows.len() as u64 * bins_each;
        let vpns = if assignment.edge.is_some() { MOST_VPNS * bins_each } else { 0 };
        let routed = if assignment.edge.is_some() { VPN_BYTES * bins_each } else { 0 };
        let windows = assignment.watch.len() as u64 * bins_each;
        let longest =
            REPORT_BYTES * (1 + assignment.flows.len() as u64) + BIN_BYTES * (all + windows) + routed;
        Told {
            run,
            flows: assignment.flows.iter().map(|flow| flow.id).collect(),
            bins_each: u32::try_from(bins_each).unwrap_or(u32::MAX),
            windows: assignment.watch.iter().map(|flow| flow.subject.clone()).collect(),
            left: match tell_bins {
                // Both halves of a one-ended flow tell of each.
                true => [2 * (all + assignment.flows.len() as u64), windows, vpns],
                false => [0; 3],
            },
            ended: Ended::default(),
            longest_report: longest.min(MAX_REPORT_BYTES),
        }
    }

    /// Takes bins of the run; false where there are more than it has.
    fn take(&mut self, run: u64, mut ended: Ended) -> bool {
        let counts = [ended.bins.len(), ended.windows.len(), ended.vpns.len()];
        if run != self.run {
            // Those of the run before may be under way still.
            return counts == [0; 3] || run < self.run;
        }
        for (left, count) in self.left.iter_mut().zip(counts) {
            let Some(fewer) = left.checked_sub(count as u64) else { return false };
            *left = fewer;
        }
        ended.bins.retain(|bin| self.flows.contains(&bin.flow) && bin.bin < self.bins_each);
        ended.windows.retain(|window| self.windows.contains(&window.subject) && window.bin < self.bins_each);
        ended.vpns.retain(|vpn| vpn.bin < self.bins_each);
        self.ended.extend(ended);
        true
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks an agent who it is.
pub(crate) async fn greet(client: &mut AgentClient<Channel>) -> Result<HelloReply, Status> {
    let request = HelloRequest {
        oldest_version: *VERSIONS.start(),
        newest_version: *VERSIONS.end(),
        tool: env!("CARGO_PKG_VERSION").into(),
    };
    Ok(client.hello(request).await?.into_inner())
}

async fn attend(
    client: &mut AgentClient<Channel>,
    controller: u64,
) -> Result<(mpsc::Sender<Heartbeat>, Streaming<Progress>), Status> {
    let (heartbeats, out) = mpsc::channel(4);
    heartbeats.try_send(Heartbeat { controller }).expect("there is room for one");
    Ok((heartbeats, client.attend(ReceiverStream::new(out)).await?.into_inner()))
}

/// Asks the clock. Where both sides read one clock, and what was seen does not contradict
/// it, nothing needs estimating.
async fn offset(client: &mut AgentClient<Channel>, identity: &str) -> Result<ClockOffset, String> {
    let mut estimator = OffsetEstimator::default();
    let same = clock::is_ours(identity);
    for _ in 0..CLOCK_EXCHANGES {
        exchange_clocks(client, &mut estimator).await.map_err(|status| describe(&status))?;
        if same && estimator.offset().is_some_and(ClockOffset::may_be_none) {
            return Ok(ClockOffset::SAME_CLOCK);
        }
    }
    estimator.offset().ok_or_else(|| "its clock runs backwards".into())
}

/// Asks the clock once; gives what the kernel there says of its wall clock.
pub(crate) async fn exchange_clocks(
    client: &mut AgentClient<Channel>,
    estimator: &mut OffsetEstimator,
) -> Result<Option<ClockState>, Status> {
    let asked_ns = monotonic_ns();
    let reply = client.read_clock(ReadClockRequest {}).await?;
    let returned_ns = monotonic_ns();
    let ReadClockReply { received_ns, answered_ns, state } = reply.into_inner();
    estimator.handle_exchange(Exchange { asked_ns, received_ns, answered_ns, returned_ns });
    Ok(state)
}

/// Gives and takes signs of life until the agent is gone. Its silence is counted in our
/// ticks: had we been held up, we could not have heard it.
async fn keep(
    controller: u64,
    heartbeats: mpsc::Sender<Heartbeat>,
    mut progress: Streaming<Progress>,
    watched: watch::Sender<Seen>,
    told: Arc<Mutex<Told>>,
) {
    let mut tick = interval(HEARTBEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lease = Lease::new(AGENT_BEATS);
    let mut messages = 0;
    let how = loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {
                if !lease.tick() {
                    break format!("no sign of life for {:.0?}", HEARTBEAT * AGENT_BEATS);
                }
                messages = 0;
                // A full channel means that it does not read; its own silence will tell.
                let _ = heartbeats.try_send(Heartbeat { controller });
            }
            message = progress.message() => match message {
                Ok(Some(mut progress)) => {
                    lease.renew();
                    messages += 1;
                    if messages > MOST_MESSAGES {
                        break format!("it told of more than {MOST_MESSAGES} things within {HEARTBEAT:.2?}");
                    }
                    let ended = Ended::take(&mut progress);
                    if !lock(&told).take(progress.run, ended) {
                        break "it told of bins its run does not have".into();
                    }
                    watched.send_modify(|seen| seen.progress = progress);
                }
                Ok(None) => break "it ended by itself".into(),
                Err(status) => break describe(&status),
            },
        }
    };
    watched.send_modify(|seen| seen.lost = Some((monotonic_ns(), how)));
}

/// A failed call in words.
fn describe(status: &Status) -> String {
    match status.source() {
        Some(_) => format!("its process ended or the connection broke ({})", deepest(status)),
        None if status.message().is_empty() => format!("it answers {:?}", status.code()),
        None => plain(status.message()),
    }
}

pub(super) fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
