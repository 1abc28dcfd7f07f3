//! The forwarding decision: label operations until a label is swapped or the stack is empty, then the
//! address lookup, then the labels of the hop.
//!
//! TTLs and traffic classes follow RFC 3443 and RFC 3270. In the uniform model, the TTL decreases at each
//! hop of the LSP; in the pipe model, the LSP counts as one hop and the payload keeps its own TTL. The code
//! neither sends nor waits, and does not allocate memory per packet.

use super::lpm::Memory;
use super::{Action, Fault, Incoming, Kind, Model, NO_HOP, Packet, Reason, Router, Target, Verdict};
use netstage_wire::ip::{self, v4, v6};
use netstage_wire::mpls::{ENTRY, Entry, Label, MAX_DEPTH, Stack};

impl<M: Memory> Router<M> {
    /// Decides about a packet from an interface and modifies it for its departure. A rejected packet is
    /// unchanged.
    pub fn forward(&self, packet: &mut Packet<'_>, interface: u32) -> Verdict {
        let (start, kind) = (packet.start, packet.kind);
        let table = self.interfaces[interface as usize];
        let verdict = match kind {
            Kind::Mpls => self.switch(packet, interface, table),
            Kind::V4 => self.route_v4(packet, table, u8::MAX),
            Kind::V6 => self.route_v6(packet, table, u8::MAX),
        };
        if matches!(verdict, Verdict::Refuse(_)) {
            (packet.start, packet.kind) = (start, kind);
        }
        verdict
    }

    /// Processes labels until one is swapped or none is left.
    fn switch(&self, packet: &mut Packet<'_>, interface: u32, mut table: u32) -> Verdict {
        // In the uniform model, the TTL of a popped label limits that of the payload, so that a loop cannot
        // renew it (RFC 3443 section 3.3).
        let mut limit = u8::MAX;
        for _ in 0..MAX_DEPTH {
            let Some(top) = Entry::read(&packet.bytes[packet.start..]) else {
                return Verdict::Drop(Reason::Malformed);
            };
            let top = Entry { ttl: top.ttl.min(limit), ..top };
            let (incoming, kind) = match self.meaning(top, interface) {
                Meaning::Given(incoming) => (incoming, None),
                Meaning::Null(kind) => {
                    let action = Action::Pop { table };
                    (Incoming { action, model: Model::Uniform, expected: u64::MAX }, Some(kind))
                }
                Meaning::Entropy => {
                    // The entropy label indicator and the entropy label below it are not needed here.
                    packet.start += ENTRY;
                    match Entry::read(&packet.bytes[packet.start..]) {
                        Some(entropy) if !entropy.bottom => packet.start += ENTRY,
                        _ => return Verdict::Drop(Reason::Reserved),
                    }
                    continue;
                }
                Meaning::Own => return Verdict::Local { start: packet.start, kind: Kind::Mpls },
                Meaning::None(reason) => return Verdict::Drop(reason),
            };
            if top.ttl <= 1 {
                return Verdict::Refuse(Fault::TtlExceeded);
            }
            match incoming.action {
                Action::Swap { target } => return self.swap(packet, top, incoming.model, target),
                Action::Pop { table: own } => {
                    table = own;
                    limit = if incoming.model == Model::Uniform { top.ttl } else { u8::MAX };
                    packet.start += ENTRY;
                    if !top.bottom {
                        continue;
                    }
                    let beneath = version(&packet.bytes[packet.start..]);
                    // Routers that send IPv6 over an LSP for IPv4 without a separate label (RFC 4798
                    // section 3) use the explicit null label of IPv4 if the LSP ends with one.
                    let kind = match kind {
                        Some(Kind::V4) if beneath == Some(Kind::V6) => beneath,
                        declared => declared.or(beneath),
                    };
                    let Some(kind) = kind else { return Verdict::Drop(Reason::Malformed) };
                    packet.kind = kind;
                    return match kind {
                        Kind::V4 => self.route_v4(packet, table, limit),
                        _ => self.route_v6(packet, table, limit),
                    };
                }
            }
        }
        Verdict::Drop(Reason::TooDeep)
    }

    #[inline(always)]
    fn meaning(&self, top: Entry, interface: u32) -> Meaning {
        if !top.label.is_reserved() {
            return match self.assigned.get(top.label).map(|number| self.incoming[number]) {
                Some(incoming) if incoming.expected >> interface.min(63) & 1 == 1 => Meaning::Given(incoming),
                Some(_) => Meaning::None(Reason::Unexpected),
                None => Meaning::None(Reason::UnknownLabel),
            };
        }
        match top.label {
            Label::IPV4_EXPLICIT_NULL => Meaning::Null(Kind::V4),
            Label::IPV6_EXPLICIT_NULL => Meaning::Null(Kind::V6),
            Label::ENTROPY_INDICATOR if !top.bottom => Meaning::Entropy,
            Label::ROUTER_ALERT | Label::GENERIC_CHANNEL | Label::OAM_ALERT => Meaning::Own,
            _ => Meaning::None(Reason::Reserved),
        }
    }

