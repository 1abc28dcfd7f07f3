//! The tables of a scenario file, as written: types and ranges are checked here, names
//! and topology when a plan is built.

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
use crate::scalar::{Count, Span};
use crate::table::{self, At, Decode, Kind, Lenient, Named, merge, refuse_unknown_keys, table};
use crate::tree::Node;
use control::Vpn;
use flow::{Flow, Tcp};
use network::{Link, NodeTable};
use place::Placement;
use service::Service;
use std::sync::OnceLock;
use study::{Expect, Measure, Plot, Sweep, Variant};
use test::Test;

/// The largest seed: readers of JSON know no larger whole number for certain.
pub(crate) const MOST_SEED: u64 = (1 << 53) - 1;

table! {
    /// What a run is.
    pub(crate) struct Head "[scenario]" {
        /// What the scenario is called, in reports.
        title: String = "",
        /// A few sentences for the report.
        description: String = "",
        /// How long a run of the flows lasts; may be left out where flows run only beside tests.
        duration: Option<Span>,
        /// Seed of the first run; repeats use the following ones.
        seed: At<Count<0, MOST_SEED>> = 1,
        /// Runs of every cell, each with its own seed.
        repeat: Count<1, 100_000> = 1,
        /// Where there are variants: whether the file as it stands is one too, called `base`.
        base: bool = true,
    }
}

table! {
    /// A whole scenario file.
    pub(crate) struct File "the file" {
        /// What a run is.
        scenario: Option<At<Lenient<Head>>>,
        /// Values for every table of a kind that leaves them out.
        defaults: Option<Defaults>,
        /// Nodes, by name.
        node: Named<NodeTable>,
        /// Links, by name.
        link: Named<Link>,
        /// VPNs, by name: one direction each, from an ingress PE to an egress PE.
        vpn: Named<Vpn>,
        /// Flows, by name.
        flow: Named<Flow>,
        /// Other people's programs, by name: beside the flows, and measured like them.
        service: Named<Service>,
        /// Measurements made of trials, by name; they follow the run of the flows.
        test: Named<Test>,
        /// Which agents stand for the nodes on `live`, by name of the node. Other stages do not look at it.
        place: Named<Placement>,
        /// What is recorded.
        measure: Option<Lenient<Measure>>,
        /// Paths and the values each takes; a cell is run for every combination.
        sweep: Option<Lenient<Sweep>>,
        /// Variants of the file, by name: each is the file with some values set.
        variant: Named<Variant>,
        /// What must hold of the results, by name.
        expect: Named<Expect>,
        /// Figures, by name.
        plot: Named<Plot>,
    }
}

/// `[defaults]`, of which only the keys are checked: its values are decoded where they are used.
#[derive(Clone, Debug)]
pub(crate) struct Defaults;

impl Decode for Defaults {
    fn kind() -> Kind {
        use table::{Field, Presence};
        let field = |name, doc, kind| Field { name, doc, kind, presence: Presence::Optional };
        Kind::Table {
            what: "[defaults]",
            about: "Values for every table of a kind that leaves them out. Tables merge field by field, \
                    unless the upper one names another `kind` or `model`.",
            fields: vec![
                field("node", "For every `[node.NAME]`.", NodeTable::kind),
                field("link", "For every `[link.NAME]`.", Link::kind),
                field("vpn", "For every `[vpn.NAME]`.", Vpn::kind),
                field("flow", "For every `[flow.NAME]`.", Flow::kind),
                field(
                    "tcp",
                    "For the `tcp` table of every flow, service and test carried by TCP.",
                    Tcp::kind,
                ),
            ],
            shorthand: None,
        }
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        if node.table().is_none() {
            return table::mismatch(node, &Self::kind(), problems);
        }
        refuse_unknown_keys(node, &Self::kind(), problems);
        Some(Defaults)
    }
}

/// The description of the whole file.
pub(crate) fn root_kind() -> &'static Kind {
    static ROOT: OnceLock<Kind> = OnceLock::new();
    ROOT.get_or_init(File::kind)
}

/// Puts `[defaults]` under the tables they are for.
pub(crate) fn apply_defaults(root: &mut Node) {
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

fn root_members<'a>(root: &'a mut Node, name: &str) -> Option<&'a mut Vec<crate::tree::Entry>> {
    let crate::tree::Value::Table(table) = &mut root.value else { return None };
    match &mut table.get_mut(name)?.value {
        crate::tree::Value::Table(members) => Some(&mut members.entries),
        _ => None,
    }
}
