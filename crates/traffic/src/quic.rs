//! QUIC (RFC 9000) by quinn: one connection with one unidirectional stream per flow, all flows
//! in one thread of their own.
//!
//! Timers there have a resolution of a millisecond, so a pattern's bytes are handed over by
//! up to that much late; nothing drifts. The receiver's certificate is made at preparation
//! and signs for itself; the sender takes any, since who receives was settled between the
//! agents, and what is sent is no secret.

use super::Progress;
use super::emissions::Emissions;
use super::error::Problem;
use super::frame::{Frame, LONGEST_DRAIN};
use super::ledger::Ledger;
use super::schedule::Punctuality;
use super::udp;
use netstage_agent_api::results::{FlowResult, TcpSample};
use netstage_agent_api::task::{FlowTask, Side};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::keyed::{Trust, Verifier};
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

/// Bytes written by one call.
const CHUNK: usize = 64 << 10;
/// What the receiver lets the sender have under way.
const WINDOW: u32 = 16 << 20;
/// What the certificate is made for; nobody looks at it.
const NAME: &str = "netstage";

static PAYLOAD: [u8; CHUNK] = [0; CHUNK];

/// One side of a flow over QUIC.
pub struct QuicFlow {
    name: String,
    socket: UdpSocket,
    end: End,
    start: Instant,
    stop: Instant,
    detail: bool,
    /// The only host a connection is taken from; none where any.
    peer: Option<IpAddr>,
    book: RefCell<Book>,
}

enum End {
    Sends { emissions: RefCell<Emissions>, destination: SocketAddr, config: ClientConfig },
    Receives { config: ServerConfig },
}

/// What is written down.
struct Book {
    ledger: Ledger,
    punctuality: Punctuality,
    samples: Vec<TcpSample>,
    connection: Option<Connection>,
    last_bytes: Option<Instant>,
    error: Option<String>,
}

impl QuicFlow {
    /// Binds the socket and makes the certificate.
    pub fn prepare(
        task: &FlowTask,
        seed: u64,
        duration: Duration,
        ledger: Ledger,
    ) -> Result<QuicFlow, Problem> {
        let (address, end) = match task.side {
            Side::Send => {
                let emissions = RefCell::new(Emissions::new(task, seed, duration)?);
                let config = client().map_err(tls)?;
                (task.source, End::Sends { emissions, destination: task.destination, config })
            }
            Side::Receive => (task.destination, End::Receives { config: server().map_err(tls)? }),
        };
        Ok(QuicFlow {
            name: task.name.clone(),
            socket: udp::bound(address, false)?.into(),
            end,
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            detail: task.detail,
            peer: Some(task.source.ip()).filter(|ip| !ip.is_unspecified()),
            book: RefCell::new(Book {
                ledger,
                punctuality: Punctuality::new(),
                samples: Vec::new(),
                connection: None,
                last_bytes: None,
                error: None,
            }),
        })
    }

