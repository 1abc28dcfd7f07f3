//! The label switched paths of a test: which labels the router was told of by its operator, or which it and
//! the tester have told each other by label distribution (RFC 5036).
//!
//! By LDP each port is a router of its own. Those that receive are the ends of paths to addresses behind
//! them, one for each peer; the labels that the router tells of for these, and for itself, are those
//! packets are sent with.

use super::apart;
use super::port::Port;
use netstage_core::edge::Prefix;
use netstage_core::ldp::{Binding, Config, Event};
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{self, Command, Interface, Place, Report};
use netstage_scenario::tester::{INNER, LabelsBy, Operation, Tester, Way};
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::Label;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Paths whose last router but one pops lead to addresses so far above the others.
const PENULTIMATE: u32 = 128;

/// The paths.
#[derive(Debug)]
pub enum Lsps {
    /// As configured.
    Configured,
    /// As told by LDP.
    Distributed(Speakers),
}

impl Lsps {
    /// As a tester's configuration asks for them.
    pub fn begin(tester: &Tester, ports: &[Port], namespace: &Namespace) -> io::Result<Lsps> {
        match tester.labels.map(|labels| labels.by) {
            None | Some(LabelsBy::You) => Ok(Lsps::Configured),
            Some(LabelsBy::Ldp) => Speakers::begin(tester, ports, namespace).map(Lsps::Distributed),
            Some(LabelsBy::RsvpTe) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The outer labels of packets to each peer of a way as they are sent by a port; none where they have no
    /// label. In words, why they are not known.
    pub fn incoming(
        &self,
        tester: &Tester,
        ports: &[Port],
        operation: Operation,
        way: &Way,
        from: usize,
    ) -> Result<Vec<u32>, String> {
        let Some(labels) = tester.labels else { return Ok(Vec::new()) };
        let Some(first) = labels.incoming(operation) else { return Ok(Vec::new()) };
        let peers = 0..tester.peers(way);
        let Lsps::Distributed(speakers) = self else {
            return Ok(peers.map(|peer| first + way.labels_above + peer).collect());
        };
        let speaker = &speakers.0[from];
        let port = &ports[from];
        let label = |peer: u32| {
            let found = match operation {
                Operation::Pop => {
                    speaker.of_router(labels.router_loopback.map_or(port.settings.router, IpAddr::V4))
                }
                Operation::Php | Operation::Unlabelled => speaker.of(penultimate(tester, way, peer)),
                _ => speaker.of(tester.loopback(way, peer)),
            };
            let label = found.ok_or_else(|| speaker.missing(port, operation, tester.loopback(way, peer)))?;
            match label {
                Label::IMPLICIT_NULL => Err(format!(
                    "{} wants no label at its end of a path (implicit null), so there is nothing to pop: have it \
                     advertise explicit null",
                    port.settings.router
                )),
                label => Ok(label.number()),
            }
        };
        peers.map(label).collect()
    }

    /// How many sessions have ended, and of one of them why.
    pub fn ended(&self, ports: &[Port]) -> (u32, Option<String>) {
        let Lsps::Distributed(speakers) = self else { return (0, None) };
        let (mut count, mut said) = (0, None);
        for (speaker, port) in speakers.0.iter().zip(ports) {
            let state = lock(&speaker.state);
            count += state.ended;
            if state.ended > 0 {
                let router = port.settings.router;
                said = Some(format!("the LDP session with {router} ended: {}", state.why));
            }
        }
        (count, said)
    }

    /// The labels of packets that have left the router for each peer of a way.
    pub fn outgoing(&self, tester: &Tester, operation: Operation, way: &Way) -> Vec<u32> {
        let Some(labels) = tester.labels else { return Vec::new() };
        let first = match (self, operation) {
            // There is one label to a path, whoever puts it on.
            (Lsps::Distributed(_), Operation::Swap) => Some(labels.push),
            _ => labels.outgoing(operation),
        };
        let Some(first) = first else { return Vec::new() };
        let peers = 0..tester.peers(way);
        // The inner of two labels is the same for all.
        peers.map(|peer| if first == INNER { first } else { first + way.labels_above + peer }).collect()
    }
}

/// The end of the path that the router is the last but one of.
fn penultimate(tester: &Tester, way: &Way, peer: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(tester.loopback(way, peer)) + PENULTIMATE)
}

/// The routers that the ports are, in order.
#[derive(Debug)]
pub struct Speakers(Vec<Speaker>, Option<JoinHandle<io::Result<()>>>);

/// What a speaker is run with.
type Task = (Config, Place, UnboundedReceiver<Command>, Arc<Mutex<State>>);

#[derive(Debug)]
struct Speaker {
    commands: UnboundedSender<Command>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_up: bool,
    /// What the router has told of prefixes.
    labels: BTreeMap<(IpAddr, u8), Label>,
    fault: Option<String>,
    /// How many sessions have ended, and why the last one did.
    ended: u32,
    why: String,
}

impl Speakers {
    fn begin(tester: &Tester, ports: &[Port], namespace: &Namespace) -> io::Result<Speakers> {
        let (mut speakers, mut tasks) = (Vec::new(), Vec::new());
        for (number, port) in ports.iter().enumerate() {
            let IpAddr::V4(address) = port.settings.address.0 else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            let (commands, received) = unbounded_channel();
            let state = Arc::new(Mutex::new(State::default()));
            let place = Place {
                namespace: namespace.try_clone()?,
                interfaces: vec![Interface { name: port.settings.interface.clone(), address }],
                targets: Vec::new(),
                md5_keys: Vec::new(),
            };
            // The receiver is there: it is in `tasks`.
            let _ = commands.send(Command::SetAddresses(vec![address.into()]));
            let _ = commands.send(Command::Bind(bindings(tester, number)));
            tasks.push((Config::new(address, address), place, received, Arc::clone(&state)));
            speakers.push(Speaker { commands, state });
        }
        let epoch = std::time::Instant::now();
        let speak = move |(config, place, received, state): Task| async move {
            let heard = |_, report| note(&mut lock(&state), report);
            if let Err(error) = ldp::run(config, place, epoch, received, heard).await {
                lock(&state).fault = Some(error.to_string());
            }
        };
        let thread = apart::run("tester-ldp", namespace, tasks, speak)?;
        Ok(Speakers(speakers, Some(thread)))
    }
}

impl Drop for Speakers {
    fn drop(&mut self) {
        self.0.iter().for_each(|speaker| drop(speaker.commands.send(Command::Stop)));
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

impl Speaker {
    /// What the router has told of an address.
    fn of(&self, address: Ipv4Addr) -> Option<Label> {
        lock(&self.state).labels.get(&(address.into(), 32)).copied()
    }

    /// What it has told of itself: of a prefix that this address of its own is in, the longest first.
    fn of_router(&self, address: IpAddr) -> Option<Label> {
        let is_in = |&(prefix, length): &(IpAddr, u8)| {
            prefix.is_ipv4() && length > 0 && Prefix::around(prefix, length).holds(address)
        };
        let state = lock(&self.state);
        let found = state.labels.iter().filter(|(prefix, _)| is_in(prefix));
        found.max_by_key(|((_, length), _)| *length).map(|(_, label)| *label)
    }

    fn missing(&self, port: &Port, operation: Operation, loopback: Ipv4Addr) -> String {
        let router = port.settings.router;
        let state = lock(&self.state);
        match (&state.fault, state.is_up) {
            (Some(fault), false) => format!("no LDP session with {router}: {fault}"),
            (None, false) => format!("no LDP session with {router} yet: is LDP on at its end?"),
            (_, true) => match operation {
                Operation::Pop => format!("{router} has told of no label for itself"),
                _ => format!("{router} has told of no label for {loopback}/32: does it have a route there?"),
            },
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(state: &mut State, report: Report) {
    match report {
        Report::Fault(fault) => state.fault = Some(fault.to_string()),
        Report::Event(Event::Up { .. }) => (state.is_up, state.fault) = (true, None),
        Report::Event(Event::Down { why, .. } | Event::Refused { why, .. }) => {
            let ended = state.ended + u32::from(state.is_up);
            let why = why.to_string();
            *state = State { fault: Some(why.clone()), ended, why, ..State::default() };
        }
        Report::Event(Event::Mapping { fec: Fec::Prefix { address, length }, label, .. }) => {
            state.labels.insert((address, length), label);
        }
        Report::Event(Event::Withdrawn { fec: Fec::Prefix { address, length }, .. }) => {
            state.labels.remove(&(address, length));
        }
        Report::Event(_) => {}
    }
}

/// What a port tells the router of: the peers behind it.
fn bindings(tester: &Tester, port: usize) -> Vec<(Fec, Binding)> {
    let Some(labels) = tester.labels else { return Vec::new() };
    let mut bindings = Vec::new();
    for way in &tester.ways {
        let Some(place) = way.to.iter().position(|to| *to == port) else { continue };
        for peer in (0..tester.peers(way)).filter(|peer| *peer as usize % way.to.len() == place) {
            let own = Label::new(labels.push + way.labels_above + peer);
            for (address, label) in [
                (tester.loopback(way, peer), own),
                // Implicit null, which is what a speaker says of its ends by itself.
                (penultimate(tester, way, peer), None),
            ] {
                bindings
                    .push((Fec::Prefix { address: address.into(), length: 32 }, Binding::Egress { label }));
            }
        }
    }
    bindings
}
