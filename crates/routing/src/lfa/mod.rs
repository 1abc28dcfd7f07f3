//! Loop-free alternates (RFC 5286) from FRR's daemons: the link-state database of ospfd, and the labels that ldpd has
//! received from neighbors. Of these, FRR installs only those of its own next hops. With labels, packets can be tunneled to
//! remote alternates (RFC 7490): routers with which ldpd has targeted sessions.
//!
//! - [`database`]: link-state database; [`labels`]: labels of neighbors; `vty`: command line of a daemon.
//!
//! The daemons are asked at intervals, since they report no changes there. While they do not respond, there are no
//! alternates. ldpd is not asked if its configuration has access lists: a process of ldpd that checks one waits for the
//! process that serves the command line, which waits for the former's bindings, both for ever.

pub mod database;
pub mod labels;
mod vty;

use database::{DatabaseText, LinkState, OspfNeighbor, Prefix};
use labels::LabelBindings;
use netstage_core::lfa::graph::Vertex;
use netstage_core::lfa::{Alternate, Alternates};
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vty::Vty;

/// Interval between requests to the daemons.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum ratio of the interval to the time of the previous requests, which limits their load in large networks.
const IDLE_RATIO: u32 = 20;

/// Neighbor on an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// Name of the interface.
    pub interface: String,
    /// Address of the neighbor.
    pub address: Ipv4Addr,
}

/// Packets to a neighbor, all those with some outermost label or all without labels.
pub type ProtectedPath = (NextHop, Option<LabelValue>);

/// Path of these packets while the neighbor or the link to it has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// Another neighbor.
    pub to: NextHop,
    /// Labels in place of the outermost one: none if the neighbor is the last router but one, and two in a tunnel.
    pub labels: Vec<LabelValue>,
    /// The path does not lead through the failed neighbor.
    pub protects_neighbor: bool,
    /// Nobody reaches the destination without the neighbor, so the path is of use only if the link has failed.
    pub needs_neighbor: bool,
}

/// Alternates of all protected paths.
pub type AlternatePaths = BTreeMap<ProtectedPath, AlternatePath>;

/// Sockets of FRR's daemons.
#[derive(Clone, Debug)]
pub struct LfaSources {
    /// Command line of ospfd.
    pub ospfd: PathBuf,
    /// Command line of ldpd, if packets have its labels.
    pub ldpd: Option<PathBuf>,
}

/// Requests to the daemons in a thread of their own. Dropping it ends the thread.
#[derive(Debug)]
pub struct LfaWatcher {
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LfaWatcher {
    /// Starts to ask the daemons. `report` receives the alternates when they change, or the reason why there are none.
    pub fn start(
        sources: LfaSources,
        report: impl Fn(Result<AlternatePaths, String>) + Send + 'static,
    ) -> io::Result<LfaWatcher> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&is_stopping);
        let watch = move || {
            let mut last = None;
            while !stopping.load(Ordering::Acquire) {
                let began = Instant::now();
                let present = ask(&sources);
                if last.as_ref() != Some(&present) {
                    report(present.clone());
                    last = Some(present);
                }
                thread::park_timeout(INTERVAL.max(began.elapsed() * IDLE_RATIO));
            }
        };
        let thread = thread::Builder::new().name("lfa".into()).spawn(watch)?;
        Ok(LfaWatcher { is_stopping, thread: Some(thread) })
    }
}

impl Drop for LfaWatcher {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Returns the present alternates.
fn ask(sources: &LfaSources) -> Result<AlternatePaths, String> {
    let [routers, external, neighbors] = responses(
        &sources.ospfd,
        [
            "show ip ospf database router json",
            "show ip ospf database external json",
            "show ip ospf neighbor json",
        ],
    )?;
    let text = DatabaseText { routers: &routers, external: &external, neighbors: &neighbors };
    let link_state = LinkState::read(text)?;
    let Some(ldpd) = &sources.ldpd else { return Ok(without_labels(&link_state)) };
    let [_, configuration] = responses(ldpd, ["enable", "show running-config"])?;
    if let Some(command) = labels::access_list(&configuration) {
        return Err(format!(
            "{}: ldpd cannot be asked while its configuration has `{command}`",
            ldpd.display()
        ));
    }
    let [bindings, discovery] =
        responses(ldpd, ["show mpls ldp binding json", "show mpls ldp discovery json"])?;
    Ok(with_labels(&link_state, &LabelBindings::read(&bindings, &discovery)?))
}

/// Returns the responses of a daemon to commands.
fn responses<const N: usize>(path: &Path, commands: [&str; N]) -> Result<[String; N], String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut vty = Vty::connect(path).map_err(failed)?;
    let mut responses = [const { String::new() }; N];
    for (response, command) in responses.iter_mut().zip(commands) {
        *response = vty.ask(command).map_err(failed)?;
    }
    Ok(responses)
}

