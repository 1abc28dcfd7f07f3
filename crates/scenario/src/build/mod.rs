//! Builds a plan from the tables of a file: resolves names to indices, computes paths and weights, and checks
//! relations between tables.

mod applications;
mod cuts;
mod flows;
mod links;
mod multicast;
mod placement;
mod route_server;
mod routing;
mod services;
mod tests;
mod tunnels;
mod vpns;
mod weights;

use crate::error::{Problems, SourceRange, did_you_mean};
use crate::file::network::{DuplexLink, NodeTable};
use crate::file::service::ServiceTable;
use crate::file::{ScenarioFile, ScenarioSection};
use crate::plan::routes::{ExplicitPathError, NodeAdjacency};
use crate::plan::{Hop, HostDevice, LinkKind, MeasureConfig, NodeKind, NodePlan, Plan};
use crate::scalar::{NodeName, PositiveDuration};
use crate::table::{Decode, List, Located, NamedTable, NamedTables};
use crate::trace::TraceFiles;
use netstage_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
pub(crate) use vpns::PlacedVpns;

/// Tables of a plan, and the problems, warnings and traces found in the process.
pub(crate) struct Builder<'a, 'b> {
    pub file: &'a ScenarioFile,
    pub problems: &'a mut Problems,
    pub warnings: &'a mut BTreeSet<String>,
    pub traces: &'a mut TraceFiles<'b>,
    /// Graph of the plan built before.
    pub graph: &'a mut Option<Rc<NodeGraph>>,
    /// VPNs of the plan built before.
    pub placed: &'a mut Option<PlacedVpns>,
}

/// Nodes and links by index, and the adjacency of the nodes.
pub(crate) struct NodeGraph {
    kinds: Vec<NodeKind>,
    names: Vec<String>,
    /// Nodes at the ends of each link; `None` for a link with faults. Otherwise a missing path is not reported.
    ends: Vec<Option<[usize; 2]>>,
    topology: NodeAdjacency,
}

impl NodeGraph {
    /// Returns whether every link was read.
    fn is_complete(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }

    /// Returns the nodes at the start and the end of a hop of a path.
    fn hop_ends(&self, hop: Hop) -> [usize; 2] {
        let ends = self.ends[hop.link].expect("a path has links without faults");
        [ends[hop.direction], ends[1 - hop.direction]]
    }
}

impl Builder<'_, '_> {
    /// Returns the plan, or `None` if problems were reported.
    pub fn plan(mut self) -> Option<Plan> {
        let before = self.problems.found();
        let top = SourceRange::new(0, 0..0);
        let head = match &self.file.scenario {
            Some(head) => head.0.as_ref().map(|read| (read, head.place)),
            None => {
                let help = "start the file with:\n[scenario]\nduration = \"60 s\"".replace('\n', " ⏎ ");
                self.problems.push_help(top, "the file needs [scenario] with a `duration`", help);
                None
            }
        };
        let duration = head.and_then(|(head, place)| self.duration(head, place));
        let graph = self.network();
        let network = &*graph;
        self.check_node_settings(network);
        let end = duration.map(|d| if d == Duration::ZERO { Instant::NEVER } else { Instant(d.0) });
        let vpns = &*self.vpns(&graph);
        let mut flows = self.flows(network, vpns, end);
        flows.extend(self.services(network, vpns, end));
        let tests = self.tests(network, vpns);
        let tunnels = self.tunnels(network, vpns, &flows, &tests);
        let routing = self.routing(network);
        let route_server = self.route_server(network, end);
        if self.file.flow.0.is_empty() && !self.has_programs() && self.file.test.0.is_empty() {
            self.problems.push_help(
                top,
                "the scenario defines no flow, service or test",
                "add a [flow.NAME] with `from` and `to`",
            );
        }
        let measure = self.measure(duration);
        let nodes = self.nodes(network);
        if self.problems.found() > before {
            return None;
        }
        let flows: Vec<_> = flows.into_iter().collect::<Option<_>>()?;
        let tests: Vec<_> = tests.into_iter().collect::<Option<_>>()?;
        let weights = self.weights(vpns, &flows)?;
        let vpns = self.finish_vpns(vpns, &weights)?;
        let links = self.links(network, &weights, end)?;
        let plan = Plan {
            title: head?.0.title.clone(),
            duration: duration?,
            lease: head?.0.lease.map(|lease| lease.0),
            nodes,
            links,
            vpns,
            flows,
            tests,
            tunnels,
            routing: routing?,
            route_server: route_server?,
            measure: measure?,
        };
        self.check_size(&plan);
        self.warn(&plan);
        (self.problems.found() == before).then_some(plan)
    }

