//! `[node.NAME]` and `[link.NAME]`.

use crate::error::{Problems, did_you_mean};
use crate::plan::{GatewaySoftware, LinkKind, NodeKind};
use crate::scalar::{
    BoundedCount, BoundedSize, NodeName, Positive, PositiveDuration, Probability, Weighting, number,
};
use crate::table::{Decode, List, Located, NoFields, ValueKind, choice, merge, mismatch, table, tagged};
use crate::tree::TomlNode;
use netstage_core::link::JitterDistribution;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue::{CodelConfig, FqCodelConfig};
use netstage_core::time::Duration;
use netstage_wire::Cipher;
use std::rc::Rc;

table! {
    /// Node of the network. An empty table is a host.
    pub(crate) struct NodeTable "a node" {
        /// Number of identical nodes, named `NAME1`, `NAME2`, …, each with its own copies of the links at `NAME`.
        count: Option<BoundedCount<1, 1_000>>,
        /// Kind of node.
        kind: Located<NodeRole> = "host",
        /// Queue of the ports whose link sets none.
        queue: Option<QueueTable>,
        /// Buffer of the ports whose link sets none.
        buffer: Option<Capacity>,
        /// With a LAN, on `emu`: mean lifetime of ARP and neighbor discovery entries, each from half to three halves of
        /// it; default: that of the kernel (30 s).
        arp_timeout: Option<Located<PositiveDuration>>,
        /// With a host: network device, if it limits the host. TCP is notified when its queue is full.
        device: Option<Located<DeviceTable>>,
        /// With a gateway: cipher, the same at both ends; default: aes-128-gcm. WireGuard has chacha20-poly1305 only.
        cipher: Option<Located<Cipher>>,
        /// With a gateway, on `sim`: encryption and decryption rate; default: that of its program on a dedicated core.
        service_rate: Option<Located<BitRate>>,
    }
}

table! {
    /// Network device of a host.
    pub(crate) struct DeviceTable "a device" {
        /// Rate, at the IP layer.
        rate: BitRate,
        /// Capacity of the queue.
        buffer: BoundedSize<1_514, 1_000_000_000> = "100 kB",
    }
}

choice!(Cipher {
    /// AES-GCM with a 128-bit key.
    "aes-128-gcm" => Cipher::Aes128Gcm,
    /// AES-GCM with a 256-bit key.
    "aes-256-gcm" => Cipher::Aes256Gcm,
    /// ChaCha20 and Poly1305.
    "chacha20-poly1305" => Cipher::ChaCha20Poly1305,
    /// Triple DES and HMAC-SHA-1, with `ipsec` only: the usual choice of routers in 2006.
    "3des-sha1" => Cipher::TripleDesSha1,
});

/// Kind of node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NodeRole(pub NodeKind);

/// Planned kinds, refused with a message of their own because they are not misspelled.
const PLANNED_KINDS: &[&str] = &["external"];
/// Available kinds.
const KINDS: [&str; 7] = ["host", "router", "pe", "lan", "ipsec", "wireguard", "openvpn"];

impl Decode for NodeRole {
    fn kind() -> ValueKind {
        ValueKind::Choice(vec![
            ("host", "Sends and receives traffic; does not forward."),
            ("router", "Forwards packets."),
            ("pe", "Provider edge router: forwards packets, and controls the VPNs whose ingress it is."),
            (
                "lan",
                "Ethernet switch: the nodes linked to it share a subnet, and receive each other's broadcasts. On `sim` it forwards, and broadcasts nothing.",
            ),
            (
                "ipsec",
                "VPN gateway with strongSwan: the packets of a flow are in a tunnel between two gateways on its path.",
            ),
            ("wireguard", "VPN gateway with WireGuard: the kernel's if available, otherwise wireguard-go."),
            ("openvpn", "VPN gateway with OpenVPN."),
        ])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let kind = match node.text() {
            Some("host") => NodeKind::Host,
            Some("router") => NodeKind::Router,
            Some("pe") => NodeKind::Pe,
            Some("lan") => NodeKind::Lan,
            Some("ipsec") => NodeKind::Gateway(GatewaySoftware::StrongSwan),
            Some("wireguard") => NodeKind::Gateway(GatewaySoftware::WireGuard),
            Some("openvpn") => NodeKind::Gateway(GatewaySoftware::OpenVpn),
            Some(kind) if PLANNED_KINDS.contains(&kind) => {
                let message = format!("node kind \"{kind}\" is not implemented yet");
                problems.push_help(node.place, message, format!("available: {}", KINDS.join(", ")));
                return None;
            }
            Some(kind) => {
                let help = did_you_mean(kind, KINDS);
                let message = format!("unknown node kind `{}`", kind.escape_debug());
                problems.push_with_help(node.place, message, help);
                return None;
            }
            None => return mismatch(node, &Self::kind(), problems),
        };
        Some(NodeRole(kind))
    }
}

