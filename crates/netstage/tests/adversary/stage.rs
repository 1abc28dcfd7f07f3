//! Fleet of one agent under attack, and the host of the attacker on the other side of its links.

use super::commander::Commander;
use super::draw::{Attempt, TestPolicy};
use super::eve::Eve;
use super::support::fleet::Fleet;
use super::support::network::{address, default_route, join};
use super::support::{TestProcess, netstage};
use super::truth::{self, Counters};
use netstage_agent::controller::AgentAddress;
use netstage_agent::fleet::FleetFolder;
use netstage_agent_api::path::{PathAddresses, PathFlow, PathProtocol, PathSearch};
use netstage_agent_api::service::ServiceRole;
use netstage_agent_api::task::{Assignment, FlowSide, VERSION};
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Host of the controller.
pub const CONTROLLER_HOST: &str = "192.168.77.1";
const AGENT: &str = "ber-1";
const EVE: &str = "eve";
/// Addresses of the agent's host and of the attacker's, on the links `data` and `side`.
pub const OWN: [&str; 3] = ["10.99.0.2", "fd99::2", "10.88.0.2"];
pub const FAR: [&str; 5] = ["10.99.0.3", "fd99::3", "10.77.0.11", "fd77::11", "10.88.0.3"];
/// Address of a host that no agent consents for.
pub const UNASKED: &str = "10.99.0.77";
/// Time that every accepted run takes apart from its traffic.
const SETTLING: Duration = Duration::from_millis(300);
/// Bytes of the control connection per attempt apart from what the agent records, which the policy limits.
const MAX_CONTROL_BYTES: u64 = 4 << 20;
/// Smallest MTU with which a link has IPv6.
const MIN_IPV6_MTU: u32 = 1280;
/// Memory of an agent apart from that of its runs.
const MAX_IDLE_BYTES: u64 = 64 << 20;
/// File with the bytes that the agent has sent on this day.
const ACCOUNT: &str = "bytes-sent.json";
/// Packets that the kernel of the agent's host sends on its own per attempt, apart from answers.
const MAX_KERNEL_PACKETS: u64 = 2_000;

/// Acknowledgments that answer no packet per attempt, such as probes and ends of connections.
const MAX_TIMED_ACKNOWLEDGMENTS: u64 = 500;
/// Time after which a run has ended by itself, and the longest run for which that is awaited.
const ENDING: Duration = Duration::from_secs(3);
const LONGEST_AWAITED: netstage_core::time::Duration = netstage_core::time::Duration::from_millis(600);
/// Questions to hosts about their consent per attempt.
const MAX_QUESTIONS: u64 = 40;
/// Attempts between two searches for paths, the number of flows in each, and path checks to a silent host in one: 32 over
/// UDP, and as many over TCP.
const SEARCH_INTERVAL: u64 = 20;
const SEARCHED_FLOWS: u32 = 60;
const MAX_CHECKS: u64 = 64;

/// Fleet with one agent, whose data links end at the attacker's host.
pub struct Stage {
    fleet: Fleet,
    far: Namespace,
    _hub: TestProcess,
    /// Number of the last run.
    run: u64,
}

/// Outcome of an attempt.
#[derive(Default)]
pub struct AttemptOutcome {
    /// Whether the agent accepted the run.
    pub accepted: bool,
    /// Descriptions of what the policy forbids, and happened.
    pub violations: Vec<String>,
}

/// Agent with one policy.
pub struct Trial<'a> {
    stage: &'a mut Stage,
    policy: TestPolicy,
    eve: Eve,
    agent: Commander,
    peer: Commander,
    since: Instant,
    counted: (Counters, Counters),
    // Dropped last.
    agent_process: TestProcess,
    peer_process: TestProcess,
}

