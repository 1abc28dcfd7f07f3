//! Transfer to a third-party server that reads what it receives. The result is the payload the server
//! acknowledged. The window is limited at the sender ([`netstage_tcp_watch::limit`]).

use netstage_agent_api::results::TcpSample;
use netstage_core::time::Duration;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::limit::{Limiter, Limits};
use netstage_tcp_watch::limit_file::FOLDER;
use netstage_traffic::kernel::tcp_info;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Maximum wait for an answer, and maximum time between two checks of the clock.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(5);
const WAIT: std::time::Duration = std::time::Duration::from_millis(20);
/// Bytes written at once; their content does not matter.
const CHUNK: usize = 128 << 10;
static PAYLOAD: [u8; CHUNK] = [0; CHUNK];

/// Receiving server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadServer {
    /// Discard server (RFC 863), or any other server that only reads.
    Discard,
    /// `iperf3 -s`.
    Iperf3,
    /// Web server that accepts POST.
    Http {
        /// Host, as in the URL.
        host: String,
        /// Path to which data is posted.
        path: String,
    },
}

/// Parameters of a transfer.
#[derive(Clone, Debug)]
pub struct Upload<'a> {
    /// Address and port of the server.
    pub target: SocketAddr,
    /// Protocol of the server.
    pub sink: &'a UploadServer,
    /// Congestion control by its kernel name; the system's default where absent.
    pub congestion_control: Option<&'a str>,
    /// Limit of the window, bytes; unlimited where absent.
    pub window: Option<u64>,
    /// Length, without the omitted beginning.
    pub time: Duration,
    /// Length of the omitted beginning.
    pub omit: Duration,
    /// Interval at which the sender's TCP state is sampled.
    pub interval: Duration,
}

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadResult {
    /// Local address.
    pub own: SocketAddr,
    /// Payload bytes acknowledged after the omitted beginning.
    pub acknowledged: u64,
    /// Time in which these bytes were acknowledged.
    pub measured: Duration,
    /// Samples of the sender's TCP state, from the beginning on.
    pub checks: Vec<TcpSample>,
}

/// Error of a transfer.
#[derive(Debug)]
pub enum UploadError {
    /// The window cannot be limited on this host.
    Limit(StartupError),
    /// The kernel does not have the requested congestion control.
    CongestionControl(String),
    /// The server or the path to it failed.
    Failed(String),
}

