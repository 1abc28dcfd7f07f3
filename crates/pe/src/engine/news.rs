//! News of VPN flows under rate consensus, exchanged with peers.
//!
//! Every router publishes the state of its flows to all peers with which it exchanges news, at the same time. A message
//! ([`netstage_core::fair::news`]) belongs to the path between two routers, as those of references do, and carries the
//! GAL directly beneath the tunnel label. The tunnel identifies the sender.
//!
//! If a router has several cores, the first core exchanges news with the peers for all cores. Each core treats the other
//! cores like other routers ([`CoreNews`]).

use super::network::ReceivingTunnel;
use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, Keys, PacketDrop, flows};
use netstage_core::fair::VpnControl;
use netstage_core::fair::crowd::{NEWS_AGE, PeNews, combined, news_interval};
use netstage_core::fair::news::{self, NewsError, NewsReceiver};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::pe::PeConfig;
use netstage_wire::gach::{self, channel};
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use netstage_wire::news::NewsMessage;
use std::collections::BTreeMap;

/// Replaces the two labels of a VPN flow in the digest. No VPN flow has these labels, and references have others, so
/// that no message can be taken for one of another kind.
const CHANNEL: [LabelValue; 2] = [LabelValue::GENERIC_CHANNEL, LabelValue::IPV4_EXPLICIT_NULL];

/// Exchange of news with peers.
#[derive(Debug, Default)]
pub(super) struct NewsExchange {
    /// Next publication; never if no flow is under rate consensus.
    due: Instant,
    interval: Duration,
    /// Random number of this router.
    own: u32,
    /// Time of the newest message, nanoseconds since 1970.
    sent_ns: u64,
    /// Receivers by index of the peer.
    peers: Vec<Option<NewsPeer>>,
    /// News for the other cores; `None` with one core.
    for_cores: Option<NewsForCores>,
    /// News of the other cores, to be published with that of this one.
    of_cores: Vec<PeNews>,
}

/// News that a core has published or received since its last exchange with the other cores.
#[derive(Debug, Default)]
struct NewsForCores {
    own: Option<DatedNews>,
    heard: BTreeMap<u64, DatedNews>,
}

/// News with its time.
type DatedNews = (Instant, PeNews);

/// Latest news of the cores of one router, and of its peers.
#[derive(Debug, Default)]
pub struct CoreNews {
    /// News of the flows of each core.
    own: BTreeMap<usize, DatedNews>,
    /// News received from each publisher.
    heard: BTreeMap<u64, DatedNews>,
}

/// Peer with which news is exchanged.
#[derive(Debug)]
struct NewsPeer {
    /// Identifies the peer across changes of the configuration.
    publisher: u64,
    heard: NewsReceiver,
}

impl NewsExchange {
    /// Creates the exchange of a router with this random number.
    pub fn new(router: &PeConfig, own: u32) -> NewsExchange {
        let is_paced = |flow: &netstage_scenario::pe::VpnFlowConfig| {
            matches!(flow.settings.control, VpnControl::RateConsensus(_))
        };
        let has_paced = flows::all(router).any(|(_, flow)| is_paced(flow));
        let speaks_for_cores = router.cores > 1 && router.peers.iter().any(|peer| peer.news);
        let is_needed = has_paced || speaks_for_cores;
        let peer = |peer: &netstage_scenario::pe::PeerConfig| {
            let publisher = publisher(&peer.name);
            (is_needed && peer.news).then(|| NewsPeer { publisher, heard: NewsReceiver::new(own) })
        };
        let peers: Vec<Option<NewsPeer>> = router.peers.iter().map(peer).collect();
        NewsExchange {
            due: if is_needed { Instant::ZERO } else { Instant::NEVER },
            interval: news_interval(peers.iter().flatten().count()),
            own,
            sent_ns: 0,
            peers,
            for_cores: (is_needed && router.cores > 1).then(NewsForCores::default),
            of_cores: Vec::new(),
        }
    }

    /// Returns the time of the next publication.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }
}

