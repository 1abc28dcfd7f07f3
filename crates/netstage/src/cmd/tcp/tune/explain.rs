//! Result of a search as text and JSON.

use super::permanent::{self, Ends, Line};
use super::{Arguments, Made};
use crate::cmd::table::Table;
use netstage_core::measure::Summary;
use netstage_core::measure::tune::{Setting, SettingResult, WindowSearchConfig};
use netstage_core::time::Duration;
use netstage_study::format::{number, quantity};
use netstage_study::tuned::{TuneReport, name};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Version of the document's layout; adding fields does not change it.
const VERSION: u32 = 1;

/// Formats the heading of a search.
pub fn heading(arguments: &Arguments, target: IpAddr, config: &WindowSearchConfig) -> String {
    let length = (arguments.time + arguments.omit).as_secs_f64();
    let direction = if arguments.reverse { "from" } else { "to" };
    format!(
        "TCP {direction} {target}: up to {} transfers of {length} s, {:.0} s in total\n",
        config.trials,
        length * config.trials as f64
    )
}

/// Formats the last transfer.
pub fn trial(controls: &[String], made: &[Made]) -> String {
    let Some(Made { setting, sample, void }) = made.last() else { return String::new() };
    let void = void.as_ref().map_or(String::new(), |reason| format!("  void: {reason}"));
    format!(
        "{:>3}  {:<18}  {:>12}  {:>10}  {} retransmits{void}\n",
        made.len(),
        name(controls, *setting),
        bits(sample.goodput),
        quantity(sample.mean_round_trip.as_secs_f64(), "s"),
        sample.retransmissions,
    )
}

/// Finished search.
pub struct Ended<'a> {
    /// Result of the search.
    pub tuned: &'a TuneReport<'a>,
    /// Transfers of the search.
    pub made: &'a [Made],
    /// Address of this host.
    pub own: Option<IpAddr>,
    /// Address of the other host.
    pub target: IpAddr,
    /// The other host is the sender.
    pub reverse: bool,
    /// Length of a transfer.
    pub length: Duration,
}

impl Ended<'_> {
    /// Formats the result as text.
    pub fn text(&self) -> String {
        let found = self.tuned.found;
        let path = &found.path;
        let trip = |time: Duration| quantity(time.as_secs_f64(), "s");
        let mut lines = vec![String::new(), self.tuned.verdict()];
        lines.push(format!(
            "{} transfers in {:.0} s; results vary randomly between searches",
            self.made.len(),
            self.length.as_secs_f64() * self.made.len() as f64
        ));
        let measured = |setting: Setting| found.curve.iter().find(|point| point.setting == setting);
        let performance = |point: &SettingResult| {
            format!("{}, round trip {}", spread(point.goodput, "bit/s"), spread(point.round_trip, "s"))
        };
        if let Some(best) = found.best.and_then(measured) {
            lines.push(format!("with it: {}", performance(best)));
            let unlimited = measured(Setting { window: None, ..best.setting })
                .filter(|unlimited| unlimited.setting != best.setting);
            let gain = found.gain.map_or(String::new(), |gain| format!(" ({})", share(gain)));
            lines.extend(
                unlimited.map(|unlimited| format!("without a limit: {}{gain}", performance(unlimited))),
            );
        }
        lines.push(String::new());
        lines.push(format!(
            "path: bottleneck {} of payload, base round trip {}, bandwidth-delay product {}",
            bits(path.bottleneck),
            trip(path.base_round_trip),
            bytes(path.bandwidth_delay_product)
        ));
        let queueing_s = path.buffer * 8.0 / path.bottleneck.max(f64::MIN_POSITIVE);
        lines.push(format!("queue: up to {}, {}", bytes(path.buffer), quantity(queueing_s, "s")));
        lines.extend(found.knee.map(|knee| format!("knee: windows below {} are slower", bytes(knee))));
        lines.extend(
            found.losses_from.map(|from| format!("losses: windows of {} or more", bytes(from as f64))),
        );
        let mut text = lines.join("\n") + "\n\n" + &self.curve();
        let permanent = self.permanent();
        if !permanent.is_empty() {
            text.push_str("\nto make it permanent, use one of:\n");
            let mut table = Table::new(&["host", "scope", "command"]);
            permanent
                .into_iter()
                .for_each(|line| table.row([line.on.into(), line.concerns.into(), line.line]));
            text.push_str(&table.text());
        }
        text
    }

    /// Returns the result as JSON, with rates in payload bits per second and sizes in bytes.
    pub fn json(&self) -> Value {
        let trial =
            |made: &Made| json!({ "setting": made.setting, "sample": made.sample, "void": made.void });
        json!({
            "version": VERSION,
            "tool": concat!("netstage ", env!("CARGO_PKG_VERSION")),
            "there": self.target,
            "direction": if self.reverse { "reverse" } else { "forward" },
            "controls": self.tuned.controls,
            "found": self.tuned.found,
            "verdict": self.tuned.verdict(),
            "transfer_s": self.length.as_secs_f64(),
            "transfers": self.made.iter().map(trial).collect::<Vec<_>>(),
            "permanent": self.permanent(),
        })
    }

    fn curve(&self) -> String {
        let mut table = Table::new(&["window", ">transfers", ">throughput", ">round trip", ">retransmits"]);
        for point in &self.tuned.found.curve {
            let SettingResult { setting, goodput, round_trip, retransmissions } = point;
            let mark = if Some(*setting) == self.tuned.found.best { " *" } else { "" };
            table.row([
                format!("{}{mark}", self.tuned.name(*setting)),
                goodput.count.to_string(),
                spread(*goodput, "bit/s"),
                spread(*round_trip, "s"),
                number(*retransmissions),
            ]);
        }
        table.text()
    }

    fn permanent(&self) -> Vec<Line> {
        let (Some(best), Some(own)) = (self.tuned.found.best, self.own) else { return Vec::new() };
        let (sender, receiver) = if self.reverse { (self.target, own) } else { (own, self.target) };
        let ends = Ends { sender, receiver, is_sender: !self.reverse };
        let segment = self.tuned.config.segment;
        let window = best.window.map(|window| permanent::of_window(ends, window, segment));
        let control = (self.tuned.controls.len() > 1)
            .then(|| permanent::of_control(ends, &self.tuned.controls[best.control]));
        window.into_iter().chain(control).flatten().collect()
    }
}

fn bits(rate: f64) -> String {
    quantity(rate, "bit/s")
}

fn bytes(bytes: f64) -> String {
    quantity(bytes, "B")
}

/// Formats a mean with the half-width of its 95 % confidence interval, if known.
fn spread(summary: Summary, unit: &str) -> String {
    let mean = quantity(summary.mean, unit);
    if summary.half_width.is_finite() {
        format!("{mean} ± {}", quantity(summary.half_width, unit))
    } else {
        mean
    }
}

/// Formats the throughput gain of the best setting.
fn share(gain: Summary) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share.abs());
    let spread =
        if gain.half_width.is_finite() { format!(" ± {}", percent(gain.half_width)) } else { String::new() };
    let comparison = if gain.mean < 0.0 { "less" } else { "more" };
    format!("{}{spread} {comparison} with the limit", percent(gain.mean))
}
