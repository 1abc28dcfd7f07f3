//! An interface, the tester's address there, and the router at its other end.

use netstage_host::netns::lookup::Station;
use netstage_host::netns::netlink::Link;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::tester;
use netstage_wire::ethernet::Mac;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

/// An address the tester has given goes by itself after this long, should the tester be killed.
pub const LIFETIME: Duration = Duration::from_secs(60);
/// What links carry beyond their MTU.
const VLAN_TAG: u32 = netstage_wire::ethernet::TAG as u32;
/// The port where packets are thrown away (RFC 863).
const DISCARD: u16 = 9;
/// How long the router may take to tell its station.
const PATIENCE: Duration = Duration::from_secs(5);

/// An interface as the tester uses it.
#[derive(Debug)]
pub struct Port {
    /// As configured.
    pub settings: tester::Port,
    /// The kernel's number of the interface.
    pub index: u32,
    /// Its station.
    pub mac: Mac,
    /// The router's.
    pub router: Mac,
    mtu: u32,
    /// The address is the tester's, not the system's own.
    is_given: bool,
    namespace: Namespace,
}

impl Port {
    /// Takes an interface: gives it its address and finds the router.
    pub fn open(namespace: &Namespace, settings: &tester::Port) -> Result<Port, Obstacle> {
        let name = &settings.interface;
        let failed =
            |error: netstage_host::netns::netlink::Error| Obstacle::system(&error.action, &error.source);
        let mut netlink = Netlink::open(namespace).map_err(failed)?;
        let link = netlink.link(name).map_err(|error| match error.source.raw_os_error() {
            Some(libc::ENODEV) => no_interface(name),
            _ if error.source.kind() == io::ErrorKind::NotFound => no_interface(name),
            _ => failed(error),
        })?;
        let no_station = || Obstacle::new(format!("{name} is no Ethernet interface"), "name one that is");
        let mac = link.mac.ok_or_else(no_station)?;
        check(name, &link)?;
        let addresses = netlink.addresses().map_err(failed)?;
        let own = settings.address.0;
        let is_given = !addresses.iter().any(|known| known.link == link.index && known.address == own);
        let namespace =
            namespace.try_clone().map_err(|error| Obstacle::system("the network namespace", &error))?;
        let mut port = Port {
            settings: settings.clone(),
            index: link.index,
            mac,
            router: [0; 6],
            mtu: link.mtu,
            is_given,
            namespace,
        };
        port.keep()?;
        port.router = port.find(&mut netlink)?;
        Ok(port)
    }

    /// An interface whose other end is known, and that needs no address.
    pub fn directly(
        namespace: &Namespace,
        settings: tester::Port,
        link: &Link,
        other: Mac,
    ) -> Result<Port, Obstacle> {
        let namespace =
            namespace.try_clone().map_err(|error| Obstacle::system("the network namespace", &error))?;
        let mac = link.mac.unwrap_or_default();
        let (index, mtu) = (link.index, link.mtu);
        Ok(Port { settings, index, mac, router: other, mtu, is_given: false, namespace })
    }

    /// Has the address stay for a while longer; within [`LIFETIME`] again.
    pub fn keep(&self) -> Result<(), Obstacle> {
        if !self.is_given {
            return Ok(());
        }
        let (address, length) = self.settings.address;
        let mut netlink =
            Netlink::open(&self.namespace).map_err(|e| Obstacle::system(&e.action, &e.source))?;
        let given = netlink.lend_address(&self.settings.interface, address, length, LIFETIME);
        given.map_err(|error| Obstacle::system(&error.action, &error.source))
    }

    /// Sends something to the router that its station has to be known for. (Asked for without, the kernel solicits
    /// from a link-local address, which not every interface has.)
    fn provoke(&self) {
        let (own, router) = (self.settings.address.0, self.settings.router);
        let send = || UdpSocket::bind((own, 0))?.send_to(&[], (router, DISCARD));
        // Where it cannot be sent nobody will answer, which is told.
        let _ = self.namespace.run(send);
    }

    fn find(&self, netlink: &mut Netlink) -> Result<Mac, Obstacle> {
        let router = self.settings.router;
        let started = Instant::now();
        let failed =
            |error: netstage_host::netns::netlink::Error| Obstacle::system(&error.action, &error.source);
        while started.elapsed() < PATIENCE {
            match router {
                IpAddr::V4(_) => netlink.resolve(self.index, router).map_err(failed)?,
                IpAddr::V6(_) => self.provoke(),
            }
            std::thread::sleep(Duration::from_millis(20));
            if let Station::Known(mac) | Station::Stale(mac) =
                netlink.station(self.index, router).map_err(failed)?
            {
                return Ok(mac);
            }
        }
        let name = &self.settings.interface;
        let asked = if router.is_ipv4() { "ARP" } else { "neighbour discovery" };
        Err(Obstacle::new(
            format!("{router} does not answer {asked} at {name}"),
            format!("give the router that address on its end of {name}, and set the link up"),
        ))
    }

    /// Whether packets of this length with these labels can be sent there.
    pub fn check_length(&self, length: u32, labels: u32) -> Result<(), Obstacle> {
        let name = &self.settings.interface;
        let wanted = length + labels * netstage_wire::mpls::ENTRY as u32;
        if wanted <= self.mtu + VLAN_TAG {
            return Ok(());
        }
        Err(Obstacle::new(
            format!("{name} carries packets of {} B, not of {length} B", self.mtu),
            format!("ip link set {name} mtu {wanted}, or leave that size out"),
        ))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.is_given
            && let Ok(mut netlink) = Netlink::open(&self.namespace)
        {
            let (address, length) = self.settings.address;
            // Where it has gone already, with its interface for one, all is as it was.
            let _ = netlink.delete_address(&self.settings.interface, address, length);
        }
    }
}

fn no_interface(name: &str) -> Obstacle {
    Obstacle::new(format!("there is no interface {name}"), "ip link shows those there are")
}

fn check(name: &str, link: &Link) -> Result<(), Obstacle> {
    match link.up {
        true => Ok(()),
        false => Err(Obstacle::new(format!("{name} is down"), format!("ip link set {name} up"))),
    }
}
