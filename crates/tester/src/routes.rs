//! Routes announced to the router by BGP-4: one session from each receiving port, with the networks whose
//! packets the router must forward to that port.

use super::apart;
use super::form::Destinations;
use super::port::Port;
use netstage_core::time::Duration;
use netstage_host::netns::Namespace;
use netstage_routing::bgp::inject::Order;
use netstage_routing::bgp::machine::{Event, Settings};
use netstage_routing::bgp::nlri::{Family, Nlri, Prefix};
use netstage_routing::bgp::open::Identity;
use netstage_routing::bgp::path::{AsPath, Path};
use netstage_routing::bgp::speaker::{self, Command, Endpoint, Report};
use netstage_routing::bgp::table::Table;
use netstage_scenario::tester::{Operation, Tester, Way};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// BGP sessions with the router, which end when this is dropped.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    thread: Option<JoinHandle<io::Result<()>>>,
    announced: Option<Announced>,
    /// Set if the first port of the first direction has withdrawn its routes.
    is_first_withdrawn: bool,
}

/// Routes that the sessions announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// Each network by the port that its packets are expected at.
    Spread,
    /// Networks as in `Spread`, with the egresses of LSPs as next hops.
    Tunnelled,
    /// Each network by every port, with the first port preferred.
    Everywhere,
}

/// Arguments of a session's task.
type Task = (Settings, Endpoint, UnboundedReceiver<Command>, Arc<Mutex<State>>);

#[derive(Debug)]
struct Session {
    direction: usize,
    /// Position of the port among the receiving ports of the direction.
    position: usize,
    port: usize,
    commands: UnboundedSender<Command>,
    state: Arc<Mutex<State>>,
    table: Option<Arc<Table>>,
}

#[derive(Debug, Default)]
struct State {
    is_up: bool,
    /// Error of the last attempt while the session is down.
    down: Option<String>,
    /// Number of sessions that have ended, and reason of the last end.
    ended: u32,
    end_reason: String,
}

