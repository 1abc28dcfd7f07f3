//! Search for the direction in which a TCP connection can be opened. Both ends listen at the port of the flow, and
//! connect to all addresses of the other end. One check and one answer, the same messages as over UDP, prove that the
//! other end is the one that is meant.

use super::{Authenticator, FoundPath, PathEnd};
use netstage_agent_api::task::FlowSide;
use netstage_traffic::kernel::tcp_sample;
use netstage_wire::stun::{HEADER, MAX_MESSAGE, Message, MessageClass};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time within which a connection has to be opened.
const LIMIT: Duration = Duration::from_secs(4);
/// Time for which the preferred direction, from the sender to the receiver, is tried after the other one succeeded.
const PREFERENCE_TIME: Duration = Duration::from_secs(1);
/// Time within which a check or an answer has to arrive on a connection.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which an end looks for connections, and tries again one that was refused.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Time limit of one attempt. The kernel repeats the connection request after a second.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(900);
/// Connection requests of an attempt that ends late.
const MAX_REQUESTS: u32 = 2;
/// Maximum number of connection requests to a host that has not answered a check, over all flows.
const MAX_UNANSWERED: u32 = 32;

/// Connection requests to each host that has not answered a check, with those that present attempts may still send;
/// `None` after it has answered.
#[derive(Clone, Default)]
pub struct ConnectionRequests(Arc<Mutex<BTreeMap<IpAddr, Option<u32>>>>);

impl ConnectionRequests {
    /// Begins an attempt if the requests that it may send are permitted.
    fn begin(&self, to: IpAddr) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counts.entry(to).or_insert(Some(0)) else { return true };
        let is_permitted = *count + MAX_REQUESTS <= MAX_UNANSWERED;
        *count += if is_permitted { MAX_REQUESTS } else { 0 };
        is_permitted
    }

    /// Ends an attempt that has sent this number of requests.
    fn end(&self, to: IpAddr, sent: u32) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(count)) = counts.get_mut(&to) {
            *count = *count + sent - MAX_REQUESTS;
        }
    }

    fn note_answer(&self, of: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(of, None);
    }
}

/// Starts the search for one flow. Returns the opened connection and the accepted one, as far as there are any.
pub fn start(
    end: PathEnd,
    authenticator: Authenticator,
    requests: ConnectionRequests,
) -> JoinHandle<Vec<FoundPath>> {
    thread::spawn(move || search(&end, &authenticator, &requests))
}

