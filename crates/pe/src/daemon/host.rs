//! The machine a router runs on: its interfaces, what the router asks of them, and where the
//! kernel would send what is for a peer.

use netstage_host::netns::lookup::{OwnAddress, Station};
use netstage_host::netns::netlink::Link;
use netstage_host::netns::settings::Settings;
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::{Router, Tunnel};
use netstage_wire::ethernet::Mac;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, UdpSocket};

/// The machine, as asked through its kernel.
#[derive(Debug)]
pub(super) struct Host {
    pub namespace: Namespace,
    netlink: Netlink,
    taken: Vec<Taken>,
}

/// What a customers' interface was like before it became the router's.
#[derive(Debug)]
struct Taken {
    name: String,
    settings: Settings,
    offloads: Vec<String>,
}

/// Where a peer is to be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The interface.
    pub interface: String,
    /// The next router, or the peer itself.
    pub next_hop: IpAddr,
    /// Its station.
    pub mac: Mac,
    /// What the way carries, bytes of an IP or MPLS packet.
    pub mtu: u16,
}

impl Host {
    pub fn here() -> Result<Host, Obstacle> {
        let open = || -> io::Result<Host> {
            let namespace = Namespace::of_this_thread()?;
            let netlink = Netlink::open(&namespace)?;
            Ok(Host { namespace, netlink, taken: Vec::new() })
        };
        open().map_err(|error| Obstacle::system("the kernel cannot be asked about the network", &error))
    }

    pub fn link(&mut self, name: &str) -> Result<Link, Obstacle> {
        self.netlink.link(name).map_err(|error| match error.source.kind() {
            io::ErrorKind::NotFound => no_interface(name),
            _ if error.source.raw_os_error() == Some(libc::ENODEV) => no_interface(name),
            _ => Obstacle::system(&error.action, &error.source),
        })
    }

    /// All addresses, and the interfaces they are on.
    pub fn addresses(&mut self) -> Result<Vec<OwnAddress>, Obstacle> {
        self.netlink.addresses().map_err(|error| Obstacle::system(&error.action, &error.source))
    }

    /// Makes an interface the router's alone. The kernel must have no address there, does not
    /// answer for others, and forwards nothing that comes in, until it is given back or the router
    /// ends. Gives what to tell.
    pub fn take_over(&mut self, name: &str) -> Result<Vec<String>, Obstacle> {
        let link = self.link(name)?;
        if let Some(own) = self.addresses()?.into_iter().find(|own| own.link == link.index) {
            return Err(Obstacle::new(
                format!("{name}: the kernel has the address {} on this customers' interface", own.address),
                format!("the router answers there itself: ip address flush dev {name}"),
            ));
        }
        let mut told = Vec::new();
        let offloads = ethtool::offloads_on(&self.namespace, name).unwrap_or_default();
        let namespace = self.namespace.try_clone();
        let namespace = namespace.map_err(|error| Obstacle::system("the network namespace", &error))?;
        let mut taken = Taken { name: name.into(), settings: Settings::of(namespace), offloads };
        // A dot would part the name from what follows.
        for (setting, value) in [
            (format!("net/ipv4/conf/{name}/forwarding"), "0"),
            (format!("net/ipv4/conf/{name}/arp_ignore"), "8"),
            (format!("net/ipv6/conf/{name}/disable_ipv6"), "1"),
        ] {
            if let Err(error) = taken.settings.set(&setting, value) {
                told.push(format!("{name}: the kernel may answer or forward beside this router: {error}"));
            }
        }
        if let Err(error) = ethtool::offloads_off(&self.namespace, name) {
            told.push(format!("{name}: frames may come in larger than they were sent: {error}"));
        }
        self.taken.push(taken);
        if !link.up {
            self.netlink.set_up(name).map_err(|error| Obstacle::system(&error.action, &error.source))?;
        }
        Ok(told)
    }

