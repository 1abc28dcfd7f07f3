//! Loop-free alternates: a watcher of FRR's daemons in a thread of its own, and the alternates it reports.

use crate::fib::{AlternatePath, ProtectedPath};
use netstage_host::log::{Level, Log};
use netstage_host::startup_error::StartupError;
use netstage_routing::lfa::{AlternatePaths, LfaSources, LfaWatcher, NextHop};
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_scenario::router::{InterfaceConfig, RouterConfig};
use nix::sys::eventfd::EventFd;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Watcher of the daemons.
#[derive(Debug)]
pub(super) struct Lfa {
    reports: Receiver<Result<AlternatePaths, String>>,
    _watcher: LfaWatcher,
    /// Reason of the last report why there are no alternates, or `None`; before the first report, there is none.
    last: Option<Option<String>>,
}

impl Lfa {
    /// Starts to watch. The bell rings for each report.
    pub fn begin(sources: LfaSources, bell: Arc<EventFd>) -> Result<Lfa, StartupError> {
        let (sender, reports) = channel();
        let report = move |alternates| {
            // The receiver may have ended.
            let _ = sender.send(alternates);
            let _ = bell.write(1);
        };
        let watcher = LfaWatcher::start(sources, report)
            .map_err(|error| StartupError::from_system("cannot watch FRR's daemons", &error))?;
        Ok(Lfa { reports, _watcher: watcher, last: None })
    }

    /// Returns the alternates of the last report, if there is a new one.
    pub fn poll(
        &mut self,
        router: &RouterConfig,
        log: &Log,
    ) -> Option<BTreeMap<ProtectedPath, AlternatePath>> {
        let report = self.reports.try_iter().last()?;
        let reason = report.as_ref().err().cloned();
        if self.last.as_ref() != Some(&reason) {
            match &reason {
                None => log(Level::Note, "loop-free alternates are those of ospfd's database"),
                Some(reason) => log(Level::Alarm, &format!("there are no loop-free alternates: {reason}")),
            }
            self.last = Some(reason);
        }
        Some(numbered(report.unwrap_or_default(), router))
    }
}

/// Returns alternates with the numbers of the router's interfaces. A neighbor with a bypass LSP needs no alternate that is
/// of use only when the link has failed: the packets would circle if the neighbor has failed.
fn numbered(all: AlternatePaths, router: &RouterConfig) -> BTreeMap<ProtectedPath, AlternatePath> {
    let tunnels = router.rsvp.iter().flat_map(|rsvp| &rsvp.tunnels);
    let bypassed: Vec<Ipv4Addr> = tunnels.filter_map(|tunnel| tunnel.protects).collect();
    let neighbor = |hop: &NextHop| number(hop, &router.interfaces);
    let alternates = all.iter().filter_map(|((hop, label), alternate)| {
        if alternate.needs_neighbor && bypassed.contains(&hop.address) {
            return None;
        }
        let path = AlternatePath {
            to: neighbor(&alternate.to)?,
            labels: alternate.labels.clone(),
            protects_neighbor: alternate.protects_neighbor,
        };
        Some(((neighbor(hop)?, *label), path))
    });
    alternates.collect()
}

fn number(hop: &NextHop, interfaces: &[InterfaceConfig]) -> Option<InterfaceNeighbor> {
    let number = interfaces.iter().position(|interface| interface.name == hop.interface)?;
    Some((number as u32, hop.address.into()))
}
