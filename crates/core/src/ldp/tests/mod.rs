//! Tests of speakers in simulated networks, and of a single speaker with a scripted peer.

mod chain;
mod hostile;
mod labels;
mod restart;
mod sessions;
mod trace;

use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use netstage_wire::ldp::message::{Hello, Initialization, LdpMessage};
use netstage_wire::ldp::write::{Outgoing, Writer};
use netstage_wire::ldp::{MAX_PDU_LENGTH, Pdu};

/// Delay of datagrams and connections.
const DELAY: Duration = Duration::from_millis(1);

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn prefix(text: &str) -> Fec {
    let (address, length) = text.split_once('/').unwrap();
    Fec::prefix(address.parse().unwrap(), length.parse().unwrap()).unwrap()
}

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

fn router(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number as u8)
}

fn identifier(number: usize) -> Identifier {
    Identifier { router: router(number), space: 0 }
}

/// Returns the address of a router as a next hop.
fn address(number: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number as u8).into()
}

fn transit(number: u32, next_hop: usize) -> Binding {
    Binding::Transit { label: label(number), next_hops: vec![address(next_hop)] }
}

/// Returns a router as a next hop with its label.
fn via(number: usize, label: LabelValue) -> NextHop {
    NextHop { address: address(number), peer: identifier(number), label }
}

const EGRESS: Binding = Binding::Egress { label: None };

#[derive(Debug)]
enum Delivery {
    Hello { to: usize, interface: usize, from: usize, bytes: Vec<u8> },
    TargetedHello { to: usize, from: usize, bytes: Vec<u8> },
    Bytes { to: usize, connection: LdpConnection, bytes: Vec<u8> },
    Closed { to: usize, connection: LdpConnection },
    Connect { from: usize, peer: Identifier, address: Ipv4Addr },
}

/// A link between two routers' interfaces.
#[derive(Clone, Copy)]
struct TestLink {
    ends: [(usize, usize); 2],
    /// True if hellos of the first and of the second router are delivered.
    passes: [bool; 2],
}

/// A network of routers numbered from 1. The address [`router`] is both router ID and transport address.
struct TestNetwork {
    now: Instant,
    speakers: Vec<LdpSpeaker>,
    links: Vec<TestLink>,
    /// Remote end of each end of a connection.
    ends: BTreeMap<(usize, LdpConnection), (usize, LdpConnection)>,
    /// Routers that receive no bytes on connections.
    blackholed: BTreeSet<usize>,
    connections: u64,
    deliveries: BTreeMap<(Instant, usize), Delivery>,
    scheduled: usize,
    events: Vec<(Instant, usize, LdpEvent)>,
    /// PDUs by their senders.
    sent: Vec<(usize, Vec<u8>)>,
}

