//! Search for the paths of flows between agents behind NAT, before the consents of a run. The agent offers the addresses
//! of its host, and those at which the controller sees them. Then it sends path checks from the ports of the flows to the
//! addresses of the other ends ([`PathChecks`]). Checks and answers are STUN messages with a keyed hash, so no other host
//! can answer them; an answer proves that the other end receives at its address.
//!
//! STUN requests go to the controller only, like the agent's connection. Path checks are sent by threads in the egress
//! group of runs.

mod tcp;
mod udp;

use super::stun;
use netstage_agent_api::path::{FoundPath, MAX_PATHS, PathAddresses, PathFlow, PathProtocol, PathSearch};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::task::{FlowSide, FlowTask, TaskTransport};
use netstage_wire::stun::{HASH, Message, MessageClass, MessageWriter, TransactionId};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time for which a path is valid, and checks of the other end are answered, after the search began.
const VALIDITY: Duration = Duration::from_secs(60);
/// Maximum number of addresses of the other end of a flow: of its host and its NAT in both IP versions.
const MAX_ADDRESSES: usize = 4;
/// First port to which checks are sent; lower ones are reserved for the system's services.
const FIRST_PORT: u16 = 1024;

/// Minimum time between two searches, so that a controller cannot have an agent flood a host with path checks.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Start of the last search of an agent.
#[derive(Default)]
pub struct SearchPace(Mutex<Option<Instant>>);

impl SearchPace {
    /// Waits until a search may begin.
    pub fn wait(&self) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = *last {
            thread::sleep(SEARCH_INTERVAL.saturating_sub(last.elapsed()));
        }
        *last = Some(Instant::now());
    }
}

/// Search of one run.
pub struct PathSession {
    run: u64,
    key: hmac::Key,
    ends: Vec<PathEnd>,
    opened_at: Instant,
    found: Vec<FoundPath>,
    responder: Option<Responder>,
}

/// Local end of a flow.
#[derive(Clone)]
struct PathEnd {
    flow: PathFlow,
    /// Local addresses with the port of the flow, at most one of each family.
    locals: Vec<SocketAddr>,
    /// Addresses of the other end in order of preference.
    remotes: Vec<SocketAddr>,
}

impl PathSession {
    /// Begins a search. `own` are the addresses that flows may use, preferred ones first. Returns at which addresses the
    /// ends of the flows may be reached. Blocks for the time of the STUN requests.
    pub fn open(
        run: u64,
        search: PathSearch,
        own: &[IpAddr],
        controller: IpAddr,
    ) -> Result<(PathSession, Vec<PathAddresses>), OrderRefusal> {
        if search.flows.len() > MAX_PATHS {
            let reason = format!("{} paths exceed the limit of {MAX_PATHS}", search.flows.len());
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
        }
        let is_reserved = |flow: &&PathFlow| (1..FIRST_PORT).contains(&flow.port);
        if let Some(flow) = search.flows.iter().find(is_reserved) {
            let reason = format!("port {} is reserved for the system", flow.port);
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
        }
        let mut ends = Vec::new();
        let mut offers = Vec::new();
        let locals: Vec<Vec<SocketAddr>> = search.flows.iter().map(|flow| locals(flow, own)).collect();
        let probed = stun::probe(&locals.concat(), controller).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                OrderRefusal::new(OrderRefusalKind::InUse, format!("a port of a flow is in use: {error}"))
            }
            _ => OrderRefusal::new(OrderRefusalKind::System, format!("cannot open a UDP socket: {error}")),
        })?;
        let mut probed = probed.into_iter();
        for (flow, locals) in search.flows.into_iter().zip(locals) {
            let probed: Vec<_> = probed.by_ref().take(locals.len()).collect();
            let is_udp = flow.protocol == PathProtocol::Udp;
            // A TCP port is mapped only if the NAT leaves it unchanged.
            let with_port = |at: SocketAddr| if is_udp { at } else { SocketAddr::new(at.ip(), flow.port) };
            let hosts = probed.iter().map(|probed| probed.local);
            let mapped = probed.iter().filter_map(|probed| Some(probed.mapping()?.mapped));
            let mut addresses: Vec<SocketAddr> = Vec::new();
            for address in hosts.chain(mapped).map(with_port) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            offers.push(PathAddresses { id: flow.id, addresses });
            let locals = probed.iter().map(|probed| with_port(probed.local)).collect();
            ends.push(PathEnd { flow, locals, remotes: Vec::new() });
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, search.key.as_bytes());
        let session =
            PathSession { run, key, ends, opened_at: Instant::now(), found: Vec::new(), responder: None };
        Ok((session, offers))
    }

    /// Returns the number of the run.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Begins the checks of the other ends' addresses. `enter` is called by the thread that sends them, and returns which
    /// addresses (local, remote) the policy permits. The result arrives through the returned channel.
    pub fn check<P: Fn(IpAddr, IpAddr) -> bool>(
        &mut self,
        peers: &[PathAddresses],
        enter: impl FnOnce() -> Option<P> + Send + 'static,
    ) -> io::Result<mpsc::Receiver<Vec<FoundPath>>> {
        let mut ends = self.ends.clone();
        for end in &mut ends {
            let peer = peers.iter().find(|peer| peer.id == end.flow.id);
            end.remotes = peer.map(|peer| peer.addresses.clone()).unwrap_or_default();
        }
        let authenticator = Authenticator { key: self.key.clone(), run: self.run };
        let ended = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let has_ended = Arc::clone(&ended);
        let check = move || {
            let Some(permits) = enter() else { return };
            for end in &mut ends {
                let mut remotes = std::mem::take(&mut end.remotes);
                remotes.retain(|remote| {
                    let local =
                        end.local(*remote).filter(|local| is_host(*remote) && local.ip() != remote.ip());
                    local.is_some_and(|local| permits(local.ip(), remote.ip()))
                });
                remotes.truncate(MAX_ADDRESSES);
                end.remotes = remotes;
            }
            let (tcp, udp): (Vec<PathEnd>, Vec<PathEnd>) =
                ends.into_iter().partition(|end| end.flow.protocol == PathProtocol::Tcp);
            let requests = tcp::ConnectionRequests::default();
            let start = |end| tcp::start(end, authenticator.clone(), requests.clone());
            let threads = tcp.into_iter().map(start).collect();
            udp::run(&udp, &authenticator, threads, &permits, &has_ended, &sender);
        };
        let thread = thread::Builder::new().name("paths".into()).spawn(check)?;
        self.responder = Some(Responder { ended, thread: Some(thread) });
        Ok(receiver)
    }

    /// Stores the paths that were found.
    pub fn set_found(&mut self, found: Vec<FoundPath>) {
        self.found = found;
    }

    /// Ends the answers to the other ends, and closes the ports of the flows.
    pub fn end_checks(&mut self) {
        self.responder = None;
    }

    /// Returns whether the path of a flow in a run is one that this agent has found.
    pub fn confirms(&self, run: u64, task: &FlowTask) -> bool {
        let Some(path) = &task.nat else { return false };
        let (local, remote) = task.local_and_remote();
        let is_tcp = matches!(task.transport, TaskTransport::Tcp(_));
        let opens = is_tcp && path.opened_by == task.side;
        let is_path = |found: &FoundPath| {
            // The other end opens its connection from any port.
            let is_remote = match is_tcp && !opens {
                true => found.remote.ip() == remote.ip() && remote.port() == 0,
                false => found.remote == remote,
            };
            let is_local = found.local.ip() == local.ip() && (is_tcp || found.local.port() == local.port());
            (found.id, found.has_opened) == (task.id, opens) && is_local && is_remote
        };
        run == self.run && self.opened_at.elapsed() < VALIDITY && self.found.iter().any(is_path)
    }
}

