//! Speakers against each other in virtual time, and one alone against bytes by hand.

mod chain;
mod hostile;
mod labels;
mod sessions;
mod trace;

use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use netstage_wire::ldp::message::{Hello, Initialization, Message};
use netstage_wire::ldp::write::{Outgoing, Writer};
use netstage_wire::ldp::{MOST_BYTES, Pdu};

/// How long everything takes to get to the other end.
const DELAY: Duration = Duration::from_millis(1);

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn prefix(text: &str) -> Fec {
    let (address, length) = text.split_once('/').unwrap();
    Fec::prefix(address.parse().unwrap(), length.parse().unwrap()).unwrap()
}

fn label(number: u32) -> Label {
    Label::new(number).unwrap()
}

fn router(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number as u8)
}

fn identifier(number: usize) -> Identifier {
    Identifier { router: router(number), space: 0 }
}

/// An address of a router, at which it is a next hop.
fn address(number: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number as u8).into()
}

fn transit(number: u32, next_hop: usize) -> Binding {
    Binding::Transit { label: label(number), next_hops: vec![address(next_hop)] }
}

/// A router as a next hop, with its label.
fn via(number: usize, label: Label) -> NextHop {
    NextHop { address: address(number), peer: identifier(number), label }
}

const EGRESS: Binding = Binding::Egress { label: None };

#[derive(Debug)]
enum Delivery {
    Hello { to: usize, interface: usize, from: usize, bytes: Vec<u8> },
    TargetedHello { to: usize, from: usize, bytes: Vec<u8> },
    Bytes { to: usize, connection: Connection, bytes: Vec<u8> },
    Closed { to: usize, connection: Connection },
    Connect { from: usize, peer: Identifier, address: Ipv4Addr },
}

/// A link between two routers' interfaces.
#[derive(Clone, Copy)]
struct Link {
    ends: [(usize, usize); 2],
    /// Whether hellos pass from the first and from the second.
    passes: [bool; 2],
}

/// Routers numbered from 1, each with its address as router and transport address, and links.
struct Network {
    now: Instant,
    speakers: Vec<Speaker>,
    links: Vec<Link>,
    /// Where the other end of a connection is.
    ends: BTreeMap<(usize, Connection), (usize, Connection)>,
    /// Routers nothing arrives at by connections.
    deaf: BTreeSet<usize>,
    connections: u64,
    deliveries: BTreeMap<(Instant, usize), Delivery>,
    scheduled: usize,
    events: Vec<(Instant, usize, Event)>,
    /// PDUs by their senders.
    sent: Vec<(usize, Vec<u8>)>,
}

impl Network {
    fn new(routers: usize, configure: impl Fn(&mut Config)) -> Network {
        let speakers = (1..=routers).map(|number| {
            let mut config = Config::new(router(number), router(number));
            configure(&mut config);
            let mut speaker = Speaker::new(config);
            speaker.set_addresses([address(number), router(number).into()]);
            speaker
        });
        Network {
            now: Instant::ZERO,
            speakers: speakers.collect(),
            links: Vec::new(),
            ends: BTreeMap::new(),
            deaf: BTreeSet::new(),
            connections: 0,
            deliveries: BTreeMap::new(),
            scheduled: 0,
            events: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Two routers on a link, whose sessions are up.
    fn pair(configure: impl Fn(&mut Config)) -> Network {
        let mut network = Network::new(2, configure);
        network.link(1, 2);
        network.run(1);
        assert_eq!(network.ups(), [1, 2]);
        network
    }

    fn speaker(&mut self, number: usize) -> &mut Speaker {
        &mut self.speakers[number - 1]
    }

    fn link(&mut self, one: usize, other: usize) {
        let number = self.links.len();
        self.links.push(Link { ends: [(one, number), (other, number)], passes: [true, true] });
        for end in [one, other] {
            let now = self.now;
            self.speaker(end).add_interface(now, number);
        }
    }

    fn bind(&mut self, number: usize, fec: &str, binding: Binding) {
        self.speaker(number).bind(prefix(fec), binding).unwrap();
    }

    /// Runs for some seconds.
    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            self.settle();
            let delivery = self.deliveries.keys().next().map_or(Instant::NEVER, |(at, _)| *at);
            let timeout = self.speakers.iter().map(Speaker::poll_timeout).min().unwrap();
            let next = delivery.min(timeout).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            if delivery <= next {
                let (_, delivery) = self.deliveries.pop_first().unwrap();
                self.deliver(delivery);
            } else {
                self.speakers.iter_mut().for_each(|speaker| speaker.handle_timeout(next));
            }
        }
    }

