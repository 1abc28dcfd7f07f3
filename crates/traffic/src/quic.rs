//! Flows over QUIC (RFC 9000), with quinn: one connection with one unidirectional stream per flow. All flows share
//! one thread.
//!
//! Timers have a resolution of a millisecond, so bytes are written up to that much late, without drift. The receiver
//! has a self-signed certificate, generated in preparation. The sender accepts any certificate, because the agents
//! have agreed on the receiver, and the payload is not confidential.

use super::FlowProgress;
use super::emissions::Emissions;
use super::error::FlowProblem;
use super::records::FlowLedger;
use super::run_context::{MAX_DRAIN, RunTimes};
use super::schedule::ScheduleStatistics;
use super::stalls::{StallObserver, TICK};
use super::udp;
use crate::ThreadRemarks;
use netstage_agent_api::results::{FlowResult, TcpSample};
use netstage_agent_api::task::{FlowSide, FlowTask};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::shared_key::{Trust, Verifier};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, VarInt};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// Maximum number of bytes written by one call.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes in flight that the receiver allows.
const WINDOW: u32 = 16 << 20;
/// Subject name of the certificate, which is not verified.
const NAME: &str = "netstage";

static PAYLOAD: [u8; CHUNK] = [0; CHUNK];

/// One side of a flow over QUIC.
pub struct QuicFlow {
    name: String,
    socket: UdpSocket,
    end: QuicSide,
    start: Instant,
    stop: Instant,
    detail: bool,
    /// Only host from which a connection is accepted, or `None` for any.
    peer: Option<IpAddr>,
    records: RefCell<QuicRecords>,
}

enum QuicSide {
    Sends { emissions: RefCell<Emissions>, destination: SocketAddr, config: ClientConfig },
    Receives { config: ServerConfig },
}

/// Counts and state of a flow for its result.
struct QuicRecords {
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
    samples: Vec<TcpSample>,
    connection: Option<Connection>,
    last_bytes: Option<Instant>,
    error: Option<String>,
}

impl QuicFlow {
    /// Binds the socket and generates the certificate.
    pub fn prepare(
        task: &FlowTask,
        seed: u64,
        duration: Duration,
        ledger: FlowLedger,
    ) -> Result<QuicFlow, FlowProblem> {
        let (address, end) = match task.side {
            FlowSide::Send => {
                let emissions = RefCell::new(Emissions::new(task, seed, duration)?);
                let config = client().map_err(tls)?;
                (task.source, QuicSide::Sends { emissions, destination: task.reached_at(), config })
            }
            FlowSide::Receive => (task.destination, QuicSide::Receives { config: server().map_err(tls)? }),
        };
        Ok(QuicFlow {
            name: task.name.clone(),
            socket: udp::bound(address, false)?.into(),
            end,
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            detail: task.detail,
            peer: Some(task.seen_from().ip()).filter(|ip| !ip.is_unspecified()),
            records: RefCell::new(QuicRecords {
                ledger,
                punctuality: ScheduleStatistics::new(Duration::ZERO),
                samples: Vec::new(),
                connection: None,
                last_bytes: None,
                error: None,
            }),
        })
    }

