//! Limits by route: connections to an address that begin from now on have what a route to it says (ip-route(8), `cwnd
//! lock` and `window`). The route leads where the one before did, and is taken away again.

use super::limit::Limits;
use super::note::{Note, Noted};
use netstage_host::netns::routes::{Metrics, Route};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Routes with limits; dropped, they are taken away.
pub struct Routes {
    namespace: Namespace,
    added: Vec<(IpAddr, String)>,
    note: Note,
}

impl Routes {
    /// Adds a route to each address, in the calling thread's namespace.
    pub fn new(limits: Limits, to: &[IpAddr], folder: &Path) -> Result<Routes, Obstacle> {
        let system = |error: io::Error| Obstacle::system("a limit by route", &error);
        let namespace = Namespace::of_this_thread().map_err(system)?;
        let number = namespace.number().map_err(system)?;
        let note = Note::new(folder, "-routes", [number].into()).map_err(system)?;
        let mut routes = Routes { namespace, added: Vec::new(), note };
        to.iter().try_for_each(|to| routes.add(limits, *to))?;
        Ok(routes)
    }

    fn add(&mut self, limits: Limits, to: IpAddr) -> Result<(), Obstacle> {
        let failed = |error: netstage_host::netns::netlink::Error| Obstacle {
            message: format!("no route to {to} can be added: {error}"),
            remedy: match error.source.raw_os_error() {
                Some(libc::EEXIST) => {
                    format!("there is one already: ip route change {to} … cwnd lock N window SIZE")
                }
                _ => "root, or CAP_NET_ADMIN".into(),
            },
            is_missing: error.source.kind() == io::ErrorKind::PermissionDenied,
        };
        let mut netlink = Netlink::open(&self.namespace).map_err(failed)?;
        let way = netlink.way_to(to, None).map_err(failed)?.ok_or_else(|| {
            Obstacle::new(
                format!("there is no way to {to}"),
                format!("ip route get {to} shows what is missing"),
            )
        })?;
        let links = netlink.links().map_err(failed)?;
        let link = links.into_iter().find(|link| link.index == way.link);
        let link = link.ok_or_else(|| Obstacle::new(format!("the link to {to} has gone"), "try again"))?.name;
        // Noted first: what is killed in between leaves at most a note of nothing.
        self.added.push((to, link.clone()));
        let noted = self.added.iter().map(|(to, link)| Noted::Route { to: *to, link: link.clone() });
        self.note
            .write(noted.collect())
            .map_err(|error| Obstacle::system("limits cannot be kept", &error))?;
        let Limits { cwnd, window } = limits;
        let route = Route {
            destination: (to, if to.is_ipv4() { 32 } else { 128 }),
            gateway: way.gateway,
            link: &link,
            preferred_source: way.source,
            metrics: Metrics { mtu: way.mtu, window, locked_window: cwnd, ..Metrics::default() },
        };
        netlink.add_route(&route).map_err(|error| {
            self.added.pop();
            failed(error)
        })
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        self.added.iter().for_each(|(to, link)| remove(&self.namespace, *to, link));
        self.note.remove();
    }
}

/// Takes a route away, if it is there.
pub(super) fn remove(namespace: &Namespace, to: IpAddr, link: &str) {
    let length = if to.is_ipv4() { 32 } else { 128 };
    // It may have gone with its link.
    let _ = Netlink::open(namespace).and_then(|mut netlink| netlink.delete_route((to, length), link));
}
