//! Path checks of flows between two hosts of which at least one is behind NAT, after ICE (RFC 8445). Both ends of a flow
//! send checks to all addresses at which the other end may be reached. An end's own checks open the mapping of its NAT,
//! through which those of the other end then pass. The sender selects the path, and the receiver learns from the
//! sender's selecting check which one that is.
//!
//! The caller authenticates checks and answers, and answers each check itself.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Time within which a path has to be found. The two ends begin up to a round trip of the controller apart.
const LIMIT: Duration = Duration::from_secs(5);
/// Time for which a sender waits for the answer of a preferred address, after the first answer.
const PREFERENCE_TIME: Duration = Duration::from_millis(300);
/// Time until a check is repeated, which doubles up to a maximum.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_millis(800);
/// Maximum number of checks to a host from which nothing has arrived, over all flows.
const MAX_UNANSWERED: u32 = 32;
/// Maximum number of addresses of the other end of a flow.
const MAX_REMOTES: usize = 16;

/// End of a flow whose path is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRole {
    /// Sender of the flow, which selects the path.
    Sender,
    /// Receiver of the flow.
    Receiver,
}

/// Check that is to be sent, or was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathCheck {
    /// Index of the flow.
    pub flow: usize,
    /// Address of the other end.
    pub to: SocketAddr,
    /// The sender has selected this path, and the check announces that to the receiver.
    pub selects: bool,
}

/// Path checks of one agent.
///
/// ```
/// use netstage_core::fleet::{PathChecks, PathRole};
/// use netstage_core::time::Instant;
///
/// let to = "192.0.2.1:5001".parse().unwrap();
/// let mut checks = PathChecks::new(vec![(PathRole::Sender, vec![to])], Instant::ZERO);
/// let check = checks.poll_transmit(Instant::ZERO).unwrap();
/// checks.handle_response(Instant(1), check);
/// let selecting = checks.poll_transmit(Instant(1)).unwrap();
/// assert!(selecting.selects);
/// checks.handle_response(Instant(2), selecting);
/// assert_eq!((checks.path(0), checks.is_done(Instant(2))), (Some(to), true));
/// ```
#[derive(Clone, Debug)]
pub struct PathChecks {
    flows: Vec<CheckedFlow>,
    /// Number of checks to each host from which nothing has arrived; `None` after something has.
    unanswered: BTreeMap<IpAddr, Option<u32>>,
    end: Instant,
}

#[derive(Clone, Debug)]
struct CheckedFlow {
    role: PathRole,
    /// Addresses of the other end in order of preference; those learned from its checks are last.
    remotes: Vec<Remote>,
    first_answer: Option<Instant>,
    selected: Option<SocketAddr>,
    /// The other end knows the selection.
    is_complete: bool,
}

#[derive(Clone, Debug)]
struct Remote {
    address: SocketAddr,
    due: Instant,
    interval: Duration,
    is_answered: bool,
}

impl PathChecks {
    /// Starts the checks of flows, each with the addresses of its other end in order of preference.
    pub fn new(flows: Vec<(PathRole, Vec<SocketAddr>)>, now: Instant) -> PathChecks {
        let flow = |(role, remotes): (PathRole, Vec<SocketAddr>)| CheckedFlow {
            role,
            remotes: remotes.into_iter().take(MAX_REMOTES).map(|address| Remote::new(address, now)).collect(),
            first_answer: None,
            selected: None,
            is_complete: false,
        };
        let flows = flows.into_iter().map(flow).collect();
        PathChecks { flows, unanswered: BTreeMap::new(), end: now + LIMIT }
    }

    /// Handles an authenticated check of the other end of a flow.
    pub fn handle_request(&mut self, now: Instant, flow: usize, from: SocketAddr, selects: bool) {
        self.unanswered.insert(from.ip(), None);
        let flow = &mut self.flows[flow];
        if let Some(remote) = flow.remotes.iter_mut().find(|remote| remote.address == from) {
            // The mapping is open now, so the next check may pass.
            remote.due = remote.due.min(now);
        } else if flow.remotes.len() < MAX_REMOTES {
            flow.remotes.push(Remote::new(from, now));
        }
        if selects && flow.role == PathRole::Receiver {
            flow.selected = Some(from);
            flow.is_complete = true;
        }
    }

    /// Handles the authenticated answer to a check.
    pub fn handle_response(&mut self, now: Instant, check: PathCheck) {
        self.unanswered.insert(check.to.ip(), None);
        let flow = &mut self.flows[check.flow];
        if let Some(remote) = flow.remotes.iter_mut().find(|remote| remote.address == check.to) {
            remote.is_answered = true;
            flow.first_answer.get_or_insert(now);
        }
        if check.selects && flow.selected == Some(check.to) {
            flow.is_complete = true;
        }
    }