    /// Runs until the transfer is complete, or the flow stops. The error is a message for the report.
    async fn run(&self, epoch: Epoch) -> Result<(), String> {
        let socket = self.socket.try_clone().map_err(|error| error.to_string())?;
        let open = |server| Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime));
        match &self.end {
            QuicSide::Receives { config } => {
                let endpoint = open(Some(config.clone())).map_err(|error| error.to_string())?;
                self.receive(&endpoint, epoch).await
            }
            QuicSide::Sends { emissions, destination, config } => {
                let mut endpoint = open(None).map_err(|error| error.to_string())?;
                endpoint.set_default_client_config(config.clone());
                until(epoch, self.start).await;
                let connecting = endpoint.connect(*destination, NAME).map_err(|error| error.to_string())?;
                let connection =
                    connecting.await.map_err(|error| format!("connecting to {destination}: {error}"))?;
                self.records.borrow_mut().connection = Some(connection.clone());
                // Only this task borrows the emissions.
                let mut emissions = emissions.borrow_mut().clone();
                let sent = self.send(&connection, &mut emissions, epoch).await;
                connection.close(VarInt::from_u32(0), b"");
                endpoint.wait_idle().await;
                sent
            }
        }
    }

    async fn send(
        &self,
        connection: &Connection,
        emissions: &mut Emissions,
        epoch: Epoch,
    ) -> Result<(), String> {
        let lost = |error: &dyn std::fmt::Display| format!("connection lost: {error}");
        let mut stream = connection.open_uni().await.map_err(|error| lost(&error))?;
        while let Some((due, bytes)) = emissions.next_emission() {
            until(epoch, due).await;
            if bytes != u64::MAX {
                let mut records = self.records.borrow_mut();
                records.punctuality.record_due(due, bytes);
                records.ledger.at(due).offered_bytes += bytes;
            }
            let mut left = bytes;
            while left > 0 && epoch.now() < self.stop {
                let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                let count = stream.write(&PAYLOAD[..length]).await.map_err(|error| lost(&error))?;
                self.records.borrow_mut().ledger.at(epoch.now()).sent_bytes += count as u64;
                left -= count as u64;
            }
            if left == 0 {
                let mut records = self.records.borrow_mut();
                let now = epoch.now();
                records.punctuality.record_sent(due, now, bytes);
                records.ledger.at(now).sent += 1;
            }
        }
        // Fails if the receiver has already closed the connection.
        let _ = stream.finish();
        let _ = stream.stopped().await;
        Ok(())
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Returns the bound port.
    pub fn port(&self) -> u16 {
        self.socket.local_addr().map_or(0, |address| address.port())
    }

    async fn receive(&self, endpoint: &Endpoint, epoch: Epoch) -> Result<(), String> {
        let incoming = loop {
            let Some(incoming) = endpoint.accept().await else { return Ok(()) };
            if self.peer.is_none_or(|peer| incoming.remote_address().ip() == peer) {
                break incoming;
            }
            incoming.refuse();
        };
        let connection = incoming.await.map_err(|error| format!("accepting the connection: {error}"))?;
        self.records.borrow_mut().connection = Some(connection.clone());
        // The sender closes the connection at its stop, which is not a failure.
        let Ok(mut stream) = connection.accept_uni().await else { return Ok(()) };
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, false).await {
            let mut records = self.records.borrow_mut();
            let now = epoch.now();
            records.ledger.receive(now, 0, chunk.bytes.len() as u64);
            records.last_bytes = Some(now);
        }
        connection.closed().await;
        Ok(())
    }

    fn end_bin(&self, flow: usize, bin: usize) -> FlowProgress {
        let mut records = self.records.borrow_mut();
        let tcp = (self.detail && matches!(self.end, QuicSide::Sends { .. }))
            .then(|| records.connection.as_ref().map(sample).unwrap_or_default());
        records.samples.extend(tcp);
        FlowProgress { flow, bin, counts: *records.ledger.counts(bin), tcp, travel: None }
    }

    fn finish(self, now: Instant) -> FlowResult {
        let sends = matches!(self.end, QuicSide::Sends { .. });
        let mut records = self.records.into_inner();
        if records.connection.is_none() && now > self.start {
            let error = if sends { "no answer to the connection request" } else { "no connection received" };
            records.error.get_or_insert_with(|| error.to_string());
        }
        let schedule = records.punctuality.schedule();
        FlowResult {
            name: self.name,
            sends,
            gaps: records.punctuality.gaps(),
            schedule: (sends && schedule.requested > 1).then_some(schedule),
            drained: records.ledger.drained(),
            bins: records.ledger.into_bins(),
            tcp: records.samples,
            last_bytes_ns: records.last_bytes.map(|at| at.0),
            error: records.error,
            ..FlowResult::default()
        }
    }
}