    /// Returns the duration of a run of the flows: zero if every flow is the load of a test.
    fn duration(&mut self, head: &ScenarioSection, place: SourceRange) -> Option<Duration> {
        if let Some(duration) = head.duration {
            return Some(duration.0);
        }
        let tests = self.file.test.0.iter().filter_map(|test| test.value.as_ref());
        let load: BTreeSet<&str> = tests.flat_map(|t| &t.path().load.0).map(|f| f.as_str()).collect();
        if !self.has_programs()
            && !self.file.test.0.is_empty()
            && self.file.flow.names().all(|name| load.contains(name))
        {
            return Some(Duration::ZERO);
        }
        let help = format!("add `duration`: {}", PositiveDuration::kind().describe());
        self.problems.push_help(place, "missing field `duration` in [scenario]", help);
        None
    }

    /// Returns whether any service has a flow of its own. Routing daemons have none.
    fn has_programs(&self) -> bool {
        let mut services = self.file.service.0.iter();
        services.any(|member| !matches!(member.value.as_deref(), Some(ServiceTable::Frr(_))))
    }

    fn nodes(&mut self, network: &NodeGraph) -> Vec<NodePlan> {
        let mut places = self.places(network);
        let nodes = self.file.node.0.iter().zip(&network.kinds);
        let device = |node: &NodeTable| {
            let device = &node.device.as_ref()?.value;
            Some(HostDevice { rate: device.rate, buffer: device.buffer.0 })
        };
        let node = |(member, kind): (&NamedTable<NodeTable>, &NodeKind)| NodePlan {
            name: member.name.clone(),
            kind: *kind,
            device: member.value.as_deref().and_then(device),
            arp_timeout: member.value.as_ref().and_then(|node| Some(node.arp_timeout.as_ref()?.value.0)),
            placement: places.remove(&member.name),
        };
        nodes.map(node).collect()
    }

    /// Reports settings that do not apply to the kind of the node.
    fn check_node_settings(&mut self, network: &NodeGraph) {
        for (member, kind) in self.file.node.0.iter().zip(&network.kinds) {
            let Some(node) = &member.value else { continue };
            if let Some(device) = node.device.as_ref().filter(|_| *kind != NodeKind::Host) {
                let message = format!("`device` applies to hosts, and `{}` is not a host", member.name);
                self.problems.push_help(device.place, message, "set `rate` and `buffer` of its links");
            }
            if let Some(timeout) = node.arp_timeout.as_ref().filter(|_| *kind != NodeKind::Lan) {
                self.problems.push_help(
                    timeout.place,
                    "`arp_timeout` applies to LANs only",
                    "set kind = \"lan\"",
                );
            }
        }
    }

    /// Returns the graph. It is that of the plan before, which knows its paths, if the two are equal.
    fn network(&mut self) -> Rc<NodeGraph> {
        let nodes = &self.file.node;
        let kinds: Vec<NodeKind> = nodes
            .0
            .iter()
            // A node that was not read counts as a router, which causes no further problems.
            .map(|member| member.value.as_ref().map_or(NodeKind::Router, |node| node.kind.value.0))
            .collect();
        let link_ends = self.file.link.0.iter().map(|member| {
            let link = member.value.as_ref()?;
            let ends = self.ends(link)?;
            self.check_lan(link, ends.map(|end| kinds[end]));
            Some(ends)
        });
        let ends: Vec<Option<[usize; 2]>> = link_ends.collect();
        let is_equal = |graph: &&mut Rc<NodeGraph>| {
            graph.kinds == kinds && graph.ends == ends && graph.names.iter().eq(nodes.names())
        };
        if let Some(graph) = self.graph.as_mut().filter(is_equal) {
            return Rc::clone(graph);
        }
        let joined = ends.iter().enumerate().filter_map(|(link, ends)| Some((link, (*ends)?)));
        let topology = NodeAdjacency::new(&kinds, joined);
        let names = nodes.names().map(str::to_owned).collect();
        Rc::clone(self.graph.insert(Rc::new(NodeGraph { kinds, names, ends, topology })))
    }

