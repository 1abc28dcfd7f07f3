//! `[node.NAME]` and `[link.NAME]`.

use crate::error::{Problems, did_you_mean};
use crate::plan::{LinkKind, NodeKind, Software};
use crate::scalar::{Bytes, Count, NodeName, Positive, Probability, Span, Weighting, number};
use crate::table::{At, Decode, Kind, List, NoFields, choice, merge, mismatch, table, tagged};
use crate::tree::{Node, Value};
use netstage_core::link::JitterDistribution;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue::{CodelConfig, FqCodelConfig};
use netstage_core::time::Duration;
use netstage_wire::Cipher;

table! {
    /// A node of the network. An empty table is a host.
    pub(crate) struct NodeTable "a node" {
        /// What it is.
        kind: At<Role> = "host",
        /// Queue of its ports, for links that give none themselves.
        queue: Option<Queue>,
        /// Buffer of its ports, for links that give none themselves.
        buffer: Option<Capacity>,
        /// Of a LAN, on `emu`: how long its stations take an answer of ARP or neighbour discovery for true, each between half and three halves of it; left out, as their kernels do (30 s).
        arp_timeout: Option<At<Span>>,
        /// Of a host: its network device, when it is what limits the host. TCP is told when its queue is full.
        device: Option<At<DeviceTable>>,
        /// Of a gateway: what protects packets. Both ends of a tunnel have the same. Left out: aes-128-gcm; WireGuard knows chacha20-poly1305 alone.
        cipher: Option<At<Cipher>>,
        /// Of a gateway, on `sim`: how fast it protects packets, and as fast those of the other direction. Left out: as its program did it on a core of its own.
        service_rate: Option<At<BitRate>>,
    }
}

table! {
    /// A host's network device.
    pub(crate) struct DeviceTable "a device" {
        /// How fast it sends IP packets.
        rate: BitRate,
        /// What may wait in its queue.
        buffer: Bytes<1_514, 1_000_000_000> = "100 kB",
    }
}

choice!(Cipher {
    /// AES-GCM with a key of 128 bits.
    "aes-128-gcm" => Cipher::Aes128Gcm,
    /// AES-GCM with a key of 256 bits.
    "aes-256-gcm" => Cipher::Aes256Gcm,
    /// ChaCha20 and Poly1305.
    "chacha20-poly1305" => Cipher::ChaCha20Poly1305,
    /// Triple DES and HMAC-SHA-1, of `ipsec` alone: what routers of 2006 had.
    "3des-sha1" => Cipher::TripleDesSha1,
});

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Role(pub NodeKind);

/// Kinds that will come: refused by name, so that nobody looks for a misspelling.
const NOT_YET: &[&str] = &["external"];
/// Those there are.
const KINDS: [&str; 7] = ["host", "router", "pe", "lan", "ipsec", "wireguard", "openvpn"];

impl Decode for Role {
    fn kind() -> Kind {
        Kind::Choice(vec![
            ("host", "Sends and receives traffic; forwards none."),
            ("router", "Forwards."),
            ("pe", "A provider edge router: forwards, and controls the VPNs that enter at it."),
            (
                "lan",
                "An Ethernet switch: those that links join to it share one subnet, and what is broadcast reaches all of them. On `sim` it forwards, and nothing is broadcast.",
            ),
            (
                "ipsec",
                "A gateway by strongSwan: between two of them on a flow's way its packets are in a tunnel.",
            ),
            ("wireguard", "A gateway by WireGuard: the kernel's where it has it, else wireguard-go."),
            ("openvpn", "A gateway by OpenVPN."),
        ])
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let kind = match node.text() {
            Some("host") => NodeKind::Host,
            Some("router") => NodeKind::Router,
            Some("pe") => NodeKind::Pe,
            Some("lan") => NodeKind::Lan,
            Some("ipsec") => NodeKind::Gateway(Software::StrongSwan),
            Some("wireguard") => NodeKind::Gateway(Software::WireGuard),
            Some("openvpn") => NodeKind::Gateway(Software::OpenVpn),
            Some(kind) if NOT_YET.contains(&kind) => {
                let message = format!("nodes of kind \"{kind}\" are not available yet");
                problems.push_help(node.place, message, format!("available: {}", KINDS.join(", ")));
                return None;
            }
            Some(kind) => {
                let help = did_you_mean(kind, KINDS);
                let message = format!("unknown kind of node `{}`", kind.escape_debug());
                problems.push_with_help(node.place, message, help);
                return None;
            }
            None => return mismatch(node, &Self::kind(), problems),
        };
        Some(Role(kind))
    }
}

