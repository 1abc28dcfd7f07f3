//! Small synchronous rtnetlink client (RFC 3549, rtnetlink(7)): one request, one response. The crate
//! `netlink-packet-route` encodes messages; this module chooses the requests and their order. Links are
//! identified by name.

use super::Namespace;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::AddressFamily;
pub(super) use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, State,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Request rejected by the kernel.
#[derive(Debug)]
pub struct NetlinkError {
    /// Requested action: `add address 10.0.0.1/32 to eth0`.
    pub action: String,
    /// Error of the kernel.
    pub source: io::Error,
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.action, self.source)
    }
}

impl std::error::Error for NetlinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> io::Error {
        io::Error::new(error.source.kind(), error.to_string())
    }
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Namespace of the end.
    pub namespace: &'a Namespace,
    /// Interface name, at most 15 bytes.
    pub name: &'a str,
    /// MAC address.
    pub mac: [u8; 6],
}

/// Options of both ends of a veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VethOptions {
    /// MTU in bytes.
    pub mtu: u32,
    /// Length in frames of the queue used by queueing disciplines; veth has no queue of its own.
    pub tx_queue_len: u32,
    /// Resolve neighbors by ARP and neighbor discovery. If disabled, the kernel sends no such packets, and
    /// neighbors are added by [`Netlink::add_neighbor`].
    pub resolve_neighbors: bool,
}

impl Default for VethOptions {
    fn default() -> VethOptions {
        VethOptions { mtu: 1500, tx_queue_len: 1000, resolve_neighbors: false }
    }
}

/// Creates a veth pair between two namespaces. Both ends are down, have one queue, and have no IPv6 link-local
/// addresses. Offloads keep the kernel's defaults, see [`super::ethtool`].
pub fn create_veth(left: VethEnd<'_>, right: VethEnd<'_>, options: VethOptions) -> Result<(), NetlinkError> {
    /// Index of the next right end. Each namespace counts its own indices, so both ends usually get equal ones;
    /// the kernel then treats the carrier as not urgent, and the link becomes usable up to a second late.
    static NEXT_INDEX: AtomicU32 = AtomicU32::new(1 << 20);
    let end = |end: &VethEnd<'_>, index| {
        let mut message = LinkMessage::default();
        message.header.index = index;
        if !options.resolve_neighbors {
            message.header.flags = LinkFlags::Noarp;
            message.header.change_mask = LinkFlags::Noarp;
        }
        message.attributes = vec![
            LinkAttribute::IfName(end.name.into()),
            LinkAttribute::Address(end.mac.to_vec()),
            LinkAttribute::Mtu(options.mtu),
            LinkAttribute::TxQueueLen(options.tx_queue_len),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
            LinkAttribute::NetNsFd(end.namespace.as_fd().as_raw_fd()),
        ];
        message
    };
    let mut message = end(&left, 0);
    let peer = end(&right, NEXT_INDEX.fetch_add(1, Ordering::Relaxed));
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    let action = || format!("create the veth pair {} and {}", left.name, right.name);
    let mut netlink = Netlink::open(left.namespace)?;
    netlink.change(Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL, action)?;
    // The kernel ignores the address generation mode while it creates a link.
    netlink.disable_address_generation(left.name)?;
    Netlink::open(right.namespace)?.disable_address_generation(right.name)
}

/// Link as listed by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkLink {
    /// Index in its namespace.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// MAC address, if any.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administrative state.
    pub up: bool,
    /// Operational state: both ends are up and frames pass.
    pub running: bool,
    /// Set for an end of a veth pair.
    pub is_veth: bool,
    /// Set if packets have no link-layer header, as on a TUN interface.
    pub has_no_link_header: bool,
    /// Counters since creation.
    pub statistics: Statistics,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Statistics {
    pub received_packets: u64,
    pub received_bytes: u64,
    pub received_dropped: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub sent_dropped: u64,
}