    fn settle(&mut self) {
        for number in 1..=self.speakers.len() {
            let now = self.now;
            while let Some(transmit) = self.speaker(number).poll_transmit(now) {
                self.transmit(number, transmit);
            }
            while let Some(event) = self.speaker(number).poll_event() {
                self.events.push((now, number, event));
            }
        }
    }

    fn transmit(&mut self, from: usize, transmit: Transmit) {
        match transmit {
            Transmit::Discovery { scope: Scope::Targeted(to), bytes } => {
                self.schedule(Delivery::TargetedHello { to: usize::from(to.octets()[3]), from, bytes });
            }
            Transmit::Discovery { scope: Scope::Link(interface), bytes } => {
                let Link { ends, passes } = self.links[interface];
                let side = usize::from(ends[1].0 == from);
                if passes[side] {
                    let (to, interface) = ends[1 - side];
                    self.schedule(Delivery::Hello { to, interface, from, bytes });
                }
            }
            Transmit::Stream { connection, bytes } => {
                self.sent.push((from, bytes.clone()));
                if let Some((to, connection)) = self.ends.get(&(from, connection)).copied()
                    && !self.deaf.contains(&to)
                {
                    self.schedule(Delivery::Bytes { to, connection, bytes });
                }
            }
            Transmit::Connect { peer, address } => {
                self.schedule(Delivery::Connect { from, peer, address });
            }
            Transmit::Close { connection } => {
                if let Some((to, connection)) = self.ends.remove(&(from, connection)) {
                    self.schedule(Delivery::Closed { to, connection });
                }
            }
        }
    }

    fn schedule(&mut self, delivery: Delivery) {
        self.scheduled += 1;
        self.deliveries.insert((self.now + DELAY, self.scheduled), delivery);
    }

    fn deliver(&mut self, delivery: Delivery) {
        let now = self.now;
        match delivery {
            Delivery::Hello { to, interface, from, bytes } => {
                self.speaker(to).handle_hello(now, interface, router(from), &bytes);
            }
            Delivery::TargetedHello { to, from, bytes } => {
                self.speaker(to).handle_targeted_hello(now, router(from), &bytes);
            }
            Delivery::Bytes { to, connection, bytes } => {
                self.speaker(to).handle_bytes(now, connection, &bytes);
            }
            Delivery::Closed { to, connection } => {
                self.ends.remove(&(to, connection));
                self.speaker(to).handle_closed(now, connection);
            }
            Delivery::Connect { from, peer, address } => {
                let to = usize::from(address.octets()[3]);
                let [here, there] = [1, 2].map(|more| Connection(self.connections + more));
                self.connections += 2;
                self.ends.insert((from, here), (to, there));
                self.ends.insert((to, there), (from, here));
                self.speaker(to).handle_accepted(now, there, router(from));
                self.speaker(from).handle_connected(now, peer, here);
            }
        }
    }

    /// All connections are lost.
    fn cut_connections(&mut self) {
        let now = self.now;
        for ((number, connection), _) in core::mem::take(&mut self.ends) {
            self.speaker(number).handle_closed(now, connection);
        }
    }

    fn take_events(&mut self, number: usize) -> Vec<Event> {
        self.settle();
        let of_router = self.events.iter().filter(|(_, whose, _)| *whose == number);
        let taken = of_router.map(|(_, _, event)| event.clone()).collect();
        self.events.retain(|(_, whose, _)| *whose != number);
        taken
    }

    /// Routers that said a session is up, in order; forgets all events.
    fn ups(&mut self) -> Vec<usize> {
        let events = core::mem::take(&mut self.events);
        let ups = events.iter().filter(|(_, _, event)| matches!(event, Event::Up { .. }));
        let mut ups: Vec<usize> = ups.map(|(_, number, _)| *number).collect();
        ups.sort();
        ups
    }

    fn downs(&self) -> Vec<(Instant, usize, End)> {
        let downs = self.events.iter().filter_map(|(at, number, event)| match event {
            Event::Down { why, .. } => Some((*at, *number, *why)),
            _ => None,
        });
        downs.collect()
    }

    /// What a router sent since this was asked last, message by message.
    fn told(&mut self, number: usize) -> Vec<String> {
        let sent = core::mem::take(&mut self.sent);
        let of_router = sent.iter().filter(|(from, _)| *from == number);
        of_router.flat_map(|(_, bytes)| messages(bytes)).collect()
    }
}

