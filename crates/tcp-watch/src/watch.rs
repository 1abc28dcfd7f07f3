//! Windows of a run's TCP flows, observed in the kernel.
//!
//! Flows are given by their endpoints before they start. The caller decides where they are sent, in namespaces
//! of this machine or on this host.

use super::filter::{Filter, MAX_ENTRIES};
use super::flows::{Flows, WatchedFlow};
use super::programs::Programs;
use netstage_agent_api::results::{CompletedWindow, WatchedWindows};
use netstage_agent_api::watch::{FlowSpec, WatchSpec};
use netstage_core::tcp::event::{FlowEvent, FlowEventKind};
use netstage_core::tcp::history::{Bin, JoinedHistory, WindowHistory};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Interval of emptying the kernel's ring, which holds the records of a much longer time.
const READ_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

/// BPF programs that record the flows.
pub struct WindowWatch {
    spec: WatchSpec,
    programs: Box<Programs>,
}

impl WindowWatch {
    /// Starts recording senders in these network namespaces, given by their inodes.
    pub fn start(spec: WatchSpec, namespaces: Vec<u64>) -> Result<WindowWatch, StartupError> {
        // The kernel's number of a namespace has 32 bits.
        let mut namespaces: Vec<u32> = namespaces.into_iter().map(|number| number as u32).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        // With too many namespaces, the records of all are examined.
        if namespaces.len() > MAX_ENTRIES {
            namespaces.clear();
        }
        let programs = Programs::load(Filter { namespaces, ..Filter::default() });
        let programs = programs.map_err(|obstacle| StartupError {
            message: format!("[measure] tcp = \"events\": {}", obstacle.message),
            ..obstacle
        })?;
        Ok(WindowWatch { spec, programs: Box::new(programs) })
    }

    /// Starts recording senders in the network namespace of this thread.
    pub fn start_here(spec: WatchSpec) -> Result<WindowWatch, StartupError> {
        let own = Namespace::of_this_thread().and_then(|own| own.number());
        // Without its number, the records of all namespaces are examined.
        WindowWatch::start(spec, own.into_iter().collect())
    }

    /// Records until `over` is set; times are relative to `epoch`. `report` receives each bin of each flow soon
    /// after its end.
    pub fn run(
        self,
        epoch: Epoch,
        over: &AtomicBool,
        mut report: impl FnMut(CompletedWindow),
    ) -> WatchedWindows {
        let WindowWatch { spec, mut programs } = self;
        let mut histories = FlowHistories::new(&spec);
        let mut flows = Flows::new(epoch.0);
        let mut reported_bins = 0;
        loop {
            // Records before the end are read too.
            let over = over.load(Ordering::Relaxed);
            let now = epoch.now();
            programs.poll(|record, origin| {
                flows.handle(record, origin, &mut |flow, event| histories.handle(flow, event));
            });
            while reported_bins < spec.bins
                && Instant::ZERO + spec.interval * (reported_bins as u64 + 1) <= now
            {
                histories.ended(reported_bins, &mut report);
                reported_bins += 1;
            }
            if over {
                break;
            }
            thread::sleep(READ_INTERVAL);
        }
        WatchedWindows {
            flows: histories.finish(),
            lost: programs.lost(),
            missing: programs.missing().to_vec(),
        }
    }
}

/// Windows of all flows, from closed and open connections.
struct FlowHistories<'a> {
    spec: &'a WatchSpec,
    /// Flows by the addresses of both ends.
    between: BTreeMap<(IpAddr, IpAddr), Vec<usize>>,
    joined: Vec<JoinedHistory>,
    /// Open connections by number, with the index of their flow.
    open: BTreeMap<usize, (usize, WindowHistory)>,
}

impl<'a> FlowHistories<'a> {
    fn new(spec: &'a WatchSpec) -> FlowHistories<'a> {
        let mut between: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, flow) in spec.flows.iter().enumerate() {
            between.entry((flow.source.address, flow.destination.address)).or_default().push(index);
        }
        let joined = vec![JoinedHistory::new(spec.interval, spec.bins); spec.flows.len()];
        FlowHistories { spec, between, joined, open: BTreeMap::new() }
    }

    fn handle(&mut self, flow: &WatchedFlow, event: &FlowEvent) {
        if event.kind == FlowEventKind::Began
            && let Some(index) = self.find_flow(flow)
        {
            self.open.insert(flow.id, (index, WindowHistory::growing(self.spec.interval, self.spec.bins)));
        }
        let Some((_, history)) = self.open.get_mut(&flow.id) else { return };
        history.handle(event);
        if event.kind == FlowEventKind::Ended
            && let Some((index, history)) = self.open.remove(&flow.id)
        {
            self.joined[index].add(&history.finish(event.time));
        }
    }

    /// Returns the index of the flow to which a connection belongs, by its sender's addresses.
    fn find_flow(&self, flow: &WatchedFlow) -> Option<usize> {
        let candidates = self.between.get(&(flow.local.ip(), flow.remote.ip()))?;
        let matches = |index: &&usize| {
            let FlowSpec { source, destination, .. } = &self.spec.flows[**index];
            source.is(flow.local) && destination.is(flow.remote)
        };
        candidates.iter().find(matches).copied()
    }

    /// Reports the current state of a bin of each flow.
    fn ended(&self, bin: usize, report: &mut impl FnMut(CompletedWindow)) {
        for (index, flow) in self.spec.flows.iter().enumerate() {
            let mut joined = self.joined[index].single_bin(bin);
            for (_, history) in self.open.values().filter(|(number, _)| *number == index) {
                joined.add(&[history.bin_at_end(bin)]);
            }
            let window = joined.finish()[0];
            report(CompletedWindow { subject: flow.subject.clone(), bin: bin as u32, window });
        }
    }

    fn finish(mut self) -> Vec<(String, Vec<Bin>)> {
        let end = Instant::ZERO + self.spec.interval * self.spec.bins as u64;
        for (index, history) in self.open.into_values() {
            self.joined[index].add(&history.finish(end));
        }
        let subjects = self.spec.flows.iter().map(|flow| flow.subject.clone());
        subjects.zip(self.joined.into_iter().map(JoinedHistory::finish)).collect()
    }
}