/// Socket for requests about one namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in a namespace.
    pub fn open(namespace: &Namespace) -> Result<Netlink, NetlinkError> {
        namespace.run(Netlink::open_in_current_namespace).map_err(Netlink::open_error)?
    }

    /// Opens a socket in the namespace of the calling thread.
    pub fn open_in_current_namespace() -> Result<Netlink, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(Netlink { socket, sequence: 0 })
        };
        open().map_err(Netlink::open_error)
    }

    fn open_error(source: io::Error) -> NetlinkError {
        NetlinkError { action: "open a netlink socket".into(), source }
    }

    /// Brings a link up. A veth end carries frames once the other end is up and the kernel has noticed, see
    /// [`Netlink::wait_until_ready`].
    pub fn set_up(&mut self, link: &str) -> Result<(), NetlinkError> {
        self.set_flags(link, LinkFlags::Up, "bring up")
    }

    /// Waits until a link that was brought up carries frames and its addresses are reachable. Packets sent
    /// earlier are lost, because the kernel does both asynchronously. Fails after five seconds, for example if
    /// the other end is down.
    pub fn wait_until_ready(&mut self, link: &str) -> Result<(), NetlinkError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.is_ready(link)? {
            if Instant::now() > deadline {
                let action = format!("wait for {link} to carry frames (is its other end up?)");
                return Err(NetlinkError { action, source: io::ErrorKind::TimedOut.into() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes a link down.
    pub fn set_down(&mut self, link: &str) -> Result<(), NetlinkError> {
        self.set_flags(link, LinkFlags::empty(), "take down")
    }

    /// Creates a bridge, which is down. It forwards every frame, without spanning tree or multicast snooping.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        let options = InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)]);
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(options)]),
        ];
        let action = || format!("create the bridge {name}");
        self.change(Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Creates a WireGuard interface of the kernel, which is down.
    pub fn create_wireguard(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]),
        ];
        let action = || format!("create the WireGuard interface {name}");
        self.change(Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Sets the MTU of a link.
    pub fn set_mtu(&mut self, link: &str, mtu: u32) -> Result<(), NetlinkError> {
        let mut message = self.link_message(link)?;
        message.attributes = vec![LinkAttribute::Mtu(mtu)];
        self.change(Message::SetLink(message), 0, || format!("set the MTU of {link} to {mtu}"))
    }

    /// Sets the maximum size in bytes, headers included, of super-packets that the link segments
    /// (`gso_max_size`).
    pub fn set_max_super_packet_size(&mut self, link: &str, bytes: u32) -> Result<(), NetlinkError> {
        let mut message = self.link_message(link)?;
        message.attributes = vec![LinkAttribute::GsoMaxSize(bytes)];
        self.change(Message::SetLink(message), 0, || format!("limit super-packets of {link} to {bytes} B"))
    }

    /// Adds a link to a bridge.
    pub fn set_bridge(&mut self, link: &str, bridge: &str) -> Result<(), NetlinkError> {
        let mut message = self.link_message(link)?;
        message.attributes = vec![LinkAttribute::Controller(self.index(bridge)?)];
        self.change(Message::SetLink(message), 0, || format!("add {link} to bridge {bridge}"))
    }

    /// Deletes a link, or both ends of a veth pair.
    pub fn delete_link(&mut self, link: &str) -> Result<(), NetlinkError> {
        let message = self.link_message(link)?;
        self.change(Message::DelLink(message), 0, || format!("delete {link}"))
    }

    /// Returns all links of the namespace.
    pub fn links(&mut self) -> Result<Vec<NetworkLink>, NetlinkError> {
        let request = Message::GetLink(LinkMessage::default());
        let responses = self.request(request, NLM_F_DUMP, || "list links".into())?;
        Ok(responses.into_iter().filter_map(link_of).collect())
    }

    /// Returns one link.
    pub fn link(&mut self, name: &str) -> Result<NetworkLink, NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let action = || format!("find the interface {name}");
        let responses = self.request(Message::GetLink(message), 0, action)?;
        responses
            .into_iter()
            .find_map(link_of)
            .ok_or_else(|| NetlinkError { action: action(), source: io::ErrorKind::NotFound.into() })
    }

    fn link_message(&mut self, link: &str) -> Result<LinkMessage, NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(link)?;
        Ok(message)
    }

    fn set_flags(&mut self, link: &str, flags: LinkFlags, verb: &str) -> Result<(), NetlinkError> {
        let mut message = self.link_message(link)?;
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.change(Message::SetLink(message), 0, || format!("{verb} {link}"))
    }

    /// Disables IPv6 link-local addresses, whose generation would send packets. Does nothing if the kernel has
    /// no IPv6.
    pub fn disable_address_generation(&mut self, link: &str) -> Result<(), NetlinkError> {
        let mut message = self.link_message(link)?;
        message.attributes =
            vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(
                In6AddrGenMode::None,
            )])])];
        let action = || format!("disable IPv6 address generation on {link}");
        match self.change(Message::SetLink(message), 0, action) {
            Err(error) if error.source.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            result => result,
        }
    }

    pub(super) fn change(
        &mut self,
        message: Message,
        flags: u16,
        action: impl Fn() -> String,
    ) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_ACK | flags, action).map(drop)
    }

    /// Sends a request and collects the responses up to the final one.
    pub(super) fn request(
        &mut self,
        message: Message,
        flags: u16,
        action: impl Fn() -> String,
    ) -> Result<Vec<Message>, NetlinkError> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let sent = self.socket.send(&bytes, 0);
        let responses = sent.and_then(|_| self.responses(flags));
        responses.map_err(|source| NetlinkError { action: action(), source })
    }

    fn responses(&mut self, flags: u16) -> io::Result<Vec<Message>> {
        let mut responses = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<Message>::deserialize(rest).map_err(io::Error::other)?;
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Error(response) if response.code.is_some() => {
                        return Err(response.to_io());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(responses),
                    NetlinkPayload::InnerMessage(response) => responses.push(response),
                    _ => {}
                }
            }
            // A request for one object without acknowledgment is answered by that object.
            if flags & (NLM_F_DUMP | NLM_F_ACK) == 0 && !responses.is_empty() {
                return Ok(responses);
            }
        }
    }
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn link_of(message: Message) -> Option<NetworkLink> {
    let Message::NewLink(message) = message else { return None };
    let mut link = NetworkLink {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        running: false,
        is_veth: false,
        has_no_link_header: message.header.link_layer_type == LinkLayerType::None,
        statistics: Statistics::default(),
    };
    let mut state = State::Unknown;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok(),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::OperState(operational) => state = operational,
            LinkAttribute::LinkInfo(info) => link.is_veth = info.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::Stats64(counters) => {
                link.statistics = Statistics {
                    received_packets: counters.rx_packets,
                    received_bytes: counters.rx_bytes,
                    received_dropped: counters.rx_dropped,
                    sent_packets: counters.tx_packets,
                    sent_bytes: counters.tx_bytes,
                    sent_dropped: counters.tx_dropped,
                }
            }
            _ => {}
        }
    }
    // The operational state (RFC 2863) changes when frames pass; the flags change earlier. Interfaces without a
    // wire (loopback, TUN) have no state and pass frames at once.
    link.running = link.up && (state == State::Up || state == State::Unknown && !link.is_veth);
    Some(link)
}
