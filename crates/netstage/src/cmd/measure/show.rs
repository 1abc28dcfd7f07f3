//! Output of a measurement: text during the measurement, with a live line on a terminal, or JSON at the end.

use super::{json, text};
use crate::exit::{self, Failure};
use crate::sparkline::sparkline;
use indicatif::{ProgressBar, ProgressStyle};
use netstage_agent::measure::{
    MeasurementInterval, MeasurementOutcome, MeasurementParameters, PreparedMeasurement,
};
use netstage_study::format::quantity;
use std::io::IsTerminal as _;
use std::net::SocketAddr;

/// Output of one measurement.
pub struct Show<'a> {
    order: &'a MeasurementParameters,
    target: SocketAddr,
    own: SocketAddr,
    ports: Vec<(u32, u16)>,
    as_json: bool,
    live: Option<Live>,
}

impl<'a> Show<'a> {
    /// Prints the heading of a measurement.
    pub fn new(
        order: &'a MeasurementParameters,
        target: SocketAddr,
        session: &PreparedMeasurement,
        as_json: bool,
    ) -> Result<Show<'a>, Failure> {
        let (own, ports) = (session.own, session.remote_ports.clone());
        let mut show = Show { order, target, own, ports, as_json, live: None };
        if !as_json {
            exit::print(text::heading(order, target, &show.ports).as_bytes())?;
            show.live = Live::new(order);
        }
        Ok(show)
    }

    /// Prints a finished interval.
    pub fn interval(&mut self, interval: &MeasurementInterval) -> Result<(), Failure> {
        if self.as_json || self.order.interval >= self.order.duration() {
            return Ok(());
        }
        let print = || exit::print(text::interval(self.order, interval).as_bytes());
        match &mut self.live {
            Some(live) => live.interval(interval, print),
            None => print(),
        }
    }

    /// Prints the result of the measurement, which ends with this exit code.
    pub fn outcome(&mut self, outcome: &MeasurementOutcome, code: u8) -> Result<(), Failure> {
        // Dropping it clears the live line.
        self.live = None;
        let text = if self.as_json {
            let ends = (self.own, self.target);
            format!("{:#}\n", json::document(self.order, ends, &self.ports, outcome, code))
        } else {
            text::summary(self.order, outcome)
        };
        exit::print(text.as_bytes())
    }
}

/// Live line below the output: progress, and the receive rates so far as bars.
struct Live {
    bar: ProgressBar,
    /// Receive rate of all flows per counted interval, bit/s.
    rates: Vec<f64>,
}

impl Live {
    /// Creates the line on standard error; `None` unless that is a terminal and there are intervals to show.
    fn new(order: &MeasurementParameters) -> Option<Live> {
        if order.interval >= order.duration() || !std::io::stderr().is_terminal() {
            return None;
        }
        let style = ProgressStyle::with_template("{bar:20} {pos} of {len} s  {wide_msg}");
        let bar = ProgressBar::new(order.duration().as_secs_f64().ceil() as u64)
            .with_style(style.expect("a template of known parts").progress_chars("━╸─"));
        bar.tick();
        Some(Live { bar, rates: Vec::new() })
    }

    /// Prints the lines of an interval above, and updates the live line.
    fn interval(
        &mut self,
        interval: &MeasurementInterval,
        print: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let received = interval.flows.values().filter_map(|cell| cell.received);
        let bytes: u64 = received.map(|counts| counts.received_bytes).sum();
        let seconds = (interval.to.0 - interval.from.0).max(1) as f64 / 1e9;
        if !interval.omitted {
            self.rates.push(bytes as f64 * 8.0 / seconds);
        }
        self.bar.set_position(interval.to.as_secs_f64().round() as u64);
        self.bar.set_message(message(&self.rates));
        self.bar.suspend(print)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Formats the rates so far as one line.
fn message(rates: &[f64]) -> String {
    let Some(last) = rates.last() else { return "no interval counted yet".into() };
    let bits = |rate: f64| quantity(rate, "bit/s");
    let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let max = rates.iter().copied().fold(0.0, f64::max);
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    format!(
        "{}  now {}, mean {}, min {}, max {}",
        sparkline(rates, 40),
        bits(*last),
        bits(mean),
        bits(min),
        bits(max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_line_has_the_rates_so_far() {
        assert_eq!(message(&[]), "no interval counted yet");
        let line = message(&[1e6, 4e6]);
        assert_eq!(line, "▃█  now 4 Mbit/s, mean 2.5 Mbit/s, min 1 Mbit/s, max 4 Mbit/s");
    }
}
