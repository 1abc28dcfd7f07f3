//! Hostile agent of a fleet: a member by its certificate, which sends false or excessive data.

use netstage_agent_api::protocol::generated::agent_server::{Agent, AgentServer};
use netstage_agent_api::protocol::generated::*;
use netstage_agent_api::results::AgentReport;
use netstage_agent_api::task;
use netstage_host::clock::{self, monotonic_ns};
use netstage_host::shutdown::DaemonShutdown;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Misbehavior of an agent that is otherwise like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Reports impossible counters, flows and bins.
    Numbers,
    /// Sends progress as fast as it can.
    Flood,
    /// Announces a report of one terabyte.
    GiantReport,
    /// Sends a report without end.
    EndlessReport,
    /// Refuses with a reason of ten million characters.
    GiantWord,
    /// Reports the end of runs before their start, and of other runs.
    Early,
    /// Does not answer the start request.
    Mute,
    /// Does not answer the first two start requests.
    Hesitant,
    /// Does not answer the request to prepare.
    Unprepared,
    /// Sends another agent's report, and consents to flows that were not requested from it.
    OthersNames,
    /// Supports only unknown versions, and sends terminal control characters in its texts.
    Version,
}

/// Dials the hub over TLS as the agent of this folder, with or without its certificate.
pub async fn dial(
    address: SocketAddr,
    folder: &Path,
    with_certificate: bool,
) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("authority.pem")).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let certificate = CertificateDer::from_pem_file(folder.join("agent.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("agent.key")).unwrap();
    let mut config = match with_certificate {
        true => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        false => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"netstage-agent".to_vec()];
    let name = ServerName::try_from("controller.netstage").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

/// Starts the hostile agent on a thread of its own, until it is shut down. It dials again whenever it is
/// disconnected.
pub fn connect(address: SocketAddr, folder: PathBuf, lie: Lie) -> (DaemonShutdown, JoinHandle<()>) {
    let ender = DaemonShutdown::default();
    let mut ended = ender.subscribe();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => {}
                () = misbehave(address, folder, lie) => {}
            }
        });
        runtime.shutdown_background();
    });
    (ender, thread)
}

