//! The tables of the configuration, as written.

use super::{Event, Generator, LabelsBy, Operation, PacketSize, Profile, Told};
use crate::address::{Address, LabelNumber, LinkAddress};
use crate::error::Problems;
use crate::scalar::{Bytes, Count, FilePath, InterfaceName, Span, text};
use crate::table::{At, Decode, Kind, List, Named, choice, mismatch, table};
use crate::tree::Node;
use netstage_core::forward::Model;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

table! {
    /// A tester's configuration.
    pub(crate) struct File "the file" {
        /// What is tested, and how.
        tester: Head,
        /// Interfaces of this machine that lead to the router, by name.
        port: Named<Port>,
        /// What the router is told of, and packets go to.
        routes: Routes,
        /// Labels, for the operations that have any.
        labels: Option<At<Labels>>,
        /// The sessions by which routes are told.
        bgp: Option<At<Bgp>>,
        /// Routes that go and come while packets flow.
        convergence: Option<At<Convergence>>,
    }
}

table! {
    /// What is tested, and how.
    pub(crate) struct Head "[tester]" {
        /// What reports call the router.
        router: String = "router",
        /// By whose rules: what is searched, which packets, how long.
        profile: Profile = "paper",
        /// What the router does with packets; left out: all that the profile has.
        operations: Option<At<List<Operation, 1, 6>>>,
        /// Sizes of IP packets, their headers included, those of IPv6 from 66 B on; left out: those of the profile.
        sizes: Option<At<List<PacketSize, 1, 100>>>,
        /// Ports that send.
        from: List<At<PortName>, 1, 8>,
        /// Ports that receive.
        to: List<At<PortName>, 1, 8>,
        /// Those send too, and these receive. Rates are then those of both ways together.
        both_ways: bool = false,
        /// Rate of one port, preamble and gap of Ethernet included: what 100 % is.
        line: BitRate = "1 Gbit/s",
        /// The highest rate tried, at the IP layer; left out: what the sending ports' lines carry.
        max_rate: Option<BitRate>,
        /// Length of a trial that decides; left out: that of the profile.
        trial: Option<Span>,
        /// Length of the trials that look for where that is worth while (profile `paper`).
        search: Span = "2 s",
        /// Where the search ends, as a rate at the IP layer (profile `paper`).
        step: BitRate = "1 Mbit/s",
        /// How long packets still under way are waited for.
        drain: Duration = "500 ms",
        /// How the router shall treat times to live and traffic classes of labels.
        model: Model = "uniform",
        /// What sends.
        generator: Generator = "auto",
        /// Runs of every search; several give an interval of confidence.
        repeat: Count<1, 1_000> = 1,
        /// How long the router may take until it forwards what it was told of.
        ready_within: Span = "60 s",
    }
}

table! {
    /// An interface that leads to the router.
    pub(crate) struct Port "a port" {
        /// The interface. Test packets that arrive there do not reach the system; all others do.
        interface: At<InterfaceName>,
        /// The tester's address there, with the length of the link's prefix. It is given to the interface while the tester runs.
        address: At<LinkAddress>,
        /// The router's address there.
        router: At<Address>,
        /// What the router calls its end, for `--setup`.
        router_interface: Option<String>,
    }
}

table! {
    /// What the router is told of, and packets go to.
    pub(crate) struct Routes "[routes]" {
        /// The first network of 24 bits, such as "11.0.0.0", or of 48, such as "2001:db8::"; the others follow it. Packets are of its kind.
        first: At<Address> = "11.0.0.0",
        /// How many. Twice as many are told where packets go both ways.
        count: Count<1, 1_000_000> = 50_000,
        /// Who tells the router.
        by: At<Told> = "you",
    }
}

table! {
    /// Labels, for the operations that have any. With several peers each has labels of its own, which follow these.
    pub(crate) struct Labels "[labels]" {
        /// Who tells the router of them. By LDP each port is a router of its own, and the router under test chooses what it swaps and pops.
        by: LabelsBy = "you",
        /// What the router shall push towards the first peer: networks are spread over peers in turn.
        push: LabelNumber = 1_000,
        /// What the router knows and swaps.
        swap: LabelNumber = 2_000,
        /// By which label it does.
        swap_to: LabelNumber = 3_000,
        /// What the router pops to look up what is beneath.
        pop: LabelNumber = 4_000,
        /// What the router pops for the next router, without a look.
        php: LabelNumber = 5_000,
        /// The address of the first peer, to which the router's label switched path leads: the next hop of routes told by BGP, for PUSH. The router needs a route there.
        loopback: Address = "198.51.100.1",
        /// By LDP: an address of the router itself, for POP; left out: the one at the sending port.
        router_loopback: Option<Address>,
        /// Label switched paths: peers beyond the receiving ports, in turn.
        peers: Count<1, 64> = 1,
    }
}

