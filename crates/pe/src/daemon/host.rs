//! The host a router runs on: its interfaces and addresses, and the kernel's routes to peers.

use netstage_host::netns::lookup::{KernelNeighbor, LocalAddress};
use netstage_host::netns::netlink::NetworkLink;
use netstage_host::netns::settings::TemporarySettings;
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{PeConfig, PeerTunnel};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, UdpSocket};

/// Access to the network configuration of the host through the kernel.
#[derive(Debug)]
pub(super) struct Host {
    pub namespace: Namespace,
    netlink: Netlink,
    taken: Vec<OriginalSettings>,
    /// Interfaces of the router, as they were last seen.
    seen: BTreeMap<String, NetworkLink>,
}

/// Settings of a customer interface before the router took it over.
#[derive(Debug)]
struct OriginalSettings {
    name: String,
    settings: TemporarySettings,
    offloads: Vec<String>,
}

/// Resolved route to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerRoute {
    /// Outgoing interface.
    pub interface: String,
    /// Next router, or the peer itself.
    pub next_hop: IpAddr,
    /// MAC address of the next hop.
    pub mac: Mac,
    /// Path MTU in bytes of an IP or MPLS packet.
    pub mtu: u16,
}

impl Host {
    pub fn current() -> Result<Host, StartupError> {
        let open = || -> io::Result<Host> {
            let namespace = Namespace::of_this_thread()?;
            let netlink = Netlink::open(&namespace)?;
            Ok(Host { namespace, netlink, taken: Vec::new(), seen: BTreeMap::new() })
        };
        open().map_err(|error| {
            StartupError::from_system("cannot query the kernel's network configuration", &error)
        })
    }

    pub fn link(&mut self, name: &str) -> Result<NetworkLink, StartupError> {
        self.netlink.link(name).map_err(|error| match error.source.kind() {
            io::ErrorKind::NotFound => no_interface(name),
            _ if error.source.raw_os_error() == Some(libc::ENODEV) => no_interface(name),
            _ => StartupError::from_system(&error.action, &error.source),
        })
    }

    /// Returns an interface of the router; if it is away at the moment, as it was last seen.
    pub fn router_link(&mut self, name: &str) -> Result<NetworkLink, StartupError> {
        match self.link(name) {
            Ok(link) => {
                self.seen.insert(name.into(), link.clone());
                Ok(link)
            }
            Err(error) => self.seen.get(name).cloned().ok_or(error),
        }
    }

    /// Returns the kernel's numbers of the interfaces of a router that exist.
    pub fn link_numbers(&mut self, router: &PeConfig) -> BTreeMap<String, u32> {
        let own = router.interfaces();
        let links = self.netlink.links().unwrap_or_default().into_iter();
        links.filter(|link| own.contains(&link.name.as_str())).map(|link| (link.name, link.index)).collect()
    }

    /// Returns all local addresses and their interfaces.
    pub fn addresses(&mut self) -> Result<Vec<LocalAddress>, StartupError> {
        self.netlink.addresses().map_err(|error| StartupError::from_system(&error.action, &error.source))
    }

    /// Takes over an interface. The kernel must have no address on it; until the interface is given back or
    /// the router ends, the kernel neither answers nor forwards there. Returns warnings to log.
    pub fn take_over(&mut self, name: &str) -> Result<Vec<String>, StartupError> {
        let link = self.link(name)?;
        if let Some(own) = self.addresses()?.into_iter().find(|own| own.link == link.index) {
            return Err(StartupError::new(
                format!("{name}: the kernel has the address {} on this customer interface", own.address),
                format!("remove it, since the router answers there itself: ip address flush dev {name}"),
            ));
        }
        let mut warnings = Vec::new();
        let offloads = ethtool::enabled_offloads(&self.namespace, name).unwrap_or_default();
        let namespace = self.namespace.try_clone();
        let namespace = namespace
            .map_err(|error| StartupError::from_system("cannot open the network namespace", &error))?;
        let mut taken =
            OriginalSettings { name: name.into(), settings: TemporarySettings::new(namespace), offloads };
        // The slash syntax is required because an interface name may contain dots.
        for (setting, value) in [
            (format!("net/ipv4/conf/{name}/forwarding"), "0"),
            (format!("net/ipv4/conf/{name}/arp_ignore"), "8"),
            (format!("net/ipv6/conf/{name}/disable_ipv6"), "1"),
        ] {
            if let Err(error) = taken.settings.set(&setting, value) {
                warnings.push(format!(
                    "{name}: the kernel may still answer or forward on this interface: {error}"
                ));
            }
        }
        if let Err(error) = ethtool::disable_offloads(&self.namespace, name) {
            warnings
                .push(format!("{name}: offloads are still on, so received frames may be merged: {error}"));
        }
        self.taken.push(taken);
        if !link.up {
            self.netlink
                .set_up(name)
                .map_err(|error| StartupError::from_system(&error.action, &error.source))?;
        }
        Ok(warnings)
    }

