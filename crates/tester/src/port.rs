//! Port of the tester: an interface, its address, and the router at the other end.

use netstage_host::netns::lookup::KernelNeighbor;
use netstage_host::netns::netlink::NetworkLink;
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::startup_error::StartupError;
use netstage_scenario::tester;
use netstage_wire::ethernet::Mac;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Lifetime of an address added by the tester. It expires if the tester is killed.
pub const ADDRESS_LIFETIME: Duration = Duration::from_secs(60);
/// Bytes that links carry in addition to their MTU.
const VLAN_TAG: u32 = netstage_wire::ethernet::TAG as u32;
/// Port of the discard protocol (RFC 863).
const DISCARD: u16 = 9;
/// Time limit for resolving the router's MAC address.
const RESOLUTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Interface used by the tester.
#[derive(Debug)]
pub struct OpenPort {
    /// Configuration.
    pub settings: tester::TesterPort,
    /// Interface index.
    pub index: u32,
    /// MAC address of the interface.
    pub mac: Mac,
    /// MAC address of the router.
    pub router: Mac,
    mtu: u32,
    /// Set if the tester added the address to the interface.
    is_address_added: bool,
    namespace: Namespace,
}

impl OpenPort {
    /// Opens an interface: adds the address if missing, and resolves the router's MAC address.
    pub fn open(namespace: &Namespace, settings: &tester::TesterPort) -> Result<OpenPort, StartupError> {
        let name = &settings.interface;
        let failed = |error: netstage_host::netns::netlink::NetlinkError| {
            StartupError::from_system(&error.action, &error.source)
        };
        let mut netlink = Netlink::open(namespace).map_err(failed)?;
        let link = netlink.link(name).map_err(|error| match error.source.raw_os_error() {
            Some(libc::ENODEV) => no_interface(name),
            _ if error.source.kind() == io::ErrorKind::NotFound => no_interface(name),
            _ => failed(error),
        })?;
        let not_ethernet = || {
            StartupError::new(format!("{name} is not an Ethernet interface"), "name an Ethernet interface")
        };
        let mac = link.mac.ok_or_else(not_ethernet)?;
        check_up(name, &link)?;
        let addresses = netlink.addresses().map_err(failed)?;
        let own = settings.address.0;
        let is_address_added =
            !addresses.iter().any(|entry| entry.link == link.index && entry.address == own);
        let namespace = namespace
            .try_clone()
            .map_err(|error| StartupError::from_system("the network namespace", &error))?;
        let mut port = OpenPort {
            settings: settings.clone(),
            index: link.index,
            mac,
            router: [0; 6],
            mtu: link.mtu,
            is_address_added,
            namespace,
        };
        port.renew_address()?;
        port.router = port.resolve_router(&mut netlink)?;
        Ok(port)
    }

    /// Opens an interface without adding an address, toward a router with this MAC address.
    pub fn open_without_address(
        namespace: &Namespace,
        settings: tester::TesterPort,
        link: &NetworkLink,
        router: Mac,
    ) -> Result<OpenPort, StartupError> {
        let namespace = namespace
            .try_clone()
            .map_err(|error| StartupError::from_system("the network namespace", &error))?;
        let mac = link.mac.unwrap_or_default();
        let (index, mtu) = (link.index, link.mtu);
        Ok(OpenPort { settings, index, mac, router, mtu, is_address_added: false, namespace })
    }

    /// Renews the lifetime of the address. To be called again within [`ADDRESS_LIFETIME`].
    pub fn renew_address(&self) -> Result<(), StartupError> {
        if !self.is_address_added {
            return Ok(());
        }
        let (address, length) = self.settings.address;
        let mut netlink =
            Netlink::open(&self.namespace).map_err(|e| StartupError::from_system(&e.action, &e.source))?;
        let result =
            netlink.add_temporary_address(&self.settings.interface, address, length, ADDRESS_LIFETIME);
        result.map_err(|error| StartupError::from_system(&error.action, &error.source))
    }

    /// Sends a packet to the router, to trigger neighbor discovery from the port's address. On a request over
    /// netlink, the kernel solicits from a link-local address, which not every interface has.
    fn trigger_neighbor_discovery(&self) {
        let (own, router) = (self.settings.address.0, self.settings.router);
        let send = || UdpSocket::bind((own, 0))?.send_to(&[], (router, DISCARD));
        // A failure shows as a missing answer.
        let _ = self.namespace.run(send);
    }

    fn resolve_router(&self, netlink: &mut Netlink) -> Result<Mac, StartupError> {
        let router = self.settings.router;
        let started = Instant::now();
        let failed = |error: netstage_host::netns::netlink::NetlinkError| {
            StartupError::from_system(&error.action, &error.source)
        };
        while started.elapsed() < RESOLUTION_TIMEOUT {
            match router {
                IpAddr::V4(_) => netlink.resolve(self.index, router).map_err(failed)?,
                IpAddr::V6(_) => self.trigger_neighbor_discovery(),
            }
            std::thread::sleep(Duration::from_millis(20));
            if let KernelNeighbor::Reachable(mac) | KernelNeighbor::Stale(mac) =
                netlink.neighbor_entry(self.index, router).map_err(failed)?
            {
                return Ok(mac);
            }
        }
        let name = &self.settings.interface;
        let protocol = if router.is_ipv4() { "ARP" } else { "neighbor discovery" };
        Err(StartupError::new(
            format!("{router} does not answer {protocol} at {name}"),
            format!("give the router that address on its end of {name}, and set the link up"),
        ))
    }

    /// Checks that the MTU admits packets of this length with this number of labels.
    pub fn check_length(&self, length: u32, labels: u32) -> Result<(), StartupError> {
        let name = &self.settings.interface;
        let mtu = length + labels * netstage_wire::mpls::ENTRY as u32;
        if mtu <= self.mtu + VLAN_TAG {
            return Ok(());
        }
        Err(StartupError::new(
            format!("the MTU of {name} is {} B, too small for packets of {length} B", self.mtu),
            format!("ip link set {name} mtu {mtu}, or leave that size out"),
        ))
    }
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        if self.is_address_added
            && let Ok(mut netlink) = Netlink::open(&self.namespace)
        {
            let (address, length) = self.settings.address;
            // The address may already be gone, for example with its interface.
            let _ = netlink.delete_address(&self.settings.interface, address, length);
        }
    }
}

fn no_interface(name: &str) -> StartupError {
    StartupError::new(format!("there is no interface {name}"), "list the interfaces with: ip link")
}

fn check_up(name: &str, link: &NetworkLink) -> Result<(), StartupError> {
    match link.up {
        true => Ok(()),
        false => Err(StartupError::new(format!("{name} is down"), format!("ip link set {name} up"))),
    }
}
