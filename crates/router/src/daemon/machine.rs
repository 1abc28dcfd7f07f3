//! What a router needs of the machine: its interfaces as they are at present, a port on each, and the
//! program in the kernel where it works.

use crate::fast_path::FastPath;
use crate::tables::{Sizes, Tables};
use netstage_core::forward::lpm::Shape;
use netstage_host::netns::netlink::Error;
use netstage_host::netns::routes::{Metrics, Route};
use netstage_host::netns::settings::Settings;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use netstage_host::ports::af_packet::{AfPacket, Options};
use netstage_host::ports::tun::{Layer, Tun};
use netstage_host::ports::{NO_STATION, Port, Received};
use netstage_routing::source::route::Names;
use netstage_scenario::router::{self, Router};
use netstage_wire::ethernet::Mac;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

/// By which the system has packets that came to it in an LSP.
const DELIVERY: &str = "netstage0";
/// Bits of an address that index the first row of a table: one step for most prefixes there are.
const V4_FIRST: u32 = 24;
const V6_FIRST: u32 = 16;
/// A VPN's table is smaller.
const VPN_FIRST: u32 = 16;
/// The kernel's table of its own addresses.
const LOCAL: u32 = 255;

/// An interface as it is at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The kernel's number of it, another one if it is removed and made again.
    pub index: u32,
    /// [`NO_STATION`] where packets have no link's header.
    pub mac: Mac,
    pub mtu: u16,
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    /// Frames pass.
    pub is_up: bool,
}

/// A port on an interface, while that is there.
#[derive(Debug, Default)]
pub(super) struct Slot(pub Option<Box<AfPacket>>);

/// The machine, as asked through its kernel.
#[derive(Debug)]
pub(super) struct Machine {
    pub namespace: Namespace,
    netlink: Netlink,
}

impl Machine {
    pub fn here() -> Result<Machine, Obstacle> {
        let failed = |error: io::Error| Obstacle::system("the network namespace", &error);
        let namespace = Namespace::of_this_thread().map_err(failed)?;
        let netlink = Netlink::open(&namespace).map_err(|error| refused(&error))?;
        Ok(Machine { namespace, netlink })
    }

    /// Another handle of its namespace.
    pub fn same_namespace(&self) -> Result<Namespace, Obstacle> {
        self.namespace.try_clone().map_err(|error| Obstacle::system("the network namespace", &error))
    }

    /// Interfaces by their names; none where there is no such interface, of Ethernet's or without a header.
    pub fn look(&mut self, interfaces: &[router::Interface]) -> Result<Vec<Option<Seen>>, Error> {
        let addresses = self.netlink.addresses()?;
        let links = self.netlink.links()?;
        let seen = |interface: &router::Interface| {
            let link = links.iter().find(|link| link.name == interface.name)?;
            let own = || addresses.iter().filter(|own| own.link == link.index).map(|own| own.address);
            Some(Seen {
                index: link.index,
                mac: if link.is_bare { NO_STATION } else { link.mac? },
                mtu: link.mtu.min(u16::MAX.into()) as u16,
                v4: own().find_map(|own| if let IpAddr::V4(own) = own { Some(own) } else { None }),
                v6: own().find_map(|own| if let IpAddr::V6(own) = own { Some(own) } else { None }),
                is_up: link.running,
            })
        };
        Ok(interfaces.iter().map(seen).collect())
    }

    /// How the kernel's numbers are the router's, but for interfaces.
    pub fn names(&mut self, router: &Router) -> Names {
        let loopback = self.netlink.link("lo").ok().map(|link| link.index);
        let tables = router.tables.iter().enumerate();
        let tables = tables.filter_map(|(number, table)| Some((table.kernel?, number as u32)));
        Names { loopback, tables: tables.chain([(LOCAL, 0)]).collect(), ..Names::default() }
    }

    /// Has the kernel forward nothing that comes by an interface. Gives what to tell.
    pub fn take_over(&self, settings: &mut Settings, name: &str) -> Option<String> {
        let settings = ["ipv4", "ipv6"].map(|version| settings.set(&forwarding(version, name), "0"));
        let error = settings.into_iter().find_map(Result::err)?;
        Some(format!("{name}: the kernel may forward beside this router: {error}"))
    }