    /// Forgets the settings of an interface that was removed. Another one of its name keeps its own.
    pub fn forget(&mut self, name: &str) {
        if let Some(index) = self.taken.iter().position(|taken| taken.name == name) {
            self.taken.swap_remove(index).settings.make_permanent();
        }
    }

    /// Restores the settings of an interface, which may no longer exist.
    pub fn restore(&mut self, name: &str) {
        let Some(index) = self.taken.iter().position(|taken| taken.name == name) else { return };
        let OriginalSettings { settings, offloads, .. } = self.taken.swap_remove(index);
        drop(settings);
        let _ = ethtool::enable_features(&self.namespace, name, &offloads);
    }

    /// Returns the address to send packets to a peer from: the source of the kernel's route, or an address of
    /// a core interface.
    pub fn source_address_to(&mut self, router: &PeConfig, to: IpAddr) -> Result<IpAddr, StartupError> {
        let way = self.netlink.route_to(to, None).ok().flatten();
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
        Err(StartupError::new(
            format!(
                "no source address for {to}: no route to it, and no address of its IP version on {}",
                router.core.join(", ")
            ),
            "set `from` of the tunnel, or add an address to the interface",
        ))
    }

    /// Returns the present route to a peer, or the reason why there is none. Triggers neighbor resolution in
    /// the kernel if the MAC address of the next hop is unknown.
    pub fn route_to_peer(
        &mut self,
        router: &PeConfig,
        tunnel: &PeerTunnel,
        mtu: Option<u16>,
    ) -> Result<PeerRoute, String> {
        let (to, from) = match tunnel {
            PeerTunnel::MplsInUdp { to, from, .. } => (*to, *from),
            PeerTunnel::Mpls { next_hop, .. } => (*next_hop, None),
        };
        let found = self.netlink.route_to(to, from).map_err(|error| error.to_string())?;
        let way = found.ok_or_else(|| format!("no route to {to}"))?;
        if matches!(tunnel, PeerTunnel::Mpls { .. }) && way.gateway.is_some() {
            return Err(format!(
                "{to} is not on a connected link; the route to it goes through {}",
                way.gateway.unwrap_or(to)
            ));
        }
        let links = self.netlink.links().map_err(|error| error.to_string())?;
        let Some(link) = links.into_iter().find(|link| link.index == way.link) else {
            return Err("the interface of the route no longer exists".into());
        };
        if !router.core.contains(&link.name) {
            return Err(format!("the route uses {}, which is not a core interface", link.name));
        }
        if !link.running {
            return Err(format!("{} is down", link.name));
        }
        let next_hop = way.gateway.unwrap_or(to);
        let entry = self.netlink.neighbor_entry(link.index, next_hop).map_err(|error| error.to_string())?;
        if !matches!(entry, KernelNeighbor::Reachable(_)) {
            // The result arrives as a change of the neighbor table.
            let _ = self.netlink.resolve(link.index, next_hop);
            if let IpAddr::V6(next_hop) = next_hop {
                self.trigger_solicitation(link.index, next_hop);
            }
        }
        let (KernelNeighbor::Reachable(mac) | KernelNeighbor::Stale(mac)) = entry else {
            return Err(format!("{next_hop} on {} does not answer", link.name));
        };
        let carried = way.mtu.unwrap_or(link.mtu).min(link.mtu);
        let mtu = mtu.unwrap_or(carried.min(9_216) as u16);
        Ok(PeerRoute { interface: link.name, next_hop, mac, mtu })
    }
}

impl Host {
    /// Sends an empty datagram to the discard port of a neighbor. Without a link-local address of its own,
    /// the kernel solicits a neighbor only for a packet, whose source address it uses.
    fn trigger_solicitation(&self, link: u32, neighbor: Ipv6Addr) {
        let send = || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.send_to(&[], SocketAddrV6::new(neighbor, 9, 0, link))
        };
        // If this fails, too, the peer stays unreachable, which is logged.
        let _ = self.namespace.run(send);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        while let Some(name) = self.taken.last().map(|taken| taken.name.clone()) {
            self.restore(&name);
        }
    }
}

fn no_interface(name: &str) -> StartupError {
    StartupError::new(format!("there is no interface {name}"), "list the interfaces with: ip link")
}
