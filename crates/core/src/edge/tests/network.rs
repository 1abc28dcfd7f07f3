//! A network of links with queues, and PEs with greedy VPN flows that send over them.

use super::*;
use crate::fair::crowd::PeNews;
use crate::fair::{CoreMembership, Reply};
use alloc::collections::BTreeMap;

const STEP: Duration = Duration::from_micros(500);

/// A link with a queue that drops at its tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Rate in bytes per second, and buffer in bytes.
    pub rate: f64,
    pub buffer: f64,
    /// Time in seconds at which it has sent all.
    free_at: f64,
    /// Sum over the steps of the share of the buffer that is full.
    filled: f64,
}

impl Link {
    pub fn new(rate: f64, buffer: f64) -> Link {
        Link { rate, buffer, free_at: 0.0, filled: 0.0 }
    }
}

/// A PE with a greedy VPN flow.
pub(super) struct GreedyPe {
    pub edge: ProviderEdge<NumberedPacket>,
    egress: Egress,
    replies: VecDeque<(Instant, Reply)>,
    /// Links on the way there, and the delay behind them and of the way back.
    path: Vec<usize>,
    delay: Duration,
    /// Bytes delivered since the last reset.
    pub delivered: u64,
}

impl GreedyPe {
    pub fn new(weight: f64, membership: CoreMembership, path: &[usize], delay: Duration) -> GreedyPe {
        let control = VpnControl::RateConsensus(membership);
        let mut edge = ProviderEdge::new(TICK);
        let settings = VpnFlowSettings { weight, control, ..VpnFlowSettings::default() };
        edge.add(Instant::ZERO, &settings, RandomStream::new(1, "edge"));
        let (egress, path) = (Egress::default(), path.to_vec());
        GreedyPe { edge, egress, replies: VecDeque::new(), path, delay, delivered: 0 }
    }
}

/// A packet that arrives at a link of its path, or at its egress.
struct Arrival {
    from: usize,
    hop: usize,
    transmit: IngressTransmit<NumberedPacket>,
}

/// The network.
pub(super) struct Network {
    pub pes: Vec<GreedyPe>,
    links: Vec<Link>,
    pub now: Instant,
    arrivals: BTreeMap<(Instant, u64), Arrival>,
    /// Packets sent, and steps done.
    sent: u64,
    steps: usize,
}

impl Network {
    pub fn new(links: Vec<Link>, pes: Vec<GreedyPe>) -> Network {
        Network { pes, links, now: Instant::ZERO, arrivals: BTreeMap::new(), sent: 0, steps: 0 }
    }

    /// Exchanges the news of all PEs.
    pub fn exchange_news(&mut self) {
        let now = self.now;
        let published: Vec<PeNews> = self.pes.iter_mut().map(|pe| pe.edge.publish_news(now)).collect();
        for (own, pe) in self.pes.iter_mut().enumerate() {
            for (publisher, news) in published.iter().enumerate().filter(|(number, _)| *number != own) {
                pe.edge.handle_news(now, publisher as u64, news);
            }
            pe.edge.consider_news(now);
        }
    }

    /// Lets the PEs receive and send, and moves the time on.
    pub fn step(&mut self) {
        while let Some(next) = self.arrivals.first_entry()
            && next.key().0 <= self.now
        {
            let ((at, _), arrival) = next.remove_entry();
            self.arrive(at, arrival);
        }
        for turn in 0..self.pes.len() {
            // No PE is always the first one to fill a queue.
            let own = (turn + self.steps) % self.pes.len();
            let (pe, now) = (&mut self.pes[own], self.now);
            while let Some((at, reply)) = pe.replies.pop_front_if(|(at, _)| *at <= now) {
                pe.edge.handle_reply(at, 0, &reply);
            }
            while pe.edge.handle_packet(now, 0, NumberedPacket::new(self.sent, 1500)).is_ok() {
                self.sent += 1;
            }
            for (_, transmit) in sent(&mut pe.edge, now) {
                self.arrive(now, Arrival { from: own, hop: 0, transmit });
            }
        }
        for link in &mut self.links {
            link.filled += (link.free_at - self.now.as_secs_f64()).max(0.0) * link.rate / link.buffer;
        }
        self.steps += 1;
        self.now += STEP;
    }

    fn arrive(&mut self, at: Instant, Arrival { from, hop, transmit }: Arrival) {
        let pe = &mut self.pes[from];
        let Some(link) = pe.path.get(hop) else {
            match transmit {
                IngressTransmit::Data(packet) => {
                    pe.egress.handle_packet(packet.size, false);
                    pe.delivered += u64::from(packet.size);
                }
                IngressTransmit::Query(query) => {
                    pe.replies.push_back((at + pe.delay, pe.egress.handle_query(query, at)));
                }
            }
            return;
        };
        let size = if let IngressTransmit::Data(packet) = &transmit { packet.size } else { 88 };
        let (link, seconds) = (&mut self.links[*link], at.as_secs_f64());
        link.free_at = link.free_at.max(seconds);
        if (link.free_at - seconds) * link.rate + f64::from(size) > link.buffer {
            return;
        }
        link.free_at += f64::from(size) / link.rate;
        let delay = if hop + 1 == pe.path.len() { pe.delay } else { Duration::ZERO };
        let next = Instant((link.free_at * 1e9) as u64) + delay;
        self.sent += 1;
        self.arrivals.insert((next, self.sent), Arrival { from, hop: hop + 1, transmit });
    }

    /// Changes rate and buffer of a link, as after a failure.
    pub fn change_link(&mut self, link: usize, rate: f64, buffer: f64) {
        (self.links[link].rate, self.links[link].buffer) = (rate, buffer);
    }

    /// Returns the mean share of each link's buffer that was full.
    pub fn queues(&self) -> Vec<f64> {
        self.links.iter().map(|link| link.filled / self.steps as f64).collect()
    }
}
