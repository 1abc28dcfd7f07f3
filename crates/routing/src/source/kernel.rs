//! Routes, labels and neighbors of the kernel. The router forwards by them, whether a routing daemon or `ip
//! route` set them.

use super::Ranked;
use super::route::{Names, Told, told};
use crate::source::path::Change;
use crate::source::path::Neighbour;
use netstage_host::netns::feed::{Feed, Heard};
use netstage_host::netns::lookup::Station;
use netstage_host::netns::netlink::Error;
use netstage_host::netns::{Namespace, Netlink};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Changes since the last poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Changed routes and labels.
    pub changes: Vec<Change>,
    /// Changed neighbors with their MAC addresses; `None` if unresolved.
    pub neighbours: Vec<(Neighbour, Option<Mac>)>,
    /// `true` if interfaces or their addresses may have changed.
    pub links: bool,
}

/// Mirror of the kernel's routing tables.
#[derive(Debug)]
pub struct Kernel {
    feed: Feed,
    netlink: Netlink,
    names: Names,
    ranked: Ranked,
    /// Neighbors whose MAC address was known at the last update.
    resolved: BTreeSet<Neighbour>,
}

impl Kernel {
    /// Opens the netlink sockets in a namespace. The mirror is empty until [`load`](KernelRoutes::load) is
    /// called.
    pub fn open(namespace: &Namespace) -> io::Result<Kernel> {
        let feed = Feed::open(namespace)?;
        Ok(Kernel {
            feed,
            netlink: Netlink::open(namespace)?,
            names: Names::default(),
            ranked: Ranked::default(),
            resolved: BTreeSet::new(),
        })
    }

    /// Reads all routes and neighbors anew with these IDs, and returns the differences.
    pub fn load(&mut self, names: Names) -> Result<News, Error> {
        self.names = names;
        let mut fresh = Ranked::default();
        for route in self.netlink.routes()? {
            match told(&route, &self.names) {
                Some(Told::Route(prefix, rank, to)) => drop(fresh.route(prefix, rank, to)),
                Some(Told::Label(label, meaning)) => drop(fresh.label(label, Some(meaning))),
                None => {}
            }
        }
        let mut news = News { changes: self.ranked.replace(fresh), ..News::default() };
        // The kernel does not report neighbors of a removed interface as gone.
        let mut gone = std::mem::take(&mut self.resolved);
        for (link, address, station) in self.netlink.neighbours()? {
            news.neighbours.extend(self.neighbour(link, address, station));
        }
        gone.retain(|neighbour| !self.resolved.contains(neighbour));
        news.neighbours.extend(gone.into_iter().map(|neighbour| (neighbour, None)));
        Ok(news)
    }

    /// Returns changes since the last call; further changes may remain for the next call.
    pub fn poll(&mut self) -> Result<News, Error> {
        const MAX_MESSAGES: usize = 4096;
        let (mut news, mut is_overrun) = (News::default(), false);
        let failed = |source| Error { action: "follow routes".into(), source };
        for _ in 0..MAX_MESSAGES {
            match self.feed.poll().map_err(failed)? {
                None => break,
                Some(Heard::Route(route, is_new)) => news.changes.extend(match told(&route, &self.names) {
                    Some(Told::Route(prefix, rank, to)) => {
                        self.ranked.route(prefix, rank, to.filter(|_| is_new))
                    }
                    Some(Told::Label(label, meaning)) => self.ranked.label(label, is_new.then_some(meaning)),
                    None => None,
                }),
                Some(Heard::Neighbour(link, address, station)) => {
                    news.neighbours.extend(self.neighbour(link, address, station));
                }
                Some(Heard::Link) => news.links = true,
                Some(Heard::Overrun) => is_overrun = true,
            }
        }
        // The kernel does not report the routes that disappear with a link.
        if is_overrun || news.links {
            let names = std::mem::take(&mut self.names);
            let all = self.load(names)?;
            news.changes.extend(all.changes);
            news.neighbours.extend(all.neighbours);
        }
        Ok(news)
    }

    /// Asks the kernel to resolve a neighbor's MAC address; the result arrives by
    /// [`poll`](KernelRoutes::poll).
    pub fn find(&mut self, (interface, address): Neighbour) {
        let link = self.names.interfaces.iter().find(|(_, number)| **number == interface);
        if let Some((link, _)) = link {
            // If the request fails, the packets keep waiting and are counted.
            let _ = self.netlink.resolve(*link, address);
        }
    }

    /// Returns the kernel's routes and labels.
    pub fn ranked(&self) -> &Ranked {
        &self.ranked
    }

    fn neighbour(
        &mut self,
        link: u32,
        address: std::net::IpAddr,
        station: Station,
    ) -> Option<(Neighbour, Option<Mac>)> {
        let interface = *self.names.interfaces.get(&link)?;
        let mac = match station {
            Station::Known(mac) | Station::Stale(mac) => Some(mac),
            Station::Unknown => None,
        };
        match mac {
            Some(_) => self.resolved.insert((interface, address)),
            None => self.resolved.remove(&(interface, address)),
        };
        Some(((interface, address), mac))
    }
}

impl AsFd for Kernel {
    /// Returns the netlink socket, readable when changes are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}
