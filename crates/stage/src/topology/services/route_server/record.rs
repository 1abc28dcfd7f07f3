//! Record of a member: its routes per bin, its session, and the time until it has followed each change.

use super::held::HeldRoutes;
use super::{MemberReport, RouteServerSpec};
use netstage_core::time::{Duration, Instant};
use netstage_routing::bgp::session::BgpEvent;
use netstage_routing::bgp::speaker::SpeakerReport;

/// Record of a member during a run.
pub struct MemberRecord {
    report: MemberReport,
    routes: HeldRoutes,
    interval: Duration,
    /// Start of the current bin, and end of the run.
    bin: Instant,
    end: Instant,
    /// The session is established, and its time in the current bin up to `accounted`.
    is_up: bool,
    session_ns: u64,
    accounted: Instant,
    /// Routes to be received after the start.
    all: u32,
    complete: Option<Instant>,
    awaited: Vec<AwaitedChange>,
}

/// Change of another member, whose effects a member must receive.
struct AwaitedChange {
    /// Position in the changes of the route server, and index of the changed member.
    number: usize,
    member: usize,
    /// Time of the change, time from which its effects are final, and time of the member's next change.
    start: Instant,
    end: Instant,
    next: Instant,
    /// Routes of the changed member after the change.
    expected: u32,
    /// The number of routes differs, or has differed, from the expected one.
    has_differed: bool,
    /// Time since which the number of routes is as expected.
    settled: Option<Instant>,
}

impl MemberRecord {
    /// Creates the record of the member with this index.
    pub fn new(spec: &RouteServerSpec, member: usize) -> MemberRecord {
        let server = &spec.server;
        let others = (0..server.members.len()).filter(|other| *other != member);
        let changes = server.changes.iter().enumerate().filter(|(_, change)| change.member != member);
        let awaited = changes.map(|(number, change)| {
            let later = &server.changes[number + 1..];
            let next = later.iter().find(|other| other.member == change.member);
            let before = Instant(change.at.0.saturating_sub(1));
            let expected = server.accepted(change.member, change.at);
            AwaitedChange {
                number,
                member: change.member,
                start: change.at,
                end: change.end(),
                next: next.map_or(Instant::NEVER, |next| next.at),
                expected,
                has_differed: server.accepted(change.member, before) != expected,
                settled: None,
            }
        });
        let addresses = spec.members.iter().map(|(_, address)| *address);
        MemberRecord {
            report: MemberReport { node: spec.members[member].0.clone(), ..MemberReport::default() },
            routes: HeldRoutes::new(server, addresses),
            interval: spec.interval,
            bin: Instant::ZERO,
            end: Instant::ZERO + spec.duration,
            is_up: false,
            session_ns: 0,
            accounted: Instant::ZERO,
            all: others.map(|other| server.accepted(other, Instant::ZERO)).sum(),
            complete: None,
            awaited: awaited.collect(),
        }
    }

    /// Records a report of the member's session.
    pub fn handle(&mut self, now: Instant, report: &SpeakerReport) {
        if now >= self.end {
            return;
        }
        self.advance(now);
        match report {
            SpeakerReport::Session(BgpEvent::Established(_)) => self.is_up = true,
            SpeakerReport::Session(BgpEvent::Down(reason)) if self.is_up => {
                self.is_up = false;
                self.routes.clear();
                let at = now.since(Instant::ZERO).as_secs_f64();
                self.report.session_ends.push(format!("the BGP session ended at {at:.3} s: {reason}"));
                self.settle(now);
            }
            SpeakerReport::Session(BgpEvent::Update(update)) => {
                self.routes.apply(update);
                self.settle(now);
            }
            _ => {}
        }
    }

    /// Records that the speaker could not run.
    pub fn fail(&mut self, error: &std::io::Error) {
        self.report.session_ends.push(format!("no BGP session: {error}"));
    }

    /// Completes the bins that have ended.
    fn advance(&mut self, now: Instant) {
        loop {
            let bin_end = self.bin + self.interval;
            let time = now.min(bin_end);
            if self.is_up {
                self.session_ns += time.since(self.accounted).0;
            }
            self.accounted = time;
            if now < bin_end {
                return;
            }
            self.report.routes.push(self.routes.total());
            self.report.hijacked.push(self.routes.hijacked());
            self.report.received.push(self.routes.take_received());
            self.report.session_ns.push(std::mem::take(&mut self.session_ns));
            self.bin = bin_end;
        }
    }

    /// Compares the numbers of routes with the expected ones.
    fn settle(&mut self, now: Instant) {
        if self.complete.is_none() && self.routes.total() == self.all {
            self.complete = Some(now);
        }
        for change in self.awaited.iter_mut().filter(|change| change.start <= now && now < change.next) {
            let is_expected = self.routes.by_holder(change.member) == change.expected;
            change.has_differed |= !is_expected;
            if !is_expected {
                change.settled = None;
            } else if change.has_differed && change.settled.is_none() {
                change.settled = Some(now);
            }
        }
    }

    /// Returns the results, with the time to follow the start (0) and each change (numbered from 1).
    pub fn finish(&mut self) -> (MemberReport, Vec<(usize, Duration)>) {
        self.advance(self.end);
        let start = self.complete.map(|at| (0, at.since(Instant::ZERO)));
        let settled = self.awaited.iter().filter_map(|change| {
            let settled = change.settled?.max(change.end);
            Some((change.number + 1, settled.since(change.end)))
        });
        let convergence = start.into_iter().chain(settled).collect();
        (std::mem::take(&mut self.report), convergence)
    }
}
