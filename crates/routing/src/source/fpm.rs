//! The stream by which FRR's forwarding plane manager tells of routes and labels (module `dplane_fpm_nl`):
//! frames of a header and one or more messages as the kernel has them, which [`route`](super::route) reads.
//!
//! A session that ends, or is opened anew, moves no packet: what was told holds for [`HOLD`], and what has
//! not been told again by then goes. Nothing in the stream says that all has been told.

use super::Ranked;
use super::route::{Names, Subject, Told, subject, told};
use crate::source::path::{Change, Destination, Path, Prefix};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netstage_core::time::{Duration, Instant};
use netstage_wire::mpls::Label;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// How long what a session told holds after it, and after the next one has begun: as long as BGP speakers
/// wait for one that restarts (RFC 4724).
pub const HOLD: Duration = Duration::from_secs(120);

/// A route is told to have gone, and then how it is now; in between it is as it was.
const CHANGING: Duration = Duration::from_millis(100);

/// Version, kind, and the length of all of it.
const HEADER: usize = 4;
const VERSION: u8 = 1;
const NETLINK: u8 = 1;
/// Length, type, flags, sequence number and sender.
const MESSAGE_HEADER: usize = 16;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEXTHOP: u16 = 104;

/// Why a session is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Of a version or kind that is not known.
    Unknown {
        /// The version told.
        version: u8,
        /// The kind of message told.
        kind: u8,
    },
    /// A frame that is shorter than its header.
    TooShort,
    /// Next hops are told apart from routes.
    NextHopGroups,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unknown { version, kind } => write!(
                f,
                "version {version}, messages of kind {kind}: load zebra's module dplane_fpm_nl, which sends netlink"
            ),
            Fault::TooShort => f.write_str("a frame that is shorter than its own header"),
            Fault::NextHopGroups => {
                f.write_str("next hops apart from routes: tell zebra `no fpm use-next-hop-groups`")
            }
        }
    }
}

/// What a manager has told. Call [`handle_connected`](Manager::handle_connected) for each session, then
/// [`handle_bytes`](Manager::handle_bytes), at last [`handle_closed`](Manager::handle_closed); take what
/// changes by [`poll_change`](Manager::poll_change) after each of them and after
/// [`handle_timeout`](Manager::handle_timeout).
#[derive(Debug)]
pub struct Manager {
    names: Names,
    ranked: Ranked,
    /// What goes unless it is told again, and when.
    leaving: BTreeMap<Subject, Instant>,
    due: BTreeSet<(Instant, Subject)>,
    /// What has come of a frame that is not complete.
    partial: Vec<u8>,
    /// The next routers of LSPs, by interface and outermost label.
    lsps: BTreeMap<(u32, Label), IpAddr>,
    /// Routes that wait for one of them.
    waiting: BTreeMap<(Prefix, u32), Vec<Path>>,
    changes: VecDeque<Change>,
    unreadable: u64,
}

impl Manager {
    /// Nothing is told yet; the kernel's numbers are these.
    pub fn new(names: Names) -> Manager {
        Manager {
            names,
            ranked: Ranked::default(),
            leaving: BTreeMap::new(),
            due: BTreeSet::new(),
            partial: Vec::new(),
            lsps: BTreeMap::new(),
            waiting: BTreeMap::new(),
            changes: VecDeque::new(),
            unreadable: 0,
        }
    }

    /// A session begins; one before it is over.
    pub fn handle_connected(&mut self, now: Instant) {
        self.hold(now);
    }

    /// The session is over.
    pub fn handle_closed(&mut self, now: Instant) {
        self.hold(now);
    }