/// Thread that answers the checks of the other ends.
struct Responder {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl PathEnd {
    /// Returns the local address of the family of a remote one.
    fn local(&self, remote: SocketAddr) -> Option<SocketAddr> {
        self.locals.iter().copied().find(|local| local.is_ipv4() == remote.is_ipv4())
    }
}

/// Returns the local addresses of a flow: the given one, or the first of each family, IPv6 first.
fn locals(flow: &PathFlow, own: &[IpAddr]) -> Vec<SocketAddr> {
    let is_usable = |address: &&IpAddr| {
        !address.is_loopback()
            && flow.address.is_none_or(|only| only == **address)
            && (address.is_ipv6() || !flow.only_ipv6)
    };
    let usable = || own.iter().filter(is_usable).copied();
    let ends = [usable().find(IpAddr::is_ipv6), usable().find(IpAddr::is_ipv4)];
    // The address of a TCP flow is looked up from any UDP port.
    let port = if flow.protocol == PathProtocol::Tcp { 0 } else { flow.port };
    ends.into_iter().flatten().map(|address| SocketAddr::new(address, port)).collect()
}

/// Returns whether checks may be sent to an address: one host, at a port that is not reserved.
fn is_host(address: SocketAddr) -> bool {
    let is_single = match address.ip() {
        IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
    };
    let ip = address.ip();
    is_single
        && !ip.is_multicast()
        && !ip.is_unspecified()
        && !ip.is_loopback()
        && address.port() >= FIRST_PORT
}

/// Writes and verifies the messages of a run.
#[derive(Clone)]
struct Authenticator {
    key: hmac::Key,
    run: u64,
}

impl Authenticator {
    /// Returns the user name in checks that are sent by one side of a flow.
    fn username(&self, flow: u32, side: FlowSide) -> String {
        let side = if side == FlowSide::Send { "sender" } else { "receiver" };
        format!("{}/{flow}/{side}", self.run)
    }

    /// Returns a check of one side of a flow, and its transaction.
    fn check(&self, flow: &PathFlow, selects: bool) -> Option<(TransactionId, MessageWriter)> {
        let mut transaction = TransactionId::default();
        SystemRandom::new().fill(&mut transaction).ok()?;
        let check = MessageWriter::new(MessageClass::Request, transaction)
            .username(self.username(flow.id, flow.side).as_bytes());
        let check = if selects { check.use_candidate() } else { check };
        Some((transaction, check.integrity(|covered| self.hash(covered))))
    }

