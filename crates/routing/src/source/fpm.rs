//! Routes and labels from FRR's forwarding plane manager (module `dplane_fpm_nl`). Each frame has a header
//! and one or more netlink messages, which [`route`](super::route) parses.
//!
//! The end of a session or the start of a new one does not change any route. Routes of the old session
//! remain for [`HOLD_TIME`] and are removed if the new session has not sent them again by then. The protocol
//! has no mark for the end of the initial routes.

use super::RankedRoutes;
use super::route::{KernelIds, ParsedRoute, Subject, parse, subject};
use crate::source::path::{Destination, RoutePath, SourceChange, TablePrefix};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netstage_core::time::{Duration, Instant};
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// Time for which routes remain after their session has ended, and after the next one has begun. Equal to
/// the restart time BGP speakers usually grant a restarting peer (RFC 4724).
pub const HOLD: Duration = Duration::from_secs(120);

/// Delay before a removal takes effect. FRR changes a route by removing and adding it; within this time the
/// old route stays in use.
const REPLACE_DELAY: Duration = Duration::from_millis(100);

/// Length of the frame header, bytes: version, message type, and length of the frame.
const HEADER: usize = 4;
const VERSION: u8 = 1;
const NETLINK: u8 = 1;
/// Length of the netlink message header, bytes: length, type, flags, sequence number and port ID.
const MESSAGE_HEADER: usize = 16;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEXTHOP: u16 = 104;

/// Reasons to close a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpmFault {
    /// Unsupported version or message type.
    Unknown {
        /// Version in the frame header.
        version: u8,
        /// Message type in the frame header.
        kind: u8,
    },
    /// Frame length below the length of the header.
    TooShort,
    /// Next hops sent separately from routes (next-hop groups).
    NextHopGroups,
}

impl fmt::Display for FpmFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FpmFault::Unknown { version, kind } => write!(
                f,
                "unsupported FPM version {version}, message type {kind}; load zebra's module dplane_fpm_nl"
            ),
            FpmFault::TooShort => f.write_str("frame shorter than its header"),
            FpmFault::NextHopGroups => f.write_str(
                "next-hop groups are not supported; configure `no fpm use-next-hop-groups` in zebra",
            ),
        }
    }
}

/// Routes and labels received from a forwarding plane manager. Call
/// [`handle_connected`](FpmRoutes::handle_connected) when a session begins, then
/// [`handle_bytes`](FpmRoutes::handle_bytes), and [`handle_closed`](FpmRoutes::handle_closed) when it ends.
/// After each of these and after [`handle_timeout`](FpmRoutes::handle_timeout), take the changes from
/// [`poll_change`](FpmRoutes::poll_change).
#[derive(Debug)]
pub struct FpmRoutes {
    names: KernelIds,
    ranked: RankedRoutes,
    /// Routes and labels to be removed unless they are sent again, with their deadlines.
    expiring: BTreeMap<Subject, Instant>,
    deadlines: BTreeSet<(Instant, Subject)>,
    /// Bytes of an incomplete frame.
    partial: Vec<u8>,
    /// Next hops of LSPs, by interface and outermost label.
    lsps: BTreeMap<(u32, LabelValue), IpAddr>,
    /// Routes whose paths lack the next hop of an LSP.
    incomplete: BTreeMap<(TablePrefix, u32), Vec<RoutePath>>,
    changes: VecDeque<SourceChange>,
    unreadable: u64,
}

impl FpmRoutes {
    /// Creates an empty set of routes with the kernel's IDs of interfaces and tables.
    pub fn new(names: KernelIds) -> FpmRoutes {
        FpmRoutes {
            names,
            ranked: RankedRoutes::default(),
            expiring: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            partial: Vec::new(),
            lsps: BTreeMap::new(),
            incomplete: BTreeMap::new(),
            changes: VecDeque::new(),
            unreadable: 0,
        }
    }

    /// Starts a new session and ends the previous one, if any.
    pub fn handle_connected(&mut self, now: Instant) {
        self.hold(now);
    }

    /// Ends the session.
    pub fn handle_closed(&mut self, now: Instant) {
        self.hold(now);
    }