async fn misbehave(address: SocketAddr, folder: PathBuf, lie: Lie) {
    loop {
        if let Ok(mut stream) = dial(address, &folder, true).await {
            let (near, mut far) = tokio::io::duplex(64 << 10);
            let incoming = tokio_stream::once(Ok::<_, std::io::Error>(near)).chain(tokio_stream::pending());
            let service = AgentServer::new(Liar { lie, run: Arc::default(), starts: Arc::default() })
                .max_encoding_message_size(64 << 20);
            let serving = tonic::transport::Server::builder().serve_with_incoming(service, incoming);
            tokio::select! {
                _ = serving => {}
                _ = tokio::io::copy_bidirectional(&mut stream, &mut far) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Liar {
    lie: Lie,
    /// Number of the last run it was asked to prepare.
    run: Arc<AtomicU64>,
    /// Number of start requests it has received.
    starts: Arc<AtomicU64>,
}

impl Liar {
    fn progress(&self, beat: u64) -> Progress {
        let run = self.run.load(Ordering::Relaxed);
        let honest = Progress {
            phase: if run > 0 { Phase::Done } else { Phase::Idle }.into(),
            run,
            ..Progress::default()
        };
        match self.lie {
            Lie::Numbers if run > 0 => {
                let bin = |flow, bin| FinishedBin {
                    flow,
                    bin,
                    sent: u64::MAX,
                    received: u64::MAX,
                    ..FinishedBin::default()
                };
                Progress {
                    phase: Phase::Running.into(),
                    sent: u64::MAX,
                    sent_bytes: u64::MAX,
                    received: u64::MAX,
                    received_bytes: u64::MAX,
                    lost: u64::MAX,
                    bins: vec![bin(1, 0), bin(1, u32::MAX), bin(u32::MAX, 3), bin(1, 10)],
                    ..honest
                }
            }
            Lie::Early => Progress { phase: Phase::Done.into(), run: (run + beat) % 3 + run, ..honest },
            _ => honest,
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Agent for Liar {
    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        let is_unknown = self.lie == Lie::Version;
        let (oldest_version, newest_version) = if is_unknown { (9, 12) } else { (1, 1) };
        Ok(Response::new(HelloReply {
            oldest_version,
            newest_version,
            task_version: task::VERSION,
            tool: if is_unknown { "9\u{1b}[2J\nagent root: idle".into() } else { "1".into() },
            host: "h".repeat(10_000),
            clock: clock::identity(),
            ..HelloReply::default()
        }))
    }

    async fn read_clock(&self, _: Request<ReadClockRequest>) -> Answer<ReadClockReply> {
        let now = monotonic_ns();
        Ok(Response::new(ReadClockReply { received_ns: now, answered_ns: now, state: None }))
    }

    async fn compare_clocks(&self, _: Request<CompareClocksRequest>) -> Answer<CompareClocksReply> {
        let clock =
            |address: &str, offset_ns| ComparedClock { address: address.into(), offset_ns, error_ns: 1 };
        let clocks = vec![clock("192.0.2.9:1", 5), clock("192.0.2.1:4704", i64::MIN), clock("x", 0)];
        Ok(Response::new(CompareClocksReply { refusal: None, clocks }))
    }

    type AttendStream = ReceiverStream<Result<Progress, Status>>;

    async fn attend(&self, request: Request<Streaming<Heartbeat>>) -> Answer<Self::AttendStream> {
        let (progress, out) = mpsc::channel(4);
        let liar = Liar { lie: self.lie, run: Arc::clone(&self.run), starts: Arc::clone(&self.starts) };
        self.run.store(0, Ordering::Relaxed);
        tokio::spawn(async move {
            let mut heartbeats = request.into_inner();
            for beat in 0.. {
                if progress.send(Ok(liar.progress(beat))).await.is_err() {
                    return;
                }
                if liar.lie != Lie::Flood && !matches!(heartbeats.message().await, Ok(Some(_))) {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }

    async fn prepare(&self, request: Request<PrepareRequest>) -> Answer<PrepareReply> {
        if self.lie == Lie::Unprepared {
            std::future::pending::<()>().await;
        }
        self.run.store(request.get_ref().run, Ordering::Relaxed);
        let ports = [(1, 70_000), (999, 5), (1, 80)].map(|(flow, port)| ReceivingPort { flow, port });
        let refusal = (self.lie == Lie::GiantWord)
            .then(|| Refusal { reason: "x".repeat(10_000_000), ..Refusal::default() });
        Ok(Response::new(PrepareReply { refusal, ports: ports.to_vec() }))
    }

    async fn start(&self, _: Request<StartRequest>) -> Answer<StartReply> {
        let starts = self.starts.fetch_add(1, Ordering::Relaxed);
        if self.lie == Lie::Mute || (self.lie == Lie::Hesitant && starts < 2) {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(StartReply::default()))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Answer<StopReply> {
        Ok(Response::new(StopReply::default()))
    }

    type CollectStream = ReceiverStream<Result<ReportChunk, Status>>;

    async fn collect(&self, _: Request<CollectRequest>) -> Answer<Self::CollectStream> {
        let (chunks, out) = mpsc::channel(4);
        let content = |content| Ok(ReportChunk { content: Some(content) });
        let others = AgentReport { node: "fra-1".into(), ..AgentReport::default() };
        let others = serde_json::to_vec(&others).unwrap();
        let mut head =
            ReportHead { task_version: task::VERSION, length: others.len() as u64, ..ReportHead::default() };
        match self.lie {
            Lie::GiantReport => head.length = 1 << 40,
            Lie::EndlessReport => head.length = 0,
            Lie::OthersNames => {}
            _ => {
                let reason = "there is no such report".into();
                head.refusal = Some(Refusal { reason, ..Refusal::default() });
            }
        }
        let lie = self.lie;
        tokio::spawn(async move {
            let _ = chunks.send(content(report_chunk::Content::Head(head))).await;
            let _ = chunks.send(content(report_chunk::Content::Bytes(others))).await;
            while lie == Lie::EndlessReport
                && chunks.send(content(report_chunk::Content::Bytes(vec![b' '; 1 << 20]))).await.is_ok()
            {
            }
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }

    async fn open_paths(&self, _: Request<PathsRequest>) -> Answer<PathsReply> {
        Ok(Response::new(PathsReply { refusal: None, content: b"[{\"id\": 1}]".to_vec() }))
    }

    async fn check_paths(&self, _: Request<PathsRequest>) -> Answer<PathsReply> {
        Ok(Response::new(PathsReply { refusal: None, content: vec![b'['; 1 << 16] }))
    }

    async fn kept(&self, _: Request<KeptRequest>) -> Answer<KeptReply> {
        Ok(Response::new(KeptReply::default()))
    }

    async fn agree(&self, request: Request<AgreeRequest>) -> Answer<AgreeReply> {
        let consent = |flow, destination: &str| Consent {
            run: request.get_ref().run,
            flow,
            destination: destination.into(),
            signature: vec![0; 64],
            certificate: vec![0; 100],
            confirmation_port: 9,
        };
        let consents = (0..1000).map(|flow| consent(flow, "127.0.0.1:9")).collect();
        Ok(Response::new(AgreeReply { refusal: None, consents }))
    }

    async fn release(&self, _: Request<ReleaseRequest>) -> Answer<ReleaseReply> {
        Ok(Response::new(ReleaseReply::default()))
    }

    async fn finish(&self, _: Request<FinishRequest>) -> Answer<FinishReply> {
        Ok(Response::new(FinishReply::default()))
    }
}