    /// Returns the answer to a check that arrived from this address.
    fn answer(&self, check: &Message, from: SocketAddr) -> MessageWriter {
        MessageWriter::new(MessageClass::Success, check.transaction)
            .mapped_address(from)
            .integrity(|covered| self.hash(covered))
    }

    fn hash(&self, covered: &[u8]) -> [u8; HASH] {
        hmac::sign(&self.key, covered).as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Returns whether a message is one of the run.
    fn verifies(&self, message: &Message) -> bool {
        let integrity = message.integrity();
        integrity.is_some_and(|(covered, hash)| hmac::verify(&self.key, covered, hash).is_ok())
    }

    /// Returns whether a message is a check of the other side of a flow.
    fn is_check_of_peer(&self, message: &Message, flow: &PathFlow) -> bool {
        let other = if flow.side == FlowSide::Send { FlowSide::Receive } else { FlowSide::Send };
        message.class == MessageClass::Request
            && message.username() == Some(self.username(flow.id, other).as_bytes())
            && self.verifies(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::task::NatPath;
    use netstage_core::quantity::BitRate;
    use netstage_core::traffic::Pattern;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn session(found: Vec<FoundPath>) -> PathSession {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        PathSession { run: 7, key, ends: Vec::new(), opened_at: Instant::now(), found, responder: None }
    }

    #[test]
    fn a_path_is_valid_only_for_its_run_flow_and_addresses() {
        let found =
            FoundPath { id: 1, local: at("10.0.0.2:4000"), remote: at("192.0.2.2:5001"), has_opened: false };
        let session = session(vec![found]);
        let ends = [at("10.0.0.2:4000"), at("10.0.0.2:5001")];
        let pattern = Pattern::Cbr { rate: BitRate(1), packet: 100 };
        let duration = netstage_core::time::Duration::from_secs(1);
        let path = NatPath {
            source: at("192.0.2.1:4000"),
            destination: at("192.0.2.2:5001"),
            opened_by: FlowSide::Send,
        };
        let task =
            FlowTask { nat: Some(path), ..FlowTask::udp("f", FlowSide::Send, ends, pattern, duration) };
        assert!(session.confirms(7, &task));
        assert!(!session.confirms(8, &task), "another run");
        let elsewhere = NatPath { destination: at("192.0.2.9:5001"), ..path };
        for other in [
            FlowTask { id: 2, ..task.clone() },
            FlowTask { nat: None, ..task.clone() },
            FlowTask { nat: Some(elsewhere), ..task.clone() },
            FlowTask { source: at("10.0.0.2:4001"), ..task.clone() },
            FlowTask { side: FlowSide::Receive, ..task.clone() },
        ] {
            assert!(!session.confirms(7, &other), "{other:?}");
        }
        let expired = PathSession { opened_at: Instant::now() - VALIDITY, ..session };
        assert!(!expired.confirms(7, &task));
    }

    #[test]
    fn checks_are_those_of_the_other_side_with_the_key_of_the_run() {
        let own = Authenticator { key: hmac::Key::new(hmac::HMAC_SHA256, b"key"), run: 7 };
        let flow = |side| PathFlow {
            id: 1,
            side,
            protocol: PathProtocol::Udp,
            port: 5001,
            address: None,
            only_ipv6: false,
        };
        let (sender, receiver) = (flow(FlowSide::Send), flow(FlowSide::Receive));
        let (_, check) = own.check(&sender, true).unwrap();
        let is_accepted = |authenticator: &Authenticator, flow: &PathFlow| {
            authenticator.is_check_of_peer(&Message::read(check.as_bytes()).unwrap(), flow)
        };
        assert!(is_accepted(&own, &receiver));
        assert!(!is_accepted(&own, &sender), "its own check, reflected");
        assert!(!is_accepted(&own, &PathFlow { id: 2, ..receiver.clone() }));
        assert!(!is_accepted(&Authenticator { run: 8, ..own.clone() }, &receiver));
        let other = hmac::Key::new(hmac::HMAC_SHA256, b"other");
        assert!(!is_accepted(&Authenticator { key: other, ..own.clone() }, &receiver));
        let message = Message::read(check.as_bytes()).unwrap();
        let answer = own.answer(&message, at("192.0.2.1:4000"));
        let answer = Message::read(answer.as_bytes()).unwrap();
        assert!(own.verifies(&answer) && answer.transaction == message.transaction);
    }

    #[test]
    fn checks_go_to_single_hosts_at_ports_that_are_not_reserved() {
        for (address, expected) in [
            ("192.0.2.1:5001", true),
            ("[2001:db8::1]:5001", true),
            ("192.0.2.1:53", false),
            ("224.0.0.1:5001", false),
            ("255.255.255.255:5001", false),
            ("127.0.0.1:5001", false),
            ("169.254.169.254:5001", false),
            ("[fe80::1]:5001", false),
            ("[::ffff:192.0.2.1]:5001", false),
            ("0.0.0.0:5001", false),
        ] {
            assert_eq!(is_host(at(address)), expected, "{address}");
        }
    }
}
