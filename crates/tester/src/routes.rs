//! What the tester tells the router of by BGP-4: a session from each port that receives, and in it the
//! networks whose packets are to leave by that port.

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

/// The sessions, which last as long as this.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// What is announced now.
    announced: Option<Announced>,
    /// But not by the first port of the first way.
    is_first_silent: bool,
}

/// What the sessions announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// Each network by the port that its packets are to leave by.
    Spread,
    /// The same, with the ends of label switched paths as next hops.
    Tunnelled,
    /// Each network by every port, the first one preferred.
    Everywhere,
}

/// What a session is run with.
type Task = (Settings, Endpoint, UnboundedReceiver<Command>, Arc<Mutex<State>>);

#[derive(Debug)]
struct Session {
    way: usize,
    /// Which of the way's receiving ports it is of.
    place: usize,
    port: usize,
    commands: UnboundedSender<Command>,
    state: Arc<Mutex<State>>,
    table: Option<Arc<Table>>,
}

#[derive(Debug, Default)]
struct State {
    is_up: bool,
    /// Why there is no session.
    down: Option<String>,
    /// How many have ended, and why the last one did.
    ended: u32,
    why: String,
}

impl Sessions {
    /// Begins them, in a namespace; the first also tells of a table beside the networks.
    pub fn begin(
        tester: &Tester,
        ports: &[Port],
        namespace: &Namespace,
        beside: Option<Table>,
    ) -> io::Result<Sessions> {
        let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
        let ways = tester.ways.iter().enumerate();
        for (way, place, port) in ways
            .flat_map(|(way, told)| told.to.iter().enumerate().map(move |(place, port)| (way, place, *port)))
        {
            let state = Arc::new(Mutex::new(State::default()));
            let (commands, received) = unbounded_channel();
            tasks.push((
                settings(tester, &ports[port]),
                endpoint(tester, &ports[port]),
                received,
                Arc::clone(&state),
            ));
            sessions.push(Session { way, place, port, commands, state, table: None });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(settings, endpoint, received, state): Task| async move {
            let heard = |_, report| note(&mut lock(&state), report);
            if let Err(error) = speaker::run(settings, endpoint, epoch, received, heard).await {
                lock(&state).down = Some(error.to_string());
            }
        };
        if let (Some(table), Some(first)) = (beside, sessions.first()) {
            // It is heard once the session runs.
            let _ = first.commands.send(Command::Announce(Arc::new(table), Order::Packed));
        }
        let thread = apart::run("tester-bgp", namespace, tasks, speak)?;
        Ok(Sessions { sessions, thread: Some(thread), announced: None, is_first_silent: false })
    }

    /// Announces what an operation needs, in place of what there was: for PUSH the next hops are the ends of
    /// label switched paths, else the tester's ports.
    pub fn announce(&mut self, tester: &Tester, ports: &[Port], operation: Operation) {
        if operation.is_routed() {
            let by_label = operation == Operation::Push;
            self.set(tester, ports, if by_label { Announced::Tunnelled } else { Announced::Spread });
        }
    }

    /// Announces every network by every port of the way, and then has the first one speak or be silent.
    pub fn stage(&mut self, tester: &Tester, ports: &[Port], is_first_announced: bool) {
        self.set(tester, ports, Announced::Everywhere);
        self.tell_first(is_first_announced);
    }

    /// Has the first port of the first way announce its routes, or withdraw them.
    pub fn tell_first(&mut self, is_announced: bool) {
        if self.is_first_silent != is_announced {
            return;
        }
        self.is_first_silent = !is_announced;
        let first = self.sessions.iter().find(|session| (session.way, session.place) == (0, 0));
        if let Some(Session { commands, table: Some(table), .. }) = first {
            let table = Arc::clone(table);
            // As below, one that has ended is told.
            let _ = commands.send(match is_announced {
                true => Command::Announce(table, Order::Packed),
                false => Command::Withdraw(table, Order::Packed),
            });
        }
    }

    fn set(&mut self, tester: &Tester, ports: &[Port], what: Announced) {
        if self.announced == Some(what) {
            return;
        }
        (self.announced, self.is_first_silent) = (Some(what), false);
        for session in &mut self.sessions {
            let way = &tester.ways[session.way];
            let to = Destinations::of(tester, way);
            let table = Arc::new(table(tester, way, to, session.place, &ports[session.port], what));
            // A command that is not heard any more belongs to a session that has ended, which is told.
            if let Some(old) = session.table.replace(Arc::clone(&table)) {
                let _ = session.commands.send(Command::Withdraw(old, Order::Packed));
            }
            let _ = session.commands.send(Command::Announce(table, Order::Packed));
        }
    }

    /// How many sessions have ended, and of one of them why.
    pub fn ended(&self, ports: &[Port]) -> (u32, Option<String>) {
        let (mut count, mut said) = (0, None);
        for session in &self.sessions {
            let state = lock(&session.state);
            count += state.ended;
            if state.ended > 0 {
                let router = ports[session.port].settings.router;
                said = Some(format!("the BGP session with {router} ended: {}", state.why));
            }
        }
        (count, said)
    }

    /// What keeps a session from being there; none if all are.
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

fn note(state: &mut State, report: Report) {
    match report {
        Report::Session(Event::Established(_)) => (state.is_up, state.down) = (true, None),
        Report::Session(Event::Down(down)) => {
            if state.is_up {
                (state.ended, state.why) = (state.ended + 1, down.to_string());
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

/// Of a port with an address of IPv6 it is the end of that, which its neighbours have others of.
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

/// The networks whose packets leave by a port.
fn table(tester: &Tester, way: &Way, to: Destinations, place: usize, port: &Port, what: Announced) -> Table {
    let mut table = Table::new();
    // A longer path of autonomous systems is less preferred (RFC 4271 section 9.1.2.2).
    let further = if what == Announced::Everywhere { place } else { 0 };
    let as_path = AsPath::sequence(&vec![tester.bgp.own_as; further]);
    let mut groups = BTreeMap::new();
    for network in 0..to.networks {
        let peer = to.peer(network);
        if what != Announced::Everywhere && peer as usize % way.to.len() != place {
            continue;
        }
        let next_hop = match what {
            Announced::Tunnelled => tester.loopback(way, peer).into(),
            Announced::Spread | Announced::Everywhere => port.settings.address.0,
        };
        let group = groups.entry(next_hop).or_insert_with(|| {
            let path = Path::new(next_hop, as_path.clone());
            table.group(family(way.first), path).expect("ports are of the kind of networks")
        });
        let (address, length) = way.network(network);
        let nlri = Nlri::unicast(Prefix::new(address, length).expect("it is a prefix"));
        table.push(*group, &nlri);
    }
    table
}