    /// A port on an interface.
    pub fn open(&self, name: &str) -> Result<Slot, Obstacle> {
        let port = AfPacket::open(&self.namespace, name, Options::default());
        let port = port.map_err(|error| Obstacle::system(format!("{name} cannot be opened"), &error))?;
        Ok(Slot(Some(Box::new(port))))
    }

    /// An interface by which the system has what came to it in an LSP.
    pub fn delivery(&mut self, settings: &mut Settings) -> Result<Tun, Obstacle> {
        let tun = Tun::create(&self.namespace, DELIVERY, Layer::Ip).map_err(|error| {
            Obstacle::system("what comes in an LSP for this machine cannot be handed to it", &error)
        })?;
        self.netlink.set_up(DELIVERY).map_err(|error| refused(&error))?;
        // Packets come by an interface that no route leads back to.
        let _ = settings.set(&format!("net/ipv4/conf/{DELIVERY}/rp_filter"), "0");
        Ok(tun)
    }

    /// Where the kernel knows no labels, what the system itself sends by an LSP goes to the router: it has no
    /// other route there.
    pub fn carry_own(&mut self) -> Result<(), Obstacle> {
        if self.namespace.sysctl_value("net/mpls/platform_labels").is_ok() {
            return Ok(());
        }
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let metrics = Metrics { rank: Some(u32::MAX), ..Metrics::default() };
            let last = Route {
                destination: (any, 0),
                gateway: None,
                link: DELIVERY,
                preferred_source: None,
                metrics,
            };
            match self.netlink.add_route(&last) {
                // A system without IPv6 sends none.
                Err(_) if any.is_ipv6() => {}
                added => added.map_err(|error| refused(&error))?,
            }
        }
        Ok(())
    }
}

/// What the kernel refuses.
pub(super) fn refused(error: &Error) -> Obstacle {
    Obstacle::system(&error.action, &error.source)
}

pub(super) fn no_interface(name: &str) -> Obstacle {
    Obstacle::new(
        format!("there is no interface {name} of Ethernet or TUN"),
        "`ip link` lists those there are",
    )
}

/// The setting by which the kernel forwards what comes by an interface. A dot would part the name from what
/// follows.
fn forwarding(version: &str, name: &str) -> String {
    format!("net/{version}/conf/{name}/forwarding")
}

/// Whether a setting is an interface's.
pub(super) fn is_of(setting: &str, name: &str) -> bool {
    ["ipv4", "ipv6"].iter().any(|version| setting == forwarding(version, name))
}

/// The tables, in the kernel's memory where the program there is to find them. What keeps it from running
/// is told.
pub(super) fn tables(router: &Router, mac: Mac, tell: &dyn Fn(&str)) -> Result<Tables, Obstacle> {
    let shapes = (0..router.tables.len()).map(|table| {
        let first = if table == 0 { V4_FIRST } else { VPN_FIRST };
        (Shape { first, rows: router.v4_rows }, Shape { first: V6_FIRST, rows: router.v6_rows })
    });
    let sizes = Sizes { tables: shapes.collect(), targets: router.next_hops, hops: router.next_hops };
    // Any number does that is another one at the next router.
    let [_, _, a, b, c, d] = mac;
    let seed = u64::from_ne_bytes([a, b, c, d, 7, 0, 0, 1]);
    let loaded = match router.fast_path {
        router::FastPath::Off => None,
        router::FastPath::Auto | router::FastPath::Xdp => match FastPath::load(sizes.capacity(), seed) {
            Ok(fast_path) => Some(fast_path),
            Err(error) if router.fast_path == router::FastPath::Auto => {
                tell(&format!("packets are decided by the program itself: {error}"));
                None
            }
            Err(error) => return Err(not_in_the_kernel(&error)),
        },
    };
    let table = router.interfaces.iter().map(|interface| interface.table as u32).collect();
    Ok(Tables::new(sizes, table, seed, loaded))
}

pub(super) fn not_in_the_kernel(error: &dyn std::fmt::Display) -> Obstacle {
    let remedy = "run it as root, or set `fast_path` to \"auto\"";
    Obstacle { is_missing: true, ..Obstacle::new(error.to_string(), remedy) }
}

impl Port for Slot {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
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
