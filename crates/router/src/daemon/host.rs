//! Resources of the host: the present state of the interfaces, a port on each, and the XDP program if it
//! works.

use crate::fast_path::FastPath;
use crate::fib;
use crate::tables::{Sizes, Tables};
use netstage_core::forward::IncomingInterface;
use netstage_core::forward::lpm::LpmShape;
use netstage_host::netns::netlink::NetlinkError;
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::settings::{TemporarySettings, ipv6_transit_rule};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_host::ports::tun::{Tun, TunLayer};
use netstage_host::ports::{FramePort, NO_MAC, ReceivedFrame};
use netstage_host::shared_key;
use netstage_host::startup_error::StartupError;
use netstage_routing::bfd::BfdNeighbor;
use netstage_routing::rsvp::{RsvpKey, RsvpPlace};
use netstage_routing::source::route::KernelIds;
use netstage_scenario::router::{
    self, BfdSettings, InterfaceConfig, RouterConfig, RsvpInterfaceSettings, RsvpSettings,
};
use netstage_wire::ethernet::Mac;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

/// TUN interface through which the kernel receives packets that arrived in an LSP.
const DELIVERY: &str = "netstage0";
/// Bits of an address that index the first row of a table; most prefixes need only this lookup.
const V4_FIRST: u32 = 24;
const V6_FIRST: u32 = 16;
/// Tables of VPNs are smaller.
const VPN_FIRST: u32 = 16;
/// Routing table of the kernel's local addresses (RT_TABLE_LOCAL).
const LOCAL: u32 = 255;

/// Present state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceState {
    /// Interface index in the kernel; it changes if the interface is recreated.
    pub index: u32,
    /// MAC address, or [`NO_MAC`] if packets have no link-layer header.
    pub mac: Mac,
    pub mtu: u16,
    /// Source of ICMP errors over IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Source of ICMP errors over IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The link is up.
    pub is_up: bool,
}

/// Port on an interface, while the interface exists.
#[derive(Debug, Default)]
pub(super) struct PortSlot(pub Option<Box<AfPacket>>);

/// Access to the network configuration of the host through the kernel.
#[derive(Debug)]
pub(super) struct RouterHost {
    pub namespace: Namespace,
    netlink: Netlink,
}

impl RouterHost {
    pub fn current() -> Result<RouterHost, StartupError> {
        let failed =
            |error: io::Error| StartupError::from_system("cannot open the network namespace", &error);
        let namespace = Namespace::of_this_thread().map_err(failed)?;
        let netlink = Netlink::open(&namespace).map_err(|error| kernel_error(&error))?;
        Ok(RouterHost { namespace, netlink })
    }

    /// Duplicates the handle of the network namespace.
    pub fn same_namespace(&self) -> Result<Namespace, StartupError> {
        self.namespace
            .try_clone()
            .map_err(|error| StartupError::from_system("cannot open the network namespace", &error))
    }

    /// Returns the present state of interfaces, by name; `None` for one that does not exist or is neither
    /// Ethernet nor without a header.
    pub fn interface_states(
        &mut self,
        interfaces: &[router::InterfaceConfig],
    ) -> Result<Vec<Option<InterfaceState>>, NetlinkError> {
        let addresses = self.netlink.addresses()?;
        let links = self.netlink.links()?;
        let of_link =
            |index: u32| addresses.iter().filter(move |own| own.link == index).map(|own| own.address);
        let loopback = links.iter().find(|link| link.name == "lo").map_or(0, |link| link.index);
        let seen = |interface: &router::InterfaceConfig| {
            let link = links.iter().find(|link| link.name == interface.name)?;
            // A link without a global address uses that of the loopback interface (RFC 1812 section 4.3.2.4, RFC 7404).
            let sources = || {
                let global = of_link(link.index).chain(of_link(loopback)).filter(is_global);
                global.chain(of_link(link.index))
            };
            Some(InterfaceState {
                index: link.index,
                mac: if link.has_no_link_header { NO_MAC } else { link.mac? },
                mtu: link.mtu.min(u16::MAX.into()) as u16,
                v4: sources().find_map(|own| if let IpAddr::V4(own) = own { Some(own) } else { None }),
                v6: sources().find_map(|own| if let IpAddr::V6(own) = own { Some(own) } else { None }),
                is_up: link.running,
            })
        };
        Ok(interfaces.iter().map(seen).collect())
    }

