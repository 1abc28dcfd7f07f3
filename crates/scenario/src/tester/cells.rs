//! What a tester searches, as the cells of a scenario. Each has the network that is tested (a sender, the
//! router, a receiver) and one test, so that methods know the line and its framing.

use super::file::Head;
use super::{Operation, PacketSize, Profile};
use crate::expect::{Against, Plot};
use crate::{Cell, Options, Scenario, parse};
use netstage_core::time::Instant;
use std::fmt::Write as _;

/// Name of the node that sends, in every cell.
const SENDER: &str = "sender";
/// Name of the node that receives.
const RECEIVER: &str = "receiver";
/// Lengths of IP packets in a mix, in turn: of 12 packets, 7 of 46 B, 4 of 552 B, 1 of 1500 B.
const IMIX: [u16; 12] = [46, 552, 46, 46, 552, 46, 1500, 46, 552, 46, 46, 552];

/// Bytes of a frame around its IP packet: header, check sequence, preamble and gap.
const FRAMING: u32 = 38;
/// Header and check sequence of Ethernet.
const ETHERNET: u32 = 18;
const LABEL: u32 = 4;

impl PacketSize {
    /// Its name in records.
    pub fn name(self) -> String {
        match self {
            PacketSize::Bytes(bytes) => format!("{bytes} B"),
            PacketSize::Imix => "imix".into(),
        }
    }

    /// Lengths of IP packets, in turn.
    pub fn lengths(self) -> Vec<u16> {
        match self {
            PacketSize::Bytes(bytes) => vec![bytes as u16],
            PacketSize::Imix => IMIX.to_vec(),
        }
    }

    /// Bytes of an IP packet, the mean of a mix.
    pub fn bytes(self) -> u32 {
        let lengths = self.lengths();
        lengths.iter().map(|bytes| u32::from(*bytes)).sum::<u32>() / lengths.len() as u32
    }
}

/// The scenario of a tester whose ports send on so many lines.
pub fn scenario(
    head: &Head,
    operations: &[Operation],
    sizes: &[PacketSize],
    lines: usize,
    text: &str,
) -> Option<Scenario> {
    let mut cells = Vec::new();
    for &operation in operations {
        for &size in sizes {
            let name = format!("{} of {}", operation.name(), size.name());
            // What is written here is right by construction: a test has every combination parsed.
            let read =
                parse(&name, &cell_text(head, operation, size, lines), None, &Options::default()).ok()?;
            let settings =
                vec![("operation".to_owned(), operation.name().to_owned()), ("size".to_owned(), size.name())];
            cells.extend(read.cells.into_iter().map(|cell| Cell { settings: settings.clone(), ..cell }));
        }
    }
    Some(Scenario {
        title: head.router.clone(),
        description: description(head, lines),
        seed: 1,
        repeat: head.repeat.0 as u32,
        cells,
        expectations: Vec::new(),
        plots: plots(head),
        text: text.to_owned(),
        warnings: Vec::new(),
    })
}

fn cell_text(head: &Head, operation: Operation, size: PacketSize, lines: usize) -> String {
    let (arriving, leaving) = operation.labels();
    // The larger of both frames fills the line.
    let overhead = FRAMING + LABEL * arriving.max(leaving);
    let line = head.line.0 * lines as u64;
    let frame = size.bytes() + ETHERNET;
    let max_rate = head.max_rate.map_or(String::new(), |rate| format!("max_rate = \"{} bit/s\"\n", rate.0));
    let drain = head.drain.0;
    let common = format!(
        "from = \"{SENDER}\"\nto = \"{RECEIVER}\"\nframe_sizes = [\"{frame} B\"]\n{max_rate}drain = \"{drain} ns\"\n"
    );
    let mut text = format!(
        "[scenario]\n[node.{SENDER}]\n[node.router]\nkind = \"router\"\n[node.{RECEIVER}]\n\
         [defaults.link]\nrate = \"{line} bit/s\"\noverhead = \"{overhead} B\"\n\
         [link.in]\nends = [\"{SENDER}\", \"router\"]\n[link.out]\nends = [\"router\", \"{RECEIVER}\"]\n"
    );
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
            add(&format!("{name}-loss"), "rfc2544-frame-loss", &format!("trial = \"{trial} ns\"\n"));
        }
        Profile::Mlrsearch => add(&name, "mlrsearch", &format!("trial = \"{} ns\"\n", trial(60))),
    }
    text
}

/// Name of a test: what the router does; of a mix, that too.
fn test_name(operation: Operation, size: PacketSize) -> String {
    match size {
        PacketSize::Bytes(_) => operation.name().to_owned(),
        PacketSize::Imix => format!("{}-imix", operation.name()),
    }
}

/// What the test of this name does, and whether with a mix of sizes.
pub fn of_test(name: &str) -> Option<(Operation, bool)> {
    let name = name.strip_suffix("-loss").unwrap_or(name);
    let plain = name.strip_suffix("-imix");
    let operation = plain.unwrap_or(name);
    let found = Operation::ALL.into_iter().find(|known| known.name() == operation)?;
    Some((found, plain.is_some()))
}

fn description(head: &Head, lines: usize) -> String {
    let line = head.line.0 * lines as u64;
    format!(
        "Sizes are those of IP packets. 100 % of the line is {line} bit/s over 8 times (38 B + size) frames a \
         second for IP, and (42 B + size) where packets have a label before or behind the router (46 B: two)."
    )
}

fn plots(head: &Head) -> Vec<Plot> {
    let plot = |name: &str, metric: &str, title: &str, caption: &str| Plot {
        name: name.into(),
        title: format!("{}: {title}", head.router),
        caption: caption.into(),
        claim: String::new(),
        metric: metric.into(),
        subject: "*".into(),
        against: Against::Swept { path: "size".into(), rows: None, over: (Instant::ZERO, Instant::NEVER) },
        reference_lines: Vec::new(),
        cells: Vec::new(),
        range: (Some(0.0), None),
    };
    let mut plots = vec![
        plot("share", "test.line_share", "share of the line", "Frames a second over what the line carries."),
        plot("rate", "test.frame_rate", "packets a second", "The highest rate found."),
    ];
    if head.profile != Profile::Mlrsearch {
        plots.push(plot(
            "delay",
            "test.latency",
            "mean delay",
            "At that rate; the tester's own is part of it.",
        ));
        plots.push(plot("delay-p999", "test.latency.p999", "99.9 % of delays", "At that rate, at most."));
    }
    plots
}