/// Runs all flows over QUIC. Returns the index and result of each flow, and the remarks of the thread.
pub fn run(
    flows: Vec<(usize, QuicFlow)>,
    frame: RunTimes<'_>,
    progress: &mpsc::Sender<FlowProgress>,
) -> io::Result<(Vec<(usize, FlowResult)>, ThreadRemarks)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let flows: Vec<(usize, Rc<QuicFlow>)> =
        flows.into_iter().map(|(index, flow)| (index, Rc::new(flow))).collect();
    let local = LocalSet::new();
    let work = async {
        let epoch = frame.epoch;
        let start = |flow: Rc<QuicFlow>| async move {
            if let Err(error) = flow.run(epoch).await {
                flow.records.borrow_mut().error.get_or_insert(error);
            }
        };
        let tasks = flows.iter().map(|(_, flow)| spawn_local(start(Rc::clone(flow))));
        for task in tasks.collect::<Vec<_>>() {
            // The records of a panicked task's flow remain.
            let _ = task.await;
        }
    };
    let mut stalls = StallObserver::new(Instant::ZERO, frame.duration);
    runtime.block_on(local.run_until(async {
        tokio::select! {
            () = work => {}
            () = tick(&flows, frame, progress, &mut stalls) => {}
        }
    }));
    let remarks = stalls.void_reason(crate::QUIC_THREAD).map(ThreadRemarks::void).unwrap_or_default();
    // Drops the tasks with their references to the flows.
    drop(local);
    let now = frame.epoch.now();
    let finish = |(index, flow): (usize, Rc<QuicFlow>)| Some((index, Rc::into_inner(flow)?.finish(now)));
    Ok((flows.into_iter().filter_map(finish).collect(), remarks))
}

/// Reports the progress of each bin, and observes the thread. Returns at the end of the run.
async fn tick(
    flows: &[(usize, Rc<QuicFlow>)],
    frame: RunTimes<'_>,
    progress: &mpsc::Sender<FlowProgress>,
    stalls: &mut StallObserver,
) {
    let end = Instant(frame.duration.0);
    let last = flows.iter().map(|(_, flow)| flow.stop).max().unwrap_or(end);
    let mut bins = super::run_context::BinClock::new(frame.interval, frame.duration);
    let mut bin = 0;
    while !frame.stop.load(Ordering::Relaxed) && frame.epoch.now() < last.min(end) + MAX_DRAIN {
        let now = frame.epoch.now();
        stalls.observe(now);
        while bins.next <= now {
            for (index, flow) in flows {
                // Fails only while the run is being stopped.
                let _ = progress.send(flow.end_bin(*index, bin));
            }
            bin += 1;
            bins.advance();
        }
        until(frame.epoch, bins.next.min(now + TICK)).await;
    }
}

async fn until(epoch: Epoch, time: Instant) {
    let wait = epoch.monotonic_ns(time).saturating_sub(netstage_host::clock::monotonic_ns());
    if wait > 0 {
        sleep(std::time::Duration::from_nanos(wait)).await;
    }
}

fn sample(connection: &Connection) -> TcpSample {
    let path = connection.stats().path;
    TcpSample {
        window: (path.cwnd / u64::from(path.current_mtu.max(1))) as u32,
        round_trip_ns: path.rtt.as_nanos() as u64,
        retransmissions: path.lost_packets,
        ..TcpSample::default()
    }
}

fn tls(error: Box<dyn std::error::Error + Send + Sync>) -> FlowProblem {
    FlowProblem::System { what: "configuring TLS", error: io::Error::other(error) }
}

fn server() -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    let certified = rcgen::generate_simple_self_signed([NAME.to_string()])?;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![certified.cert.der().clone()], key.into())?;
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(WINDOW.into()).receive_window(WINDOW.into());
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn client() -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::new(AnyCertificate)))
        .with_no_client_auth();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?));
    let mut transport = quinn::TransportConfig::default();
    transport.send_window(u64::from(WINDOW));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Trust in any certificate whose owner has the private key.
#[derive(Debug)]
struct AnyCertificate;

impl Trust for AnyCertificate {
    fn check(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: Option<&ServerName<'_>>,
        _now: UnixTime,
    ) -> Result<(), rustls::Error> {
        Ok(())
    }
}