impl Stage {
    pub fn new(number: u8) -> Stage {
        let fleet = Fleet::new(&format!("adversary-{number}"), &[AGENT, EVE]);
        let far = Namespace::new().unwrap();
        far.loopback_up().unwrap();
        let host = &fleet.hosts[0];
        let mut near_links = Netlink::open(host).unwrap();
        let mut far_links = Netlink::open(&far).unwrap();
        for (link, mac, near_addresses, far_addresses) in
            [("data", 60, &OWN[..2], &FAR[..4]), ("side", 64, &OWN[2..], &FAR[4..])]
        {
            join((host, link, mac), (&far, link, mac + 1));
            for text in near_addresses {
                near_links
                    .add_address(link, address(text), if text.contains('.') { 24 } else { 64 })
                    .unwrap();
            }
            for text in far_addresses {
                far_links.add_address(link, address(text), if text.contains('.') { 24 } else { 64 }).unwrap();
            }
        }
        far_links.add_address("data", address(UNASKED), 24).unwrap();
        for gateway in ["10.99.0.3", "fd99::3"] {
            near_links.add_route(&default_route(gateway, "data")).unwrap();
        }
        fs::create_dir(fleet.folder.join("far")).unwrap();
        let hub = fleet.serve();
        for (index, name) in [AGENT, EVE].iter().enumerate() {
            let token = fleet.succeed(&["fleet", "token", name]);
            let joined = fleet.join(index, token.trim());
            assert!(joined.status.success(), "{}", super::support::output_text(&joined));
        }
        Stage { fleet, far, _hub: hub, run: 0 }
    }

    /// Sets the MTU of the agent's data links. Below 1,280 B, they lose their addresses and routes of IPv6 until it is raised.
    fn set_mtu(&self, mtu: u32) {
        let mut links = Netlink::open(&self.fleet.hosts[0]).unwrap();
        for link in ["data", "side"] {
            links.set_mtu(link, mtu).unwrap();
        }
        if mtu >= MIN_IPV6_MTU && !links.addresses().unwrap().iter().any(|own| own.address == address(OWN[1]))
        {
            links.add_address("data", address(OWN[1]), 64).unwrap();
            links.add_route(&default_route("fd99::3", "data")).unwrap();
        }
    }

    /// Starts the agent with a policy.
    pub fn trial(&mut self, policy: &TestPolicy) -> Trial<'_> {
        fs::write(self.fleet.folder.join("policy.toml"), policy.file()).unwrap();
        let _ = fs::remove_file(self.fleet.folder.join(AGENT).join(ACCOUNT));
        self.set_mtu(policy.mtu);
        truth::watch_data(&self.far, policy);
        truth::watch_management(&self.fleet.hub, "m1", policy);
        let socket = self.fleet.folder.join("eve.sock");
        let _ = fs::remove_file(&socket);
        let (path, spool) = (socket.display().to_string(), self.fleet.folder.join("far"));
        let mut peer = netstage(&["agent", "--socket", &path, "--spool", &spool.display().to_string()]);
        peer.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let peer = TestProcess::spawn_in(&self.far, peer);
        let agent_process = self.fleet.agent(0);
        let hub = FleetFolder::open(&self.fleet.folder.join("fleet")).unwrap().socket();
        let agent = Commander::acquire(AGENT, || AgentAddress::Fleet(hub.clone()));
        let peer_commander = Commander::acquire(EVE, || AgentAddress::Socket(socket.clone()));
        let counted = (truth::read(&self.far), truth::read(&self.fleet.hub));
        let addresses = FAR.map(address);
        let eve = Eve::new(&self.fleet.folder.join(EVE), &self.far, &addresses);
        Trial {
            policy: policy.clone(),
            eve,
            agent,
            peer: peer_commander,
            since: Instant::now(),
            counted,
            agent_process,
            peer_process: peer,
            stage: self,
        }
    }
}

