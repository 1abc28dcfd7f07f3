//! Routes a session has to send: tables being sent to the peer, and tables to send again later.

use crate::bgp::inject::{Injection, InjectionAction, SendOrder, WriteCounts, write_ends};
use crate::bgp::nlri::BgpFamily;
use crate::bgp::open::{NegotiatedParameters, OpenParameters};
use crate::bgp::path::Encoding;
use crate::bgp::session::ConnectionOpener;
use crate::bgp::table::BgpTable;
use std::collections::VecDeque;
use std::sync::Arc;

/// Limit up to which the send queue is filled with UPDATE messages, bytes.
const MAX_QUEUE: usize = 1 << 20;

pub(super) struct Outbox {
    identity: OpenParameters,
    announced: Vec<(Arc<BgpTable>, SendOrder)>,
    jobs: VecDeque<Job>,
    /// Jobs whose messages are queued but not yet written to the socket.
    queued_jobs: Vec<WriteCounts>,
    encoding: Option<Encoding>,
}

struct Job {
    /// Tables to send, one after the other.
    injections: VecDeque<(Arc<BgpTable>, Injection)>,
    /// Families with an End-of-RIB marker after the routes.
    ends: Vec<BgpFamily>,
    written: WriteCounts,
}

impl Outbox {
    pub(super) fn new(identity: OpenParameters) -> Outbox {
        Outbox {
            identity,
            announced: Vec::new(),
            jobs: VecDeque::new(),
            queued_jobs: Vec::new(),
            encoding: None,
        }
    }

    pub(super) fn announce(
        &mut self,
        table: Arc<BgpTable>,
        order: SendOrder,
        session: Option<(ConnectionOpener, &NegotiatedParameters)>,
    ) {
        self.announced.push((table.clone(), order));
        if let Some((_, negotiated)) = session {
            self.push([(table, order)], InjectionAction::Announce, &negotiated.families, vec![]);
        }
    }

    pub(super) fn withdraw(
        &mut self,
        table: Arc<BgpTable>,
        order: SendOrder,
        session: Option<(ConnectionOpener, &NegotiatedParameters)>,
    ) {
        self.announced.retain(|(announced, _)| !Arc::ptr_eq(announced, &table));
        if let Some((_, negotiated)) = session {
            self.push([(table, order)], InjectionAction::Withdraw, &negotiated.families, vec![]);
        }
    }

    /// A session was established: sends all tables, then the End-of-RIB markers if the peer supports them.
    pub(super) fn begin(&mut self, negotiated: &NegotiatedParameters) {
        self.end();
        self.encoding = Some(self.identity.encoding(negotiated));
        let ends = if negotiated.end_of_rib { negotiated.families.clone() } else { vec![] };
        self.push(self.announced.clone(), InjectionAction::Announce, &negotiated.families, ends);
    }

    /// Sends all routes of a family again, on request of the peer.
    pub(super) fn resend(&mut self, family: BgpFamily) {
        self.push(self.announced.clone(), InjectionAction::Announce, &[family], vec![]);
    }

    /// The session ended.
    pub(super) fn end(&mut self) {
        self.encoding = None;
        self.jobs.clear();
        self.queued_jobs.clear();
    }

    fn push(
        &mut self,
        tables: impl IntoIterator<Item = (Arc<BgpTable>, SendOrder)>,
        action: InjectionAction,
        families: &[BgpFamily],
        ends: Vec<BgpFamily>,
    ) {
        let to_injection = |(table, order): (Arc<BgpTable>, SendOrder)| {
            let injection = Injection::new(&table, action, order, families);
            (table, injection)
        };
        let injections = tables.into_iter().map(to_injection).collect();
        self.jobs.push_back(Job { injections, ends, written: WriteCounts::default() });
    }

    /// Appends messages to the send queue. Returns `true` if any were appended.
    pub(super) fn fill(&mut self, queue: &mut Vec<u8>) -> bool {
        let Some(encoding) = self.encoding else { return false };
        let before = queue.len();
        while queue.len() < MAX_QUEUE {
            let Some(job) = self.jobs.front_mut() else { break };
            let Some((table, injection)) = job.injections.front_mut() else {
                write_ends(&job.ends, queue);
                self.queued_jobs.extend(self.jobs.pop_front().map(|job| job.written));
                continue;
            };
            let written = injection.fill(table, &encoding, MAX_QUEUE, queue);
            if written == WriteCounts::default() {
                job.injections.pop_front();
            }
            job.written.messages += written.messages;
            job.written.routes += written.routes;
        }
        queue.len() > before
    }

    /// Returns the counts of the finished jobs, once everything queued is written to the socket.
    pub(super) fn take_sent(&mut self) -> Vec<WriteCounts> {
        std::mem::take(&mut self.queued_jobs)
    }
}