table! {
    /// A full-duplex link between two nodes. What it says holds for both directions,
    /// unless `reverse` says otherwise for the way back.
    pub(crate) struct LinkTable "a link" {
        /// The two nodes it joins; forward is from the first to the second.
        ends: List<At<NodeName>, 2, 2>,
        /// What its ends are where packets are real.
        kind: At<LinkKind> = "ethernet",
        /// Values that differ on the way from the second end to the first.
        reverse: Option<Overrides>,
        ..forward: Direction
    }
}

table! {
    /// One direction of a link.
    pub(crate) struct Direction "a link" {
        /// Rate of the line. It carries IP packets, and `overhead` with each.
        rate: BitRate,
        /// One-way propagation delay.
        delay: Duration = "0 ms",
        /// What may wait for the line, beside the packet that is being sent.
        buffer: At<Capacity> = "50 packets",
        /// Who waits and who is dropped.
        queue: At<Queue> = "drop-tail",
        /// Framing that each packet adds on the line (Ethernet: 38 B).
        overhead: Bytes<0, 10_000> = "0 B",
        /// Probability that a packet is lost, each by itself.
        loss: Probability = 0,
        /// Bit error rate: a packet with a wrong bit is lost to its receiver.
        ber: Probability = 0,
        /// Random extra delay.
        jitter: Option<Jitter>,
        /// Probability that a packet is delivered twice.
        duplicate: Probability = 0,
        /// Changes while a run lasts.
        schedule: List<Change>,
    }
}

table! {
    /// A change of a link at a moment; what it leaves out stays as it was.
    pub(crate) struct Change "a change" {
        /// When, from the start of the run.
        at: At<Duration>,
        /// New rate.
        rate: Option<BitRate>,
        /// New one-way delay.
        delay: Option<Duration>,
        /// New probability of loss.
        loss: Option<Probability>,
        /// New bit error rate.
        ber: Option<Probability>,
        /// `false`: the link fails, and loses what it holds. `true`: it returns.
        up: Option<bool>,
    }
}

table! {
    /// Random extra delay of each packet.
    pub(crate) struct Jitter "jitter" short "amount" {
        /// Largest extra delay (uniform), or its mean (exponential).
        amount: Duration,
        /// How it is spread.
        distribution: JitterDistribution = "uniform",
        /// Whether a packet may overtake an earlier one.
        reorder: bool = false,
    }
}

choice!(LinkKind {
    /// Interfaces of Ethernet.
    "ethernet" => LinkKind::Ethernet,
    /// TUN interfaces, which carry packets without a link's header. For hosts and routers.
    "tun" => LinkKind::Tun,
});

choice!(JitterDistribution {
    /// Evenly between none and `amount`.
    "uniform" => JitterDistribution::Uniform,
    /// Exponentially, with mean `amount`.
    "exponential" => JitterDistribution::Exponential,
});

tagged! {
    /// Who waits before a line, who is dropped, who is marked.
    pub(crate) enum Queue "queue" by "kind" {
        /// First in, first out; what does not fit is dropped.
        DropTail(NoFields) = "drop-tail",
        /// Random early detection (Floyd and Jacobson 1993), gentle.
        Red(Red) = "red",
        /// CoDel (RFC 8289).
        Codel(Codel) = "codel",
        /// FQ-CoDel (RFC 8290).
        FqCodel(FqCodel) = "fq-codel",
        /// Deficit round robin, a class for each VPN and one for all else.
        Drr(Drr) = "drr",
        /// Packets of traffic class 5 and above go first: voice (DSCP 46, RFC 3246) and control, by the
        /// outermost label where there is one (RFC 5462), else by DSCP. They and all others have the buffer
        /// each. For `emu`.
        Priority(NoFields) = "priority",
    }
}

table! {
    /// Random early detection.
    pub(crate) struct Red "queue \"red\"" {
        /// Average queue, in packets, below which nothing is dropped.
        min_threshold: At<Positive> = 5,
        /// Average queue, in packets, at which `max_probability` is reached.
        max_threshold: Positive = 15,
        /// Drop probability at `max_threshold`; it rises to 1 at twice that.
        max_probability: Weighting = 0.1,
        /// Weight of a new sample in the average.
        weight: Weighting = 0.002,
        /// Mark packets that can carry a mark (ECN) instead of dropping them.
        ecn: bool = false,
    }
}

table! {
    /// CoDel.
    pub(crate) struct Codel "queue \"codel\"" {
        /// Standing delay that is accepted.
        target: Span = "5 ms",
        /// How long a delay must stand before packets are dropped: about a round trip.
        interval: Span = "100 ms",
        /// Mark packets that can carry a mark (ECN) instead of dropping them.
        ecn: bool = false,
    }
}

