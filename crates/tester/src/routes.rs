//! Routes announced to the router by BGP-4: one session from each receiving port, with the networks whose
//! packets the router must forward to that port.

use super::port::OpenPort;
use super::template::Destinations;
use netstage_core::time::Duration;
use netstage_host::netns::Namespace;
use netstage_routing::bgp::inject::SendOrder;
use netstage_routing::bgp::nlri::{BgpFamily, Nlri, NlriPrefix};
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::{AsPath, PathAttributes};
use netstage_routing::bgp::session::{BgpEvent, BgpSettings};
use netstage_routing::bgp::speaker::{self, Endpoint, SpeakerCommand, SpeakerReport};
use netstage_routing::bgp::table::BgpTable;
use netstage_routing::session_thread;
use netstage_scenario::tester::{Operation, Tester, TrafficDirection};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// BGP sessions with the router, which end when this is dropped.
#[derive(Debug)]
pub struct BgpSessions {
    sessions: Vec<BgpTestSession>,
    thread: Option<JoinHandle<io::Result<()>>>,
    announced: Option<AnnouncedRoutes>,
    /// Set if the first port of the first direction has withdrawn its routes.
    is_first_withdrawn: bool,
}

/// Routes that the sessions announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnouncedRoutes {
    /// Each network by the port that its packets are expected at.
    Spread,
    /// Networks as in `Spread`, with the egresses of LSPs as next hops.
    Tunneled,
    /// Each network by every port, with the first port preferred.
    Everywhere,
}

/// Arguments of a session's task.
type BgpSessionTask = (BgpSettings, Endpoint, UnboundedReceiver<SpeakerCommand>, Arc<Mutex<BgpSessionState>>);

#[derive(Debug)]
struct BgpTestSession {
    direction: usize,
    /// Position of the port among the receiving ports of the direction.
    position: usize,
    port: usize,
    commands: UnboundedSender<SpeakerCommand>,
    state: Arc<Mutex<BgpSessionState>>,
    table: Option<Arc<BgpTable>>,
}

#[derive(Debug, Default)]
struct BgpSessionState {
    is_up: bool,
    /// Error of the last attempt while the session is down.
    down: Option<String>,
    /// Number of sessions that have ended, and reason of the last end.
    ended: u32,
    end_reason: String,
}