table! {
    /// The sessions by which routes are told: one from each receiving port.
    pub(crate) struct Bgp "[bgp]" {
        /// The tester's autonomous system.
        own_as: Count<1, 4_294_967_295> = 65_002,
        /// The router's.
        router_as: Count<1, 4_294_967_295> = 65_001,
        /// The key of TCP's MD5 option (RFC 2385).
        md5: Option<String>,
        /// A table told beside the networks that packets go to, by the first receiving port and with it as next hop, so that the router has these in a table as large and as mixed as a real one: an MRT file (RFC 6396, gzip too) or a text with a prefix and a next hop on each line, relative to this file. Routes to tested networks or parts of them are left out.
        beside: Option<At<FilePath>>,
    }
}

table! {
    /// Trials in which the first receiving port's routes go, or come again, by BGP while packets flow. With it and without `operations`, nothing else is measured.
    pub(crate) struct Convergence "[convergence]" {
        /// What happens, each in a trial of its own; left out: both.
        events: Option<List<Event, 1, 2>>,
        /// Rate of the packets, at the IP layer. They go to the networks in turn: no time is more exact than from one packet to a network to the next.
        rate: BitRate = "100 Mbit/s",
        /// Size of the IP packets, their headers included; left out: 46 B, of IPv6 66 B.
        size: Option<Bytes<46, 9_000>>,
        /// How long packets flow before it happens.
        before: Span = "1 s",
        /// How long they do after it: longer than the router takes.
        after: Span = "10 s",
    }
}

text! {
    /// A port, by name.
    PortName = "the name of a port";
}

choice!(Profile {
    /// The comparison of routers for MPLS-IX: IP, PUSH, SWAP and POP with packets of 46 to 1498 B; trials of 60 s, in which nothing is lost and the mean delay of a second neither grows nor is ten times that at a low rate; in steps of 1 Mbit/s.
    "paper" => Profile::Paper,
    /// RFC 2544: throughput, latency at it, and loss above, of IP.
    "rfc2544" => Profile::Rfc2544,
    /// RFC 5695: the same of PUSH, SWAP, POP, PHP and of the last label popped without a look beneath.
    "rfc5695" => Profile::Rfc5695,
    /// MLRsearch (RFC 9971), of IP, PUSH, SWAP and POP.
    "mlrsearch" => Profile::Mlrsearch,
});

choice!(Operation {
    /// IP packets arrive and leave.
    "ip" => Operation::Ip,
    /// IP packets arrive and leave with a label.
    "push" => Operation::Push,
    /// Packets arrive with a label and leave with another.
    "swap" => Operation::Swap,
    /// Packets arrive with a label and leave without, by the route of their address.
    "pop" => Operation::Pop,
    /// Packets arrive with two labels and leave with the inner one.
    "php" => Operation::Php,
    /// Packets arrive with a label and leave without, by what the label says alone.
    "unlabelled" => Operation::Unlabelled,
});

choice!(Event {
    /// All routes are withdrawn: packets stop, or leave by the other receiving ports, where the same routes stand by.
    "withdraw" => Event::Withdraw,
    /// They are announced again.
    "announce" => Event::Announce,
});

choice!(Told {
    /// You: `netstage test router CONFIG --setup` prints the lines for some routers.
    "you" => Told::You,
    /// The tester, by BGP-4.
    "bgp" => Told::Bgp,
});

choice!(LabelsBy {
    /// You: `netstage test router CONFIG --setup` prints the lines for some routers.
    "you" => LabelsBy::You,
    /// The tester, by LDP (RFC 5036).
    "ldp" => LabelsBy::Ldp,
    /// The tester, by RSVP-TE (RFC 3209); refused, for it is not there yet.
    "rsvp-te" => LabelsBy::RsvpTe,
});

choice!(Generator {
    /// The fastest that the sending interfaces take; the report says which, and why none faster.
    "auto" => Generator::Auto,
    /// A program in the kernel (live frames of XDP).
    "xdp" => Generator::Xdp,
    /// AF_XDP: slower, each packet at its own time.
    "af-xdp" => Generator::AfXdp,
    /// AF_PACKET: slower still, by any driver.
    "af-packet" => Generator::AfPacket,
});

impl Decode for PacketSize {
    fn kind() -> Kind {
        Kind::Text("a size such as \"46 B\", or \"imix\"")
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        match node.text() {
            None => mismatch(node, &Self::kind(), problems),
            Some("imix") => Some(PacketSize::Imix { smallest: super::build::LEAST_IPV4 }),
            Some(_) => {
                Bytes::<46, 9_000>::decode(node, problems).map(|bytes| PacketSize::Bytes(bytes.0 as u32))
            }
        }
    }
}