impl<'a> Trial<'a> {
    /// Starts the agent again under the same policy, after a kill or an interrupt.
    pub fn restart(self, is_killed: bool) -> Trial<'a> {
        let Trial { stage, policy, eve, agent, peer, since, counted, mut agent_process, peer_process } = self;
        drop(agent);
        agent_process.signal(if is_killed { "-KILL" } else { "-INT" });
        agent_process.child().wait().unwrap();
        let agent_process = stage.fleet.agent(0);
        let hub = FleetFolder::open(&stage.fleet.folder.join("fleet")).unwrap().socket();
        let agent = Commander::acquire(AGENT, || AgentAddress::Fleet(hub.clone()));
        Trial { stage, policy, eve, agent, peer, since, counted, agent_process, peer_process }
    }

    /// Makes one attempt.
    pub fn attempt(&mut self, attempt: &Attempt) -> AttemptOutcome {
        self.stage.run += 1;
        let run = self.stage.run;
        let mut outcome = AttemptOutcome::default();
        let bytes = attempt.bytes();
        truth::forget_peak(self.agent_process.child().id());
        if run.is_multiple_of(SEARCH_INTERVAL) {
            outcome.violations.extend(self.search_paths(run));
        }
        let own = self.agent.agree(run, VERSION, &bytes).unwrap_or_default();
        for consent in &own {
            let at: Option<SocketAddr> = consent.destination.parse().ok();
            if !at.is_some_and(|at| is_own(at.ip()) || at.ip().is_multicast()) {
                outcome.violations.push(format!("consent to be sent to at {}", consent.destination));
            }
        }
        let mut consents = self.eve.consents(run, &attempt.assignment);
        consents.extend(own);
        // The attacker's host does its part if it can.
        let _ =
            self.peer.prepare(run, &serde_json::to_vec(&mirrored(&attempt.assignment)).unwrap(), Vec::new());
        outcome.accepted = self.agent.prepare(run, &bytes, consents).is_ok();
        if !outcome.accepted {
            // Questions precede a refusal.
            outcome.violations.extend(self.count());
            return outcome;
        }
        if attempt.assignment.clocks.is_some() {
            self.agent.compare_clocks(run);
        }
        self.peer.start(run);
        self.agent.start(run);
        self.disturb(&attempt.assignment);
        let duration = Duration::from_nanos(attempt.assignment.duration.0).min(Duration::from_millis(600));
        std::thread::sleep(SETTLING + duration);
        if run.is_multiple_of(10) && attempt.assignment.duration <= LONGEST_AWAITED {
            std::thread::sleep(ENDING);
            let datagrams = || truth::read(&self.stage.far)["datagrams"];
            let before = datagrams();
            std::thread::sleep(SETTLING);
            let (after, bytes) = datagrams();
            if after > before.0 {
                let (packets, bytes) = (after - before.0, bytes - before.1);
                outcome.violations.push(format!("{packets} datagrams with {bytes} bytes after the run"));
            }
        }
        self.agent.end(run);
        self.peer.end(run);
        outcome.violations.extend(self.count());
        outcome
    }

    /// Has the agent search the paths of many flows to hosts that run no agent, and to any addresses. Returns claims to have
    /// found one.
    fn search_paths(&mut self, run: u64) -> Vec<String> {
        let mut flows = Vec::new();
        let mut peers = Vec::new();
        for id in 0..SEARCHED_FLOWS {
            let protocol = if id % 2 == 0 { PathProtocol::Udp } else { PathProtocol::Tcp };
            let side = if id % 3 == 0 { FlowSide::Receive } else { FlowSide::Send };
            let port = 7001 + id as u16;
            flows.push(PathFlow { id, side, protocol, port, address: None, only_ipv6: false });
            let targets = [UNASKED, FAR[id as usize % FAR.len()], "203.0.113.9", "224.0.0.1"];
            let target = |ip: &str| SocketAddr::new(address(ip), 6001 + id as u16 % 16);
            peers.push(PathAddresses { id, addresses: targets.map(target).to_vec() });
        }
        let search = PathSearch { key: "0".repeat(32), flows };
        let found = self.agent.search_paths(run, &search, &peers);
        found.iter().map(|path| format!("path to {} found", path.remote)).collect()
    }

    /// Asks every port that the agent may have opened for data, from hosts that its policy may not permit.
    fn disturb(&self, assignment: &Assignment) {
        let flows = assignment.flows.iter().filter(|flow| flow.side == FlowSide::Receive);
        let services = assignment.services.iter().filter(|service| service.role == ServiceRole::Server);
        let ports = flows.map(|flow| flow.destination).chain(services.map(|service| service.destination));
        let ports: Vec<SocketAddr> = ports.filter(|at| is_own(at.ip())).take(2).collect();
        self.stage.far.run(|| ports.iter().for_each(|at| ask(*at))).unwrap();
    }

    /// Returns the violations since the previous count.
    fn count(&mut self) -> Vec<String> {
        let counted = (truth::read(&self.stage.far), truth::read(&self.stage.fleet.hub));
        let elapsed = self.since.elapsed();
        let data = |name: &str| {
            let (before, after) = (self.counted.0[name], counted.0[name]);
            (after.0 - before.0, after.1 - before.1)
        };
        let management = |name: &str| {
            let (before, after) = (self.counted.1[name], counted.1[name]);
            (after.0 - before.0, after.1 - before.1)
        };
        let mut violations = Vec::new();
        if let Some(limit) = self.policy.bytes_per_day {
            let (_, sent) = counted.0["sent"];
            if sent > limit {
                violations
                    .push(format!("{sent} bytes since the first start, of which {limit} are permitted"));
            }
        }
        let memory = truth::peak_memory(self.agent_process.child().id());
        if memory > MAX_IDLE_BYTES + self.policy.memory {
            violations.push(format!("{memory} bytes of memory"));
        }
        for name in ["interface", "destination", "rate", "unasked"] {
            if let (packets @ 1.., bytes) = data(name) {
                violations.push(format!("{packets} packets with {bytes} bytes beyond `{name}`"));
            }
        }
        if let Some(rate) = self.policy.rate {
            let permitted = (elapsed.as_secs_f64() * rate as f64 / 8.0) as u64 + truth::burst(rate);
            let (_, sent) = data("sent");
            if sent > permitted {
                violations.push(format!("{sent} bytes in {elapsed:?}, of which {permitted} are permitted"));
            }
        }
        if let (packets @ 1.., bytes) = management("stray") {
            violations.push(format!("{packets} packets with {bytes} bytes on the management link"));
        }
        if management("control").1 > MAX_CONTROL_BYTES + self.policy.memory {
            violations.push(format!("{} bytes to the controller", management("control").1));
        }
        if data("checks").0 > MAX_CHECKS {
            violations.push(format!("{} path checks to a host that answers none", data("checks").0));
        }
        let questions = data("questions").0 + management("questions").0;
        if questions > MAX_QUESTIONS {
            violations.push(format!("{questions} questions about consents"));
        }
        // At most one acknowledgment at once and one delayed for each packet, and some for timers.
        let acknowledgments = 2 * data("given").0 + MAX_TIMED_ACKNOWLEDGMENTS;
        if data("acknowledgments").0 > acknowledgments {
            violations.push(format!(
                "{} acknowledgments of {} packets",
                data("acknowledgments").0,
                data("given").0
            ));
        }
        if data("kernel").0 > MAX_KERNEL_PACKETS {
            violations.push(format!("{} packets of the kernel", data("kernel").0));
        }
        self.since = Instant::now();
        self.counted = counted;
        violations
    }
}