    /// What has come next. After a fault the session is to be closed.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<(), Fault> {
        let partial = std::mem::take(&mut self.partial);
        let joined = [&partial, bytes].concat();
        let mut rest = &joined[..];
        while let Some(&[version, kind, high, low]) = rest.first_chunk::<HEADER>() {
            if version != VERSION || kind != NETLINK {
                return Err(Fault::Unknown { version, kind });
            }
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length < HEADER {
                return Err(Fault::TooShort);
            }
            let Some((frame, behind)) = rest.split_at_checked(length) else { break };
            self.handle_frame(now, &frame[HEADER..])?;
            rest = behind;
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    /// What was not told again in time goes.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, subject)) = self.due.first().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, subject));
            self.leaving.remove(&subject);
            self.changes.extend(self.ranked.remove(subject));
        }
    }

    /// When to call [`handle_timeout`](Manager::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        self.due.first().map_or(Instant::NEVER, |(due, _)| *due)
    }

    /// What routes and labels lead to from now on.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// What it has told, and not taken back.
    pub fn ranked(&self) -> &Ranked {
        &self.ranked
    }

    /// The kernel's numbers are these from now on: of what was told by others nothing changes.
    pub fn set_names(&mut self, names: Names) {
        self.names = names;
    }

    /// Messages of routes that could not be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    fn hold(&mut self, now: Instant) {
        self.partial.clear();
        let subjects: Vec<Subject> = self.ranked.subjects().collect();
        for subject in subjects {
            self.stay(subject);
            self.leave(subject, now + HOLD);
        }
    }

    fn leave(&mut self, subject: Subject, due: Instant) {
        self.leaving.insert(subject, due);
        self.due.insert((due, subject));
    }

    fn stay(&mut self, subject: Subject) {
        if let Some(due) = self.leaving.remove(&subject) {
            self.due.remove(&(due, subject));
        }
    }

    fn handle_frame(&mut self, now: Instant, mut rest: &[u8]) -> Result<(), Fault> {
        while rest.len() >= MESSAGE_HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            // What is cut off, or too short to be a message, ends the frame, not the session.
            let message = rest.get(..length).filter(|message| message.len() >= MESSAGE_HEADER);
            let Some(message) = message else {
                self.unreadable += 1;
                return Ok(());
            };
            match kind {
                RTM_NEWROUTE | RTM_DELROUTE => self.handle_route(now, message),
                RTM_NEWNEXTHOP => return Err(Fault::NextHopGroups),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }

    fn handle_route(&mut self, now: Instant, message: &[u8]) {
        let read = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(|message| message.payload);
        let (route, is_new) = match read {
            Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))) => (route, true),
            Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(route))) => (route, false),
            _ => {
                self.unreadable += 1;
                return;
            }
        };
        let Some(subject) = subject(&route, &self.names) else { return };
        self.stay(subject);
        if let Subject::Route(prefix, rank) = subject {
            self.waiting.remove(&(prefix, rank));
        }
        // What goes need not be told with where it led, and what leads elsewhere leads nowhere here.
        let change = match told(&route, &self.names).filter(|_| is_new) {
            Some(Told::Route(prefix, rank, Some(Destination::Paths(paths)))) => {
                return self.handle_paths(prefix, rank, paths);
            }
            Some(Told::Route(prefix, rank, to)) => self.ranked.route(prefix, rank, to),
            Some(Told::Label(label, meaning)) => self.ranked.label(label, Some(meaning)),
            None => {
                self.leave(subject, now + CHANGING);
                None
            }
        };
        self.changes.extend(change);
    }

    /// FRR leaves out the next router of IPv6 that goes by an LSP of IPv4 (RFC 4798): it is the LSP's own, by
    /// the label that leads into it.
    fn handle_paths(&mut self, prefix: Prefix, rank: u32, mut paths: Vec<Path>) {
        let mut new_lsps = false;
        for path in &mut paths {
            let Some(&outermost) = path.labels.first() else { continue };
            let lsp = (path.interface, outermost);
            match path.via {
                Some(via @ IpAddr::V4(_)) => new_lsps |= self.lsps.insert(lsp, via) != Some(via),
                Some(IpAddr::V6(_)) => {}
                None => path.via = self.lsps.get(&lsp).copied(),
            }
        }
        if paths.iter().all(|path| path.via.is_some() || path.labels.is_empty()) {
            self.changes.extend(self.ranked.route(prefix, rank, Some(Destination::Paths(paths))));
        } else {
            self.waiting.insert((prefix, rank), paths);
        }
        if new_lsps {
            for ((prefix, rank), paths) in std::mem::take(&mut self.waiting) {
                self.handle_paths(prefix, rank, paths);
            }
        }
    }
}

#[cfg(test)]
#[path = "fpm_tests.rs"]
mod tests;
