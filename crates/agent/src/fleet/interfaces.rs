//! Interfaces of the agent's host: their addresses, and those by which packets leave.

use netstage_core::fleet::Policy;
use netstage_host::netns::netlink::Netlink;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nameindex};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Returns the addresses of the interfaces that are up, without link-local ones; those of loopback last.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let is_routable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let mut found = all_addresses();
    found.retain(|(_, address)| is_routable(address));
    found.sort_by_key(|(_, address)| address.is_loopback());
    found
}

/// Returns the addresses of the interfaces that are up.
pub fn all_addresses() -> Vec<(String, IpAddr)> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let found = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP)).filter_map(|one| {
        let storage = one.address?;
        let address = storage
            .as_sockaddr_in()
            .map(|v4| IpAddr::from(v4.ip()))
            .or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))?;
        Some((one.interface_name, address))
    });
    found.collect()
}

/// Outgoing interfaces according to the kernel's routes. Empty if the policy does not restrict interfaces.
pub struct OutgoingInterfaces {
    routes: Option<RefCell<Netlink>>,
    /// Names of interfaces, by index.
    names: BTreeMap<u32, String>,
}

impl OutgoingInterfaces {
    /// Returns the interfaces of this host.
    pub fn here(policy: &Policy) -> OutgoingInterfaces {
        let routes = policy
            .interfaces
            .as_ref()
            .and_then(|_| Netlink::open_in_current_namespace().ok())
            .map(RefCell::new);
        let all = if_nameindex();
        let names = all.iter().flat_map(|all| all.iter());
        let names = names.map(|one| (one.index(), one.name().to_string_lossy().into_owned())).collect();
        OutgoingInterfaces { routes, names }
    }

    /// Returns the name of the interface by which packets leave, if the policy restricts interfaces.
    pub fn interface(&self, from: IpAddr, to: IpAddr) -> Option<&str> {
        let way = self.routes.as_ref()?.borrow_mut().route_to(to, Some(from)).ok()??;
        self.names.get(&way.link).map(String::as_str)
    }
}
