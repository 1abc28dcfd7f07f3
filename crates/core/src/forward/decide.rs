//! The forwarding decision: label operations until a label is swapped or the stack is empty, then the
//! address lookup, then the labels of the hop.
//!
//! TTLs and traffic classes follow RFC 3443 and RFC 3270. In the uniform model, the TTL decreases at each
//! hop of the LSP, and the payload takes over TTL and traffic class of a popped label; in the pipe model, the LSP counts
//! as one hop and the payload keeps its own. The code
//! neither sends nor waits, and does not allocate memory per packet.

use super::lpm::LpmMemory;
use super::{
    BufferedPacket, DropReason, Forwarder, ForwardingTarget, ForwardingVerdict, IncomingInterface,
    IncomingLabel, LabelOperation, NO_HOP, PacketProtocol, ReportableError, SourceCheck, TunnelModel,
};
use core::net::{Ipv4Addr, Ipv6Addr};
use netstage_wire::ip::{self, v4, v6};
use netstage_wire::mpls::{ENTRY, LabelStackEntry, LabelValue, MAX_DEPTH, Stack};
use netstage_wire::rsvp;

impl<M: LpmMemory> Forwarder<M> {
    /// Decides about a packet from an interface and modifies it for its departure. A rejected packet is
    /// unchanged.
    pub fn forward(&self, packet: &mut BufferedPacket<'_>, interface: u32) -> ForwardingVerdict {
        let IncomingInterface { source_check, .. } = self.interfaces[interface as usize];
        self.decide(packet, interface, Arrival { interface, source_check })
    }

    /// Decides about a packet of this router itself in the same way, such as an ICMP error that answers a packet from the
    /// interface. Its source is not verified.
    pub fn forward_own(&self, packet: &mut BufferedPacket<'_>, interface: u32) -> ForwardingVerdict {
        self.decide(packet, interface, Arrival::VERIFIED)
    }

    fn decide(&self, packet: &mut BufferedPacket<'_>, interface: u32, arrival: Arrival) -> ForwardingVerdict {
        let (start, kind) = (packet.start, packet.kind);
        let IncomingInterface { table, rsvp, .. } = self.interfaces[interface as usize];
        let verdict = match kind {
            PacketProtocol::Mpls => self.switch(packet, interface, table),
            PacketProtocol::V4 if rsvp && is_rsvp_alert(&packet.bytes[start..]) => {
                ForwardingVerdict::Local { start, kind }
            }
            PacketProtocol::V4 => self.route_v4(packet, table, arrival, Inherited::NOTHING),
            PacketProtocol::V6 => self.route_v6(packet, table, arrival, Inherited::NOTHING),
        };
        if matches!(verdict, ForwardingVerdict::Reject(_)) {
            (packet.start, packet.kind) = (start, kind);
        }
        verdict
    }

    /// Processes labels until one is swapped or none is left.
    fn switch(&self, packet: &mut BufferedPacket<'_>, interface: u32, mut table: u32) -> ForwardingVerdict {
        // In the uniform model, the TTL of a popped label limits that of the payload, so that a loop cannot
        // renew it (RFC 3443 section 3.3).
        let mut inherited = Inherited::NOTHING;
        for _ in 0..MAX_DEPTH {
            let Some(top) = LabelStackEntry::read(&packet.bytes[packet.start..]) else {
                return ForwardingVerdict::Drop(DropReason::Malformed);
            };
            let top = inherited.entry(top);
            let (incoming, kind) = match self.meaning(top, interface) {
                LabelMeaning::Given(incoming) => (incoming, None),
                LabelMeaning::Null(kind) => {
                    let action = LabelOperation::Pop { table };
                    (IncomingLabel { action, model: TunnelModel::Uniform, expected: u64::MAX }, Some(kind))
                }
                LabelMeaning::Entropy => {
                    // The entropy label indicator and the entropy label below it are not needed here.
                    packet.start += ENTRY;
                    match LabelStackEntry::read(&packet.bytes[packet.start..]) {
                        Some(entropy) if !entropy.bottom => packet.start += ENTRY,
                        _ => return ForwardingVerdict::Drop(DropReason::Reserved),
                    }
                    continue;
                }
                LabelMeaning::Own => {
                    return ForwardingVerdict::Local { start: packet.start, kind: PacketProtocol::Mpls };
                }
                LabelMeaning::None(reason) => return ForwardingVerdict::Drop(reason),
            };
            if top.ttl <= 1 {
                return ForwardingVerdict::Reject(ReportableError::TtlExceeded);
            }
            match incoming.action {
                LabelOperation::Swap { target } => return self.swap(packet, top, incoming.model, target),
                LabelOperation::Pop { table: own } => {
                    table = own;
                    inherited = Inherited::from(top, incoming.model);
                    packet.start += ENTRY;
                    if !top.bottom {
                        continue;
                    }
                    let beneath = version(&packet.bytes[packet.start..]);
                    // Routers that send IPv6 over an LSP for IPv4 without a separate label (RFC 4798
                    // section 3) use the explicit null label of IPv4 if the LSP ends with one.
                    let kind = match kind {
                        Some(PacketProtocol::V4) if beneath == Some(PacketProtocol::V6) => beneath,
                        declared => declared.or(beneath),
                    };
                    let Some(kind) = kind else { return ForwardingVerdict::Drop(DropReason::Malformed) };
                    packet.kind = kind;
                    return match kind {
                        PacketProtocol::V4 => self.route_v4(packet, table, Arrival::VERIFIED, inherited),
                        _ => self.route_v6(packet, table, Arrival::VERIFIED, inherited),
                    };
                }
            }
        }
        ForwardingVerdict::Drop(DropReason::TooDeep)
    }

