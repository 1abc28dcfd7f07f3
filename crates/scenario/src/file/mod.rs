//! Tables of a scenario file. Decoding checks types and ranges; building a plan checks names and topology.

pub(crate) mod application;
pub(crate) mod control;
pub(crate) mod expand;
pub(crate) mod flow;
pub(crate) mod network;
pub(crate) mod place;
pub(crate) mod service;
pub(crate) mod study;
pub(crate) mod test;

use crate::error::Problems;
use crate::scalar::{BoundedCount, PositiveDuration};
use crate::table::{
    self, Decode, Lenient, Located, NamedTables, ValueKind, merge_tables, refuse_unknown_keys, table,
};
use crate::tree::{TomlNode, TomlTable};
use control::VpnTable;
use flow::{FlowTable, TcpTable};
use network::{DuplexLink, NodeTable};
use place::PlacementTable;
use service::ServiceTable;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::OnceLock;
use study::{ExpectTable, MeasureTable, PlotTable, Sweep, VariantTable};
use test::TestTable;

/// Maximum seed: the largest integer that every JSON reader represents exactly.
pub(crate) const MAX_SEED: u64 = (1 << 53) - 1;

table! {
    /// General settings of the scenario.
    pub(crate) struct ScenarioSection "[scenario]" {
        /// Title in reports.
        title: String = "",
        /// Description in reports, a few sentences.
        description: String = "",
        /// Duration of a run; may be omitted if flows run only as load of tests.
        duration: Option<PositiveDuration>,
        /// Seed of the first run; each repeat uses the next seed.
        seed: Located<BoundedCount<0, MAX_SEED>> = 1,
        /// Runs of every cell, each with a different seed.
        repeat: BoundedCount<1, 100_000> = 1,
        /// On `live`: time for which agents continue a run without their controller; the policies of the agents have to
        /// permit it. Without it, the traffic stops after 2 s. The results are collected when the agents are back.
        lease: Option<PositiveDuration>,
        /// Whether the unchanged file is run as the variant `base`, if the file has variants.
        base: bool = true,
    }
}

table! {
    /// A scenario file.
    pub(crate) struct ScenarioFile "the file" {
        /// General settings of the scenario.
        scenario: Option<Located<Lenient<ScenarioSection>>>,
        /// Defaults of all nodes, links, VPNs, flows and TCP settings.
        defaults: Option<Defaults>,
        /// Nodes, by name.
        node: NamedTables<NodeTable>,
        /// Links, by name.
        link: NamedTables<DuplexLink>,
        /// VPNs, by name: each carries one direction, from an ingress PE to an egress PE.
        vpn: NamedTables<VpnTable>,
        /// Flows, by name.
        flow: NamedTables<FlowTable>,
        /// Services, by name: programs of other projects, run and measured beside the flows.
        service: NamedTables<ServiceTable>,
        /// Tests, by name: measurements that consist of trials, run after the flows.
        test: NamedTables<TestTable>,
        /// Agents that take the place of the nodes on `live`, by node name; ignored on other stages.
        place: NamedTables<PlacementTable>,
        /// Recording.
        measure: Option<Lenient<MeasureTable>>,
        /// Swept paths and their values; every combination is a cell.
        sweep: Option<Lenient<Sweep>>,
        /// Variants of the file, by name: each sets some values of the file.
        variant: NamedTables<VariantTable>,
        /// Expectations of the results, by name.
        expect: NamedTables<ExpectTable>,
        /// Figures, by name.
        plot: NamedTables<PlotTable>,
    }
}

/// `[defaults]`. Decoding checks only its keys; the values are decoded in the tables that use them.
#[derive(Clone, Debug)]
pub(crate) struct Defaults;

impl Decode for Defaults {
    fn kind() -> ValueKind {
        use table::{Field, Presence};
        let field = |name, doc, kind| Field { name, doc, kind, presence: Presence::Optional };
        ValueKind::Table {
            what: "[defaults]",
            about: "Defaults of all tables of a kind. Tables merge field by field, unless the table sets another \
                    `kind` or `model` than its default.",
            fields: Cow::Owned(vec![
                field("node", "Defaults of every `[node.NAME]`.", NodeTable::kind),
                field("link", "Defaults of every `[link.NAME]`.", DuplexLink::kind),
                field("vpn", "Defaults of every `[vpn.NAME]`.", VpnTable::kind),
                field("flow", "Defaults of every `[flow.NAME]`.", FlowTable::kind),
                field(
                    "tcp",
                    "Defaults of the `tcp` table of every flow, service and test over TCP.",
                    TcpTable::kind,
                ),
            ]),
            shorthand: None,
        }
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        if node.table().is_none() {
            return table::mismatch(node, &Self::kind(), problems);
        }
        refuse_unknown_keys(node, &Self::kind(), problems);
        Some(Defaults)
    }
}

/// Returns the description of the scenario file.
pub(crate) fn root_kind() -> &'static ValueKind {
    static ROOT: OnceLock<ValueKind> = OnceLock::new();
    ROOT.get_or_init(ScenarioFile::kind)
}

/// The change of a table that adds its defaults.
struct AddDefaults;

/// Merges `[defaults]` into the tables. Unchanged tables with unchanged defaults are merged once.
pub(crate) fn apply_defaults(root: &mut TomlNode) {
    let Some(defaults) = root.get("defaults").cloned() else { return };
    let present = |name| defaults.get(name).filter(|default| default.table().is_some());
    for name in ["node", "link", "vpn", "flow", "service", "test"] {
        let default = present(name);
        let tcp = present("tcp").filter(|_| ["flow", "service", "test"].contains(&name));
        let under: Vec<&Rc<TomlTable>> = default.into_iter().chain(tcp).filter_map(TomlNode::table).collect();
        let Some(node) = root.table_mut().and_then(|root| root.get_mut(name)) else { continue };
        if under.is_empty() {
            continue;
        }
        node.change_once::<AddDefaults>(&under, |members| {
            let kind = root_kind().field(name).and_then(|named| named.field("")).expect("a table of names");
            for entry in members.entries_mut() {
                entry.node.change_once::<AddDefaults>(&under, |member| {
                    if let Some(default) = default.and_then(TomlNode::table) {
                        merge_tables(member, default, &kind);
                    }
                    if let Some(tcp) = tcp.filter(|_| is_carried_by_tcp(name, member)) {
                        flow::apply_tcp_defaults(member, tcp);
                    }
                });
            }
        });
    }
}

/// Returns whether `[defaults.tcp]` applies to a member of a table.
fn is_carried_by_tcp(section: &str, member: &TomlTable) -> bool {
    let is_one_of = |field, words: &[&str]| {
        member.get(field).is_some_and(|word| word.text().is_some_and(|word| words.contains(&word)))
    };
    match section {
        "flow" => member.get("transport").is_none() || is_one_of("transport", &["tcp"]),
        "service" => is_one_of("program", &["ftp", "iscsi"]),
        _ => is_one_of("kind", &["rfc6349", "tcp-window"]),
    }
}
