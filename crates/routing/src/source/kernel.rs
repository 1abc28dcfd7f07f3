//! Routes, labels and neighbors of the kernel. The router forwards by them, whether a routing daemon or `ip
//! route` set them.

use super::RankedRoutes;
use super::route::{KernelIds, ParsedRoute, parse};
use crate::source::path::InterfaceNeighbor;
use crate::source::path::SourceChange;
use netstage_host::netns::lookup::KernelNeighbor;
use netstage_host::netns::netlink::NetlinkError;
use netstage_host::netns::route_monitor::{RouteMonitor, RouteNotification};
use netstage_host::netns::{Namespace, Netlink};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Changes since the last poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KernelChanges {
    /// Changed routes and labels.
    pub changes: Vec<SourceChange>,
    /// Changed neighbors with their MAC addresses; `None` if unresolved.
    pub neighbors: Vec<(InterfaceNeighbor, Option<Mac>)>,
    /// `true` if interfaces or their addresses may have changed.
    pub links: bool,
}

/// Mirror of the kernel's routing tables.
#[derive(Debug)]
pub struct KernelRoutes {
    feed: RouteMonitor,
    netlink: Netlink,
    names: KernelIds,
    ranked: RankedRoutes,
    /// Neighbors whose MAC address was known at the last update.
    resolved: BTreeSet<InterfaceNeighbor>,
}

impl KernelRoutes {
    /// Opens the netlink sockets in a namespace. The mirror is empty until [`load`](KernelRoutes::load) is
    /// called.
    pub fn open(namespace: &Namespace) -> io::Result<KernelRoutes> {
        let feed = RouteMonitor::open(namespace)?;
        Ok(KernelRoutes {
            feed,
            netlink: Netlink::open(namespace)?,
            names: KernelIds::default(),
            ranked: RankedRoutes::default(),
            resolved: BTreeSet::new(),
        })
    }

    /// Reads all routes and neighbors again with these IDs, and returns the differences.
    pub fn load(&mut self, names: KernelIds) -> Result<KernelChanges, NetlinkError> {
        self.names = names;
        let mut fresh = RankedRoutes::default();
        for route in self.netlink.routes()? {
            match parse(&route, &self.names) {
                Some(ParsedRoute::Route(prefix, rank, to)) => drop(fresh.route(prefix, rank, to)),
                Some(ParsedRoute::Label(label, meaning)) => drop(fresh.label(label, Some(meaning))),
                None => {}
            }
        }
        let mut news = KernelChanges { changes: self.ranked.replace(fresh), ..KernelChanges::default() };
        // The kernel does not report neighbors of a removed interface as gone.
        let mut gone = std::mem::take(&mut self.resolved);
        for (link, address, station) in self.netlink.neighbors()? {
            news.neighbors.extend(self.neighbor(link, address, station));
        }
        gone.retain(|neighbor| !self.resolved.contains(neighbor));
        news.neighbors.extend(gone.into_iter().map(|neighbor| (neighbor, None)));
        Ok(news)
    }

    /// Returns changes since the last call; further changes may remain for the next call.
    pub fn poll(&mut self) -> Result<KernelChanges, NetlinkError> {
        const MAX_MESSAGES: usize = 4096;
        let (mut news, mut is_overrun) = (KernelChanges::default(), false);
        let failed = |source| NetlinkError { action: "follow routes".into(), source };
        for _ in 0..MAX_MESSAGES {
            match self.feed.poll().map_err(failed)? {
                None => break,
                Some(RouteNotification::Route(route, is_new)) => {
                    news.changes.extend(match parse(&route, &self.names) {
                        Some(ParsedRoute::Route(prefix, rank, to)) => {
                            self.ranked.route(prefix, rank, to.filter(|_| is_new))
                        }
                        Some(ParsedRoute::Label(label, meaning)) => {
                            self.ranked.label(label, is_new.then_some(meaning))
                        }
                        None => None,
                    })
                }
                Some(RouteNotification::Neighbor(link, address, station)) => {
                    news.neighbors.extend(self.neighbor(link, address, station));
                }
                Some(RouteNotification::Link) => news.links = true,
                Some(RouteNotification::Overrun) => is_overrun = true,
            }
        }
        // The kernel does not report the routes that disappear with a link.
        if is_overrun || news.links {
            let names = std::mem::take(&mut self.names);
            let all = self.load(names)?;
            news.changes.extend(all.changes);
            news.neighbors.extend(all.neighbors);
        }
        Ok(news)
    }

    /// Asks the kernel to resolve a neighbor's MAC address; the result arrives by
    /// [`poll`](KernelRoutes::poll).
    pub fn resolve(&mut self, (interface, address): InterfaceNeighbor) {
        let link = self.names.interfaces.iter().find(|(_, number)| **number == interface);
        if let Some((link, _)) = link {
            // If the request fails, the packets keep waiting and are counted.
            let _ = self.netlink.resolve(*link, address);
        }
    }

    /// Returns the kernel's routes and labels.
    pub fn ranked(&self) -> &RankedRoutes {
        &self.ranked
    }

    fn neighbor(
        &mut self,
        link: u32,
        address: std::net::IpAddr,
        station: KernelNeighbor,
    ) -> Option<(InterfaceNeighbor, Option<Mac>)> {
        let interface = *self.names.interfaces.get(&link)?;
        let mac = match station {
            KernelNeighbor::Reachable(mac) | KernelNeighbor::Stale(mac) => Some(mac),
            KernelNeighbor::Unknown => None,
        };
        match mac {
            Some(_) => self.resolved.insert((interface, address)),
            None => self.resolved.remove(&(interface, address)),
        };
        Some(((interface, address), mac))
    }
}

impl AsFd for KernelRoutes {
    /// Returns the netlink socket, readable when changes are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}