/// Returns the alternates of packets with labels. A label of a neighbor stands for a prefix, and is replaced with that of the
/// alternate for the same prefix.
pub fn with_labels(network: &LinkState, bindings: &LabelBindings) -> AlternatePaths {
    let ends: BTreeMap<Vertex, Ipv4Addr> =
        bindings.targeted().filter_map(|router| Some((*network.routers.get(&router)?, router))).collect();
    let tunnels: Vec<Vertex> = ends.keys().copied().collect();
    let alternates = Alternates::new(&network.graph, network.here, network.adjacencies.clone(), &tunnels);
    let label = |index: usize, prefix: Prefix| {
        let OspfNeighbor { router, interface, .. } = &network.neighbors[index];
        bindings.label(interface, *router, prefix)
    };
    let is_pushed = |label: &LabelValue| *label != LabelValue::IMPLICIT_NULL;
    let mut found: BTreeMap<ProtectedPath, Option<AlternatePath>> = BTreeMap::new();
    for (prefix, vertex) in &network.prefixes {
        for primary in alternates.primaries(*vertex) {
            // Packets without a label may have any label below it.
            let Some(pushed) = label(primary, *prefix).filter(is_pushed) else { continue };
            let of = |Alternate { adjacency, tunnel, protects_neighbor, .. }: Alternate| {
                let labels = match tunnel {
                    None => vec![label(adjacency, *prefix)?],
                    Some(end) => {
                        let end = ends[&end];
                        // Without a label of its own, the tunnel cannot end behind the neighbor.
                        let outer = label(adjacency, (end, 32)).filter(is_pushed)?;
                        vec![outer, bindings.label_of(end, *prefix)?]
                    }
                };
                Some(AlternatePath {
                    to: next_hop(network, adjacency),
                    labels: labels.into_iter().filter(is_pushed).collect(),
                    protects_neighbor,
                    needs_neighbor: !alternates.survives(primary, *vertex),
                })
            };
            let best = alternates.of(primary, *vertex).into_iter().find_map(of);
            match found.entry((next_hop(network, primary), Some(pushed))) {
                Entry::Vacant(entry) => drop(entry.insert(best)),
                // Prefixes with the same label, such as explicit null, need the same alternate.
                Entry::Occupied(mut entry) if *entry.get() != best => *entry.get_mut() = None,
                Entry::Occupied(_) => {}
            }
        }
    }
    found.into_iter().filter_map(|(path, alternate)| Some((path, alternate?))).collect()
}

/// Returns the alternates of packets without labels: for each neighbor, another one that is an alternate for all prefixes
/// behind it.
pub fn without_labels(network: &LinkState) -> AlternatePaths {
    let alternates = Alternates::new(&network.graph, network.here, network.adjacencies.clone(), &[]);
    let mut common: BTreeMap<usize, BTreeMap<usize, bool>> = BTreeMap::new();
    for vertex in network.prefixes.values() {
        for primary in alternates.primaries(*vertex) {
            let chosen = alternates.of(primary, *vertex);
            // A path can do no more for prefixes that need the neighbor, such as its own.
            let needs_neighbor = !alternates.survives(primary, *vertex);
            let protects = |alternate: &Alternate| alternate.protects_neighbor || needs_neighbor;
            let others: BTreeMap<usize, bool> =
                chosen.iter().map(|alternate| (alternate.adjacency, protects(alternate))).collect();
            let all = common.entry(primary).or_insert_with(|| others.clone());
            all.retain(|other, _| others.contains_key(other));
            all.iter_mut().for_each(|(other, protects)| *protects &= others[other]);
        }
    }
    let path = |(primary, others): (usize, BTreeMap<usize, bool>)| {
        let (other, protects_neighbor) = others.into_iter().max_by_key(|(_, protects)| *protects)?;
        let to = next_hop(network, other);
        let alternate = AlternatePath { to, labels: Vec::new(), protects_neighbor, needs_neighbor: false };
        Some(((next_hop(network, primary), None), alternate))
    };
    common.into_iter().filter_map(path).collect()
}

fn next_hop(network: &LinkState, index: usize) -> NextHop {
    let OspfNeighbor { interface, address, .. } = &network.neighbors[index];
    NextHop { interface: interface.clone(), address: *address }
}

#[cfg(test)]
mod tests;
