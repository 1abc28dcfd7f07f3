//! The kernel's own routes, labels and neighbours: whatever sets them (a routing daemon, `ip route`), the
//! router forwards by them.

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

/// What is new.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// What routes and labels lead to.
    pub changes: Vec<Change>,
    /// Neighbours, and their stations.
    pub neighbours: Vec<(Neighbour, Option<Mac>)>,
    /// Interfaces or their addresses may have changed.
    pub links: bool,
}

/// The kernel's tables, followed.
#[derive(Debug)]
pub struct Kernel {
    feed: Feed,
    netlink: Netlink,
    names: Names,
    ranked: Ranked,
    /// Whose station was known when it was told last.
    known: BTreeSet<Neighbour>,
}

impl Kernel {
    /// Begins to follow a namespace's. Nothing is known before it is [`load`](Kernel::load)ed.
    pub fn open(namespace: &Namespace) -> io::Result<Kernel> {
        let feed = Feed::open(namespace)?;
        Ok(Kernel {
            feed,
            netlink: Netlink::open(namespace)?,
            names: Names::default(),
            ranked: Ranked::default(),
            known: BTreeSet::new(),
        })
    }

    /// Everything as it is now, by these names: what has to change for it.
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
        // Neighbours of an interface that is gone are not told to be.
        let mut gone = std::mem::take(&mut self.known);
        for (link, address, station) in self.netlink.neighbours()? {
            news.neighbours.extend(self.neighbour(link, address, station));
        }
        gone.retain(|neighbour| !self.known.contains(neighbour));
        news.neighbours.extend(gone.into_iter().map(|neighbour| (neighbour, None)));
        Ok(news)
    }

    /// What has changed since it was asked last, some of it at least.
    pub fn poll(&mut self) -> Result<News, Error> {
        const MOST: usize = 4096;
        let (mut news, mut is_overrun) = (News::default(), false);
        let failed = |source| Error { action: "follow routes".into(), source };
        for _ in 0..MOST {
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
        // With a link that goes down routes go of which the kernel does not tell.
        if is_overrun || news.links {
            let names = std::mem::take(&mut self.names);
            let all = self.load(names)?;
            news.changes.extend(all.changes);
            news.neighbours.extend(all.neighbours);
        }
        Ok(news)
    }

    /// Has the kernel find a neighbour's station; what it finds is news.
    pub fn find(&mut self, (interface, address): Neighbour) {
        let link = self.names.interfaces.iter().find(|(_, number)| **number == interface);
        if let Some((link, _)) = link {
            // Where it cannot even ask, packets wait in vain, which is counted.
            let _ = self.netlink.resolve(*link, address);
        }
    }

    /// What it knows of routes and labels.
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
            Some(_) => self.known.insert((interface, address)),
            None => self.known.remove(&(interface, address)),
        };
        Some(((interface, address), mac))
    }
}

impl AsFd for Kernel {
    /// Readable when there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}