    #[inline(always)]
    fn meaning(&self, top: LabelStackEntry, interface: u32) -> LabelMeaning {
        if !top.label.is_reserved() {
            return match self.assigned.get(top.label).map(|number| self.incoming[number]) {
                Some(incoming) if incoming.expected >> interface.min(63) & 1 == 1 => {
                    LabelMeaning::Given(incoming)
                }
                Some(_) => LabelMeaning::None(DropReason::Unexpected),
                None => LabelMeaning::None(DropReason::UnknownLabel),
            };
        }
        match top.label {
            _ if !self.interfaces[interface as usize].mpls => LabelMeaning::None(DropReason::Unexpected),
            LabelValue::IPV4_EXPLICIT_NULL => LabelMeaning::Null(PacketProtocol::V4),
            LabelValue::IPV6_EXPLICIT_NULL => LabelMeaning::Null(PacketProtocol::V6),
            LabelValue::ENTROPY_INDICATOR if !top.bottom => LabelMeaning::Entropy,
            LabelValue::ROUTER_ALERT | LabelValue::GENERIC_CHANNEL | LabelValue::OAM_ALERT => {
                LabelMeaning::Own
            }
            _ => LabelMeaning::None(DropReason::Reserved),
        }
    }

    /// Replaces the top label, whose TTL is already limited, by the labels of a hop.
    #[inline(always)]
    fn swap(
        &self,
        packet: &mut BufferedPacket<'_>,
        top: LabelStackEntry,
        model: TunnelModel,
        target: u32,
    ) -> ForwardingVerdict {
        let number = match self.choose(target, || label_hash(&packet.bytes[packet.start..], self.seed)) {
            Ok(number) => number,
            Err(HoplessTarget::Local) => {
                return ForwardingVerdict::Local { start: packet.start, kind: PacketProtocol::Mpls };
            }
            Err(HoplessTarget::Drop(reason)) => return ForwardingVerdict::Drop(reason),
        };
        let hop = &self.hops[number as usize];
        let beneath = packet.start + ENTRY;
        let length = packet.bytes.len() - beneath + hop.labels().len() * ENTRY;
        if length > usize::from(hop.mtu) {
            let stack =
                Stack::new(&packet.bytes[packet.start..]).map_or(ENTRY, |stack| stack.payload_offset());
            let around = length - (packet.bytes.len() - packet.start - stack);
            return ForwardingVerdict::Reject(ReportableError::TooBig(
                usize::from(hop.mtu).saturating_sub(around) as u16,
            ));
        }
        let ttl = top.ttl - 1;
        let Some((innermost, outer)) = hop.labels().split_last() else {
            return self.uncover(packet, number, top, model);
        };
        let swapped = LabelStackEntry { label: *innermost, ttl, ..top };
        packet.bytes[packet.start..beneath].copy_from_slice(&swapped.to_bytes());
        self.push(packet, number, outer, ttl, top.traffic_class)
    }