fn search(end: &PathEnd, authenticator: &Authenticator, requests: &ConnectionRequests) -> Vec<FoundPath> {
    let deadline = Instant::now() + LIMIT;
    let listeners: Vec<Socket> = end.locals.iter().filter_map(|local| listen(*local).ok()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, opened) = mpsc::channel();
    for remote in end.remotes.clone() {
        let Some(local) = end.local(remote) else { continue };
        let (sender, stop) = (sender.clone(), Arc::clone(&stop));
        let (flow, authenticator, requests) = (end.flow.clone(), authenticator.clone(), requests.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
                if !requests.begin(remote.ip()) {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
                let check = || authenticator.check(&flow, false);
                let opened = open(local, remote, deadline, &requests);
                match opened.and_then(|stream| verify(stream, check, &authenticator)) {
                    Ok(()) => {
                        requests.note_answer(remote.ip());
                        let local = SocketAddr::new(local.ip(), 0);
                        let _ = sender.send(FoundPath { id: flow.id, local, remote, has_opened: true });
                        return;
                    }
                    // The other end may not listen yet.
                    Err(_) => thread::sleep(RETRY_INTERVAL),
                }
            }
        });
    }
    let (mut found, mut first): (Vec<FoundPath>, Option<Instant>) = (Vec::new(), None);
    // The sender prefers the connection that it opens, and the receiver the one that it accepts.
    let prefers_opened = end.flow.side == FlowSide::Send;
    loop {
        let mut new: Vec<FoundPath> = opened.try_iter().collect();
        new.extend(listeners.iter().filter_map(|listener| accept(listener, end, authenticator)));
        for path in new {
            first.get_or_insert_with(Instant::now);
            if found.iter().all(|other| other.has_opened != path.has_opened) {
                found.push(path);
            }
        }
        let is_preferred = found.iter().any(|path| path.has_opened == prefers_opened);
        let is_late = first.is_some_and(|first| first.elapsed() > PREFERENCE_TIME);
        if is_preferred || is_late || Instant::now() >= deadline {
            stop.store(true, Ordering::Relaxed);
            return found;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn socket(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&SockAddr::from(local))?;
    Ok(socket)
}

fn listen(local: SocketAddr) -> io::Result<Socket> {
    let listener = socket(local)?;
    listener.set_nonblocking(true)?;
    listener.listen(16)?;
    Ok(listener)
}

/// Opens a connection, and ends the attempt.
fn open(
    local: SocketAddr,
    remote: SocketAddr,
    deadline: Instant,
    requests: &ConnectionRequests,
) -> io::Result<TcpStream> {
    let socket = socket(SocketAddr::new(local.ip(), 0)).inspect_err(|_| requests.end(remote.ip(), 0))?;
    let left = deadline.saturating_duration_since(Instant::now()).clamp(POLL_INTERVAL, ATTEMPT_TIMEOUT);
    let connected = socket.connect_timeout(&SockAddr::from(remote), left);
    let repeated = tcp_sample(socket.as_fd()).map_or(MAX_REQUESTS - 1, |tcp| tcp.retransmissions as u32);
    requests.end(remote.ip(), 1 + repeated);
    connected.map(|()| socket.into())
}

/// Sends a check on an opened connection, and waits for the answer.
fn verify(
    mut stream: TcpStream,
    check: impl FnOnce() -> Option<([u8; 12], netstage_wire::stun::MessageWriter)>,
    authenticator: &Authenticator,
) -> io::Result<()> {
    let (transaction, check) = check().ok_or(io::ErrorKind::Other)?;
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    stream.write_all(check.as_bytes())?;
    let mut bytes = [0; MAX_MESSAGE];
    let answer = read_message(&mut stream, &mut bytes)?;
    let is_answer = answer.class == MessageClass::Success && answer.transaction == transaction;
    if is_answer && authenticator.verifies(&answer) { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Accepts a connection, if one waits, and answers its check.
fn accept(listener: &Socket, end: &PathEnd, authenticator: &Authenticator) -> Option<FoundPath> {
    let (connection, _) = listener.accept().ok()?;
    connection.set_nonblocking(false).ok()?;
    let mut stream = TcpStream::from(connection);
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT)).ok()?;
    let from = stream.peer_addr().ok()?;
    let mut bytes = [0; MAX_MESSAGE];
    let check = read_message(&mut stream, &mut bytes).ok()?;
    if !authenticator.is_check_of_peer(&check, &end.flow) {
        return None;
    }
    stream.write_all(authenticator.answer(&check, from).as_bytes()).ok()?;
    let remote = SocketAddr::new(from.ip(), 0);
    Some(FoundPath { id: end.flow.id, local: stream.local_addr().ok()?, remote, has_opened: false })
}

fn read_message<'a>(stream: &mut TcpStream, bytes: &'a mut [u8; MAX_MESSAGE]) -> io::Result<Message<'a>> {
    stream.read_exact(&mut bytes[..HEADER])?;
    let length = HEADER + usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let rest = bytes.get_mut(HEADER..length).ok_or(io::ErrorKind::InvalidData)?;
    stream.read_exact(rest)?;
    Message::read(&bytes[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_answers_no_check_receives_a_limited_number_of_connection_requests() {
        let requests = ConnectionRequests::default();
        let [silent, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        // Attempts at the same time, then one after the other, some of which the kernel repeats.
        let begun = (0..100).filter(|_| requests.begin(silent)).count() as u32;
        assert_eq!(begun * MAX_REQUESTS, MAX_UNANSWERED);
        (0..begun).for_each(|place| requests.end(silent, 1 + place % 2));
        let mut sent = begun + begun / 2;
        while requests.begin(silent) {
            sent += 1;
            requests.end(silent, 1);
        }
        assert!((MAX_UNANSWERED - 1..=MAX_UNANSWERED).contains(&sent), "{sent}");
        requests.note_answer(other);
        assert!((0..100).all(|_| requests.begin(other)));
    }
}
