//! What a router needs of the machine: its interfaces, which the kernel no longer forwards by, a port on
//! each, and the program in the kernel where it works.

use crate::netns::settings::Settings;
use crate::netns::{Namespace, Netlink};
use crate::obstacle::Obstacle;
use crate::ports::af_packet::{AfPacket, Options};
use crate::ports::tun::{Layer, Tun};
use crate::router::fast_path::{self, FastPath};
use crate::router::fib;
use crate::router::slow_path;
use crate::router::source::route::Names;
use crate::router::tables::{Sizes, Tables};
use netstage_core::forward::lpm::Shape;
use netstage_scenario::router::{self, Router};
use std::io;
use std::net::IpAddr;

/// By which the system has packets that came to it in an LSP.
const DELIVERY: &str = "netstage0";
/// Bits of an address that index the first row of a table: one step for most prefixes there are.
const V4_FIRST: u32 = 24;
const V6_FIRST: u32 = 16;
/// A VPN's table is smaller.
const VPN_FIRST: u32 = 16;

/// The machine, ready.
#[derive(Debug)]
pub(super) struct Machine {
    pub namespace: Namespace,
    pub ports: Vec<AfPacket>,
    pub interfaces: Vec<slow_path::Interface>,
    pub links: Vec<fib::Interface>,
    pub names: Names,
    pub tables: Tables,
    pub delivery: Option<Tun>,
    /// Put back when it is dropped.
    pub settings: Settings,
}

impl Machine {
    /// Prepares it; `tell` hears what is not as it could be.
    pub fn prepare(router: &Router, tell: &impl Fn(&str)) -> Result<Machine, Obstacle> {
        let failed = |what: &str, error: &io::Error| Obstacle::system(what, error);
        let namespace =
            Namespace::of_this_thread().map_err(|error| failed("the network namespace", &error))?;
        let mut netlink = Netlink::open(&namespace).map_err(|error| failed(&error.action, &error.source))?;
        let mut settings =
            Settings::of(namespace.try_clone().map_err(|error| failed("the network namespace", &error))?);
        let addresses = netlink.addresses().map_err(|error| failed(&error.action, &error.source))?;
        let (mut ports, mut interfaces, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let mut names = Names::default();
        for (number, interface) in router.interfaces.iter().enumerate() {
            let name = &interface.name;
            let link = netlink.link(name).map_err(|error| match error.source.kind() {
                io::ErrorKind::NotFound => no_interface(name),
                _ if error.source.raw_os_error() == Some(libc::ENODEV) => no_interface(name),
                _ => failed(&error.action, &error.source),
            })?;
            let mac = link.mac.ok_or_else(|| {
                Obstacle::new(
                    format!("{name} is no Ethernet interface"),
                    "name one that has a station's address",
                )
            })?;
            for setting in
                [format!("net/ipv4/conf/{name}/forwarding"), format!("net/ipv6/conf/{name}/forwarding")]
            {
                if let Err(error) = settings.set(&setting, "0") {
                    tell(&format!("{name}: the kernel may forward beside this router: {error}"));
                }
            }
            let own = |is_v4: bool| {
                let mut own =
                    addresses.iter().filter(|own| own.link == link.index && own.address.is_ipv4() == is_v4);
                own.next().map(|own| own.address)
            };
            let v4 = own(true)
                .and_then(|address| if let IpAddr::V4(address) = address { Some(address) } else { None });
            let v6 = own(false)
                .and_then(|address| if let IpAddr::V6(address) = address { Some(address) } else { None });
            let port = AfPacket::open(&namespace, name, Options::default());
            ports.push(port.map_err(|error| failed(&format!("{name} cannot be opened"), &error))?);
            interfaces.push(slow_path::Interface { mac, v4, v6 });
            let (mtu, table) = (link.mtu.min(u16::MAX.into()) as u16, interface.table as u32);
            links.push(fib::Interface { mac, mtu, table, mpls: interface.mpls });
            names.interfaces.insert(link.index, number as u32);
        }
        names.loopback = netlink.link("lo").ok().map(|link| link.index);
        for (number, table) in router.tables.iter().enumerate() {
            names.tables.extend(table.kernel.map(|kernel| (kernel, number as u32)));
        }
        // The kernel's table of its own addresses.
        names.tables.insert(255, 0);
        let tables = tables(router, &namespace, &links, &names, tell)?;
        let takes_labels = router.interfaces.iter().any(|interface| interface.mpls);
        let delivery = match takes_labels {
            true => Some(delivery(&namespace, &mut netlink, &mut settings)?),
            false => None,
        };
        Ok(Machine { namespace, ports, interfaces, links, names, tables, delivery, settings })
    }
}

fn no_interface(name: &str) -> Obstacle {
    Obstacle::new(format!("there is no interface {name}"), "`ip link` lists those there are")
}

/// The tables, in the kernel's memory where the program there is to find them.
fn tables(
    router: &Router,
    namespace: &Namespace,
    links: &[fib::Interface],
    names: &Names,
    tell: &impl Fn(&str),
) -> Result<Tables, Obstacle> {
    let shapes = (0..router.tables.len()).map(|table| {
        let first = if table == 0 { V4_FIRST } else { VPN_FIRST };
        (Shape { first, rows: router.v4_rows }, Shape { first: V6_FIRST, rows: router.v6_rows })
    });
    let sizes = Sizes { tables: shapes.collect(), targets: router.next_hops, hops: router.next_hops };
    // Any number does that is another one at the next router.
    let seed =
        u64::from_ne_bytes([links[0].mac[2], links[0].mac[3], links[0].mac[4], links[0].mac[5], 7, 0, 0, 1]);
    let loaded = match router.fast_path {
        router::FastPath::Off => None,
        router::FastPath::Auto | router::FastPath::Xdp => {
            let loaded = FastPath::load(sizes.capacity(), seed)
                .and_then(|fast_path| attach(fast_path, namespace, links, names));
            match loaded {
                Ok(fast_path) => Some(fast_path),
                Err(error) if router.fast_path == router::FastPath::Auto => {
                    tell(&format!("packets are decided by the program itself: {error}"));
                    None
                }
                Err(error) => {
                    let remedy = "run it as root, or set `fast_path` to \"auto\"";
                    return Err(Obstacle { is_missing: true, ..Obstacle::new(error.to_string(), remedy) });
                }
            }
        }
    };
    let table = links.iter().map(|link| link.table).collect();
    Ok(Tables::new(sizes, table, seed, loaded))
}

fn attach(
    mut fast_path: FastPath,
    namespace: &Namespace,
    links: &[fib::Interface],
    names: &Names,
) -> Result<FastPath, fast_path::Error> {
    let attached = namespace.run(|| {
        for (index, number) in &names.interfaces {
            let link = &links[*number as usize];
            fast_path.attach(*number, link.table, *index, link.mac)?;
        }
        Ok(())
    });
    attached.map_err(fast_path::Error::Maps)?.map(|()| fast_path)
}

/// An interface by which the system has what came to it in an LSP.
fn delivery(namespace: &Namespace, netlink: &mut Netlink, settings: &mut Settings) -> Result<Tun, Obstacle> {
    let tun = Tun::create(namespace, DELIVERY, Layer::Ip).map_err(|error| {
        Obstacle::system("what comes in an LSP for this machine cannot be handed to it", &error)
    })?;
    netlink.set_up(DELIVERY).map_err(|error| Obstacle::system(&error.action, &error.source))?;
    // Packets come by an interface that no route leads back to.
    let _ = settings.set(&format!("net/ipv4/conf/{DELIVERY}/rp_filter"), "0");
    Ok(tun)
}
