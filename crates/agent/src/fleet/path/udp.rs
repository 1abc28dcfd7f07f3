//! Path checks over UDP, and the thread that sends and answers them.

use super::{Authenticator, FoundPath, PathEnd, VALIDITY, is_host};
use netstage_agent_api::task::FlowSide;
use netstage_core::fleet::{PathCheck, PathChecks, PathRole};
use netstage_core::time::Instant;
use netstage_wire::stun::{MAX_MESSAGE, Message, MessageClass, TransactionId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Maximum time between two looks at the end of the session, in milliseconds.
const MAX_WAIT_MS: u16 = 20;

/// Checks of all flows over UDP.
struct UdpPaths<'a> {
    ends: &'a [PathEnd],
    authenticator: &'a Authenticator,
    /// Index of the flow, and its socket for one family.
    sockets: Vec<(usize, UdpSocket)>,
    checks: PathChecks,
    /// Checks that are not answered.
    pending: BTreeMap<TransactionId, PathCheck>,
    start: std::time::Instant,
}

/// Sends checks and answers those of the other ends until `ended` is set, or the paths are no longer valid. Sends the
/// found paths, with those of the `threads` that search TCP paths, as soon as they are complete.
pub fn run(
    ends: &[PathEnd],
    authenticator: &Authenticator,
    threads: Vec<JoinHandle<Vec<FoundPath>>>,
    permits: &dyn Fn(IpAddr, IpAddr) -> bool,
    ended: &AtomicBool,
    found: &mpsc::Sender<Vec<FoundPath>>,
) {
    let bind = |(index, end): (usize, &PathEnd)| -> Vec<(usize, UdpSocket)> {
        let open = |local: &SocketAddr| {
            let socket = UdpSocket::bind(local).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((index, socket))
        };
        end.locals.iter().filter_map(open).collect()
    };
    let role = |end: &PathEnd| match end.flow.side {
        FlowSide::Send => (PathRole::Sender, end.remotes.clone()),
        FlowSide::Receive => (PathRole::Receiver, end.remotes.clone()),
    };
    let mut paths = UdpPaths {
        ends,
        authenticator,
        sockets: ends.iter().enumerate().flat_map(bind).collect(),
        checks: PathChecks::new(ends.iter().map(role).collect(), Instant::ZERO),
        pending: BTreeMap::new(),
        start: std::time::Instant::now(),
    };
    let mut threads = Some(threads);
    while !ended.load(Ordering::Relaxed) && paths.start.elapsed() < VALIDITY {
        paths.send();
        let is_complete = |threads: &mut Vec<JoinHandle<_>>| threads.iter().all(JoinHandle::is_finished);
        if paths.checks.is_done(paths.now())
            && let Some(threads) = threads.take_if(is_complete)
        {
            let tcp = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
            // Fails only if the session has ended.
            let _ = found.send(tcp.chain(paths.found()).collect());
        }
        paths.wait();
        paths.receive(permits);
    }
}

impl UdpPaths<'_> {
    fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }

    fn send(&mut self) {
        while let Some(check) = self.checks.poll_transmit(self.now()) {
            let flow = &self.ends[check.flow].flow;
            let Some(socket) = self.socket(check.flow, check.to) else { continue };
            let Some((transaction, message)) = self.authenticator.check(flow, check.selects) else {
                continue;
            };
            // An error concerns an earlier packet, or the check counts as lost.
            let _ = socket.send_to(message.as_bytes(), check.to);
            self.pending.insert(transaction, check);
        }
    }

    fn socket(&self, flow: usize, to: SocketAddr) -> Option<&UdpSocket> {
        let is_usable = |(index, socket): &&(usize, UdpSocket)| {
            *index == flow && socket.local_addr().is_ok_and(|local| local.is_ipv4() == to.is_ipv4())
        };
        self.sockets.iter().find(is_usable).map(|(_, socket)| socket)
    }

    fn wait(&self) {
        let sockets = self.sockets.iter();
        let mut polled: Vec<PollFd> =
            sockets.map(|(_, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let left_ms = self.checks.poll_timeout().since(self.now()).0.div_ceil(1_000_000);
        let is_over = self.checks.is_done(self.now());
        let wait_ms = if is_over { MAX_WAIT_MS } else { left_ms.clamp(1, MAX_WAIT_MS.into()) as u16 };
        let _ = poll(&mut polled, PollTimeout::from(wait_ms));
    }

    fn receive(&mut self, permits: &dyn Fn(IpAddr, IpAddr) -> bool) {
        let now = self.now();
        let mut bytes = [0; MAX_MESSAGE + 1];
        for (index, socket) in &self.sockets {
            let flow = &self.ends[*index].flow;
            // Errors concern sent packets.
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                let Some(message) = Message::read(&bytes[..length]) else { continue };
                let local = socket.local_addr().map(|local| local.ip());
                let is_permitted = is_host(from) && local.is_ok_and(|local| permits(local, from.ip()));
                if self.authenticator.is_check_of_peer(&message, flow) && is_permitted {
                    let answer = self.authenticator.answer(&message, from);
                    let _ = socket.send_to(answer.as_bytes(), from);
                    self.checks.handle_request(now, *index, from, message.uses_candidate());
                } else if message.class == MessageClass::Success
                    && self.authenticator.verifies(&message)
                    // An answer from another address than the check was sent to proves nothing.
                    && self.pending.get(&message.transaction).is_some_and(|check| check.to == from)
                    && let Some(check) = self.pending.remove(&message.transaction)
                {
                    self.checks.handle_response(now, check);
                }
            }
        }
    }

    fn found(&self) -> Vec<FoundPath> {
        let path = |(index, end): (usize, &PathEnd)| {
            let remote = self.checks.path(index)?;
            let local = self.socket(index, remote)?.local_addr().ok()?;
            Some(FoundPath { id: end.flow.id, local, remote, has_opened: false })
        };
        self.ends.iter().enumerate().filter_map(path).collect()
    }
}
