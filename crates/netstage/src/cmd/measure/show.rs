//! How a measurement is shown: text as it goes on, or JSON at its end.

use super::{json, text};
use crate::exit::{self, Failure};
use netstage_live::measure::{Interval, Order, Outcome, Session};
use std::net::SocketAddr;

/// Shows one measurement.
pub struct Show<'a> {
    order: &'a Order,
    target: SocketAddr,
    own: SocketAddr,
    ports: Vec<(u32, u16)>,
    as_json: bool,
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
        let show = Show { order, target, own, ports, as_json };
        if !as_json {
            exit::print(text::heading(order, target, &show.ports).as_bytes())?;
        }
        Ok(show)
    }

    /// An interval has ended.
    pub fn interval(&mut self, interval: &Interval) -> Result<(), Failure> {
        if self.as_json || self.order.interval >= self.order.duration() {
            return Ok(());
        }
        exit::print(text::interval(self.order, interval).as_bytes())
    }

    /// The measurement has ended, with this exit code.
    pub fn outcome(&self, outcome: &Outcome, code: u8) -> Result<(), Failure> {
        let text = if self.as_json {
            let ends = (self.own, self.target);
            format!("{:#}\n", json::document(self.order, ends, &self.ports, outcome, code))
        } else {
            text::summary(self.order, outcome)
        };
        exit::print(text.as_bytes())
    }
}