impl Upload<'_> {
    /// Runs the transfer. Returns `None` if it was interrupted.
    pub fn run(&self, interrupted: &AtomicBool) -> Result<Option<UploadResult>, UploadError> {
        let failed =
            |what: &str, error: io::Error| UploadError::Failed(format!("{what} {}: {error}", self.target));
        // The iperf3 server waits as long as its control connection is open.
        let mut control = None;
        let mut stream = match self.sink {
            UploadServer::Iperf3 => {
                let conversation = iperf3::Iperf3Control::start(self.target).map_err(UploadError::Failed)?;
                let mut stream = self.connect()?;
                stream.write_all(&conversation.cookie).map_err(|error| failed("cannot send to", error))?;
                control = Some(conversation);
                stream
            }
            UploadServer::Discard => self.connect()?,
            UploadServer::Http { host, path } => {
                let mut stream = self.connect()?;
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
                     \r\n",
                    1_u64 << 40
                );
                stream.write_all(head.as_bytes()).map_err(|error| failed("cannot send to", error))?;
                stream
            }
        };
        let _limit = self.limit(&stream)?;
        if let Some(conversation) = &mut control {
            conversation.wait_for_start().map_err(UploadError::Failed)?;
        }
        let sent = self.send(&mut stream, interrupted).map_err(|error| match refusal(&stream) {
            Some(status) => UploadError::Failed(format!("{} rejected the upload: {status}", self.target)),
            None => failed("transfer to", error),
        })?;
        if let (UploadServer::Http { .. }, Some(status)) = (self.sink, refusal(&stream)) {
            return Err(UploadError::Failed(format!("{} rejected the upload: {status}", self.target)));
        }
        match sent {
            Some(sent) if sent.acknowledged == 0 => Err(UploadError::Failed(format!(
                "{} acknowledged no data; check that the server reads what it receives",
                self.target
            ))),
            sent => Ok(sent),
        }
    }

    fn connect(&self) -> Result<TcpStream, UploadError> {
        let failed = |error: io::Error| UploadError::Failed(format!("no server at {}: {error}", self.target));
        let socket = Socket::new(Domain::for_address(self.target), Type::STREAM, Some(Protocol::TCP))
            .map_err(failed)?;
        if let Some(name) = self.congestion_control {
            socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                UploadError::CongestionControl(format!("congestion control {name}: {error}"))
            })?;
        }
        socket.connect_timeout(&self.target.into(), ANSWER).map_err(failed)?;
        // Unsent data is discarded at the end.
        socket.set_linger(Some(std::time::Duration::ZERO)).map_err(failed)?;
        socket.set_write_timeout(Some(WAIT)).map_err(failed)?;
        Ok(socket.into())
    }

    /// Limits the window before anything is sent. The limit ends with the connection at the latest.
    fn limit(&self, stream: &TcpStream) -> Result<Option<Limiter>, UploadError> {
        let Some(window) = self.window else { return Ok(None) };
        let system =
            |error: io::Error| UploadError::Failed(format!("connection to {}: {error}", self.target));
        let segment = tcp_info(stream.as_fd()).map_err(system)?.segment().max(1);
        let cwnd = u32::try_from(window / u64::from(segment)).unwrap_or(u32::MAX).clamp(2, 1 << 29);
        let port = stream.local_addr().map_err(system)?.port();
        let filter = Filter { ports: vec![port], ..Filter::default() };
        let here = Namespace::of_this_thread().map_err(system)?;
        let limits = Limits { cwnd: Some(cwnd), window: None };
        let mut limiter =
            Limiter::new(limits, filter, vec![here], Path::new(FOLDER)).map_err(UploadError::Limit)?;
        limiter.apply().map_err(UploadError::Limit)?;
        Ok(Some(limiter))
    }

    fn send(&self, stream: &mut TcpStream, interrupted: &AtomicBool) -> io::Result<Option<UploadResult>> {
        let own = stream.local_addr()?;
        let began = Instant::now();
        let bins = |time: Duration| time.0.div_ceil(self.interval.0) as usize;
        let (first, all) = (bins(self.omit), bins(self.omit + self.time));
        let mut looks: Vec<TcpSample> = Vec::with_capacity(all);
        let mut counted: Option<(Instant, u64)> = None;
        loop {
            match stream.write(&PAYLOAD) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            if interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let now = Instant::now();
            let passed = ((now - began).as_nanos() / u128::from(self.interval.0)) as usize;
            if passed > looks.len() {
                let info = tcp_info(stream.as_fd())?;
                looks.resize(passed.min(all), info.sample());
                let acknowledged = info.acknowledged();
                match counted {
                    None if passed >= first => counted = Some((now, acknowledged)),
                    Some((since, before)) if passed >= all => {
                        let measured = Duration((now - since).as_nanos() as u64);
                        return Ok(Some(UploadResult {
                            own,
                            acknowledged: acknowledged - before,
                            measured,
                            checks: looks,
                        }));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Returns the status line of a web server's error response, if one was received.
fn refusal(stream: &TcpStream) -> Option<String> {
    stream.set_nonblocking(true).ok()?;
    let mut response = [0; 256];
    let count = (&mut &*stream).read(&mut response).ok()?;
    let text = String::from_utf8_lossy(&response[..count]);
    let line = text.lines().next()?.trim();
    let code = line.strip_prefix("HTTP/")?.split(' ').nth(1)?;
    (!code.starts_with(['1', '2'])).then(|| line.to_owned())
}

mod iperf3 {
    //! Part of the iperf3 protocol needed to make `iperf3 -s` read data.

    use super::*;

    const COOKIE: usize = 37;
    const TEST_START: u8 = 1;
    const TEST_RUNNING: u8 = 2;
    const PARAM_EXCHANGE: u8 = 9;
    const CREATE_STREAMS: u8 = 10;
    const CLIENT_TERMINATE: u8 = 12;
    const ACCESS_DENIED: u8 = 0xff;
    const PARAMETERS: &str = r#"{"tcp":true,"omit":0,"time":86400,"num":0,"blockcount":0,"parallel":1,"len":131072,"client_version":"3.0"}"#;

    /// Control connection of a test. The server ends the test when it closes.
    pub struct Iperf3Control {
        stream: TcpStream,
        target: SocketAddr,
        /// Cookie that identifies the connections of one test.
        pub cookie: [u8; COOKIE],
    }

    impl Iperf3Control {
        /// Requests a test, and returns when the server waits for its data connection. The server runs one
        /// test at a time, and is unreachable for a moment after each.
        pub fn start(target: SocketAddr) -> Result<Iperf3Control, String> {
            let began = Instant::now();
            loop {
                match Iperf3Control::ask(target) {
                    Ok(conversation) => return Ok(conversation),
                    Err((error, retry_time)) if began.elapsed() >= retry_time => return Err(error),
                    Err(_) => std::thread::sleep(WAIT),
                }
            }
        }

        /// Requests a test once. An error contains the time during which the request may be retried.
        fn ask(target: SocketAddr) -> Result<Iperf3Control, (String, std::time::Duration)> {
            const RESTART_TIME: std::time::Duration = std::time::Duration::from_secs(1);
            const NO_RETRY: std::time::Duration = std::time::Duration::ZERO;
            let mut conversation = Iperf3Control::open(target).map_err(|error| (error, RESTART_TIME))?;
            let broken = |error: io::Error| {
                let retry_time = if error.kind() == io::ErrorKind::WouldBlock { NO_RETRY } else { ANSWER };
                (format!("{target} is not an iperf3 server: {error}"), retry_time)
            };
            conversation.stream.write_all(&conversation.cookie).map_err(broken)?;
            match conversation.state().map_err(broken)? {
                PARAM_EXCHANGE => {}
                ACCESS_DENIED => {
                    return Err((format!("iperf3 at {target} is busy with another test"), ANSWER));
                }
                other => {
                    return Err((
                        format!("{target} is not an iperf3 server: unexpected state {other}"),
                        NO_RETRY,
                    ));
                }
            }
            let length = (PARAMETERS.len() as u32).to_be_bytes();
            conversation.stream.write_all(&[&length, PARAMETERS.as_bytes()].concat()).map_err(broken)?;
            conversation.expect(CREATE_STREAMS).map_err(|error| (error, NO_RETRY))?;
            Ok(conversation)
        }

        fn open(target: SocketAddr) -> Result<Iperf3Control, String> {
            let no_server = |error: io::Error| format!("no server at {target}: {error}");
            let stream = TcpStream::connect_timeout(&target, ANSWER).map_err(no_server)?;
            stream.set_read_timeout(Some(ANSWER)).map_err(no_server)?;
            stream.set_nodelay(true).map_err(no_server)?;
            // The cookie is a zero-terminated text.
            let mut cookie = [0; COOKIE];
            let number = format!("{:0width$}", monotonic_ns(), width = COOKIE - 1);
            cookie[..COOKIE - 1].copy_from_slice(number.as_bytes());
            Ok(Iperf3Control { stream, target, cookie })
        }

        /// Waits until the server reads.
        pub fn wait_for_start(&mut self) -> Result<(), String> {
            self.expect(TEST_START)?;
            self.expect(TEST_RUNNING)
        }

        fn expect(&mut self, state: u8) -> Result<(), String> {
            match self.state() {
                Ok(received) if received == state => Ok(()),
                Ok(received) => Err(format!("iperf3 at {} refused the test: state {received}", self.target)),
                Err(error) => Err(format!("iperf3 at {} refused the test: {error}", self.target)),
            }
        }

        fn state(&mut self) -> io::Result<u8> {
            let mut state = [0];
            self.stream.read_exact(&mut state)?;
            Ok(state[0])
        }
    }

    impl Drop for Iperf3Control {
        fn drop(&mut self) {
            let _ = self.stream.write_all(&[CLIENT_TERMINATE]);
        }
    }
}