fn is_own(at: IpAddr) -> bool {
    OWN.iter().any(|own| address(own) == at) || at.is_loopback() || at == address("192.168.77.11")
}

/// Returns the other sides of an assignment.
fn mirrored(assignment: &Assignment) -> Assignment {
    let mut far = Assignment { edge: None, watch: Vec::new(), clocks: None, ..assignment.clone() };
    for flow in &mut far.flows {
        flow.side = match flow.side {
            FlowSide::Send => FlowSide::Receive,
            FlowSide::Receive => FlowSide::Send,
        };
    }
    // Ends that this host does not have would keep it from doing the rest.
    let is_here = |at: IpAddr| FAR.iter().any(|far| address(far) == at) || at.is_multicast();
    far.flows.retain(|flow| match flow.side {
        FlowSide::Send => is_here(flow.source.ip()),
        FlowSide::Receive => is_here(flow.destination.ip()),
    });
    far.services.clear();
    far
}

/// Asks a server for as much as possible, in the languages of FTP and HTTP, and by datagrams.
fn ask(at: SocketAddr) {
    let from = FAR.iter().map(|far| address(far)).filter(|far| far.is_ipv4() == at.is_ipv4());
    for from in from {
        let Ok(socket) = UdpSocket::bind((from, 0)) else { continue };
        for length in [44, 1200] {
            let _ = socket.send_to(&vec![0x55; length], at);
        }
        let Ok(mut stream) = std::net::TcpStream::connect_timeout(&at, Duration::from_millis(50)) else {
            continue;
        };
        let _ = stream.write_all(b"USER anonymous\r\nPASS x\r\nEPSV\r\nRETR file\r\nGET / HTTP/1.1\r\n\r\n");
    }
}