/// Returns the number of a peer by its name (FNV-1a).
fn publisher(name: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

impl EngineState {
    /// Publishes the news of the flows and applies those of others, if due.
    #[inline]
    pub(super) fn exchange_news(&mut self, now: Instant) {
        if now >= self.news.due {
            self.exchange_all_news(now);
        }
    }

    #[cold]
    fn exchange_all_news(&mut self, now: Instant) {
        self.news.due = now + self.news.interval;
        let mut published = self.edge.publish_news(now);
        self.edge.consider_news(now);
        if let Some(for_cores) = &mut self.news.for_cores {
            for_cores.own = Some((now, published.clone()));
            published = combined(self.news.of_cores.iter().chain([&published]));
        }
        for part in news::messages(&published) {
            // Timestamps must stay distinct after the clock is set back.
            self.news.sent_ns = self.epoch_unix_ns.saturating_add(now.0).max(self.news.sent_ns + 1);
            for peer in 0..self.news.peers.len() {
                if self.news.peers[peer].is_some()
                    && let Err(refused) = self.send_news(peer, &part)
                {
                    self.count(refused);
                }
            }
        }
    }

    fn send_news(&mut self, peer: usize, part: &PeNews) -> Result<(), PacketDrop> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted)?;
        let keys = self.peers[peer].keys.as_ref();
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..];
        let sender = (self.news.own, self.news.sent_ns);
        let written =
            Keys::between(keys, CHANNEL, |authentication| news::write(sender, part, authentication, bytes));
        let length = gach::HEADER + written.expect("a buffer holds the minimum IPv6 packet");
        self.encapsulate_path_message(peer, channel::NEWS, StoredPacket::new(buffer, length as u16))
    }

    /// Handles news received through this port and tunnel. `above` are the labels above the GAL.
    pub(super) fn handle_news(
        &mut self,
        at: Instant,
        (port, tunnel): (usize, Option<&ReceivingTunnel>),
        above: impl Iterator<Item = LabelStackEntry>,
        message: &[u8],
    ) -> Result<(), PacketDrop> {
        let (message, bytes) = NewsMessage::read(message)
            .map(|(found, length)| (found, &message[..length]))
            .map_err(|_| Counter::NewsMalformed)?;
        let above: Vec<LabelStackEntry> = above.collect();
        let sender = self.news_sender((port, tunnel), &above)?;
        let Some(peer) = &mut self.news.peers[sender] else { return Err(Counter::NewsForeign.into()) };
        let (publisher, heard) = (peer.publisher, &mut peer.heard);
        let keys = self.peers[sender].keys.as_ref();
        let news =
            Keys::between(keys, CHANNEL, |authentication| heard.accept(at, &message, bytes, authentication));
        let news = news.map_err(|refused| match refused {
            NewsError::Malformed | NewsError::Impossible => Counter::NewsMalformed,
            NewsError::Digest => Counter::NewsForged,
            NewsError::NotNewer => Counter::NewsReplayed,
            NewsError::Reflected => Counter::NewsReflected,
        })?;
        self.edge.handle_news(at, publisher, &news);
        if let Some(for_cores) = &mut self.news.for_cores {
            for_cores.heard.insert(publisher, (at, news));
        }
        Ok(())
    }

    /// Returns whether this core has published news since its last exchange with the other cores.
    pub(super) fn has_news_for_cores(&self) -> bool {
        self.news.for_cores.as_ref().is_some_and(|for_cores| for_cores.own.is_some())
    }

    /// Exchanges news with the other cores, of which this one has the number `core`.
    pub(super) fn exchange_with_cores(&mut self, core: usize, shared: &mut CoreNews) {
        let Some(for_cores) = &mut self.news.for_cores else { return };
        let NewsForCores { own, heard } = std::mem::take(for_cores);
        let now = own.as_ref().map_or(Instant::ZERO, |(at, _)| *at);
        shared.own.extend(own.map(|own| (core, own)));
        shared.heard.extend(heard);
        let is_fresh = |(at, _): &DatedNews| now.since(*at) <= NEWS_AGE;
        shared.own.retain(|_, news| is_fresh(news));
        shared.heard.retain(|_, news| is_fresh(news));
        let cores = shared.own.iter().filter(|(other, _)| **other != core);
        let cores = cores.map(|(other, news)| (publisher(&format!("\0core {other}")), news));
        let peers = shared.heard.iter().map(|(publisher, news)| (*publisher, news));
        self.news.of_cores.clear();
        for (publisher, (at, news)) in cores {
            self.news.of_cores.push(news.clone());
            self.edge.handle_news(*at, publisher, news);
        }
        for (publisher, (at, news)) in peers {
            self.edge.handle_news(*at, publisher, news);
        }
    }

    /// Returns the peer, of those with which news is exchanged, whose path has this port, tunnel and labels.
    fn news_sender(
        &self,
        (port, tunnel): (usize, Option<&ReceivingTunnel>),
        above: &[LabelStackEntry],
    ) -> Result<usize, Counter> {
        let is_path = |peer: usize| {
            let is_from_peer = self.is_from_peer(peer, port, tunnel)?;
            Ok(is_from_peer && above.iter().all(|entry| self.may_be_above(peer, entry.label)))
        };
        let all = 0..self.peers.len();
        let senders = || all.clone().filter(|peer| is_path(*peer) == Ok(true));
        let mut expected = senders().filter(|peer| self.news.peers[*peer].is_some());
        // Neighbors on one link without labels of their paths cannot be distinguished.
        match (expected.next(), expected.next()) {
            (Some(sender), None) => Ok(sender),
            (None, _) if senders().next().is_some() => Err(Counter::NewsUnused),
            _ => Err(all.clone().find_map(|peer| is_path(peer).err()).unwrap_or(Counter::NewsForeign)),
        }
    }

    /// Adopts what was received from peers that are in both configurations.
    pub(super) fn take_over_news(&mut self, old: &mut EngineState) {
        self.edge.edge_mut().adopt_news(old.edge.edge_mut());
        self.news.sent_ns = old.news.sent_ns;
        for peer in self.news.peers.iter_mut().flatten() {
            let mut known = old.news.peers.iter().flatten();
            if let Some(known) = known.find(|known| known.publisher == peer.publisher) {
                peer.heard = known.heard;
            }
        }
    }
}