    /// Returns the interfaces that speak RSVP-TE, with their numbers.
    pub fn rsvp_places(
        &mut self,
        interfaces: &[InterfaceConfig],
        settings: &RsvpSettings,
    ) -> Result<Vec<(u32, RsvpPlace)>, StartupError> {
        let addresses = self.netlink.addresses().map_err(|error| kernel_error(&error))?;
        let links = self.netlink.links().map_err(|error| kernel_error(&error))?;
        let router_id = settings.router_id;
        if !addresses.iter().any(|own| own.address == IpAddr::V4(router_id)) {
            let remedy = format!("add it with: ip address add {router_id}/32 dev lo");
            return Err(StartupError::new(
                format!("[rsvp] `router_id`: {router_id} is no address of this host"),
                remedy,
            ));
        }
        let place = |RsvpInterfaceSettings { name, bandwidth, keys }: &RsvpInterfaceSettings| {
            let number = interfaces.iter().position(|interface| interface.name == *name);
            let link = links.iter().find(|link| link.name == *name);
            let (Some(number), Some(link)) = (number, link) else { return Err(no_interface(name)) };
            let found =
                addresses.iter().filter(|own| own.link == link.index).find_map(|own| match own.address {
                    IpAddr::V4(address) => Some((address, own.prefix_len)),
                    IpAddr::V6(_) => None,
                });
            let (address, length) = found.ok_or_else(|| {
                let remedy = format!("add one, for example with: ip address add 192.0.2.1/30 dev {name}");
                StartupError::new(format!("{name} speaks RSVP-TE, but has no IPv4 address"), remedy)
            })?;
            let keys = shared_key::read_all(&format!("[rsvp.interface.{name}]"), keys)?;
            let key = |(number, secret): (u8, Vec<u8>)| RsvpKey { number: number.into(), secret };
            let keys = keys.into_iter().map(key).collect();
            Ok((
                number as u32,
                RsvpPlace { name: name.clone(), address, length, bandwidth: *bandwidth, keys },
            ))
        };
        settings.interfaces.iter().map(place).collect()
    }

    /// Returns the BFD neighbors with the interfaces to their links.
    pub fn bfd_neighbors(
        &mut self,
        interfaces: &[InterfaceConfig],
        settings: &BfdSettings,
    ) -> Result<Vec<BfdNeighbor>, StartupError> {
        let find = |address: &IpAddr| {
            let number = self.interface_of(interfaces, *address).ok_or_else(|| {
                StartupError::new(
                    format!("[bfd] `neighbors`: {address} is in no subnet of the router's interfaces"),
                    "list the address that the neighbor has on a link to this router",
                )
            })?;
            let interface = interfaces[number as usize].name.clone();
            Ok(BfdNeighbor { interface, address: *address })
        };
        settings.neighbors.iter().map(find).collect()
    }

    /// Returns the number of the interface to the link with a neighbor, if it is known.
    pub fn interface_of(&mut self, interfaces: &[InterfaceConfig], neighbor: IpAddr) -> Option<u32> {
        let (addresses, links) = (self.netlink.addresses().ok()?, self.netlink.links().ok()?);
        let on_link = addresses.iter().filter(|own| fib::holds((own.address, own.prefix_len), neighbor));
        let mut names =
            on_link.filter_map(|own| links.iter().find(|link| link.index == own.link)).map(|link| &link.name);
        let number = |name: &String| interfaces.iter().position(|interface| interface.name == *name);
        names.find_map(number).map(|number| number as u32)
    }

    /// Returns the mapping of kernel numbers to those of the router, except for interfaces.
    pub fn names(&mut self, router: &RouterConfig) -> KernelIds {
        let loopback = self.netlink.link("lo").ok().map(|link| link.index);
        let tables = router.tables.iter().enumerate();
        let tables = tables.filter_map(|(number, table)| Some((table.kernel?, number as u32)));
        KernelIds { loopback, tables: tables.chain([(LOCAL, 0)]).collect(), ..KernelIds::default() }
    }

    /// Disables the kernel's forwarding of packets from an interface. Returns a warning to log on failure.
    pub fn take_over(&self, settings: &mut TemporarySettings, name: &str) -> Option<String> {
        let disabled =
            [forwarding(name), mpls_input(name)].iter().try_for_each(|name| settings.set(name, "0"));
        let error = disabled.and_then(|()| settings.drop_ipv6_transit(name)).err()?;
        Some(format!("{name}: the kernel may still forward packets from this interface: {error}"))
    }

    /// Opens a port on an interface.
    pub fn open(&self, name: &str) -> Result<PortSlot, StartupError> {
        let port = AfPacket::open(&self.namespace, name, AfPacketOptions::default());
        let port = port.map_err(|error| StartupError::from_system(format!("cannot open {name}"), &error))?;
        Ok(PortSlot(Some(Box::new(port))))
    }