    /// Replaces the top label, whose TTL is already limited, by the labels of a hop.
    #[inline(always)]
    fn swap(&self, packet: &mut Packet<'_>, top: Entry, model: Model, target: u32) -> Verdict {
        let number = match self.choose(target, || label_hash(&packet.bytes[packet.start..], self.seed)) {
            Ok(number) => number,
            Err(Chosen::Local) => return Verdict::Local { start: packet.start, kind: Kind::Mpls },
            Err(Chosen::Drop(reason)) => return Verdict::Drop(reason),
        };
        let hop = &self.hops[number as usize];
        let beneath = packet.start + ENTRY;
        let length = packet.bytes.len() - beneath + hop.labels().len() * ENTRY;
        if length > usize::from(hop.mtu) {
            let stack =
                Stack::new(&packet.bytes[packet.start..]).map_or(ENTRY, |stack| stack.payload_offset());
            let around = length - (packet.bytes.len() - packet.start - stack);
            return Verdict::Refuse(Fault::TooBig(usize::from(hop.mtu).saturating_sub(around) as u16));
        }
        let ttl = top.ttl - 1;
        let Some((innermost, outer)) = hop.labels().split_last() else {
            return self.uncover(packet, number, top, model);
        };
        let swapped = Entry { label: *innermost, ttl, ..top };
        packet.bytes[packet.start..beneath].copy_from_slice(&swapped.to_bytes());
        self.push(packet, number, outer, ttl, top.traffic_class)
    }

    /// Pops the top label for the next router (penultimate hop popping).
    fn uncover(&self, packet: &mut Packet<'_>, hop: u32, top: Entry, model: Model) -> Verdict {
        packet.start += ENTRY;
        let bytes = &mut packet.bytes[packet.start..];
        if top.bottom {
            let Some(kind) = version(bytes) else { return Verdict::Drop(Reason::Malformed) };
            packet.kind = kind;
        }
        if model == Model::Uniform {
            lower_hops(packet.kind, bytes, top.ttl - 1);
        }
        Verdict::Send { hop, start: packet.start, kind: packet.kind }
    }

    #[inline(always)]
    fn route_v4(&self, packet: &mut Packet<'_>, table: u32, limit: u8) -> Verdict {
        let Ok(view) = v4::View::new(&packet.bytes[packet.start..]) else {
            return Verdict::Drop(Reason::Malformed);
        };
        if !view.checksum_is_right() {
            return Verdict::Drop(Reason::Malformed);
        }
        let ip = Ip {
            length: view.packet().len(),
            may_divide: !view.dont_fragment(),
            ttl: view.ttl().min(limit),
            class: view.traffic_class(),
            target: self.tables[table as usize].v4.get_v4(view.destination().into()),
        };
        self.leave(packet, Kind::V4, &ip)
    }

    fn route_v6(&self, packet: &mut Packet<'_>, table: u32, limit: u8) -> Verdict {
        let Ok(view) = v6::View::new(&packet.bytes[packet.start..]) else {
            return Verdict::Drop(Reason::Malformed);
        };
        let ip = Ip {
            length: view.packet().len(),
            may_divide: false,
            ttl: view.hop_limit().min(limit),
            class: view.traffic_class(),
            target: self.tables[table as usize].v6.get(view.destination().into()),
        };
        self.leave(packet, Kind::V6, &ip)
    }

    /// Sends an IP packet, with the labels of its hop.
    #[inline(always)]
    fn leave(&self, packet: &mut Packet<'_>, kind: Kind, ip: &Ip) -> Verdict {
        if ip.target == 0 {
            return Verdict::Refuse(Fault::NoRoute);
        }
        let hash = || {
            let view = ip::View::new(&packet.bytes[packet.start..]);
            view.map_or(0, |view| view.flow_hash(self.seed))
        };
        let number = match self.choose(ip.target, hash) {
            Ok(number) => number,
            Err(Chosen::Local) => return Verdict::Local { start: packet.start, kind },
            Err(Chosen::Drop(reason)) => return Verdict::Drop(reason),
        };
        if ip.ttl <= 1 {
            return Verdict::Refuse(Fault::TtlExceeded);
        }
        let hop = &self.hops[number as usize];
        let room = usize::from(hop.mtu).saturating_sub(hop.labels().len() * ENTRY);
        if ip.length > room {
            let mtu = room as u16;
            return match ip.may_divide {
                true => Verdict::Divide { mtu, start: packet.start },
                false => Verdict::Refuse(Fault::TooBig(mtu)),
            };
        }
        lower_hops(kind, &mut packet.bytes[packet.start..], ip.ttl - 1);
        let Some((innermost, outer)) = hop.labels().split_last() else {
            return Verdict::Send { hop: number, start: packet.start, kind };
        };
        let ttl = if hop.model == Model::Uniform { ip.ttl - 1 } else { 255 };
        // The traffic class is the class selector, the upper three bits of the DSCP (as RFC 3270 section
        // 4.2.1 permits).
        let class = ip.class >> 5;
        let bottom = Entry { label: *innermost, traffic_class: class, bottom: true, ttl };
        let Some(start) = packet.start.checked_sub(ENTRY) else { return Verdict::Drop(Reason::NoRoom) };
        packet.bytes[start..start + ENTRY].copy_from_slice(&bottom.to_bytes());
        packet.start = start;
        packet.kind = Kind::Mpls;
        self.push(packet, number, outer, ttl, class)
    }

