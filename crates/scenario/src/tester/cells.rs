//! Tests of a tester as the cells of a scenario. Each cell has a network (sender, router, receiver) and its tests, so
//! that methods know the line rate and framing.

use super::file::TesterSection;
use super::{Convergence, Operation, PacketSize, Profile};
use crate::expect::{Plot, PlotAxis};
use crate::plan::Method;
use crate::{Cell, LoadOptions, Scenario, parse};
use netstage_core::time::Instant;
use std::fmt::Write as _;

/// Name of the sending node, in every cell.
const SENDER: &str = "sender";
/// Name of the receiving node.
const RECEIVER: &str = "receiver";
/// Lengths of IP packets in a mix, in turn; 0 is the minimum size.
const IMIX: [u16; 12] = [0, 552, 0, 0, 552, 0, 1500, 0, 552, 0, 0, 552];

/// Bytes of Ethernet framing per IP packet: header, check sequence, preamble and gap.
const FRAMING: u32 = 38;
/// Bytes of Ethernet header and check sequence.
const ETHERNET: u32 = 18;
const LABEL: u32 = 4;

impl PacketSize {
    /// Returns the name in records.
    pub fn name(self) -> String {
        match self {
            PacketSize::Bytes(bytes) => format!("{bytes} B"),
            PacketSize::Imix { .. } => "imix".into(),
        }
    }

    /// Returns the lengths of IP packets, in turn.
    pub fn lengths(self) -> Vec<u16> {
        match self {
            PacketSize::Bytes(bytes) => vec![bytes as u16],
            PacketSize::Imix { smallest } => IMIX.map(|bytes| bytes.max(smallest)).to_vec(),
        }
    }

    /// Returns the bytes of an IP packet, or their mean in a mix.
    pub fn bytes(self) -> u32 {
        let lengths = self.lengths();
        lengths.iter().map(|bytes| u32::from(*bytes)).sum::<u32>() / lengths.len() as u32
    }
}

/// Returns the scenario of a tester that sends on this number of lines.
pub fn scenario(
    head: &TesterSection,
    operations: &[Operation],
    sizes: &[PacketSize],
    lines: usize,
    text: &str,
) -> Option<Scenario> {
    let mut cells = Vec::new();
    for &operation in operations {
        for &size in sizes {
            cells.extend(cells_of(operation.name(), size, &cell_text(head, operation, size, lines))?);
        }
    }
    Some(Scenario {
        title: head.router.clone(),
        description: description(head, lines),
        seed: 1,
        repeat: head.repeat.0 as u32,
        cells,
        expectations: Vec::new(),
        plots: if operations.is_empty() { Vec::new() } else { plots(head) },
        text: text.to_owned(),
        warnings: Vec::new(),
        files: Vec::new(),
    })
}

/// Returns the cells of convergence tests, whose trials have one rate.
pub fn convergence_cells(
    head: &TesterSection,
    convergence: &Convergence,
    networks: u32,
    lines: usize,
) -> Option<Vec<Cell>> {
    let size = PacketSize::Bytes(convergence.size);
    let (rate, trial) = (convergence.rate, convergence.trial());
    let mut cells = Vec::new();
    for event in &convergence.events {
        let (arriving, leaving) = convergence.operation_at(*event).labels();
        let text = format!(
            "{}[test.{}]\nkind = \"loss\"\nrate = \"{} bit/s\"\ntrial = \"{} ns\"\n{}",
            network_text(head, arriving.max(leaving), lines),
            event.name(),
            rate.0,
            trial.0,
            packets_text(head, size)
        );
        let mut event_cells = cells_of(event.name(), size, &text)?;
        for test in event_cells.iter_mut().flat_map(|cell| &mut cell.plan.tests) {
            test.method = Method::Convergence { rate, trial, networks };
        }
        cells.extend(event_cells);
    }
    Some(cells)
}

/// Parses a generated scenario, which is valid by construction: the unit tests parse every combination.
fn cells_of(operation: &str, size: PacketSize, text: &str) -> Option<Vec<Cell>> {
    let scenario =
        parse(&format!("{operation} of {}", size.name()), text, None, &LoadOptions::default()).ok()?;
    let settings = [("operation", operation.to_owned()), ("size", size.name())];
    let settings = settings.map(|(path, value)| (path.to_owned(), value)).to_vec();
    Some(scenario.cells.into_iter().map(|cell| Cell { settings: settings.clone(), ..cell }).collect())
}

/// Returns the network: sender, router with its lines, receiver. `labels` is the maximum number of labels of a frame.
fn network_text(head: &TesterSection, labels: u32, lines: usize) -> String {
    let overhead = FRAMING + LABEL * labels;
    let line = head.line.0 * lines as u64;
    format!(
        "[scenario]\n[node.{SENDER}]\n[node.router]\nkind = \"router\"\n[node.{RECEIVER}]\n\
         [defaults.link]\nrate = \"{line} bit/s\"\noverhead = \"{overhead} B\"\n\
         [link.in]\nends = [\"{SENDER}\", \"router\"]\n[link.out]\nends = [\"router\", \"{RECEIVER}\"]\n"
    )
}

/// Returns the packet fields of all tests of a cell.
fn packets_text(head: &TesterSection, size: PacketSize) -> String {
    let (frame, drain) = (size.bytes() + ETHERNET, head.drain.0);
    format!(
        "from = \"{SENDER}\"\nto = \"{RECEIVER}\"\nframe_sizes = [\"{frame} B\"]\ndrain = \"{drain} ns\"\n"
    )
}

