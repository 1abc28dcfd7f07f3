//! Diagnoses of all observed flows, for `tcp why` and the end of `tcp watch`.

use super::sentence::sentence;
use crate::cmd::table::{rate, time};
use netstage_core::tcp::diagnosis::{Diagnosis, FlowAccount};
use netstage_core::tcp::event::{FlowEvent, FlowEventKind};
use netstage_core::time::Instant;
use netstage_tcp_watch::flows::WatchedFlow;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of ended flows kept: those that carried most.
const MAX_ENDED: usize = 1_000;

/// Accounts of flows.
#[derive(Debug, Default)]
pub struct Diagnoses {
    open: BTreeMap<usize, (WatchedFlow, FlowAccount)>,
    ended: Vec<DiagnosedFlow>,
}

/// Flow with its diagnosis.
#[derive(Clone, Debug, Serialize)]
pub struct DiagnosedFlow {
    #[serde(flatten)]
    pub flow: WatchedFlow,
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// Finding and remedy.
    pub sentence: String,
}

impl DiagnosedFlow {
    fn new(flow: WatchedFlow, diagnosis: Diagnosis) -> DiagnosedFlow {
        DiagnosedFlow { sentence: sentence(&diagnosis, flow.remote), flow, diagnosis }
    }

    /// Formats the diagnosis: the sentence, the figures and the shares.
    pub fn text(&self) -> String {
        let DiagnosedFlow { flow, diagnosis, sentence } = self;
        let trips = diagnosis.round_trip.map_or(String::new(), |trips| {
            format!(", round trip {} now, {} min", time(trips.now.0), time(trips.min.0))
        });
        let shares = diagnosis.shares.iter().filter(|share| share.percent > 0);
        let shares: Vec<String> =
            shares.map(|share| format!("{} {} %", share.bottleneck.name(), share.percent)).collect();
        format!(
            "{} > {}: {}{trips}, {} retransmits\n  {sentence}\n  {}\n",
            flow.local,
            flow.remote,
            rate(diagnosis.rate.as_f64()),
            diagnosis.retransmissions,
            shares.join(", ")
        )
    }
}

impl Diagnoses {
    /// Adds an event.
    pub fn handle(&mut self, flow: &WatchedFlow, event: &FlowEvent) {
        let (_, account) = self.open.entry(flow.id).or_insert_with(|| (*flow, FlowAccount::default()));
        account.handle(event);
        if event.kind != FlowEventKind::Ended {
            return;
        }
        if let Some((flow, account)) = self.open.remove(&flow.id) {
            self.ended.push(DiagnosedFlow::new(flow, account.diagnose(event.time)));
        }
        if self.ended.len() >= 2 * MAX_ENDED {
            sort(&mut self.ended);
            self.ended.truncate(MAX_ENDED);
        }
    }

    /// Returns whether flows were observed, and all of them ended.
    pub fn have_ended(&self) -> bool {
        self.open.is_empty() && !self.ended.is_empty()
    }

    /// Returns the diagnoses at `now` of flows that sent data, those that carried most first.
    pub fn finish(self, now: Instant) -> Vec<DiagnosedFlow> {
        let mut flows = self.ended;
        flows.extend(
            self.open.into_values().map(|(flow, account)| DiagnosedFlow::new(flow, account.diagnose(now))),
        );
        flows.retain(|flow| flow.diagnosis.outstanding > 0);
        sort(&mut flows);
        flows
    }
}

fn sort(flows: &mut [DiagnosedFlow]) {
    flows.sort_by_key(|flow| (Reverse(flow.diagnosis.acknowledged), flow.flow.id));
}
