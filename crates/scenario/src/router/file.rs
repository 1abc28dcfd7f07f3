//! The tables of the configuration, as written.

use super::{Counting, FastPath, WhenKilled};
use crate::address::{Listen, Loopback};
use crate::file::control::Class;
use crate::scalar::{Count, FilePath, InterfaceName};
use crate::table::{At, List, Named, choice, table};
use netstage_core::forward::Model;
use netstage_core::quantity::BitRate;

table! {
    /// A router's configuration.
    pub(crate) struct File "the file" {
        /// The router itself.
        router: Head,
        /// VPNs, by name: interfaces whose addresses are their own.
        vpn: Named<Vpn>,
        /// Interfaces whose frames wait for a slower line, by name.
        port: Named<Port>,
    }
}

table! {
    /// The router itself.
    pub(crate) struct Head "[router]" {
        /// Interfaces it forwards between. The kernel keeps their addresses and neighbours; it forwards nothing that comes in there.
        interfaces: List<At<InterfaceName>, 1, 64>,
        /// Those of them from which labels are taken.
        mpls: List<At<InterfaceName>>,
        /// The control socket, for `netstage router show` and `reload`.
        control: FilePath = "/run/netstage-router.sock",
        /// Address and port to serve Prometheus metrics on; left out, they are not served.
        metrics: Option<Listen>,
        /// A file of routes and labels, relative to this one.
        routes: Option<FilePath>,
        /// Forward by the kernel's routes and labels too, as `ip route` or a routing daemon sets them.
        follow_kernel: bool = true,
        /// Where it hears FRR's forwarding plane manager (zebra's module `dplane_fpm_nl`), whose routes and labels count before the kernel's: an address of this machine's loopback interface, since whoever connects there is believed.
        fpm: Option<Loopback>,
        /// Where packets are decided.
        fast_path: FastPath = "auto",
        /// How times to live and traffic classes of labels belong to those of what is beneath.
        model: Model = "uniform",
        /// How many networks of IPv4 with a length of 24 may have longer prefixes within; 1 kB each.
        v4_rows: Count<16, 4_194_304> = 16384,
        /// So many kB for the routes of IPv6: a prefix takes one for each eight bits beyond the first 16 that it does not share with others.
        v6_rows: Count<16, 4_194_304> = 65536,
        /// Different next hops, and groups of them; where each prefix is counted by itself, it takes one too.
        next_hops: Count<16, 1_048_576> = 65536,
        /// What packets that took a route are counted by.
        count: Counting = "next-hop",
        /// What the program in the kernel does when the router is killed.
        when_killed: WhenKilled = "stop",
        /// Where it is pinned then: a folder in a bpffs, made if it is not there.
        pins: FilePath = "/sys/fs/bpf/netstage",
    }
}

table! {
    /// A VPN.
    pub(crate) struct Vpn "a VPN" {
        /// Its interfaces.
        interfaces: List<At<InterfaceName>, 1, 64>,
        /// The kernel's table of its routes (`ip route show table`).
        kernel_table: Option<Count<1, 4_294_967_294>>,
    }
}

table! {
    /// An interface that sends no faster than this; all its frames are sent by the program itself.
    pub(crate) struct Port "a port" {
        /// Its rate, of frames with their Ethernet header.
        rate: BitRate,
        /// Classes in which its packets wait, by DSCP, or by traffic class where they are labelled, as the eight class selectors; what is in no class's list belongs to the last. Left out: first in, first out.
        classes: List<Class, 0, 64>,
    }
}

choice!(FastPath {
    /// In the kernel as frames arrive (XDP) where that works, by the program itself elsewhere.
    "auto" => FastPath::Auto,
    /// In the kernel or not at all.
    "xdp" => FastPath::Xdp,
    /// By the program itself.
    "off" => FastPath::Off,
});

choice!(Counting {
    /// All routes to the same next hops together.
    "next-hop" => Counting::NextHop,
    /// Each prefix by itself.
    "prefix" => Counting::Prefix,
});

choice!(WhenKilled {
    /// It goes with the router.
    "stop" => WhenKilled::Stop,
    /// It forwards on, by what is known then, and the router that begins next takes over without a gap. `netstage clean` ends it.
    "forward" => WhenKilled::Forward,
});

choice!(Model {
    /// They are the same (RFC 3443): a hop in an LSP is one of the packet's.
    "uniform" => Model::Uniform,
    /// They are the LSP's own: it is one hop.
    "pipe" => Model::Pipe,
});