    /// Creates the TUN interface through which the kernel receives packets that arrived in an LSP.
    pub fn delivery(&mut self, settings: &mut TemporarySettings) -> Result<Tun, StartupError> {
        let tun = Tun::create(&self.namespace, DELIVERY, TunLayer::Ip).map_err(|error| {
            StartupError::from_system("cannot create the TUN interface for packets received in LSPs", &error)
        })?;
        self.netlink.set_up(DELIVERY).map_err(|error| kernel_error(&error))?;
        // Strict reverse-path filtering would drop the packets, since no route leads back to this interface.
        let _ = settings.set(&format!("net/ipv4/conf/{DELIVERY}/rp_filter"), "0");
        Ok(tun)
    }

    /// If the kernel lacks MPLS, routes its own packets to the router as a last resort, so that they can
    /// enter an LSP.
    pub fn carry_own(&mut self) -> Result<(), StartupError> {
        if self.namespace.sysctl_value("net/mpls/platform_labels").is_ok() {
            return Ok(());
        }
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let metrics = Metrics { rank: Some(u32::MAX), ..Metrics::default() };
            let last = StaticRoute {
                destination: (any, 0),
                gateway: None,
                link: DELIVERY,
                preferred_source: None,
                metrics,
            };
            match self.netlink.add_route(&last) {
                // A kernel without IPv6 sends no IPv6 packets.
                Err(_) if any.is_ipv6() => {}
                added => added.map_err(|error| kernel_error(&error))?,
            }
        }
        Ok(())
    }
}

/// Converts an error of the kernel.
pub(super) fn kernel_error(error: &NetlinkError) -> StartupError {
    StartupError::from_system(&error.action, &error.source)
}

pub(super) fn no_interface(name: &str) -> StartupError {
    StartupError::new(
        format!("there is no interface {name} of type Ethernet or TUN"),
        "list the interfaces with: ip link",
    )
}

/// Returns the IPv4 forwarding setting of an interface. The slash syntax is required because the name may contain
/// dots.
fn forwarding(name: &str) -> String {
    format!("net/ipv4/conf/{name}/forwarding")
}

/// Returns the setting by which the kernel accepts labeled packets from an interface.
fn mpls_input(name: &str) -> String {
    format!("net/mpls/conf/{name}/input")
}

/// Returns whether a setting belongs to an interface.
pub(super) fn is_setting_of(setting: &str, name: &str) -> bool {
    [forwarding(name), mpls_input(name), ipv6_transit_rule(name)].iter().any(|of_it| setting == of_it)
}

/// Returns whether an address is valid beyond its link.
fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

/// Creates the tables, in kernel memory if the XDP program can be loaded. Reports why it cannot.
pub(super) fn tables(router: &RouterConfig, mac: Mac, report: &dyn Fn(&str)) -> Result<Tables, StartupError> {
    let shapes = (0..router.tables.len()).map(|table| {
        let first = if table == 0 { V4_FIRST } else { VPN_FIRST };
        (LpmShape { first, rows: router.v4_rows }, LpmShape { first: V6_FIRST, rows: router.v6_rows })
    });
    let sizes = Sizes { tables: shapes.collect(), targets: router.next_hops, hops: router.next_hops };
    // Any number will do that differs between routers.
    let [_, _, a, b, c, d] = mac;
    let seed = u64::from_ne_bytes([a, b, c, d, 7, 0, 0, 1]);
    let loaded = match router.fast_path {
        router::FastPath::Off => None,
        router::FastPath::Auto | router::FastPath::Xdp => match FastPath::load(sizes.capacity(), seed) {
            Ok(fast_path) => Some(fast_path),
            Err(error) if router.fast_path == router::FastPath::Auto => {
                report(&format!("no XDP program, the slow path handles all packets: {error}"));
                None
            }
            Err(error) => return Err(not_in_the_kernel(&error)),
        },
    };
    let interfaces = router.interfaces.iter().map(incoming).collect();
    Ok(Tables::new(sizes, interfaces, seed, loaded))
}

/// Returns how packets from an interface are treated.
pub(super) fn incoming(interface: &InterfaceConfig) -> IncomingInterface {
    IncomingInterface {
        table: interface.table as u32,
        mpls: interface.mpls,
        rsvp: interface.rsvp,
        source_check: interface.source_check,
    }
}

pub(super) fn not_in_the_kernel(error: &dyn std::fmt::Display) -> StartupError {
    let remedy = "run it as root, or set `fast_path` to \"auto\"";
    StartupError { is_missing: true, ..StartupError::new(error.to_string(), remedy) }
}

impl FramePort for PortSlot {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        self.0.as_mut().ok_or_else(gone)?.receive(limit, each)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.0.as_mut().ok_or_else(gone)?.send(frame)
    }

    fn flush(&mut self) -> io::Result<usize> {
        self.0.as_mut().ok_or_else(gone)?.flush()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref()?.fd()
    }

    fn missed(&mut self) -> u64 {
        self.0.as_mut().map_or(0, |port| port.missed())
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the interface is gone")
}
