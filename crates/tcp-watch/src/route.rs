//! Limits by route: new connections to an address use the metrics of a route to it (ip-route(8), `cwnd lock`
//! and `window`). The route copies the previous path, and is deleted at the end.

use super::limit::Limits;
use super::limit_file::{LimitEntry, LimitFile};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::startup_error::StartupError;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Routes with limits, deleted on drop.
pub struct LimitRoutes {
    namespace: Namespace,
    added: Vec<(IpAddr, String)>,
    note: LimitFile,
}

impl LimitRoutes {
    /// Adds a route to each address in the calling thread's namespace.
    pub fn new(limits: Limits, to: &[IpAddr], folder: &Path) -> Result<LimitRoutes, StartupError> {
        let system = |error: io::Error| StartupError::from_system("cannot limit by route", &error);
        let namespace = Namespace::of_this_thread().map_err(system)?;
        let number = namespace.number().map_err(system)?;
        let note = LimitFile::new(folder, "-routes", [number].into()).map_err(system)?;
        let mut routes = LimitRoutes { namespace, added: Vec::new(), note };
        to.iter().try_for_each(|to| routes.add(limits, *to))?;
        Ok(routes)
    }

    fn add(&mut self, limits: Limits, to: IpAddr) -> Result<(), StartupError> {
        let failed = |error: netstage_host::netns::netlink::NetlinkError| StartupError {
            message: format!("cannot add a route to {to}: {error}"),
            remedy: match error.source.raw_os_error() {
                Some(libc::EEXIST) => {
                    format!("the route exists; run ip route change {to} … cwnd lock N window SIZE")
                }
                _ => "run as root or with CAP_NET_ADMIN".into(),
            },
            is_missing: error.source.kind() == io::ErrorKind::PermissionDenied,
        };
        let mut netlink = Netlink::open(&self.namespace).map_err(failed)?;
        let next_hop = netlink.route_to(to, None).map_err(failed)?.ok_or_else(|| {
            StartupError::new(format!("no route to {to}"), format!("check with ip route get {to}"))
        })?;
        let links = netlink.links().map_err(failed)?;
        let link = links.into_iter().find(|link| link.index == next_hop.link);
        let link =
            link.ok_or_else(|| StartupError::new(format!("the link to {to} was removed"), "try again"))?.name;
        // Recorded first: a kill in between leaves at most an entry without a route.
        self.added.push((to, link.clone()));
        let noted = self.added.iter().map(|(to, link)| LimitEntry::Route { to: *to, link: link.clone() });
        self.note
            .write(noted.collect())
            .map_err(|error| StartupError::from_system("cannot save the added routes", &error))?;
        let Limits { cwnd, window } = limits;
        let route = StaticRoute {
            destination: (to, if to.is_ipv4() { 32 } else { 128 }),
            gateway: next_hop.gateway,
            link: &link,
            preferred_source: next_hop.source,
            metrics: Metrics { mtu: next_hop.mtu, window, locked_window: cwnd, ..Metrics::default() },
        };
        netlink.add_route(&route).map_err(|error| {
            self.added.pop();
            failed(error)
        })
    }
}

impl Drop for LimitRoutes {
    fn drop(&mut self) {
        self.added.iter().for_each(|(to, link)| remove(&self.namespace, *to, link));
        self.note.remove();
    }
}

/// Deletes a route if it exists.
pub(super) fn remove(namespace: &Namespace, to: IpAddr, link: &str) {
    let length = if to.is_ipv4() { 32 } else { 128 };
    // The route may have been removed with its link.
    let _ = Netlink::open(namespace).and_then(|mut netlink| netlink.delete_route((to, length), link));
}