    fn ends(&mut self, link: &DuplexLink) -> Option<[usize; 2]> {
        let [first, second] = &link.ends;
        let (a, b) = (self.node(first), self.node(second));
        let (a, b) = (a?, b?);
        if a == b {
            self.problems.push(second.place, format!("both ends of this link are `{}`", second.value.0));
            return None;
        }
        Some([a, b])
    }

    /// Reports a link between two LANs, and a TUN link to a LAN.
    fn check_lan(&mut self, link: &DuplexLink, kinds: [NodeKind; 2]) {
        let lans = kinds.iter().filter(|kind| matches!(kind, NodeKind::Lan)).count();
        if lans == 2 {
            let help = "connect all hosts to one LAN, or put a router between the LANs";
            self.problems.push_help(link.ends[1].place, "this link connects two LANs", help);
        }
        if lans > 0 && link.kind.value == LinkKind::Tun {
            let help = "remove `kind`, or replace the LAN with a host or router";
            self.problems.push_help(link.kind.place, "a link of a LAN must have kind \"ethernet\"", help);
        }
    }

    fn node(&mut self, name: &Located<NodeName>) -> Option<usize> {
        let nodes = &self.file.node;
        self.reference(nodes, &name.value.0, name.place, "node")
    }

    /// Returns the index of a name, or reports it with the nearest known name.
    fn reference<T>(
        &mut self,
        members: &NamedTables<T>,
        name: &str,
        place: SourceRange,
        what: &str,
    ) -> Option<usize> {
        let index = members.index(name);
        if index.is_none() {
            let message = format!("unknown {what} `{}`", name.escape_debug());
            let help = did_you_mean(name, members.names());
            let help = help.or_else(|| Some(format!("define it with [{what}.{name}]")));
            self.problems.push_with_help(place, message, help);
        }
        index
    }

    /// Returns the shortest path, or reports at `placement` that there is none.
    fn shortest(
        &mut self,
        network: &NodeGraph,
        from: usize,
        to: usize,
        place: SourceRange,
    ) -> Option<Rc<[Hop]>> {
        let path = network.topology.shortest(from, to);
        if path.is_none() && network.is_complete() {
            let message = format!("no path from `{}` to `{}`", network.names[from], network.names[to]);
            self.problems.push_help(
                place,
                message,
                "connect them with links through routers or PEs; hosts do not forward",
            );
        }
        path
    }

    /// Returns the nodes and hops of an explicit path.
    fn explicit_path(
        &mut self,
        network: &NodeGraph,
        from: usize,
        via: &Located<List<Located<NodeName>>>,
        to: usize,
    ) -> Option<(Vec<usize>, Vec<Hop>)> {
        let named: Vec<Option<usize>> = via.0.iter().map(|name| self.node(name)).collect();
        let middle = named.into_iter().collect::<Option<Vec<usize>>>()?;
        let nodes: Vec<usize> = [from].into_iter().chain(middle).chain([to]).collect();
        let place = |position: usize| via.0.get(position - 1).map_or(via.place, |name| name.place);
        let name = |position: usize| &network.names[nodes[position]];
        let (place, message) = match network.topology.explicit(&nodes) {
            Ok(path) => return Some((nodes, path)),
            Err(ExplicitPathError::NotAdjacent(at)) => {
                (place(at), format!("no link connects `{}` and `{}`", name(at - 1), name(at)))
            }
            Err(ExplicitPathError::Loop(at)) => (place(at), format!("this path visits `{}` twice", name(at))),
            Err(ExplicitPathError::HostInTheMiddle(at)) => {
                (place(at), format!("`{}` is a host; hosts do not forward", name(at)))
            }
        };
        self.problems.push(place, message);
        None
    }

    fn measure(&mut self, duration: Option<Duration>) -> Option<MeasureConfig> {
        let Some(measure) = &self.file.measure else {
            let interval = default_interval(duration);
            return Some(MeasureConfig { interval, flow_detail: false, tcp_events: false, delay: false });
        };
        let measure = measure.0.as_ref()?;
        if let (Some(interval), Some(duration)) = (&measure.interval, duration) {
            self.check_interval(interval, duration);
        }
        Some(MeasureConfig {
            interval: measure.interval.as_ref().map_or(default_interval(duration), |given| given.value.0),
            flow_detail: measure.flow_detail,
            tcp_events: measure.tcp.is_some(),
            delay: measure.delay,
        })
    }

