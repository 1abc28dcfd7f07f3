//! What a search found, in words and as JSON.

use super::permanent::{self, Ends, Line};
use super::{Arguments, Made};
use crate::cmd::table::Table;
use netstage_core::measure::Summary;
use netstage_core::measure::tune::{Config, Measured, Setting};
use netstage_core::time::Duration;
use netstage_study::format::{number, quantity};
use netstage_study::tuned::{Tuned, name};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Version of the document's layout: fields are only added.
const VERSION: u32 = 1;

/// What is about to be done.
pub fn heading(arguments: &Arguments, target: IpAddr, config: &Config) -> String {
    let length = (arguments.time + arguments.omit).as_secs_f64();
    let (from, to) = if arguments.reverse { ("from", "to here") } else { ("to", "from here") };
    format!(
        "TCP {from} {target}, {to}: up to {} transfers of {length} s, {:.0} s in all\n",
        config.trials,
        length * config.trials as f64
    )
}

/// The last transfer.
pub fn trial(controls: &[String], made: &[Made]) -> String {
    let Some(Made { setting, sample, void }) = made.last() else { return String::new() };
    let void = void.as_ref().map_or(String::new(), |why| format!("  void: {why}"));
    format!(
        "{:>3}  {:<18}  {:>12}  {:>10}  {} sent again{void}\n",
        made.len(),
        name(controls, *setting),
        bits(sample.goodput),
        quantity(sample.mean_round_trip.as_secs_f64(), "s"),
        sample.retransmissions,
    )
}

/// A search that has ended.
pub struct Ended<'a> {
    /// What it found.
    pub tuned: &'a Tuned<'a>,
    /// Its transfers.
    pub made: &'a [Made],
    /// Our address.
    pub own: Option<IpAddr>,
    /// The other host's.
    pub target: IpAddr,
    /// Whether that one sent.
    pub reverse: bool,
    /// How long a transfer took.
    pub length: Duration,
}

impl Ended<'_> {
    /// As text.
    pub fn text(&self) -> String {
        let found = self.tuned.found;
        let path = &found.path;
        let trip = |time: Duration| quantity(time.as_secs_f64(), "s");
        let mut lines = vec![String::new(), self.tuned.verdict()];
        lines.push(format!(
            "{} transfers in {:.0} s; the same again differs by chance",
            self.made.len(),
            self.length.as_secs_f64() * self.made.len() as f64
        ));
        let of = |setting: Setting| found.curve.iter().find(|of| of.setting == setting);
        let carries =
            |of: &Measured| format!("{} in {}", spread(of.goodput, "bit/s"), spread(of.round_trip, "s"));
        if let Some(best) = found.best.and_then(of) {
            lines.push(format!("it carries {}", carries(best)));
            let free =
                of(Setting { window: None, ..best.setting }).filter(|free| free.setting != best.setting);
            let gain = found.gain.map_or(String::new(), |gain| format!(" ({})", share(gain)));
            lines.extend(free.map(|free| format!("without a limit: {}{gain}", carries(free))));
        }
        lines.push(String::new());
        lines.push(format!(
            "path: {} of payload through its narrowest place, base round trip {}: {} fill it",
            bits(path.bottleneck),
            trip(path.base_round_trip),
            bytes(path.bandwidth_delay_product)
        ));
        let waits = path.buffer * 8.0 / path.bottleneck.max(f64::MIN_POSITIVE);
        lines.push(format!("queue: up to {} more waited, {}", bytes(path.buffer), quantity(waits, "s")));
        lines.extend(found.knee.map(|knee| format!("knee: with less than {} it is slower", bytes(knee))));
        lines.extend(found.losses_from.map(|from| format!("losses: from {} on", bytes(from as f64))));
        let mut text = lines.join("\n") + "\n\n" + &self.curve();
        let permanent = self.permanent();
        if !permanent.is_empty() {
            text.push_str("\nto make it permanent, one of:\n");
            let mut table = Table::new(&["on", "for", "do"]);
            permanent.into_iter().for_each(|of| table.row([of.on.into(), of.concerns.into(), of.line]));
            text.push_str(&table.text());
        }
        text
    }

    /// As JSON: rates are bits per second of payload, sizes bytes.
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
        let mut table = Table::new(&["window", ">transfers", ">throughput", ">round trip", ">sent again"]);
        for of in &self.tuned.found.curve {
            let Measured { setting, goodput, round_trip, retransmissions } = of;
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

/// A mean with half of its 95 % interval, where it has one.
fn spread(summary: Summary, unit: &str) -> String {
    let mean = quantity(summary.mean, unit);
    if summary.half_width.is_finite() {
        format!("{mean} ± {}", quantity(summary.half_width, unit))
    } else {
        mean
    }
}

/// By how much more the best carries.
fn share(gain: Summary) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share.abs());
    let spread =
        if gain.half_width.is_finite() { format!(" ± {}", percent(gain.half_width)) } else { String::new() };
    let than = if gain.mean < 0.0 { "less" } else { "more" };
    format!("{}{spread} {than} with it", percent(gain.mean))
}
