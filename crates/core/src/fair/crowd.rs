//! News of PEs about their VPN flows, and the state of a link that follows from it.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Interval at which a PE publishes the state of its VPN flows.
pub const NEWS_INTERVAL: Duration = Duration::from_millis(100);

/// Age from which news is not used: its VPN flow has ended, or its PE is cut off.
const NEWS_AGE: Duration = Duration::from_secs(3);

/// Share of time with a backlog below which a flow takes no part in consensus.
const LEAST_USE: f64 = 0.1;

/// Published state of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct News {
    /// Time of the measurement; for received news, its time of arrival.
    pub at: Instant,
    /// Weight.
    pub weight: f64,
    /// Natural logarithm of the permitted rate per unit of weight, in bytes per second.
    pub level: f64,
    /// Rate sent, in bytes per second.
    pub rate: f64,
    /// Share of time with a backlog, 0 to 1.
    pub used: f64,
    /// The flow has seen neither congestion nor others.
    pub is_probing: bool,
    /// Price of the link that limits the flow: 1 at the target.
    pub price: f64,
    /// Round trip in seconds.
    pub round_trip: f64,
    /// Link that limits the flow; `None` if none of the shared links does.
    pub link: Option<u32>,
}

/// The other flows that a link limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peers {
    /// Sum of their weights, each times its share of time with a backlog.
    pub weight: f64,
    /// The part of it that has found its rate.
    pub settled: f64,
    /// Mean level, weighted in the same way.
    pub level: f64,
    /// Mean price, weighted in the same way.
    pub price: f64,
    /// Greatest rate sent per unit of weight.
    pub greatest: f64,
    /// Sum of their rates, in bytes per second.
    pub rate: f64,
    /// Sum of their rates times round trips, in bytes.
    pub in_flight: f64,
}

/// Latest news of all VPN flows of a core, by number.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    news: Vec<Option<News>>,
}

impl Crowd {
    /// Stores the news of a flow.
    pub fn handle_news(&mut self, flow: usize, news: News) {
        if self.news.len() <= flow {
            self.news.resize(flow + 1, None);
        }
        self.news[flow] = Some(news);
    }

    /// Returns the flows other than `own` that a link limits.
    pub fn peers(&self, now: Instant, own: usize, link: u32) -> Peers {
        let mut peers = Peers::default();
        let others = self.news.iter().enumerate().filter(|(number, _)| *number != own);
        let others = others.filter_map(|(_, news)| news.as_ref());
        for news in others.filter(|news| news.link == Some(link) && now.since(news.at) <= NEWS_AGE) {
            let weight = if news.used < LEAST_USE { 0.0 } else { news.weight * news.used };
            peers.weight += weight;
            peers.settled += if news.is_probing { 0.0 } else { weight };
            peers.level += weight * news.level;
            peers.price += weight * news.price;
            peers.greatest = peers.greatest.max(news.rate / news.weight);
            peers.rate += news.rate;
            peers.in_flight += news.rate * news.round_trip;
        }
        if peers.weight > 0.0 {
            peers.level /= peers.weight;
            peers.price /= peers.weight;
        }
        peers
    }
}