    /// Returns the next check to send now, if any.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<PathCheck> {
        if now >= self.end {
            return None;
        }
        for (index, flow) in self.flows.iter_mut().enumerate() {
            flow.select(now);
            while let Some(remote) = flow.next_remote().filter(|remote| remote.due <= now) {
                let to = remote.address;
                remote.due = now + remote.interval;
                remote.interval = (remote.interval * 2).min(MAX_INTERVAL);
                let unanswered = self.unanswered.entry(to.ip()).or_insert(Some(0));
                match unanswered {
                    Some(count) if *count >= MAX_UNANSWERED => remote.due = Instant::NEVER,
                    _ => {
                        *unanswered = unanswered.map(|count| count + 1);
                        return Some(PathCheck { flow: index, to, selects: flow.selected == Some(to) });
                    }
                }
            }
        }
        None
    }

    /// Returns the time of the next call of [`PathChecks::poll_transmit`].
    pub fn poll_timeout(&self) -> Instant {
        let dues = self.flows.iter().flat_map(|flow| {
            let preference_over = flow.first_answer.filter(|_| flow.is_selecting());
            let remotes = flow.remotes.iter().filter(|remote| flow.checks(remote)).map(|remote| remote.due);
            remotes.chain(preference_over.map(|first| first + PREFERENCE_TIME))
        });
        dues.min().unwrap_or(Instant::NEVER).min(self.end)
    }

    /// Returns whether all paths are found, or the time is over.
    pub fn is_done(&self, now: Instant) -> bool {
        now >= self.end || self.flows.iter().all(|flow| flow.is_complete)
    }

    /// Returns the address of the other end on the path of a flow, if one was found.
    pub fn path(&self, flow: usize) -> Option<SocketAddr> {
        let flow = &self.flows[flow];
        flow.selected.filter(|_| flow.is_complete)
    }
}

impl Remote {
    fn new(address: SocketAddr, now: Instant) -> Remote {
        Remote { address, due: now, interval: FIRST_INTERVAL, is_answered: false }
    }
}

impl CheckedFlow {
    /// Returns whether this end has an answer, and still waits for those of preferred addresses.
    fn is_selecting(&self) -> bool {
        self.role == PathRole::Sender && self.selected.is_none()
    }

    /// Selects the most preferred path that was answered.
    fn select(&mut self, now: Instant) {
        let Some(first) = self.first_answer.filter(|_| self.is_selecting()) else { return };
        let mut answered = self.remotes.iter_mut().enumerate().filter(|(_, remote)| remote.is_answered);
        if let Some((rank, remote)) = answered.next()
            && (rank == 0 || now >= first + PREFERENCE_TIME)
        {
            (remote.due, remote.interval) = (now, FIRST_INTERVAL);
            self.selected = Some(remote.address);
        }
    }

    /// Returns whether checks are still sent to this address.
    fn checks(&self, remote: &Remote) -> bool {
        !self.is_complete
            && match (self.role, self.selected) {
                (PathRole::Sender, Some(selected)) => remote.address == selected,
                _ => !remote.is_answered,
            }
    }

    fn next_remote(&mut self) -> Option<&mut Remote> {
        let next = (0..self.remotes.len())
            .filter(|index| self.checks(&self.remotes[*index]))
            .min_by_key(|index| self.remotes[*index].due)?;
        Some(&mut self.remotes[next])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    const MS: u64 = 1_000_000;

    /// NAT with one host behind it. The host has the private address 10.0.0.1:1 in any case.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        /// No NAT: all packets pass unchanged.
        Public,
        /// One mapping, and packets pass only from addresses to which the host has sent.
        Restricted,
        /// One mapping for each address to which the host sends, which also is the only one from which packets pass.
        Symmetric,
        /// One mapping, and all packets pass.
        FullCone,
    }

    struct Nat {
        kind: Kind,
        ip: IpAddr,
        /// Addresses to which the host has sent, with the port of the mapping.
        sent: BTreeMap<SocketAddr, u16>,
    }

    impl Nat {
        fn new(kind: Kind, ip: &str) -> Nat {
            Nat { kind, ip: ip.parse().unwrap(), sent: BTreeMap::new() }
        }

        /// Returns the address that a packet to `to` has outside.
        fn leave(&mut self, to: SocketAddr) -> SocketAddr {
            let next = 2000 + self.sent.len() as u16;
            let port = match self.kind {
                Kind::Symmetric => *self.sent.entry(to).or_insert(next),
                _ => *self.sent.entry(to).or_insert(1000),
            };
            SocketAddr::new(self.ip, port)
        }

        /// Returns whether a packet reaches the host.
        fn admits(&self, from: SocketAddr, to: SocketAddr) -> bool {
            let is_known = self.sent.get(&from) == Some(&to.port());
            match self.kind {
                Kind::Public | Kind::FullCone => to == SocketAddr::new(self.ip, 1000),
                Kind::Restricted | Kind::Symmetric => to.ip() == self.ip && is_known,
            }
        }
    }