    /// Pops the top label for the next router (penultimate hop popping).
    fn uncover(
        &self,
        packet: &mut BufferedPacket<'_>,
        hop: u32,
        top: LabelStackEntry,
        model: TunnelModel,
    ) -> ForwardingVerdict {
        packet.start += ENTRY;
        let bytes = &mut packet.bytes[packet.start..];
        if top.bottom {
            let Some(kind) = version(bytes) else { return ForwardingVerdict::Drop(DropReason::Malformed) };
            packet.kind = kind;
        }
        let inherited = Inherited::from(LabelStackEntry { ttl: top.ttl - 1, ..top }, model);
        lower_hops(packet.kind, bytes, inherited.limit);
        inherited.set_class(packet.kind, bytes);
        ForwardingVerdict::Send { hop, start: packet.start, kind: packet.kind }
    }

    #[inline(always)]
    fn route_v4(
        &self,
        packet: &mut BufferedPacket<'_>,
        table: u32,
        arrival: Arrival,
        inherited: Inherited,
    ) -> ForwardingVerdict {
        let Ok(view) = v4::View::new(&packet.bytes[packet.start..]) else {
            return ForwardingVerdict::Drop(DropReason::Malformed);
        };
        if !view.is_checksum_valid() {
            return ForwardingVerdict::Drop(DropReason::Malformed);
        }
        let routes = &self.tables[table as usize].v4;
        let is_martian = !is_forwardable_v4(view.source()) || !is_forwardable_v4(view.destination());
        let ip = IpFields {
            length: view.packet().len(),
            may_divide: !view.dont_fragment(),
            ttl: view.ttl().min(inherited.limit),
            class: inherited.class(view.traffic_class()),
            target: routes.get_v4(view.destination().into()),
            refusal: self.refusal(is_martian, arrival, || routes.get_v4(view.source().into())),
        };
        self.leave(packet, PacketProtocol::V4, &ip, inherited)
    }

    fn route_v6(
        &self,
        packet: &mut BufferedPacket<'_>,
        table: u32,
        arrival: Arrival,
        inherited: Inherited,
    ) -> ForwardingVerdict {
        let Ok(view) = v6::View::new(&packet.bytes[packet.start..]) else {
            return ForwardingVerdict::Drop(DropReason::Malformed);
        };
        let routes = &self.tables[table as usize].v6;
        let is_martian = !is_forwardable_v6(view.source()) || !is_forwardable_v6(view.destination());
        let ip = IpFields {
            length: view.packet().len(),
            may_divide: false,
            ttl: view.hop_limit().min(inherited.limit),
            class: inherited.class(view.traffic_class()),
            target: routes.get(view.destination().into()),
            refusal: self.refusal(is_martian, arrival, || routes.get(view.source().into())),
        };
        self.leave(packet, PacketProtocol::V6, &ip, inherited)
    }

    /// Sends an IP packet, with the labels of its hop.
    #[inline(always)]
    fn leave(
        &self,
        packet: &mut BufferedPacket<'_>,
        kind: PacketProtocol,
        ip: &IpFields,
        inherited: Inherited,
    ) -> ForwardingVerdict {
        if ip.target == 0 {
            return match ip.refusal {
                Some(reason) => ForwardingVerdict::Drop(reason),
                None => ForwardingVerdict::Reject(ReportableError::NoRoute),
            };
        }
        let hash = || {
            let view = ip::View::new(&packet.bytes[packet.start..]);
            view.map_or(0, |view| view.flow_hash(self.seed))
        };
        let number = match self.choose(ip.target, hash) {
            Ok(number) => number,
            Err(HoplessTarget::Local) => return ForwardingVerdict::Local { start: packet.start, kind },
            Err(HoplessTarget::Drop(reason)) => return ForwardingVerdict::Drop(reason),
        };
        if let Some(reason) = ip.refusal {
            return ForwardingVerdict::Drop(reason);
        }
        if ip.ttl <= 1 {
            return ForwardingVerdict::Reject(ReportableError::TtlExceeded);
        }
        let hop = &self.hops[number as usize];
        let room = usize::from(hop.mtu).saturating_sub(hop.labels().len() * ENTRY);
        if ip.length > room {
            let mtu = room as u16;
            return match ip.may_divide {
                true => ForwardingVerdict::Fragment { mtu, start: packet.start },
                false => ForwardingVerdict::Reject(ReportableError::TooBig(mtu)),
            };
        }
        lower_hops(kind, &mut packet.bytes[packet.start..], ip.ttl - 1);
        inherited.set_class(kind, &mut packet.bytes[packet.start..]);
        let Some((innermost, outer)) = hop.labels().split_last() else {
            return ForwardingVerdict::Send { hop: number, start: packet.start, kind };
        };
        let ttl = if hop.model == TunnelModel::Uniform { ip.ttl - 1 } else { 255 };
        // The traffic class is the class selector, the upper three bits of the DSCP (as RFC 3270 section
        // 4.2.1 permits).
        let class = ip.class >> 5;
        let bottom = LabelStackEntry { label: *innermost, traffic_class: class, bottom: true, ttl };
        let Some(start) = packet.start.checked_sub(ENTRY) else {
            return ForwardingVerdict::Drop(DropReason::NoRoom);
        };
        packet.bytes[start..start + ENTRY].copy_from_slice(&bottom.to_bytes());
        packet.start = start;
        packet.kind = PacketProtocol::Mpls;
        self.push(packet, number, outer, ttl, class)
    }