impl TestNetwork {
    fn new(routers: usize, configure: impl Fn(&mut LdpConfig)) -> TestNetwork {
        let speakers = (1..=routers).map(|number| {
            let mut config = LdpConfig::new(router(number), router(number));
            configure(&mut config);
            let mut speaker = LdpSpeaker::new(config);
            speaker.set_addresses([address(number), router(number).into()]);
            speaker
        });
        TestNetwork {
            now: Instant::ZERO,
            speakers: speakers.collect(),
            links: Vec::new(),
            ends: BTreeMap::new(),
            blackholed: BTreeSet::new(),
            connections: 0,
            deliveries: BTreeMap::new(),
            scheduled: 0,
            events: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Creates two routers on a link and establishes their session.
    fn pair(configure: impl Fn(&mut LdpConfig)) -> TestNetwork {
        let mut network = TestNetwork::new(2, configure);
        network.link(1, 2);
        network.run(1);
        assert_eq!(network.sessions_up(), [1, 2]);
        network
    }

    fn speaker(&mut self, number: usize) -> &mut LdpSpeaker {
        &mut self.speakers[number - 1]
    }

    fn link(&mut self, one: usize, other: usize) {
        let number = self.links.len();
        self.links.push(TestLink { ends: [(one, number), (other, number)], passes: [true, true] });
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
            let timeout = self.speakers.iter().map(LdpSpeaker::poll_timeout).min().unwrap();
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

    fn transmit(&mut self, from: usize, transmit: LdpAction) {
        match transmit {
            LdpAction::Discovery { scope: Scope::Targeted(to), bytes } => {
                self.schedule(Delivery::TargetedHello { to: usize::from(to.octets()[3]), from, bytes });
            }
            LdpAction::Discovery { scope: Scope::Link(interface), bytes } => {
                let TestLink { ends, passes } = self.links[interface];
                let side = usize::from(ends[1].0 == from);
                if passes[side] {
                    let (to, interface) = ends[1 - side];
                    self.schedule(Delivery::Hello { to, interface, from, bytes });
                }
            }
            LdpAction::Stream { connection, bytes } => {
                self.sent.push((from, bytes.clone()));
                if let Some((to, connection)) = self.ends.get(&(from, connection)).copied()
                    && !self.blackholed.contains(&to)
                {
                    self.schedule(Delivery::Bytes { to, connection, bytes });
                }
            }
            LdpAction::Connect { peer, address } => {
                self.schedule(Delivery::Connect { from, peer, address });
            }
            LdpAction::Close { connection } => {
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
                let [active, passive] = [1, 2].map(|number| LdpConnection(self.connections + number));
                self.connections += 2;
                self.ends.insert((from, active), (to, passive));
                self.ends.insert((to, passive), (from, active));
                self.speaker(to).handle_accepted(now, passive, router(from));
                self.speaker(from).handle_connected(now, peer, active);
            }
        }
    }

    /// Breaks all connections.
    fn cut_connections(&mut self) {
        let now = self.now;
        for ((number, connection), _) in core::mem::take(&mut self.ends) {
            self.speaker(number).handle_closed(now, connection);
        }
    }

    fn take_events(&mut self, number: usize) -> Vec<LdpEvent> {
        self.settle();
        let of_router = self.events.iter().filter(|(_, at_router, _)| *at_router == number);
        let taken = of_router.map(|(_, _, event)| event.clone()).collect();
        self.events.retain(|(_, at_router, _)| *at_router != number);
        taken
    }

    /// Returns the routers that have reported a session up, in order, and clears all events.
    fn sessions_up(&mut self) -> Vec<usize> {
        let events = core::mem::take(&mut self.events);
        let ups = events.iter().filter(|(_, _, event)| matches!(event, LdpEvent::Up { .. }));
        let mut routers: Vec<usize> = ups.map(|(_, number, _)| *number).collect();
        routers.sort();
        routers
    }

    fn session_ends(&self) -> Vec<(Instant, usize, LdpSessionEnd)> {
        let session_ends = self.events.iter().filter_map(|(at, number, event)| match event {
            LdpEvent::Down { reason: why, .. } => Some((*at, *number, *why)),
            _ => None,
        });
        session_ends.collect()
    }

    /// Returns the messages that a router has sent since the last call as text, and clears all PDUs.
    fn sent_messages(&mut self, number: usize) -> Vec<String> {
        let sent = core::mem::take(&mut self.sent);
        let of_router = sent.iter().filter(|(from, _)| *from == number);
        of_router.flat_map(|(_, bytes)| messages(bytes)).collect()
    }
}

/// Returns the messages of PDUs as text.
fn messages(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = Pdu::length(bytes, MAX_PDU_LENGTH).unwrap().unwrap();
        for raw in Pdu::new(bytes, MAX_PDU_LENGTH).unwrap().messages() {
            all.push(text(&LdpMessage::new(&raw.unwrap()).unwrap().unwrap()));
        }
        bytes = &bytes[length..];
    }
    all
}

fn text(message: &LdpMessage<'_>) -> String {
    let fec_text = |fec| match fec {
        Fec::Wildcard => "*".into(),
        Fec::Prefix { address, length } => format!("{address}/{length}"),
    };
    match message {
        LdpMessage::LabelMapping(m) => {
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
        LdpMessage::LabelWithdraw(r) | LdpMessage::LabelRelease(r) => {
            let fecs: Vec<_> = r.fecs.iter().map(fec_text).collect();
            let kind = if matches!(message, LdpMessage::LabelWithdraw(_)) { "withdraw" } else { "release" };
            format!("{kind} {} {}", fecs.join(","), r.label.map_or(-1, |label| label.number() as i64))
        }
        LdpMessage::Address(list) => format!("addresses {}", list.iter().count()),
        LdpMessage::AddressWithdraw(list) => format!("no addresses {}", list.iter().count()),
        LdpMessage::Notification(n) => {
            format!("notify {:#x} {} {:?}", n.status.0, n.message_id, n.request_id)
        }
        LdpMessage::KeepAlive => "keepalive".into(),
        LdpMessage::Initialization(_) => "initialization".into(),
        other => format!("{other:?}"),
    }
}

/// Encodes a PDU of a router.
fn pdu(number: usize, messages: &[Outgoing<'_>]) -> Vec<u8> {
    let mut bytes = [0; MAX_PDU_LENGTH];
    let mut writer = Writer::new(&mut bytes, identifier(number)).unwrap();
    for (id, message) in messages.iter().enumerate() {
        writer.message(id as u32 + 1, message).unwrap();
    }
    writer.bytes().to_vec()
}

/// A speaker with a scripted peer.
struct SpeakerTest {
    speaker: LdpSpeaker,
    now: Instant,
}

/// Number of the scripted peer. The speaker is router 2, so that its peer opens the connection.
const PEER: usize = 3;
const CONNECTION: LdpConnection = LdpConnection(7);

impl SpeakerTest {
    fn new(configure: impl Fn(&mut LdpConfig)) -> SpeakerTest {
        let mut config = LdpConfig::new(router(2), router(2));
        configure(&mut config);
        let mut speaker = LdpSpeaker::new(config);
        speaker.add_interface(Instant::ZERO, 0);
        SpeakerTest { speaker, now: Instant::ZERO }
    }

    fn hello(&mut self, number: usize, hold_seconds: u16) {
        let hello = Hello {
            hold_seconds,
            is_targeted: false,
            requests_targeted: false,
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
            max_pdu_length: 0,
            receiver: identifier(2),
            ft_session: None,
        }
    }

    /// Creates a speaker with an established session.
    fn up(configure: impl Fn(&mut LdpConfig)) -> SpeakerTest {
        let mut test = SpeakerTest::new(configure);
        test.hello(PEER, 15);
        test.speaker.handle_accepted(Instant::ZERO, CONNECTION, router(PEER));
        test.receive(&[Outgoing::Initialization(SpeakerTest::initialization()), Outgoing::KeepAlive]);
        assert_eq!(test.speaker.poll_event(), Some(LdpEvent::Up { peer: identifier(PEER) }));
        test.replies();
        test
    }

    fn receive(&mut self, messages: &[Outgoing<'_>]) {
        self.speaker.handle_bytes(self.now, CONNECTION, &pdu(PEER, messages));
    }

    /// Returns the messages to the peer as text, and "close" or "connect" for these actions.
    fn replies(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(transmit) = self.speaker.poll_transmit(self.now) {
            match transmit {
                LdpAction::Stream { bytes, .. } => all.extend(messages(&bytes)),
                LdpAction::Close { .. } => all.push("close".into()),
                LdpAction::Connect { .. } => all.push("connect".into()),
                LdpAction::Discovery { .. } => {}
            }
        }
        all
    }

    fn events(&mut self) -> Vec<LdpEvent> {
        core::iter::from_fn(|| self.speaker.poll_event()).collect()
    }

    fn advance(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.speaker.handle_timeout(self.now);
    }
}
