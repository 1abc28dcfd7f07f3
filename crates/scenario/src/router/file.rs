//! The tables of the configuration, as written.

use super::FastPath;
use crate::scalar::{Count, FilePath, InterfaceName};
use crate::table::{At, List, Named, choice, table};
use netstage_core::forward::Model;

table! {
    /// A router's configuration.
    pub(crate) struct File "the file" {
        /// The router itself.
        router: Head,
        /// VPNs, by name: interfaces whose addresses are their own.
        vpn: Named<Vpn>,
    }
}

table! {
    /// The router itself.
    pub(crate) struct Head "[router]" {
        /// Interfaces it forwards between. The kernel keeps their addresses and neighbours; it forwards nothing that comes in there.
        interfaces: List<At<InterfaceName>, 1, 64>,
        /// Those of them from which labels are taken.
        mpls: List<At<InterfaceName>>,
        /// The control socket, for `netstage router show`.
        control: FilePath = "/run/netstage-router.sock",
        /// A file of routes and labels, relative to this one.
        routes: Option<FilePath>,
        /// Forward by the kernel's routes and labels too, as `ip route` or a routing daemon sets them.
        follow_kernel: bool = true,
        /// Where packets are decided.
        fast_path: FastPath = "auto",
        /// How times to live and traffic classes of labels belong to those of what is beneath.
        model: Model = "uniform",
        /// How many networks of IPv4 with a length of 24 may have longer prefixes within; 1 kB each.
        v4_rows: Count<16, 4_194_304> = 16384,
        /// So many kB for the routes of IPv6: a prefix takes one for each eight bits beyond the first 16 that it does not share with others.
        v6_rows: Count<16, 4_194_304> = 65536,
        /// Different next hops, and groups of them.
        next_hops: Count<16, 1_048_576> = 65536,
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

choice!(FastPath {
    /// In the kernel as frames arrive (XDP) where that works, by the program itself elsewhere.
    "auto" => FastPath::Auto,
    /// In the kernel or not at all.
    "xdp" => FastPath::Xdp,
    /// By the program itself.
    "off" => FastPath::Off,
});

choice!(Model {
    /// They are the same (RFC 3443): a hop in an LSP is one of the packet's.
    "uniform" => Model::Uniform,
    /// They are the LSP's own: it is one hop.
    "pipe" => Model::Pipe,
});