fn cell_text(head: &TesterSection, operation: Operation, size: PacketSize, lines: usize) -> String {
    let (arriving, leaving) = operation.labels();
    let max_rate = head.max_rate.map_or(String::new(), |rate| format!("max_rate = \"{} bit/s\"\n", rate.0));
    let common = format!("{}{max_rate}", packets_text(head, size));
    // The line rate limits the larger of both frames.
    let mut text = network_text(head, arriving.max(leaving), lines);
    let name = test_name(operation, size);
    let mut add = |name: &str, kind: &str, rest: &str| {
        write!(text, "[test.{name}]\nkind = \"{kind}\"\n{rest}{common}").expect("writing to a string");
    };
    let trial = |default: u64| head.trial.map_or(default * 1_000_000_000, |trial| trial.0.0);
    match head.profile {
        Profile::Paper => {
            let (search, step) = (head.search.0.0, head.step.0);
            let trial = trial(60);
            add(
                &name,
                "steady-rate",
                &format!("trial = \"{trial} ns\"\nsearch = \"{search} ns\"\nstep = \"{step} bit/s\"\n"),
            );
        }
        Profile::Rfc2544 | Profile::Rfc5695 => {
            let trial = trial(60);
            add(&name, "rfc2544-latency", &format!("trial = \"{trial} ns\"\nrepeats = 1\n"));
            add(&format!("{name}-{LOSS}"), "rfc2544-frame-loss", &format!("trial = \"{trial} ns\"\n"));
        }
        Profile::Mlrsearch if head.loss_ratios.is_some() => {}
        Profile::Mlrsearch => add(&name, "mlrsearch", &format!("trial = \"{} ns\"\n", trial(60))),
    }
    let ratios = head.loss_ratios.iter().flat_map(|ratios| &ratios.0).map(|ratio| ratio.value.0);
    for ratio in ratios.clone() {
        let parameters = format!("trial = \"{} ns\"\nloss_tolerance = {ratio:?}\n", trial(60));
        add(&format!("{name}-{}", ratio_name(ratio)), "mlrsearch", &parameters);
    }
    if ratios.count() > 0 && !matches!(head.profile, Profile::Rfc2544 | Profile::Rfc5695) {
        let trial = match head.profile {
            Profile::Paper => head.search.0.0,
            _ => trial(60),
        };
        add(&format!("{name}-{LOSS}"), "rfc2544-frame-loss", &format!("trial = \"{trial} ns\"\n"));
    }
    text
}

/// Suffix of the name of a test of the loss over the rate.
const LOSS: &str = "loss";
/// Suffix of the name of a search for the highest rate without loss.
const NO_DROP: &str = "ndr";
/// Beginning of the suffix of the name of a search for the highest rate with a limited loss; the limit follows.
const PARTIAL_DROP: &str = "pdr-";

/// Returns the suffix of the name of a search with this loss ratio, which is in millionths.
pub(super) fn ratio_name(ratio: f64) -> String {
    match (ratio * 1e6).round() {
        0.0 => NO_DROP.into(),
        millionths => format!("{PARTIAL_DROP}{millionths}ppm"),
    }
}

/// Returns the name of a test: the operation, with a suffix for a mix.
fn test_name(operation: Operation, size: PacketSize) -> String {
    match size {
        PacketSize::Bytes(_) => operation.name().to_owned(),
        PacketSize::Imix { .. } => format!("{}-imix", operation.name()),
    }
}

/// Returns the operation of a test by name, and whether its packets are a mix of sizes.
pub fn parse_test_name(name: &str) -> Option<(Operation, bool)> {
    let is_suffix = |suffix: &str| suffix == LOSS || suffix == NO_DROP;
    let name = match name.split_once(&format!("-{PARTIAL_DROP}")) {
        Some((before, _)) => before,
        None => {
            name.rsplit_once('-').filter(|(_, suffix)| is_suffix(suffix)).map_or(name, |(before, _)| before)
        }
    };
    let plain = name.strip_suffix("-imix");
    let operation = plain.unwrap_or(name);
    let found = Operation::ALL.into_iter().find(|known| known.name() == operation)?;
    Some((found, plain.is_some()))
}

fn description(head: &TesterSection, lines: usize) -> String {
    let line = head.line.0 * lines as u64;
    format!(
        "Sizes are those of IP packets. 100 % of the line rate is {line} bit/s / (8 × (size + framing)) frames/s; framing \
         is 38 B for IP, 42 B for packets with a label before or after the router, 46 B for two labels."
    )
}

fn plots(head: &TesterSection) -> Vec<Plot> {
    let plot = |name: &str, metric: &str, title: &str, caption: &str| Plot {
        name: name.into(),
        title: format!("{}: {title}", head.router),
        caption: caption.into(),
        claim: String::new(),
        metric: metric.into(),
        subject: "*".into(),
        against: PlotAxis::Swept { path: "size".into(), rows: None, over: (Instant::ZERO, Instant::NEVER) },
        reference_lines: Vec::new(),
        cells: Vec::new(),
        range: (Some(0.0), None),
    };
    let mut plots = vec![
        plot("share", "test.line_share", "share of the line rate", "Frame rate relative to the line rate."),
        plot("rate", "test.frame_rate", "packets per second", "Maximum rate found."),
    ];
    if head.profile != Profile::Mlrsearch {
        plots.push(plot(
            "delay",
            "test.latency",
            "mean delay",
            "At the maximum rate, including the delay of the tester itself.",
        ));
        plots.push(plot(
            "delay-p999",
            "test.latency.p999",
            "99.9th percentile of delays",
            "At the maximum rate.",
        ));
    }
    plots
}