impl Sessions {
    /// Starts the sessions in a namespace. The first session also announces the background routes.
    pub fn begin(
        tester: &Tester,
        ports: &[Port],
        namespace: &Namespace,
        background: Option<Table>,
    ) -> io::Result<Sessions> {
        let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
        let receiving = tester.ways.iter().enumerate().flat_map(|(direction, way)| {
            way.to.iter().enumerate().map(move |(position, port)| (direction, position, *port))
        });
        for (direction, position, port) in receiving {
            let state = Arc::new(Mutex::new(State::default()));
            let (commands, received) = unbounded_channel();
            tasks.push((
                settings(tester, &ports[port]),
                endpoint(tester, &ports[port]),
                received,
                Arc::clone(&state),
            ));
            sessions.push(Session { direction, position, port, commands, state, table: None });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(settings, endpoint, received, state): Task| async move {
            let on_report = |_, report| update(&mut lock(&state), report);
            if let Err(error) = speaker::run(settings, endpoint, epoch, received, on_report).await {
                lock(&state).down = Some(error.to_string());
            }
        };
        if let (Some(table), Some(first)) = (background, sessions.first()) {
            // The command waits in the channel until the session runs.
            let _ = first.commands.send(Command::Announce(Arc::new(table), Order::Packed));
        }
        let thread = apart::run("tester-bgp", namespace, tasks, speak)?;
        Ok(Sessions { sessions, thread: Some(thread), announced: None, is_first_withdrawn: false })
    }

    /// Replaces the announced routes by those that an operation needs. The next hops are the egresses of LSPs
    /// for PUSH, and otherwise the tester's ports.
    pub fn announce(&mut self, tester: &Tester, ports: &[Port], operation: Operation) {
        if operation.is_routed() {
            let by_label = operation == Operation::Push;
            self.set(tester, ports, if by_label { Announced::Tunnelled } else { Announced::Spread });
        }
    }

    /// Announces every network by every port of its direction; by the first port only if `is_first_announced`.
    pub fn stage(&mut self, tester: &Tester, ports: &[Port], is_first_announced: bool) {
        self.set(tester, ports, Announced::Everywhere);
        self.tell_first(is_first_announced);
    }

    /// Announces or withdraws the routes of the first port of the first direction.
    pub fn tell_first(&mut self, is_announced: bool) {
        if self.is_first_withdrawn != is_announced {
            return;
        }
        self.is_first_withdrawn = !is_announced;
        let first = self.sessions.iter().find(|session| (session.direction, session.position) == (0, 0));
        if let Some(Session { commands, table: Some(table), .. }) = first {
            let table = Arc::clone(table);
            // Fails only if the session has ended, which is reported.
            let _ = commands.send(match is_announced {
                true => Command::Announce(table, Order::Packed),
                false => Command::Withdraw(table, Order::Packed),
            });
        }
    }

    fn set(&mut self, tester: &Tester, ports: &[Port], announced: Announced) {
        if self.announced == Some(announced) {
            return;
        }
        (self.announced, self.is_first_withdrawn) = (Some(announced), false);
        for session in &mut self.sessions {
            let direction = &tester.ways[session.direction];
            let to = Destinations::of(tester, direction);
            let port = &ports[session.port];
            let table = Arc::new(table(tester, direction, to, session.position, port, announced));
            // Sending fails only if the session has ended, which is reported.
            if let Some(old) = session.table.replace(Arc::clone(&table)) {
                let _ = session.commands.send(Command::Withdraw(old, Order::Packed));
            }
            let _ = session.commands.send(Command::Announce(table, Order::Packed));
        }
    }

    /// Returns the number of sessions that have ended, and a message for the last port with such an end.
    pub fn ended(&self, ports: &[Port]) -> (u32, Option<String>) {
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
    pub fn obstacle(&self, ports: &[Port]) -> Option<String> {
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

impl Drop for Sessions {
    fn drop(&mut self) {
        for session in &self.sessions {
            let _ = session.commands.send(Command::Stop);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn update(state: &mut State, report: Report) {
    match report {
        Report::Session(Event::Established(_)) => (state.is_up, state.down) = (true, None),
        Report::Session(Event::Down(down)) => {
            if state.is_up {
                (state.ended, state.end_reason) = (state.ended + 1, down.to_string());
            }
            (state.is_up, state.down) = (false, Some(down.to_string()));
        }
        Report::ConnectFailed(kind) => state.down = Some(format!("{kind}")),
        Report::Sent(_) | Report::Session(_) => {}
    }
}

fn settings(tester: &Tester, port: &Port) -> Settings {
    Settings {
        identity: Identity {
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

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ipv4Unicast } else { Family::Ipv6Unicast }
}

/// Returns the BGP identifier of a port. For an IPv6 address it is made from the address's end and the interface
/// index, so that ports differ.
fn identifier(port: &Port) -> Ipv4Addr {
    match port.settings.address.0 {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => Ipv4Addr::from(u128::from(address) as u32 ^ port.index.rotate_right(8)),
    }
}

fn endpoint(tester: &Tester, port: &Port) -> Endpoint {
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
    direction: &Way,
    to: Destinations,
    position: usize,
    port: &Port,
    announced: Announced,
) -> Table {
    let mut table = Table::new();
    // A longer AS path is less preferred (RFC 4271 section 9.1.2.2).
    let prepended = if announced == Announced::Everywhere { position } else { 0 };
    let as_path = AsPath::sequence(&vec![tester.bgp.own_as; prepended]);
    let mut groups = BTreeMap::new();
    for network in 0..to.networks {
        let peer = to.peer(network);
        if announced != Announced::Everywhere && peer as usize % direction.to.len() != position {
            continue;
        }
        let next_hop = match announced {
            Announced::Tunnelled => tester.loopback(direction, peer).into(),
            Announced::Spread | Announced::Everywhere => port.settings.address.0,
        };
        let group = groups.entry(next_hop).or_insert_with(|| {
            let path = Path::new(next_hop, as_path.clone());
            table.group(family(direction.first), path).expect("ports and networks have one address family")
        });
        let (address, length) = direction.network(network);
        let nlri = Nlri::unicast(Prefix::new(address, length).expect("a network is a valid prefix"));
        table.push(*group, &nlri);
    }
    table
}