    /// Pushes the outer labels.
    #[inline(always)]
    fn push(
        &self,
        packet: &mut BufferedPacket<'_>,
        hop: u32,
        outer: &[LabelValue],
        ttl: u8,
        class: u8,
    ) -> ForwardingVerdict {
        for label in outer.iter().rev() {
            let entry = LabelStackEntry { label: *label, traffic_class: class, bottom: false, ttl };
            let Some(start) = packet.start.checked_sub(ENTRY) else {
                return ForwardingVerdict::Drop(DropReason::NoRoom);
            };
            packet.bytes[start..start + ENTRY].copy_from_slice(&entry.to_bytes());
            packet.start = start;
        }
        packet.kind = PacketProtocol::Mpls;
        ForwardingVerdict::Send { hop, start: packet.start, kind: PacketProtocol::Mpls }
    }

    /// Returns the reason why a packet with these addresses must not be forwarded, if there is one. `source` looks up the
    /// target of its source.
    #[inline(always)]
    fn refusal(
        &self,
        is_martian: bool,
        arrival: Arrival,
        source: impl FnOnce() -> u32,
    ) -> Option<DropReason> {
        if is_martian {
            return Some(DropReason::Martian);
        }
        let has_way_back = arrival.source_check == SourceCheck::Off || self.leads_back(arrival, source());
        (!has_way_back).then_some(DropReason::Spoofed)
    }

    /// Returns whether the target of a source, which is numbered from one, permits packets from there.
    fn leads_back(&self, arrival: Arrival, target: u32) -> bool {
        let Some(number) = target.checked_sub(1) else { return false };
        match &self.targets[number as usize].target {
            ForwardingTarget::Hops(_) if arrival.source_check == SourceCheck::Loose => true,
            ForwardingTarget::Hops(hops) => {
                hops.iter().any(|hop| self.hops[*hop as usize].interface == arrival.interface)
            }
            ForwardingTarget::Local | ForwardingTarget::Discard => false,
        }
    }

    /// Selects a hop of a target, which is numbered from one.
    #[inline(always)]
    fn choose(&self, target: u32, hash: impl FnOnce() -> u32) -> Result<u32, HoplessTarget> {
        let leading = &self.targets[target as usize - 1];
        if leading.only != NO_HOP {
            return Ok(leading.only);
        }
        match &leading.target {
            ForwardingTarget::Hops(hops) if hops.is_empty() => Err(HoplessTarget::Drop(DropReason::NoHop)),
            ForwardingTarget::Hops(hops) => {
                Ok(hops[((u64::from(hash()) * hops.len() as u64) >> 32) as usize])
            }
            ForwardingTarget::Local => Err(HoplessTarget::Local),
            ForwardingTarget::Discard => Err(HoplessTarget::Drop(DropReason::Discarded)),
        }
    }
}

/// Returns whether an IPv4 packet contains an RSVP message and has options. Path messages have the router alert option;
/// a message between routers on no common link has none.
#[inline(always)]
fn is_rsvp_alert(packet: &[u8]) -> bool {
    packet.get(9) == Some(&rsvp::PROTOCOL) && packet.first().is_some_and(|first| first & 0xf > 5)
}

/// Way on which a packet arrived.
#[derive(Clone, Copy)]
struct Arrival {
    interface: u32,
    source_check: SourceCheck,
}

impl Arrival {
    /// The source is not verified here: that of a packet in an LSP is verified by its ingress.
    const VERIFIED: Arrival = Arrival { interface: 0, source_check: SourceCheck::Off };
}

/// Meaning of a label at this router.
enum LabelMeaning {
    Given(IncomingLabel),
    Null(PacketProtocol),
    Entropy,
    Own,
    None(DropReason),
}

