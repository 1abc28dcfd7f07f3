//! Client that speaks the raw agent protocol, as a controller that the fleet admits.

use netstage_agent::controller::AgentAddress;
use netstage_agent_api::path::{FoundPath, PathAddresses, PathSearch};
use netstage_agent_api::protocol::generated::agent_client::AgentClient;
use netstage_agent_api::protocol::generated::{
    AgreeRequest, CompareClocksRequest, Consent, Heartbeat, PathsRequest, Phase, PrepareRequest, Refusal,
    ReleaseRequest, StartRequest, StopRequest,
};
use netstage_agent_api::task::VERSION;
use netstage_host::clock::monotonic_ns;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const LIMIT: Duration = Duration::from_secs(20);
const HEARTBEAT: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time from a start request to the start.
const LEAD: Duration = Duration::from_millis(250);

/// Session with an agent.
pub struct Commander {
    runtime: Runtime,
    client: AgentClient<Channel>,
    controller: u64,
    phase: Arc<AtomicI32>,
}

impl Commander {
    /// Acquires an agent.
    pub fn acquire(name: &str, address: impl Fn() -> AgentAddress) -> Commander {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let end = Instant::now() + 3 * LIMIT;
        loop {
            let controller = monotonic_ns() | 1;
            let attended = runtime.block_on(attend(name, address(), controller));
            match attended {
                Ok((client, phase)) => return Commander { runtime, client, controller, phase },
                Err(error) => assert!(Instant::now() < end, "{name}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the consents of the agent, or its refusal.
    pub fn agree(&mut self, run: u64, version: u32, assignment: &[u8]) -> Result<Vec<Consent>, Refusal> {
        let controller = self.controller;
        let request =
            AgreeRequest { controller, run, task_version: version, assignment: assignment.to_vec() };
        let reply = self.runtime.block_on(async { timeout(LIMIT, self.client.agree(request)).await });
        let reply = reply.ok().and_then(Result::ok).map(|reply| reply.into_inner()).unwrap_or_default();
        reply.refusal.map_or(Ok(reply.consents), Err)
    }

    /// Prepares a run. Returns whether the agent accepted it.
    pub fn prepare(&mut self, run: u64, assignment: &[u8], consents: Vec<Consent>) -> Result<(), String> {
        let request = PrepareRequest {
            controller: self.controller,
            run,
            task_version: VERSION,
            assignment: assignment.to_vec(),
            report_bins: run.is_multiple_of(2),
            consents,
        };
        let reply = self.runtime.block_on(async { timeout(LIMIT, self.client.prepare(request)).await });
        let reply = reply.map_err(|_| "no answer".to_owned())?.map_err(|status| status.to_string())?;
        reply.into_inner().refusal.map_or(Ok(()), |refusal| Err(refusal.reason))
    }

    /// Has the agent search paths of flows to any addresses. Returns the paths that it claims to have found.
    pub fn search_paths(&mut self, run: u64, search: &PathSearch, peers: &[PathAddresses]) -> Vec<FoundPath> {
        let controller = self.controller;
        let request = |content| PathsRequest { controller, run, task_version: VERSION, content };
        let open = request(serde_json::to_vec(search).unwrap());
        let _ = self.runtime.block_on(async { timeout(LIMIT, self.client.open_paths(open)).await });
        let check = request(serde_json::to_vec(peers).unwrap());
        let reply = self.runtime.block_on(async { timeout(LIMIT, self.client.check_paths(check)).await });
        let reply = reply.ok().and_then(Result::ok).map(|reply| reply.into_inner()).unwrap_or_default();
        serde_json::from_slice(&reply.content).unwrap_or_default()
    }

    /// Compares clocks as the assignment requests.
    pub fn compare_clocks(&mut self, run: u64) {
        let request = CompareClocksRequest { controller: self.controller, run };
        let _ = self.runtime.block_on(async { timeout(LIMIT, self.client.compare_clocks(request)).await });
    }

    /// Starts the prepared run.
    pub fn start(&mut self, run: u64) {
        let at_ns = monotonic_ns() + LEAD.as_nanos() as u64;
        let request = StartRequest { controller: self.controller, run, at_ns };
        let _ = self.runtime.block_on(async { timeout(LIMIT, self.client.start(request)).await });
    }

    /// Stops a run, waits until it is over, and releases its report.
    pub fn end(&mut self, run: u64) {
        let request = StopRequest { controller: self.controller, run };
        let _ = self.runtime.block_on(async { timeout(LIMIT, self.client.stop(request)).await });
        let end = Instant::now() + LIMIT;
        while self.phase.load(Ordering::Relaxed) == Phase::Running as i32 && Instant::now() < end {
            std::thread::sleep(POLL_INTERVAL);
        }
        let request = ReleaseRequest { controller: self.controller, run };
        let _ = self.runtime.block_on(async { timeout(LIMIT, self.client.release(request)).await });
    }
}

async fn attend(
    name: &str,
    address: AgentAddress,
    controller: u64,
) -> Result<(AgentClient<Channel>, Arc<AtomicI32>), String> {
    let channel = address.dial(name, tokio::time::Instant::now() + LIMIT).await.map_err(|e| e.to_string())?;
    let mut client = AgentClient::new(channel);
    let (heartbeats, out) = mpsc::channel(4);
    let _ = heartbeats.send(Heartbeat { controller }).await;
    let attended =
        timeout(LIMIT, client.attend(ReceiverStream::new(out))).await.map_err(|e| e.to_string())?;
    let mut progress = attended.map_err(|status| status.to_string())?.into_inner();
    let first = timeout(LIMIT, progress.message()).await.map_err(|e| e.to_string())?;
    let first = first.map_err(|status| status.to_string())?.ok_or("the stream ended")?;
    if let Some(refusal) = first.refusal {
        return Err(refusal.reason);
    }
    let phase = Arc::new(AtomicI32::new(first.phase));
    let reported = Arc::clone(&phase);
    tokio::spawn(async move {
        while let Ok(Some(message)) = progress.message().await {
            reported.store(message.phase, Ordering::Relaxed);
        }
    });
    tokio::spawn(async move {
        while heartbeats.send(Heartbeat { controller }).await.is_ok() {
            tokio::time::sleep(HEARTBEAT).await;
        }
    });
    Ok((client, phase))
}