table! {
    /// FQ-CoDel.
    pub(crate) struct FqCodel "queue \"fq-codel\"" {
        /// Number of queues that flows are hashed into.
        flows: Count<1, 65_536> = 1024,
        /// What a queue may send per turn.
        quantum: Bytes<1, 1_000_000> = "1514 B",
        ..codel: Codel
    }
}

impl Codel {
    pub(crate) fn config(&self) -> CodelConfig {
        CodelConfig { target: self.target.0, interval: self.interval.0, ecn: self.ecn }
    }
}

impl FqCodel {
    pub(crate) fn config(&self) -> FqCodelConfig {
        FqCodelConfig {
            codel: self.codel.config(),
            flows: self.flows.0 as u32,
            quantum: self.quantum.0 as u32,
        }
    }
}

table! {
    /// Deficit round robin.
    pub(crate) struct Drr "queue \"drr\"" {
        /// Weight of each VPN's class, by VPN; those left out have the VPN's own weight.
        weights: Option<ClassWeights>,
        /// Weight of the class of all other packets.
        others: At<ClassWeight> = 1,
        /// Buffer of each class; left out: the link's buffer.
        buffer_per_class: Option<Capacity>,
    }
}

/// A class's weight. Its bounds keep a turn of the scheduler short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClassWeight(pub f64);

impl Decode for ClassWeight {
    fn kind() -> Kind {
        Kind::Number { bounds: "from 0.001 to 1000000", min: 0.001, max: 1e6 }
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let value = number(node).filter(|w| (0.001..=1e6).contains(w));
        value.map(ClassWeight).or_else(|| mismatch(node, &Self::kind(), problems))
    }
}

/// VPN names, each with its place, and their weights.
#[derive(Clone, Debug)]
pub(crate) struct ClassWeights(pub Vec<(At<String>, f64)>);

impl Decode for ClassWeights {
    fn kind() -> Kind {
        Kind::Named { of: ClassWeight::kind }
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let decoded = table.entries.iter().map(|entry| {
            let weight = ClassWeight::decode(&entry.node, problems)?.0;
            Some((At { value: entry.key.clone(), place: entry.key_place, own: entry.node.own }, weight))
        });
        decoded.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(ClassWeights)
    }
}

/// `reverse`, not yet joined with what it overrides.
#[derive(Clone, Debug)]
pub(crate) struct Overrides;

impl Decode for Overrides {
    fn kind() -> Kind {
        match Direction::kind() {
            Kind::Table { fields, shorthand, about, .. } => {
                let optional = fields
                    .into_iter()
                    .map(|f| crate::table::Field { presence: crate::table::Presence::Optional, ..f })
                    .collect();
                Kind::Table { what: "reverse", about, fields: optional, shorthand }
            }
            _ => unreachable!("a direction is a table"),
        }
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        node.table().map(|_| Overrides).or_else(|| mismatch(node, &Self::kind(), problems))
    }
}

/// A link with both its directions.
#[derive(Clone)]
pub(crate) struct Link {
    pub ends: [At<NodeName>; 2],
    pub kind: At<LinkKind>,
    pub directions: [Direction; 2],
}

impl Decode for Link {
    fn kind() -> Kind {
        LinkTable::kind()
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let link = LinkTable::decode(node, problems);
        let back = node.get("reverse").filter(|n| n.table().is_some()).map(|reverse| {
            let mut over = reverse.clone();
            let mut under = node.clone();
            if let Value::Table(table) = &mut under.value {
                table.remove("ends");
                table.remove("kind");
                table.remove("reverse");
                // What the link as a whole says is as much its own on the way back.
                let kind = Direction::kind();
                let owned: Vec<(String, bool)> =
                    table.entries.iter().map(|e| (e.key.clone(), e.node.own)).collect();
                // An unknown field of the link is told once, as such.
                table.entries.retain(|e| kind.field(&e.key).is_some());
                let given: Vec<String> = reverse
                    .table()
                    .map(|t| t.entries.iter().map(|e| e.key.clone()).collect())
                    .unwrap_or_default();
                merge(&mut over, &under, &kind);
                if let Value::Table(merged) = &mut over.value {
                    for (key, own) in owned {
                        if let Some(value) = merged.get_mut(&key).filter(|_| !given.contains(&key)) {
                            value.own = own;
                        }
                    }
                }
            }
            over.place = node.place;
            Direction::decode(&over, problems)
        });
        let LinkTable { ends, kind, forward, .. } = link?;
        let reverse = match back {
            Some(reverse) => reverse?,
            None => forward.clone(),
        };
        let ends: [At<NodeName>; 2] = ends.0.try_into().expect("a list of two");
        Some(Link { ends, kind, directions: [forward, reverse] })
    }
}