/// TTL and traffic class that a packet takes over from a label popped above it.
#[derive(Clone, Copy, Debug)]
struct Inherited {
    /// Maximum TTL.
    limit: u8,
    /// Traffic class, in the uniform model.
    class: Option<u8>,
}

impl Inherited {
    const NOTHING: Inherited = Inherited { limit: u8::MAX, class: None };

    fn from(popped: LabelStackEntry, model: TunnelModel) -> Inherited {
        match model {
            TunnelModel::Uniform => Inherited { limit: popped.ttl, class: Some(popped.traffic_class) },
            TunnelModel::Pipe => Inherited::NOTHING,
        }
    }

    fn entry(self, entry: LabelStackEntry) -> LabelStackEntry {
        let traffic_class = self.class.unwrap_or(entry.traffic_class);
        LabelStackEntry { ttl: entry.ttl.min(self.limit), traffic_class, ..entry }
    }

    /// Returns the traffic class of an IP packet. A DSCP that belongs to the label's class is kept; another one becomes the
    /// class selector. The ECN field is kept.
    fn class(self, own: u8) -> u8 {
        self.class.filter(|class| *class != own >> 5).map_or(own, |class| class << 5 | own & 3)
    }

    /// Sets the traffic class of a packet.
    #[inline(always)]
    fn set_class(self, kind: PacketProtocol, bytes: &mut [u8]) {
        let Some(class) = self.class else { return };
        match kind {
            PacketProtocol::Mpls => {
                if let Some(byte) = bytes.get_mut(2) {
                    *byte = *byte & !0xe | class << 1;
                }
            }
            PacketProtocol::V4 => {
                let own = bytes.get(1).copied().unwrap_or_default();
                if let (true, Ok(mut header)) = (self.class(own) != own, v4::HeaderMut::new(bytes)) {
                    header.set_traffic_class(self.class(own));
                }
            }
            PacketProtocol::V6 => {
                if let Ok(mut header) = v6::HeaderMut::new(bytes) {
                    header.set_traffic_class(self.class(header.traffic_class()));
                }
            }
        }
    }
}

/// Outcome for a target without a hop.
enum HoplessTarget {
    Local,
    Drop(DropReason),
}

/// The fields of an IP packet that the decision uses.
struct IpFields {
    length: usize,
    may_divide: bool,
    /// TTL, limited by that of the removed labels.
    ttl: u8,
    class: u8,
    target: u32,
    /// Reason why the packet must not be forwarded because of its addresses.
    refusal: Option<DropReason>,
}

/// Returns whether routers may forward packets from or to an address: not with addresses of this network, loopback,
/// link-local, multicast, reserved and broadcast addresses (RFC 1812 sections 4.2.2.11 and 5.3.7, RFC 6890).
#[inline(always)]
fn is_forwardable_v4(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    let first = bits >> 24;
    first != 0 && first != 127 && first < 224 && bits >> 16 != 0xa9fe
}

/// Returns whether routers may forward packets from or to an address: not with the unspecified, loopback, IPv4-mapped,
/// link-local and multicast addresses (RFC 4291 section 2.5, RFC 6890).
#[inline(always)]
fn is_forwardable_v6(address: Ipv6Addr) -> bool {
    let bits = u128::from(address);
    bits > 1 && bits >> 32 != 0xffff && bits >> 118 != 0x3fa && bits >> 120 != 0xff
}

/// Returns the IP version of a packet.
#[inline]
fn version(bytes: &[u8]) -> Option<PacketProtocol> {
    match bytes.first()? >> 4 {
        4 => Some(PacketProtocol::V4),
        6 => Some(PacketProtocol::V6),
        _ => None,
    }
}

/// Lowers the TTL of a packet to this value, unless it is already lower.
#[inline(always)]
fn lower_hops(kind: PacketProtocol, bytes: &mut [u8], ttl: u8) {
    let at = match kind {
        PacketProtocol::Mpls => ENTRY - 1,
        PacketProtocol::V4 => 8,
        PacketProtocol::V6 => 7,
    };
    let Some(now) = bytes.get_mut(at).filter(|now| **now > ttl) else { return };
    match kind {
        PacketProtocol::Mpls | PacketProtocol::V6 => *now = ttl,
        // Changing the TTL requires an update of the checksum.
        PacketProtocol::V4 => {
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
        let entry = LabelStackEntry::from_bytes(*entry);
        if above == Some(LabelValue::ENTROPY_INDICATOR) {
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