    /// Refuses bins that do not fill the run: the rest of it would not be recorded.
    fn check_interval(&mut self, interval: &Located<PositiveDuration>, duration: Duration) {
        let width = interval.value.0;
        if width > duration && duration > Duration::ZERO {
            self.problems.push(interval.place, "the interval is longer than the run");
        } else if !duration.0.is_multiple_of(width.0) {
            let (width, length) = (width.as_secs_f64(), duration.as_secs_f64());
            let message = format!("bins of {width} s do not fill a run of {length} s");
            let rounded = (length / width).ceil() * width;
            let help =
                format!("the interval must divide the duration: a run of {rounded:.9} s has whole bins");
            self.problems.push_help(interval.place, message, help.replace(".000000000 s", " s"));
        }
    }

    /// Reports a plan whose run needs too much memory.
    fn check_size(&mut self, plan: &Plan) {
        const BYTES_PER_FLOW: u64 = 4096;
        const MAX_BYTES: u64 = 16 << 30;
        let endpoints = |f: &crate::plan::FlowGroup| {
            f.traffic.application().map_or(1, |a| 1 + 2 * u64::from(a.connections()))
        };
        let members: u64 = plan.flows.iter().map(|f| f.count as u64 * endpoints(f)).sum();
        let bins = plan.duration.0.div_ceil(plan.measure.interval.0);
        let per_flow = if plan.measure.flow_detail { 6 } else { 2 }
            + if plan.measure.tcp_events { 16 } else { 0 }
            + if plan.measure.delay { 3 } else { 0 };
        let series = members * per_flow + 12 * plan.vpns.len() as u64 + 16 * plan.links.len() as u64;
        let need = (members * BYTES_PER_FLOW).saturating_add(bins.saturating_mul(series).saturating_mul(8));
        if need > MAX_BYTES {
            let message = format!(
                "a run would need about {} GiB: {members} flows, {bins} bins of {series} series",
                need >> 30
            );
            let help = "use fewer flows, a shorter run or a longer [measure] interval";
            let flows = self.file.flow.0.iter().filter_map(|m| Some(&m.value.as_ref()?.count));
            let place = flows
                .max_by_key(|count| count.value.0)
                .map_or(SourceRange::new(0, 0..0), |count| count.place);
            self.problems.push_help(place, message, help);
        }
    }

    fn warn(&mut self, plan: &Plan) {
        self.warn_of_cuts(plan);
        let mut aggressive: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for vpn in &plan.vpns {
            let netstage_core::fair::VpnControl::I2vfc(control) = &vpn.settings.control else { continue };
            let cause = match control.decrease {
                netstage_core::fair::Decrease::Fixed(b) if b >= 0.5 => format!("decrease {b}"),
                _ if control.increase >= 1.0 => format!("increase {}", control.increase),
                _ => continue,
            };
            aggressive.entry(cause).or_default().push(&vpn.name);
        }
        for (cause, names) in aggressive {
            self.warnings.insert(format!(
                "vpn.{}: {cause} makes the window as aggressive as the TCP flows inside, and interferes with them",
                names.join(", ")
            ));
        }
        for flow in &plan.flows {
            let last = flow.start + flow.stagger * (flow.count as u64 - 1);
            if plan.has_run() && last.0 >= plan.duration.0 {
                self.warnings.insert(format!(
                    "flow.{}: its last members start after the end of the run (member {} at {last:?})",
                    flow.name,
                    flow.count - 1
                ));
            }
        }
    }
}

/// Returns the width of bins of a file that gives none.
fn default_interval(duration: Option<Duration>) -> Duration {
    const STEPS: [u64; 3] = [1_000, 500, 250];
    const DECADES: [u64; 3] = [1, 10, 100];
    let whole =
        |width: &Duration| duration.is_none_or(|run| run.0 >= width.0 && run.0.is_multiple_of(width.0));
    let steps =
        DECADES.iter().flat_map(|by| STEPS.into_iter().chain([200]).map(move |ms| ms * 1_000_000 / by));
    let mut widths = steps.map(Duration);
    widths.find(whole).or(duration.filter(|run| *run > Duration::ZERO)).unwrap_or(Duration::from_secs(1))
}