    /// Handles received bytes. After an error the session must be closed.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<(), FpmFault> {
        let partial = std::mem::take(&mut self.partial);
        let joined = [&partial, bytes].concat();
        let mut rest = &joined[..];
        while let Some(&[version, kind, high, low]) = rest.first_chunk::<HEADER>() {
            if version != VERSION || kind != NETLINK {
                return Err(FpmFault::Unknown { version, kind });
            }
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length < HEADER {
                return Err(FpmFault::TooShort);
            }
            let Some((frame, after)) = rest.split_at_checked(length) else { break };
            self.handle_frame(now, &frame[HEADER..])?;
            rest = after;
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    /// Removes routes and labels whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, subject)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)
        {
            self.deadlines.remove(&(deadline, subject));
            self.expiring.remove(&subject);
            self.changes.extend(self.ranked.remove(subject));
        }
    }

    /// Returns the time at which to call [`handle_timeout`](FpmRoutes::handle_timeout).
    pub fn poll_timeout(&self) -> Instant {
        self.deadlines.first().map_or(Instant::NEVER, |(deadline, _)| *deadline)
    }

    /// Returns the next change of a route or label.
    pub fn poll_change(&mut self) -> Option<SourceChange> {
        self.changes.pop_front()
    }

    /// Returns the current routes and labels.
    pub fn ranked(&self) -> &RankedRoutes {
        &self.ranked
    }

    /// Sets the kernel's IDs for later messages. Existing routes stay unchanged.
    pub fn set_names(&mut self, names: KernelIds) {
        self.names = names;
    }

    /// Returns the number of route messages that could not be parsed.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    fn hold(&mut self, now: Instant) {
        self.partial.clear();
        let subjects: Vec<Subject> = self.ranked.subjects().collect();
        for subject in subjects {
            self.cancel_expiry(subject);
            self.expire_at(subject, now + HOLD);
        }
    }

    fn expire_at(&mut self, subject: Subject, deadline: Instant) {
        self.expiring.insert(subject, deadline);
        self.deadlines.insert((deadline, subject));
    }

    fn cancel_expiry(&mut self, subject: Subject) {
        if let Some(deadline) = self.expiring.remove(&subject) {
            self.deadlines.remove(&(deadline, subject));
        }
    }

    fn handle_frame(&mut self, now: Instant, mut rest: &[u8]) -> Result<(), FpmFault> {
        while rest.len() >= MESSAGE_HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            // A truncated or too short message ends the frame, but not the session.
            let message = rest.get(..length).filter(|message| message.len() >= MESSAGE_HEADER);
            let Some(message) = message else {
                self.unreadable += 1;
                return Ok(());
            };
            match kind {
                RTM_NEWROUTE | RTM_DELROUTE => self.handle_route(now, message),
                RTM_NEWNEXTHOP => return Err(FpmFault::NextHopGroups),
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
        self.cancel_expiry(subject);
        if let Subject::Route(prefix, rank) = subject {
            self.incomplete.remove(&(prefix, rank));
        }
        // Removals do not carry a destination. A route that no longer leads to a known interface is removed,
        // too.
        let change = match parse(&route, &self.names).filter(|_| is_new) {
            Some(ParsedRoute::Route(prefix, rank, Some(Destination::Paths(paths)))) => {
                return self.handle_paths(prefix, rank, paths);
            }
            Some(ParsedRoute::Route(prefix, rank, to)) => self.ranked.route(prefix, rank, to),
            Some(ParsedRoute::Label(label, meaning)) => self.ranked.label(label, Some(meaning)),
            None => {
                self.expire_at(subject, now + REPLACE_DELAY);
                None
            }
        };
        self.changes.extend(change);
    }

    /// Adds routes with missing next hops. FRR omits the next hop of an IPv6 route over an IPv4 LSP (RFC
    /// 4798). It is the next hop of the LSP, which is known from the outermost label.
    fn handle_paths(&mut self, prefix: TablePrefix, rank: u32, mut paths: Vec<RoutePath>) {
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
            self.incomplete.insert((prefix, rank), paths);
        }
        if new_lsps {
            for ((prefix, rank), paths) in std::mem::take(&mut self.incomplete) {
                self.handle_paths(prefix, rank, paths);
            }
        }
    }
}

#[cfg(test)]
#[path = "fpm_tests.rs"]
mod tests;