    /// Pushes the outer labels.
    #[inline(always)]
    fn push(&self, packet: &mut Packet<'_>, hop: u32, outer: &[Label], ttl: u8, class: u8) -> Verdict {
        for label in outer.iter().rev() {
            let entry = Entry { label: *label, traffic_class: class, bottom: false, ttl };
            let Some(start) = packet.start.checked_sub(ENTRY) else { return Verdict::Drop(Reason::NoRoom) };
            packet.bytes[start..start + ENTRY].copy_from_slice(&entry.to_bytes());
            packet.start = start;
        }
        packet.kind = Kind::Mpls;
        Verdict::Send { hop, start: packet.start, kind: Kind::Mpls }
    }

    /// Selects a hop of a target, which is numbered from one.
    #[inline(always)]
    fn choose(&self, target: u32, hash: impl FnOnce() -> u32) -> Result<u32, Chosen> {
        let leading = &self.targets[target as usize - 1];
        if leading.only != NO_HOP {
            return Ok(leading.only);
        }
        match &leading.target {
            Target::Hops(hops) if hops.is_empty() => Err(Chosen::Drop(Reason::NoHop)),
            Target::Hops(hops) => Ok(hops[((u64::from(hash()) * hops.len() as u64) >> 32) as usize]),
            Target::Local => Err(Chosen::Local),
            Target::Discard => Err(Chosen::Drop(Reason::Discarded)),
        }
    }
}

/// Meaning of a label at this router.
enum Meaning {
    Given(Incoming),
    Null(Kind),
    Entropy,
    Own,
    None(Reason),
}

/// Outcome for a target without a hop.
enum Chosen {
    Local,
    Drop(Reason),
}

/// The fields of an IP packet that the decision uses.
struct Ip {
    length: usize,
    may_divide: bool,
    /// TTL, limited by that of the removed labels.
    ttl: u8,
    class: u8,
    target: u32,
}

/// Returns the IP version of a packet.
#[inline]
fn version(bytes: &[u8]) -> Option<Kind> {
    match bytes.first()? >> 4 {
        4 => Some(Kind::V4),
        6 => Some(Kind::V6),
        _ => None,
    }
}

/// Lowers the TTL of a packet to this value, unless it is already lower.
#[inline(always)]
fn lower_hops(kind: Kind, bytes: &mut [u8], ttl: u8) {
    let at = match kind {
        Kind::Mpls => ENTRY - 1,
        Kind::V4 => 8,
        Kind::V6 => 7,
    };
    let Some(now) = bytes.get_mut(at).filter(|now| **now > ttl) else { return };
    match kind {
        Kind::Mpls | Kind::V6 => *now = ttl,
        // Changing the TTL requires an update of the checksum.
        Kind::V4 => {
            if let Ok(mut header) = v4::HeaderMut::new(bytes) {
                header.set_ttl(ttl);
            }
        }
    }
}

/// Computes a hash that is equal for the packets of a flow in an LSP, from the entropy label (RFC 6790) or,
/// without one, from the IP packet below the labels as far as it is readable.
fn label_hash(bytes: &[u8], seed: u64) -> u32 {
    let (entries, _) = bytes.as_chunks::<ENTRY>();
    let mut above = None;
    for (depth, entry) in entries.iter().take(MAX_DEPTH).enumerate() {
        let entry = Entry::from_bytes(*entry);
        if above == Some(Label::ENTROPY_INDICATOR) {
            return spread(entry.label.number() ^ seed as u32);
        }
        if entry.bottom {
            let beneath = ip::View::new(&bytes[(depth + 1) * ENTRY..]);
            return beneath.map_or(spread(entry.label.number() ^ seed as u32), |view| view.flow_hash(seed));
        }
        above = Some(entry.label);
    }
    0
}

/// Spreads 20 bits over 32 bits (the finalizer of MurmurHash3).
fn spread(mut bits: u32) -> u32 {
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    bits ^ bits >> 16
}