table! {
    /// Full-duplex link between two nodes. Settings apply to both directions, unless `reverse` overrides them for the
    /// reverse direction.
    pub(crate) struct LinkTable "a link" {
        /// The two connected nodes; the forward direction is from the first to the second.
        ends: List<Located<NodeName>, 2, 2>,
        /// Kind of interfaces at its ends, on stages with real packets.
        kind: Located<LinkKind> = "ethernet",
        /// Settings that differ in the direction from the second node to the first.
        reverse: Option<ReverseOverrides>,
        ..forward: LinkDirectionTable
    }
}

table! {
    /// One direction of a link.
    pub(crate) struct LinkDirectionTable "a link" {
        /// Line rate, for IP packets and their `overhead`.
        rate: BitRate,
        /// One-way propagation delay.
        delay: Duration = "0 ms",
        /// Capacity of the queue, in addition to the packet being sent.
        buffer: Located<Capacity> = "50 packets",
        /// Queue discipline.
        queue: Located<QueueTable> = "drop-tail",
        /// Framing overhead of each packet on the line (Ethernet: 38 B).
        overhead: BoundedSize<0, 10_000> = "0 B",
        /// Probability of independent packet loss.
        loss: Probability = 0,
        /// Bit error rate; the receiver drops packets with bit errors.
        ber: Probability = 0,
        /// Random extra delay.
        jitter: Option<Jitter>,
        /// Probability that a packet is delivered twice.
        duplicate: Probability = 0,
        /// Changes during the run.
        schedule: List<LinkChangeTable>,
    }
}

table! {
    /// Change of a link during the run. Omitted fields keep their value.
    pub(crate) struct LinkChangeTable "a change" {
        /// Time from the start of the run.
        at: Located<Duration>,
        /// New rate.
        rate: Option<BitRate>,
        /// New one-way delay.
        delay: Option<Duration>,
        /// New probability of loss.
        loss: Option<Probability>,
        /// New bit error rate.
        ber: Option<Probability>,
        /// `false`: the link fails, and loses its packets. `true`: the link recovers.
        up: Option<bool>,
    }
}

table! {
    /// Random extra delay of each packet.
    pub(crate) struct Jitter "jitter" short "amount" {
        /// Maximum extra delay (uniform), or mean (exponential).
        amount: Duration,
        /// Distribution of the extra delay.
        distribution: JitterDistribution = "uniform",
        /// Whether a packet may overtake an earlier one.
        reorder: bool = false,
    }
}

choice!(LinkKind {
    /// Ethernet interfaces.
    "ethernet" => LinkKind::Ethernet,
    /// TUN interfaces, which carry packets without a link-layer header; for hosts and routers.
    "tun" => LinkKind::Tun,
});

choice!(JitterDistribution {
    /// Uniform between 0 and `amount`.
    "uniform" => JitterDistribution::Uniform,
    /// Exponential with mean `amount`.
    "exponential" => JitterDistribution::Exponential,
});

tagged! {
    /// Queue discipline of a link.
    pub(crate) enum QueueTable "queue" by "kind" {
        /// First in, first out; packets that do not fit are dropped.
        DropTail(NoFields) = "drop-tail",
        /// Random early detection (Floyd and Jacobson 1993), gentle.
        Red(Red) = "red",
        /// CoDel (RFC 8289).
        Codel(Codel) = "codel",
        /// FQ-CoDel (RFC 8290).
        FqCodel(FqCodel) = "fq-codel",
        /// Deficit round robin, with a class per VPN and one for all other packets.
        Drr(Drr) = "drr",
        /// Strict priority for traffic class 5 and above: voice (DSCP 46, RFC 3246) and control, by the outermost
        /// label if there is one (RFC 5462), otherwise by DSCP. Both priorities have the full buffer each. On `emu`
        /// only.
        Priority(NoFields) = "priority",
    }
}

table! {
    /// Random early detection.
    pub(crate) struct Red "queue \"red\"" {
        /// Average queue length in packets below which nothing is dropped.
        min_threshold: Located<Positive> = 5,
        /// Average queue length in packets at which the drop probability is `max_probability`.
        max_threshold: Positive = 15,
        /// Drop probability at `max_threshold`; it rises to 1 at twice that length.
        max_probability: Weighting = 0.1,
        /// Weight of a new sample in the average.
        weight: Weighting = 0.002,
        /// Mark ECN-capable packets instead of dropping them.
        ecn: bool = false,
    }
}