    /// Runs until all is there, or the flow's time is up. Fails with what is to be said.
    async fn run(&self, epoch: Epoch) -> Result<(), String> {
        let socket = self.socket.try_clone().map_err(|error| error.to_string())?;
        let open = |server| Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime));
        match &self.end {
            End::Receives { config } => {
                let endpoint = open(Some(config.clone())).map_err(|error| error.to_string())?;
                self.receive(&endpoint, epoch).await
            }
            End::Sends { emissions, destination, config } => {
                let mut endpoint = open(None).map_err(|error| error.to_string())?;
                endpoint.set_default_client_config(config.clone());
                until(epoch, self.start).await;
                let connecting = endpoint.connect(*destination, NAME).map_err(|error| error.to_string())?;
                let connection =
                    connecting.await.map_err(|error| format!("connecting to {destination}: {error}"))?;
                self.book.borrow_mut().connection = Some(connection.clone());
                // Borrowed by this task alone.
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
        let broke = |error: &dyn std::fmt::Display| format!("the connection broke: {error}");
        let mut stream = connection.open_uni().await.map_err(|error| broke(&error))?;
        while let Some((due, bytes)) = emissions.next() {
            until(epoch, due).await;
            if bytes != u64::MAX {
                let mut book = self.book.borrow_mut();
                book.punctuality.ask(due, bytes);
                book.ledger.at(due).offered_bytes += bytes;
            }
            let mut left = bytes;
            while left > 0 && epoch.now() < self.stop {
                let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                let count = stream.write(&PAYLOAD[..length]).await.map_err(|error| broke(&error))?;
                self.book.borrow_mut().ledger.at(epoch.now()).sent_bytes += count as u64;
                left -= count as u64;
            }
            if left == 0 {
                let mut book = self.book.borrow_mut();
                let now = epoch.now();
                book.punctuality.send(due, now, bytes);
                book.ledger.at(now).sent += 1;
            }
        }
        // Fails where the receiver has gone already.
        let _ = stream.finish();
        let _ = stream.stopped().await;
        Ok(())
    }

    /// The port it is bound to.
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
        let connection = incoming.await.map_err(|error| format!("taking the connection: {error}"))?;
        self.book.borrow_mut().connection = Some(connection.clone());
        // The sender closes the connection once its time is up: no failure.
        let Ok(mut stream) = connection.accept_uni().await else { return Ok(()) };
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, false).await {
            let mut book = self.book.borrow_mut();
            let now = epoch.now();
            book.ledger.at(now).received_bytes += chunk.bytes.len() as u64;
            book.last_bytes = Some(now);
        }
        connection.closed().await;
        Ok(())
    }

    fn end_bin(&self, flow: usize, bin: usize) -> Progress {
        let mut book = self.book.borrow_mut();
        let tcp = (self.detail && matches!(self.end, End::Sends { .. }))
            .then(|| book.connection.as_ref().map(sample).unwrap_or_default());
        book.samples.extend(tcp);
        Progress { flow, bin, counts: *book.ledger.counts(bin), tcp, travel: None }
    }

    fn finish(self, now: Instant) -> FlowResult {
        let sends = matches!(self.end, End::Sends { .. });
        let mut book = self.book.into_inner();
        if book.connection.is_none() && now > self.start {
            let silence = if sends { "no answer to the connection request" } else { "no connection came" };
            book.error.get_or_insert_with(|| silence.to_string());
        }
        let schedule = book.punctuality.schedule();
        FlowResult {
            name: self.name,
            sends,
            gaps: book.punctuality.gaps(),
            schedule: (sends && schedule.asked > 1).then_some(schedule),
            bins: book.ledger.into_bins(),
            tcp: book.samples,
            last_bytes_ns: book.last_bytes.map(|at| at.0),
            error: book.error,
            ..FlowResult::default()
        }
    }
}

/// Runs all flows over QUIC; returns each flow's index and result.
pub fn run(
    flows: Vec<(usize, QuicFlow)>,
    frame: Frame<'_>,
    progress: &mpsc::Sender<Progress>,
) -> io::Result<Vec<(usize, FlowResult)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let flows: Vec<(usize, Rc<QuicFlow>)> =
        flows.into_iter().map(|(index, flow)| (index, Rc::new(flow))).collect();
    let local = LocalSet::new();
    let work = async {
        let epoch = frame.epoch;
        let start = |flow: Rc<QuicFlow>| async move {
            if let Err(error) = flow.run(epoch).await {
                flow.book.borrow_mut().error.get_or_insert(error);
            }
        };
        let tasks = flows.iter().map(|(_, flow)| spawn_local(start(Rc::clone(flow))));
        for task in tasks.collect::<Vec<_>>() {
            // A task that fails leaves its flow with what it has written down.
            let _ = task.await;
        }
    };
    runtime.block_on(local.run_until(async {
        tokio::select! {
            () = work => {}
            () = tick(&flows, frame, progress) => {}
        }
    }));
    // Ends the tasks, so that the flows are ours alone again.
    drop(local);
    let now = frame.epoch.now();
    let finish = |(index, flow): (usize, Rc<QuicFlow>)| Some((index, Rc::into_inner(flow)?.finish(now)));
    Ok(flows.into_iter().filter_map(finish).collect())
}

/// Tells of each bin that ends; returns when the run is over.
async fn tick(flows: &[(usize, Rc<QuicFlow>)], frame: Frame<'_>, progress: &mpsc::Sender<Progress>) {
    let end = Instant(frame.duration.0);
    let last = flows.iter().map(|(_, flow)| flow.stop).max().unwrap_or(end);
    let mut bins = super::frame::Bins::new(frame.interval, frame.duration);
    let mut bin = 0;
    while !frame.stop.load(Ordering::Relaxed) && frame.epoch.now() < last.min(end) + LONGEST_DRAIN {
        let now = frame.epoch.now();
        while bins.next <= now {
            for (index, flow) in flows {
                // Nobody listens any more where the run is being stopped.
                let _ = progress.send(flow.end_bin(*index, bin));
            }
            bin += 1;
            bins.advance();
        }
        until(frame.epoch, bins.next.min(now + Duration::from_millis(50))).await;
    }
}

async fn until(epoch: Epoch, moment: Instant) {
    let wait = epoch.monotonic_ns(moment).saturating_sub(netstage_host::clock::monotonic_ns());
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

fn tls(error: Box<dyn std::error::Error + Send + Sync>) -> Problem {
    Problem::System { what: "setting TLS up", error: io::Error::other(error) }
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

/// Takes any certificate, provided its owner has the key.
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
