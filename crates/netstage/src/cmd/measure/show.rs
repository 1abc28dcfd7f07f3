//! How a measurement is shown: text as it goes on, with a live line below it on a terminal, or
//! JSON at its end.

use super::{json, text};
use crate::exit::{self, Failure};
use crate::sparkline::sparkline;
use indicatif::{ProgressBar, ProgressStyle};
use netstage_agent::measure::{Interval, Order, Outcome, Session};
use netstage_study::format::quantity;
use std::io::IsTerminal as _;
use std::net::SocketAddr;

/// Shows one measurement.
pub struct Show<'a> {
    order: &'a Order,
    target: SocketAddr,
    own: SocketAddr,
    ports: Vec<(u32, u16)>,
    as_json: bool,
    live: Option<Live>,
}

impl<'a> Show<'a> {
    /// Says what is about to be measured.
    pub fn new(
        order: &'a Order,
        target: SocketAddr,
        session: &Session,
        as_json: bool,
    ) -> Result<Show<'a>, Failure> {
        let (own, ports) = (session.own, session.ports_there.clone());
        let mut show = Show { order, target, own, ports, as_json, live: None };
        if !as_json {
            exit::print(text::heading(order, target, &show.ports).as_bytes())?;
            show.live = Live::new(order);
        }
        Ok(show)
    }

    /// An interval has ended.
    pub fn interval(&mut self, interval: &Interval) -> Result<(), Failure> {
        if self.as_json || self.order.interval >= self.order.duration() {
            return Ok(());
        }
        let print = || exit::print(text::interval(self.order, interval).as_bytes());
        match &mut self.live {
            Some(live) => live.interval(interval, print),
            None => print(),
        }
    }

    /// The measurement has ended, with this exit code.
    pub fn outcome(&mut self, outcome: &Outcome, code: u8) -> Result<(), Failure> {
        // It clears its line.
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

/// The line below all others: how far it is, and the rates received so far as bars.
struct Live {
    bar: ProgressBar,
    /// Of all flows, bit/s, one for each interval that counts.
    rates: Vec<f64>,
}

impl Live {
    /// Drawn on standard error, where that is a terminal and there are intervals to follow.
    fn new(order: &Order) -> Option<Live> {
        if order.interval >= order.duration() || !std::io::stderr().is_terminal() {
            return None;
        }
        let style = ProgressStyle::with_template("{bar:20} {pos} of {len} s  {wide_msg}");
        let bar = ProgressBar::new(order.duration().as_secs_f64().ceil() as u64)
            .with_style(style.expect("a template of known parts").progress_chars("━╸─"));
        bar.tick();
        Some(Live { bar, rates: Vec::new() })
    }

    /// Prints an interval's lines above, and follows.
    fn interval(
        &mut self,
        interval: &Interval,
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

/// The rates so far in a line.
fn message(rates: &[f64]) -> String {
    let Some(last) = rates.last() else { return "nothing that counts yet".into() };
    let bits = |rate: f64| quantity(rate, "bit/s");
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    format!(
        "{}  now {}, mean {}, least {}, most {}",
        sparkline(rates, 40),
        bits(*last),
        bits(mean),
        bits(least),
        bits(most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_the_rates_so_far() {
        assert_eq!(message(&[]), "nothing that counts yet");
        let told = message(&[1e6, 4e6]);
        assert_eq!(told, "▃█  now 4 Mbit/s, mean 2.5 Mbit/s, least 1 Mbit/s, most 4 Mbit/s");
    }
}
