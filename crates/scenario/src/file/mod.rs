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
    self, Decode, Lenient, Located, NamedTables, ValueKind, merge, refuse_unknown_keys, table,
};
use crate::tree::TomlNode;
use control::VpnTable;
use flow::{FlowTable, TcpTable};
use network::{DuplexLink, NodeTable};
use place::PlacementTable;
use service::ServiceTable;
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
            fields: vec![
                field("node", "Defaults of every `[node.NAME]`.", NodeTable::kind),
                field("link", "Defaults of every `[link.NAME]`.", DuplexLink::kind),
                field("vpn", "Defaults of every `[vpn.NAME]`.", VpnTable::kind),
                field("flow", "Defaults of every `[flow.NAME]`.", FlowTable::kind),
                field(
                    "tcp",
                    "Defaults of the `tcp` table of every flow, service and test over TCP.",
                    TcpTable::kind,
                ),
            ],
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

/// Merges `[defaults]` into the tables.
pub(crate) fn apply_defaults(root: &mut TomlNode) {
    let Some(defaults) = root.get("defaults").cloned() else { return };
    let tcp = defaults.get("tcp").cloned();
    for name in ["node", "link", "vpn", "flow", "service", "test"] {
        let Some(members) = root_members(root, name) else { continue };
        let kind = root_kind().field(name).and_then(|named| named.field("")).expect("a table of names");
        for entry in members {
            if entry.node.table().is_none() {
                continue;
            }
            if let Some(default) = defaults.get(name).filter(|d| d.table().is_some()) {
                merge(&mut entry.node, default, &kind);
            }
            let carried_by_tcp = match name {
                "flow" => entry.node.get("transport").is_none_or(|t| t.text() == Some("tcp")),
                "service" => {
                    let program = entry.node.get("program");
                    program.is_some_and(|program| matches!(program.text(), Some("ftp" | "iscsi")))
                }
                "test" => {
                    let kind = entry.node.get("kind");
                    kind.is_some_and(|kind| matches!(kind.text(), Some("rfc6349" | "tcp-window")))
                }
                _ => false,
            };
            if let Some(tcp) = tcp.as_ref().filter(|tcp| carried_by_tcp && tcp.table().is_some()) {
                flow::apply_tcp_defaults(&mut entry.node, tcp);
            }
        }
    }
}

fn root_members<'a>(root: &'a mut TomlNode, name: &str) -> Option<&'a mut Vec<crate::tree::TomlEntry>> {
    let crate::tree::TomlValue::Table(table) = &mut root.value else { return None };
    match &mut table.get_mut(name)?.value {
        crate::tree::TomlValue::Table(members) => Some(&mut members.entries),
        _ => None,
    }
}