table! {
    /// CoDel.
    pub(crate) struct Codel "queue \"codel\"" {
        /// Acceptable standing queue delay.
        target: PositiveDuration = "5 ms",
        /// Time a standing delay must last before packets are dropped: about a round-trip time.
        interval: PositiveDuration = "100 ms",
        /// Mark ECN-capable packets instead of dropping them.
        ecn: bool = false,
    }
}

table! {
    /// FQ-CoDel.
    pub(crate) struct FqCodel "queue \"fq-codel\"" {
        /// Number of queues into which flows are hashed.
        flows: BoundedCount<1, 65_536> = 1024,
        /// Bytes a queue may send per round.
        quantum: BoundedSize<1, 1_000_000> = "1514 B",
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
        /// Weight of each VPN's class, by VPN; default: the weight of the VPN.
        weights: Option<ClassWeights>,
        /// Weight of the class of all other packets.
        default_weight: Located<ClassWeight> = 1,
        /// Buffer of each class; default: the buffer of the link.
        buffer_per_class: Option<Capacity>,
    }
}

/// Weight of a class. The bounds limit the length of a scheduler round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClassWeight(pub f64);

impl Decode for ClassWeight {
    fn kind() -> ValueKind {
        ValueKind::Number { bounds: "from 0.001 to 1000000", min: 0.001, max: 1e6 }
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let value = number(node).filter(|w| (0.001..=1e6).contains(w));
        value.map(ClassWeight).or_else(|| mismatch(node, &Self::kind(), problems))
    }
}

/// VPN names with their places, and their weights.
#[derive(Clone, Debug)]
pub(crate) struct ClassWeights(pub Vec<(Located<String>, f64)>);

impl Decode for ClassWeights {
    fn kind() -> ValueKind {
        ValueKind::Named { of: ClassWeight::kind }
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let decoded = table.entries().iter().map(|entry| {
            let weight = ClassWeight::decode(&entry.node, problems)?.0;
            Some((
                Located { value: entry.key.to_string(), place: entry.key_place, own: entry.node.own },
                weight,
            ))
        });
        decoded.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(ClassWeights)
    }
}

/// `reverse`, before it is merged with the settings it overrides.
#[derive(Clone, Debug)]
pub(crate) struct ReverseOverrides;

impl Decode for ReverseOverrides {
    fn kind() -> ValueKind {
        match LinkDirectionTable::kind() {
            ValueKind::Table { fields, shorthand, about, .. } => {
                let optional = fields
                    .iter()
                    .map(|f| crate::table::Field { presence: crate::table::Presence::Optional, ..*f })
                    .collect();
                ValueKind::Table { what: "reverse", about, fields: optional, shorthand }
            }
            _ => unreachable!("the kind of a direction is a table"),
        }
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        node.table().map(|_| ReverseOverrides).or_else(|| mismatch(node, &Self::kind(), problems))
    }
}

/// Link with both directions.
#[derive(Clone)]
pub(crate) struct DuplexLink {
    pub ends: [Located<NodeName>; 2],
    pub kind: Located<LinkKind>,
    pub directions: [LinkDirectionTable; 2],
}

impl Decode for DuplexLink {
    fn kind() -> ValueKind {
        LinkTable::kind()
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let link = LinkTable::decode(node, problems);
        let back = node.get("reverse").filter(|n| n.table().is_some()).map(|reverse| {
            let mut over = reverse.clone();
            let mut under = node.clone();
            if let Some(table) = under.table_mut() {
                table.remove("ends");
                table.remove("kind");
                table.remove("reverse");
                // Settings of the link count as set by the reverse direction itself, too.
                let kind = LinkDirectionTable::kind();
                let owners: Vec<(Rc<str>, bool)> =
                    table.entries().iter().map(|e| (e.key.clone(), e.node.own)).collect();
                // An unknown field of the link is reported once, for the link.
                table.entries_mut().retain(|e| kind.field(&e.key).is_some());
                let overridden: Vec<Rc<str>> = reverse
                    .table()
                    .map(|t| t.entries().iter().map(|e| e.key.clone()).collect())
                    .unwrap_or_default();
                merge(&mut over, &under, &kind);
                if let Some(merged) = over.table_mut() {
                    for (key, own) in owners {
                        if let Some(value) = merged.get_mut(&key).filter(|_| !overridden.contains(&key)) {
                            value.own = own;
                        }
                    }
                }
            }
            over.place = node.place;
            LinkDirectionTable::decode(&over, problems)
        });
        let LinkTable { ends, kind, forward, .. } = link?;
        let reverse = match back {
            Some(reverse) => reverse?,
            None => forward.clone(),
        };
        let ends: [Located<NodeName>; 2] = ends.0.try_into().expect("a link has two ends");
        Some(DuplexLink { ends, kind, directions: [forward, reverse] })
    }
}