impl BgpSessions {
    /// Starts the sessions in a namespace. The first session also announces the background routes.
    pub fn start(
        tester: &Tester,
        ports: &[OpenPort],
        namespace: &Namespace,
        background: Option<BgpTable>,
    ) -> io::Result<BgpSessions> {
        let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
        let receiving = tester.directions.iter().enumerate().flat_map(|(direction, way)| {
            way.to.iter().enumerate().map(move |(position, port)| (direction, position, *port))
        });
        for (direction, position, port) in receiving {
            let state = Arc::new(Mutex::new(BgpSessionState::default()));
            let (commands, received) = unbounded_channel();
            tasks.push((
                settings(tester, &ports[port]),
                endpoint(tester, &ports[port]),
                received,
                Arc::clone(&state),
            ));
            sessions.push(BgpTestSession { direction, position, port, commands, state, table: None });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(settings, endpoint, received, state): BgpSessionTask| async move {
            let on_report = |_, report| update(&mut lock(&state), report);
            if let Err(error) = speaker::run(settings, endpoint, epoch, received, on_report).await {
                lock(&state).down = Some(error.to_string());
            }
        };
        if let (Some(table), Some(first)) = (background, sessions.first()) {
            // The command waits in the channel until the session runs.
            let _ = first.commands.send(SpeakerCommand::Announce(Arc::new(table), SendOrder::Packed));
        }
        let thread = session_thread::run("tester-bgp", namespace, tasks, speak)?;
        Ok(BgpSessions { sessions, thread: Some(thread), announced: None, is_first_withdrawn: false })
    }

    /// Replaces the announced routes by those that an operation needs. The next hops are the egresses of LSPs
    /// for PUSH, and otherwise the tester's ports.
    pub fn announce(&mut self, tester: &Tester, ports: &[OpenPort], operation: Operation) {
        if operation.is_routed() {
            let by_label = operation == Operation::Push;
            self.set(
                tester,
                ports,
                if by_label { AnnouncedRoutes::Tunneled } else { AnnouncedRoutes::Spread },
            );
        }
    }

    /// Announces every network by every port of its direction; by the first port only if `is_first_announced`.
    pub fn announce_everywhere(&mut self, tester: &Tester, ports: &[OpenPort], is_first_announced: bool) {
        self.set(tester, ports, AnnouncedRoutes::Everywhere);
        self.announce_first(is_first_announced);
    }

    /// Announces or withdraws the routes of the first port of the first direction.
    pub fn announce_first(&mut self, is_announced: bool) {
        if self.is_first_withdrawn != is_announced {
            return;
        }
        self.is_first_withdrawn = !is_announced;
        let first = self.sessions.iter().find(|session| (session.direction, session.position) == (0, 0));
        if let Some(BgpTestSession { commands, table: Some(table), .. }) = first {
            let table = Arc::clone(table);
            // Fails only if the session has ended, which is reported.
            let _ = commands.send(match is_announced {
                true => SpeakerCommand::Announce(table, SendOrder::Packed),
                false => SpeakerCommand::Withdraw(table, SendOrder::Packed),
            });
        }
    }

    fn set(&mut self, tester: &Tester, ports: &[OpenPort], announced: AnnouncedRoutes) {
        if self.announced == Some(announced) {
            return;
        }
        (self.announced, self.is_first_withdrawn) = (Some(announced), false);
        for session in &mut self.sessions {
            let direction = &tester.directions[session.direction];
            let to = Destinations::of_direction(tester, direction);
            let port = &ports[session.port];
            let table = Arc::new(table(tester, direction, to, session.position, port, announced));
            // Sending fails only if the session has ended, which is reported.
            if let Some(old) = session.table.replace(Arc::clone(&table)) {
                let _ = session.commands.send(SpeakerCommand::Withdraw(old, SendOrder::Packed));
            }
            let _ = session.commands.send(SpeakerCommand::Announce(table, SendOrder::Packed));
        }
    }

    /// Returns the number of sessions that have ended, and a message for the last port with such an end.
    pub fn ended_sessions(&self, ports: &[OpenPort]) -> (u32, Option<String>) {
        let (mut count, mut message) = (0, None);
        for session in &self.sessions {
            let state = lock(&session.state);
            count += state.ended;
            if state.ended > 0 {
                let router = ports[session.port].settings.router;
                message = Some(format!("the BGP session with {router} ended: {}", state.end_reason));
            }
        }
        (count, message)
    }

    /// Describes a session that is down, or returns `None` if all are up.
    pub fn session_fault(&self, ports: &[OpenPort]) -> Option<String> {
        self.sessions.iter().find_map(|session| {
            let state = lock(&session.state);
            let router = ports[session.port].settings.router;
            (!state.is_up).then(|| match &state.down {
                Some(down) => format!("no BGP session with {router}: {down}"),
                None => format!("no BGP session with {router} yet"),
            })
        })
    }
}

impl Drop for BgpSessions {
    fn drop(&mut self) {
        for session in &self.sessions {
            let _ = session.commands.send(SpeakerCommand::Stop);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<BgpSessionState>) -> MutexGuard<'_, BgpSessionState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn update(state: &mut BgpSessionState, report: SpeakerReport) {
    match report {
        SpeakerReport::Session(BgpEvent::Established(_)) => (state.is_up, state.down) = (true, None),
        SpeakerReport::Session(BgpEvent::Down(down)) => {
            if state.is_up {
                (state.ended, state.end_reason) = (state.ended + 1, down.to_string());
            }
            (state.is_up, state.down) = (false, Some(down.to_string()));
        }
        SpeakerReport::ConnectFailed(kind) => state.down = Some(format!("{kind}")),
        SpeakerReport::Sent(_) | SpeakerReport::Session(_) => {}
    }
}

fn settings(tester: &Tester, port: &OpenPort) -> BgpSettings {
    BgpSettings {
        identity: OpenParameters {
            local_as: tester.bgp.own_as,
            peer_as: Some(tester.bgp.router_as),
            identifier: identifier(port),
            hold_time: Duration::from_secs(180),
            families: vec![family(port.settings.address.0)],
            four_octet_as: true,
        },
        connects: true,
        connect_retry: Duration::from_secs(1),
        restart: Some(Duration::from_secs(1)),
    }
}

fn family(address: IpAddr) -> BgpFamily {
    if address.is_ipv4() { BgpFamily::Ipv4Unicast } else { BgpFamily::Ipv6Unicast }
}

/// Returns the BGP identifier of a port. For an IPv6 address it is made from the address's end and the interface
/// index, so that ports differ.
fn identifier(port: &OpenPort) -> Ipv4Addr {
    match port.settings.address.0 {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => Ipv4Addr::from(u128::from(address) as u32 ^ port.index.rotate_right(8)),
    }
}

fn endpoint(tester: &Tester, port: &OpenPort) -> Endpoint {
    Endpoint {
        local: port.settings.address.0,
        peer: port.settings.router,
        peer_port: 179,
        listen_port: None,
        md5_key: tester.bgp.md5.as_ref().map(|key| key.clone().into_bytes()),
        security_hops: None,
    }
}

/// Returns the routes that a port announces.
fn table(
    tester: &Tester,
    direction: &TrafficDirection,
    to: Destinations,
    position: usize,
    port: &OpenPort,
    announced: AnnouncedRoutes,
) -> BgpTable {
    let mut table = BgpTable::new();
    // A longer AS path is less preferred (RFC 4271 section 9.1.2.2).
    let prepended = if announced == AnnouncedRoutes::Everywhere { position } else { 0 };
    let as_path = AsPath::sequence(&vec![tester.bgp.own_as; prepended]);
    let mut groups = BTreeMap::new();
    for network in 0..to.networks {
        let peer = to.peer(network);
        if announced != AnnouncedRoutes::Everywhere && peer as usize % direction.to.len() != position {
            continue;
        }
        let next_hop = match announced {
            AnnouncedRoutes::Tunneled => tester.loopback(direction, peer).into(),
            AnnouncedRoutes::Spread | AnnouncedRoutes::Everywhere => port.settings.address.0,
        };
        let group = groups.entry(next_hop).or_insert_with(|| {
            let path = PathAttributes::new(next_hop, as_path.clone());
            table
                .group(family(direction.first_network), path)
                .expect("ports and networks have one address family")
        });
        let (address, length) = direction.network(network);
        let nlri = Nlri::unicast(NlriPrefix::new(address, length).expect("a network is a valid prefix"));
        table.push(*group, &nlri);
    }
    table
}
