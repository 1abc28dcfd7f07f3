//! What a session has to announce: tables on their way to the peer, and those to be told again.

use crate::bgp::inject::{Action, Injection, Order, Written, write_ends};
use crate::bgp::machine::Side;
use crate::bgp::nlri::Family;
use crate::bgp::open::{Identity, Negotiated};
use crate::bgp::path::Encoding;
use crate::bgp::table::Table;
use std::collections::VecDeque;
use std::sync::Arc;

/// A buffer is filled as far as this at once.
const FULL: usize = 1 << 20;

pub(super) struct Outbox {
    identity: Identity,
    announced: Vec<(Arc<Table>, Order)>,
    jobs: VecDeque<Job>,
    /// Done, but not yet taken by the system.
    filled: Vec<Written>,
    encoding: Option<Encoding>,
}

struct Job {
    /// One after the other.
    parts: VecDeque<(Arc<Table>, Injection)>,
    /// Families whose end is marked behind them.
    ends: Vec<Family>,
    written: Written,
}

impl Outbox {
    pub(super) fn new(identity: Identity) -> Outbox {
        Outbox { identity, announced: Vec::new(), jobs: VecDeque::new(), filled: Vec::new(), encoding: None }
    }

    pub(super) fn announce(&mut self, table: Arc<Table>, order: Order, session: Option<(Side, &Negotiated)>) {
        self.announced.push((table.clone(), order));
        if let Some((_, negotiated)) = session {
            self.push([(table, order)], Action::Announce, &negotiated.families, vec![]);
        }
    }

    pub(super) fn withdraw(&mut self, table: Arc<Table>, order: Order, session: Option<(Side, &Negotiated)>) {
        self.announced.retain(|(announced, _)| !Arc::ptr_eq(announced, &table));
        if let Some((_, negotiated)) = session {
            self.push([(table, order)], Action::Withdraw, &negotiated.families, vec![]);
        }
    }

    /// A session is up: everything is announced, and its end marked where the peer wants that.
    pub(super) fn begin(&mut self, negotiated: &Negotiated) {
        self.end();
        self.encoding = Some(self.identity.encoding(negotiated));
        let ends = if negotiated.end_of_rib { negotiated.families.clone() } else { vec![] };
        self.push(self.announced.clone(), Action::Announce, &negotiated.families, ends);
    }

    /// The peer wants everything of a family again.
    pub(super) fn answer(&mut self, family: Family) {
        self.push(self.announced.clone(), Action::Announce, &[family], vec![]);
    }

    /// The session is down.
    pub(super) fn end(&mut self) {
        self.encoding = None;
        self.jobs.clear();
        self.filled.clear();
    }

    fn push(
        &mut self,
        tables: impl IntoIterator<Item = (Arc<Table>, Order)>,
        action: Action,
        families: &[Family],
        ends: Vec<Family>,
    ) {
        let part = |(table, order): (Arc<Table>, Order)| {
            let injection = Injection::new(&table, action, order, families);
            (table, injection)
        };
        let parts = tables.into_iter().map(part).collect();
        self.jobs.push_back(Job { parts, ends, written: Written::default() });
    }

    /// Appends messages to what is on its way. Whether there were any.
    pub(super) fn fill(&mut self, queue: &mut Vec<u8>) -> bool {
        let Some(encoding) = self.encoding else { return false };
        let before = queue.len();
        while queue.len() < FULL {
            let Some(job) = self.jobs.front_mut() else { break };
            let Some((table, injection)) = job.parts.front_mut() else {
                write_ends(&job.ends, queue);
                self.filled.extend(self.jobs.pop_front().map(|job| job.written));
                continue;
            };
            let written = injection.fill(table, &encoding, FULL, queue);
            if written == Written::default() {
                job.parts.pop_front();
            }
            job.written.messages += written.messages;
            job.written.routes += written.routes;
        }
        queue.len() > before
    }

    /// What the system has taken, now that everything filled is written.
    pub(super) fn take_sent(&mut self) -> Vec<Written> {
        std::mem::take(&mut self.filled)
    }
}