    /// Runs the checks of one flow between a sender (0) and a receiver (1) behind NATs, the receiver beginning later.
    /// Returns the paths of both, and the number of checks sent.
    fn run(kinds: [Kind; 2], later_ms: u64, seed: u64) -> ([Option<SocketAddr>; 2], usize) {
        let mut random = RandomStream::new(seed, "paths");
        let mut nats = [Nat::new(kinds[0], "198.51.100.1"), Nat::new(kinds[1], "203.0.113.1")];
        // The mapping that STUN reports.
        let server = "192.0.2.1:4730".parse().unwrap();
        let mapped = [nats[0].leave(server), nats[1].leave(server)];
        let start = [0, later_ms * MS];
        let private = "10.0.0.9:5001".parse().unwrap();
        let mut ends = [PathRole::Sender, PathRole::Receiver].map(|role| {
            let own = usize::from(role == PathRole::Receiver);
            PathChecks::new(vec![(role, vec![private, mapped[1 - own]])], Instant(start[own]))
        });
        // Packets in flight: arrival, receiving end, source, check, and whether it is an answer.
        let mut flight: Vec<(u64, usize, SocketAddr, PathCheck, bool)> = Vec::new();
        let mut sent = 0;
        for step in 0..6000 {
            let now = Instant(step * MS);
            let mut arrived: Vec<_> = flight.extract_if(.., |packet| packet.0 <= now.0).collect();
            arrived.sort_by_key(|packet| packet.0);
            for (_, own, from, check, is_answer) in arrived {
                if now.0 < start[own] {
                    continue;
                }
                if is_answer {
                    ends[own].handle_response(now, check);
                    continue;
                }
                ends[own].handle_request(now, 0, from, check.selects);
                let seen = nats[own].leave(from);
                if nats[1 - own].admits(seen, from) && seen == check.to {
                    flight.push((now.0 + (5 + random.below(40)) * MS, 1 - own, seen, check, true));
                }
            }
            for own in [0, 1] {
                while let Some(check) = ends[own].poll_transmit(now).filter(|_| now.0 >= start[own]) {
                    sent += 1;
                    let from = nats[own].leave(check.to);
                    // One of ten packets is lost.
                    if nats[1 - own].admits(from, check.to) && random.below(10) > 0 {
                        flight.push((now.0 + (5 + random.below(40)) * MS, 1 - own, from, check, false));
                    }
                }
            }
        }
        ([ends[0].path(0), ends[1].path(0)], sent)
    }

    #[test]
    fn a_path_is_found_exactly_where_the_nats_admit_one() {
        let kinds = [Kind::Public, Kind::Restricted, Kind::Symmetric, Kind::FullCone];
        let blocked: BTreeSet<_> = [
            (Kind::Symmetric, Kind::Symmetric),
            (Kind::Symmetric, Kind::Restricted),
            (Kind::Restricted, Kind::Symmetric),
        ]
        .map(|(one, other)| (one as u8, other as u8))
        .into();
        for sender in kinds {
            for receiver in kinds {
                for later_ms in [0, 30, 700] {
                    let (paths, sent) = run([sender, receiver], later_ms, later_ms);
                    let is_found = !blocked.contains(&(sender as u8, receiver as u8));
                    let both = paths.map(|path| path.is_some());
                    assert_eq!(
                        both, [is_found; 2],
                        "{sender:?} to {receiver:?} after {later_ms} ms: {paths:?}"
                    );
                    assert!(sent < 50, "{sent} checks");
                }
            }
        }
    }

    #[test]
    fn a_silent_host_receives_a_limited_number_of_checks() {
        let silent: Vec<SocketAddr> =
            (0..8).map(|port| SocketAddr::new("192.0.2.1".parse().unwrap(), 5000 + port)).collect();
        let flows = (0..100).map(|_| (PathRole::Sender, silent.clone())).collect();
        let mut checks = PathChecks::new(flows, Instant::ZERO);
        let (mut now, mut sent) = (Instant::ZERO, 0);
        while !checks.is_done(now) {
            sent += core::iter::from_fn(|| checks.poll_transmit(now)).count();
            now = checks.poll_timeout().max(now + Duration(1));
        }
        assert_eq!((sent, checks.path(0)), (MAX_UNANSWERED as usize, None));
    }

    #[test]
    fn the_preferred_address_is_selected_if_it_answers_in_time() {
        let [first, second] = ["[2001:db8::1]:5001", "192.0.2.1:5001"].map(|text| text.parse().unwrap());
        for (after_ms, expected) in [(100, first), (400, second)] {
            let mut checks = PathChecks::new(vec![(PathRole::Sender, vec![first, second])], Instant::ZERO);
            let answer = |to| PathCheck { flow: 0, to, selects: false };
            checks.handle_response(Instant(MS), answer(second));
            while checks.poll_transmit(Instant(MS)).is_some_and(|check| !check.selects) {}
            let at = Instant(MS + after_ms * MS);
            let before = checks.poll_transmit(Instant(at.0 - 1)).filter(|check| check.selects);
            checks.handle_response(at, answer(first));
            let selecting =
                before.or_else(|| core::iter::from_fn(|| checks.poll_transmit(at)).find(|c| c.selects));
            assert_eq!(selecting.map(|check| check.to), Some(expected), "after {after_ms} ms");
        }
    }
}