    /// Puts an interface back to how it was. It may be gone.
    pub fn give_back(&mut self, name: &str) {
        let Some(index) = self.taken.iter().position(|taken| taken.name == name) else { return };
        let Taken { settings, offloads, .. } = self.taken.swap_remove(index);
        drop(settings);
        let _ = ethtool::switch_on(&self.namespace, name, &offloads);
    }

    /// The address packets to a peer are sent from: as configured, or as the kernel would.
    pub fn source_to(&mut self, router: &Router, to: IpAddr) -> Result<IpAddr, Obstacle> {
        let way = self.netlink.way_to(to, None).ok().flatten();
        if let Some(source) = way.and_then(|way| way.source) {
            return Ok(source);
        }
        let addresses = self.addresses()?;
        for name in &router.core {
            let index = self.link(name)?.index;
            let own = addresses.iter().find(|own| own.link == index && own.address.is_ipv4() == to.is_ipv4());
            if let Some(own) = own {
                return Ok(own.address);
            }
        }
        Err(Obstacle::new(
            format!(
                "nothing tells from which address to send to {to}: there is no route, and no address of its kind on {}",
                router.core.join(", ")
            ),
            "give the tunnel its `from`, or the interface an address",
        ))
    }

    /// The way to a peer at present, or why there is none. Has the kernel look for the next
    /// router's station where that is not known.
    pub fn way(&mut self, router: &Router, tunnel: &Tunnel, mtu: Option<u16>) -> Result<Way, String> {
        let (to, from) = match tunnel {
            Tunnel::MplsInUdp { to, from, .. } => (*to, *from),
            Tunnel::Mpls { next_hop, .. } => (*next_hop, None),
        };
        let found = self.netlink.way_to(to, from).map_err(|error| error.to_string())?;
        let way = found.ok_or_else(|| format!("there is no route to {to}"))?;
        if matches!(tunnel, Tunnel::Mpls { .. }) && way.gateway.is_some() {
            return Err(format!("{to} is no neighbour: it is behind {}", way.gateway.unwrap_or(to)));
        }
        let links = self.netlink.links().map_err(|error| error.to_string())?;
        let Some(link) = links.into_iter().find(|link| link.index == way.link) else {
            return Err("the route's interface is gone".into());
        };
        if !router.core.contains(&link.name) {
            return Err(format!("the route leads by {}, which is no interface of the core", link.name));
        }
        if !link.running {
            return Err(format!("{} is down", link.name));
        }
        let next_hop = way.gateway.unwrap_or(to);
        let station = self.netlink.station(link.index, next_hop).map_err(|error| error.to_string())?;
        if !matches!(station, Station::Known(_)) {
            // What it finds is told by the next change of the neighbour table.
            let _ = self.netlink.resolve(link.index, next_hop);
            if let IpAddr::V6(next_hop) = next_hop {
                self.call(link.index, next_hop);
            }
        }
        let (Station::Known(mac) | Station::Stale(mac)) = station else {
            return Err(format!("{next_hop} on {} does not answer", link.name));
        };
        let carried = way.mtu.unwrap_or(link.mtu).min(link.mtu);
        let mtu = mtu.unwrap_or(carried.min(9_216) as u16);
        Ok(Way { interface: link.name, next_hop, mac, mtu })
    }
}

impl Host {
    /// Sends an empty datagram to the discard port of a neighbour. Without a link-local address
    /// of its own the kernel solicits a neighbour only for a packet, whose source it then takes.
    fn call(&self, link: u32, neighbour: Ipv6Addr) {
        let send = || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.send_to(&[], SocketAddrV6::new(neighbour, 9, 0, link))
        };
        // Where even that is not possible, the peer stays unreachable, which is told.
        let _ = self.namespace.run(send);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        while let Some(name) = self.taken.last().map(|taken| taken.name.clone()) {
            self.give_back(&name);
        }
    }
}

fn no_interface(name: &str) -> Obstacle {
    Obstacle::new(format!("there is no interface {name}"), "`ip link` lists those there are")
}