/// The messages of PDUs, as text.
fn messages(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = Pdu::length(bytes, MOST_BYTES).unwrap().unwrap();
        for raw in Pdu::new(bytes, MOST_BYTES).unwrap().messages() {
            all.push(text(&Message::new(&raw.unwrap()).unwrap().unwrap()));
        }
        bytes = &bytes[length..];
    }
    all
}

fn text(message: &Message<'_>) -> String {
    let fec_text = |fec| match fec {
        Fec::Wildcard => "*".into(),
        Fec::Prefix { address, length } => format!("{address}/{length}"),
    };
    match message {
        Message::LabelMapping(m) => {
            let fecs: Vec<_> = m.fecs.iter().map(fec_text).collect();
            let mut text = format!("map {} {}", fecs.join(","), m.label.number());
            if let Some(id) = m.request_id {
                text += &format!(" for {id}");
            }
            if let Some(hops) = m.hops {
                text += &format!(" hops {hops}");
            }
            m.path.iter().for_each(|router| text += &format!(" {router}"));
            text
        }
        Message::LabelWithdraw(r) | Message::LabelRelease(r) => {
            let fecs: Vec<_> = r.fecs.iter().map(fec_text).collect();
            let what = if matches!(message, Message::LabelWithdraw(_)) { "withdraw" } else { "release" };
            format!("{what} {} {}", fecs.join(","), r.label.map_or(-1, |label| label.number() as i64))
        }
        Message::Address(list) => format!("addresses {}", list.iter().count()),
        Message::AddressWithdraw(list) => format!("no addresses {}", list.iter().count()),
        Message::Notification(n) => format!("notify {:#x} {} {:?}", n.status.0, n.message_id, n.request_id),
        Message::KeepAlive => "keepalive".into(),
        Message::Initialization(_) => "initialization".into(),
        other => format!("{other:?}"),
    }
}

/// A PDU of a router.
fn pdu(number: usize, messages: &[Outgoing<'_>]) -> Vec<u8> {
    let mut bytes = [0; MOST_BYTES];
    let mut writer = Writer::new(&mut bytes, identifier(number)).unwrap();
    for (id, message) in messages.iter().enumerate() {
        writer.message(id as u32 + 1, message).unwrap();
    }
    writer.bytes().to_vec()
}

/// A speaker alone, and a peer that does as it is told.
struct Alone {
    speaker: Speaker,
    now: Instant,
}

/// The speaker is router 2, so that it is connected to by its peer.
const PEER: usize = 3;
const CONNECTION: Connection = Connection(7);

impl Alone {
    fn new(configure: impl Fn(&mut Config)) -> Alone {
        let mut config = Config::new(router(2), router(2));
        configure(&mut config);
        let mut speaker = Speaker::new(config);
        speaker.add_interface(Instant::ZERO, 0);
        Alone { speaker, now: Instant::ZERO }
    }

    fn hello(&mut self, number: usize, hold_seconds: u16) {
        let hello = Hello {
            hold_seconds,
            is_targeted: false,
            asks_for_targeted: false,
            transport: None,
            configuration: Some(9),
        };
        self.speaker.handle_hello(self.now, 0, router(number), &pdu(number, &[Outgoing::Hello(hello)]));
    }

    fn initialization() -> Initialization {
        Initialization {
            keepalive_seconds: 30,
            on_demand: false,
            detects_loops: false,
            path_limit: 0,
            most_bytes: 0,
            receiver: identifier(2),
        }
    }

    /// With a session that the peer has opened.
    fn up(configure: impl Fn(&mut Config)) -> Alone {
        let mut alone = Alone::new(configure);
        alone.hello(PEER, 15);
        alone.speaker.handle_accepted(Instant::ZERO, CONNECTION, router(PEER));
        alone.say(&[Outgoing::Initialization(Alone::initialization()), Outgoing::KeepAlive]);
        assert_eq!(alone.speaker.poll_event(), Some(Event::Up { peer: identifier(PEER) }));
        alone.answers();
        alone
    }

    fn say(&mut self, messages: &[Outgoing<'_>]) {
        self.speaker.handle_bytes(self.now, CONNECTION, &pdu(PEER, messages));
    }

    /// What the peer hears, message by message, and whether its connection was closed.
    fn answers(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(transmit) = self.speaker.poll_transmit(self.now) {
            match transmit {
                Transmit::Stream { bytes, .. } => all.extend(messages(&bytes)),
                Transmit::Close { .. } => all.push("close".into()),
                Transmit::Connect { .. } => all.push("connect".into()),
                Transmit::Discovery { .. } => {}
            }
        }
        all
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.speaker.poll_event()).collect()
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.speaker.handle_timeout(self.now);
    }
}
