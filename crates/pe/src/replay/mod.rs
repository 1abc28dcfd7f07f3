//! Replay of a trace in virtual time.

use crate::engine::flows;
use crate::trace::{TraceFileError, TraceReader};
use netstage_core::edge::{EdgeEvent, ProviderEdge, SentPacket, TICK};
use netstage_core::fair::PublishedReference;
use netstage_core::fair::parameters::Basis;
use netstage_core::packet::{Ecn, QueuePacket};
use netstage_core::time::Instant;
use netstage_scenario::pe::{self, PeConfig};
use std::fmt;
use std::io::BufRead;

/// VPN flows that receive the inputs of a trace.
#[derive(Debug)]
pub struct Replay {
    edge: ProviderEdge<TracedPacket>,
    router: PeConfig,
    session_seed: u32,
    now: Instant,
    totals: Vec<FlowTotals>,
    decisions: u64,
}

/// Totals of a VPN flow.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct FlowTotals {
    /// VPN of the flow.
    pub vpn: String,
    /// Peer of the flow.
    pub peer: String,
    /// Packets received for the flow.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub refused: u64,
    /// Packets sent.
    pub sent: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Replies received to management packets.
    pub replies: u64,
    /// Packets lost, computed from the replies.
    pub lost: u64,
    /// Present window in packets; `None` if the flow has no window.
    pub window: Option<f64>,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ReplayResult {
    /// Time from the router's start to the last event.
    pub seconds: f64,
    /// Number of replayed events.
    pub events: u64,
    /// Number of compared decisions.
    pub decisions: u64,
    /// First decision that differs, if any; the replay stops there.
    pub difference: Option<String>,
    /// The last line is incomplete because the router was killed.
    pub is_cut: bool,
    /// Totals of each VPN flow.
    pub flows: Vec<FlowTotals>,
}

/// Replays a trace.
pub fn replay(from: impl BufRead) -> Result<ReplayResult, TraceFileError> {
    let (head, mut reader) = TraceReader::new(from)?;
    let configured =
        |text: &str| pe::parse("the trace's configuration", text).map_err(|errors| errors.to_string());
    let router = configured(&head.configuration).map_err(|what| TraceFileError::Line { number: 1, what })?;
    let mut replay = Replay::new(router, head.seed);
    let (mut events, mut difference) = (0, None);
    while let Some(event) = reader.next_event()? {
        match replay.step(&event, configured) {
            Ok(()) => events += 1,
            Err(ReplayError::Impossible(what)) => {
                return Err(TraceFileError::Line { number: reader.line(), what });
            }
            Err(decision) => {
                difference = Some(format!("line {}, {decision}", reader.line()));
                break;
            }
        }
    }
    Ok(ReplayResult {
        seconds: replay.now().0 as f64 / 1e9,
        events,
        decisions: replay.decisions(),
        difference,
        is_cut: reader.is_cut(),
        flows: replay.totals(),
    })
}

/// Error that ends a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayError {
    /// A decision differs from the recorded one.
    Decision {
        /// Time of the decision, nanoseconds.
        at: u64,
        /// Subject of the decision.
        what: String,
        /// Recorded decision.
        recorded: String,
        /// Replayed decision.
        replayed: String,
    },
    /// An event is impossible, for this reason.
    Impossible(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Decision { at, what, recorded, replayed } => {
                let seconds = *at as f64 / 1e9;
                write!(f, "at {seconds:.6} s, {what}: recorded {recorded}, replayed {replayed}")
            }
            ReplayError::Impossible(why) => f.write_str(why),
        }
    }
}

/// Packet reduced to the fields that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedPacket {
    pub size: u32,
    pub class: u16,
    pub inside: u32,
    pub ecn: Ecn,
}

impl QueuePacket for TracedPacket {
    fn size(&self) -> u32 {
        self.size
    }
    fn class(&self) -> u16 {
        self.class
    }
    fn ecn(&self) -> Ecn {
        self.ecn
    }
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
    }
    fn flow_key(&self) -> u64 {
        self.inside.into()
    }
}

/// Converts the two bits of the ECN field.
fn ecn(bits: u32) -> Ecn {
    match bits {
        0 => Ecn::NotCapable,
        3 => Ecn::CongestionExperienced,
        _ => Ecn::Capable,
    }
}

impl Replay {
    /// Creates the VPN flows of a configuration in their initial state.
    pub fn new(router: PeConfig, session_seed: u32) -> Replay {
        let (edge, totals) = (flows::edge(&router, session_seed, TICK), totals(&router));
        Replay { edge, router, session_seed, now: Instant::ZERO, totals, decisions: 0 }
    }

    /// Applies a new configuration.
    fn reload(&mut self, router: PeConfig) {
        let (mut edge, mut totals) = (flows::edge(&router, self.session_seed, TICK), totals(&router));
        let known = flows::matching_old_flows(flows::names(&self.router), flows::names(&router));
        for (own, (known, (_, flow))) in known.iter().zip(flows::all(&router)).enumerate() {
            let Some(known) = *known else { continue };
            let from = (&mut self.edge, known);
            edge.adopt(self.now, own, from, &flow.settings);
            totals[own] = std::mem::take(&mut self.totals[known]);
        }
        edge.adopt_news(&mut self.edge);
        (self.edge, self.router, self.totals) = (edge, router, totals);
    }

    /// Replays one event. `read` parses the configuration of a reload.
    pub fn step(
        &mut self,
        event: &EdgeEvent,
        read: impl FnOnce(&str) -> Result<PeConfig, String>,
    ) -> Result<(), ReplayError> {
        match event {
            EdgeEvent::Packet { at, flow, size, class, inside, ecn, taken } => {
                let (now, flow) = (self.at(*at)?, self.flow(*flow)?);
                let class = u16::try_from(*class).map_err(|_| impossible("class exceeds 65535"))?;
                let packet = TracedPacket { size: *size, class, inside: *inside, ecn: self::ecn(*ecn) };
                let is_taken = self.edge.handle_packet(now, flow, packet).is_ok();
                self.forget_dropped();
                self.decisions += 1;
                self.totals[flow].packets += 1;
                self.totals[flow].refused += u64::from(!is_taken);
                let what = |is_taken: bool| if is_taken { "accepted" } else { "dropped" };
                self.compare(*at, || self.described(flow, "a packet"), what(*taken), what(is_taken))
            }
            EdgeEvent::Reply { at, flow, window, .. } => {
                let flow = self.flow(*flow)?;
                let reply = event.as_reply().expect("the event is a reply");
                self.edge.handle_reply(Instant(*at), flow, &reply);
                self.decisions += 1;
                self.totals[flow].replies += 1;
                let replayed = self.edge.permitted(flow);
                self.compare(*at, || self.described(flow, "the window or rate"), *window, replayed)
            }
            EdgeEvent::Reference { at, reference, weight, round_trip, loss, decrease } => {
                let number = *reference as usize;
                // A reference without followers affects no decision; its number may be unknown.
                if flows::all(&self.router).any(|(_, flow)| flow.reference() == Some(number)) {
                    let basis = Basis { weight: *weight, round_trip: *round_trip, loss: *loss };
                    let published = PublishedReference { at: Instant(*at), basis, decrease: *decrease };
                    self.edge.handle_reference(number, published);
                }
                Ok(())
            }
            EdgeEvent::Publication { at, news } => {
                let now = self.at(*at)?;
                let replayed = self.edge.publish_news(now);
                self.decisions += 1;
                self.compare(*at, || "published news".into(), format!("{news:?}"), format!("{replayed:?}"))
            }
            EdgeEvent::News { at, publisher, news } => {
                self.edge.handle_news(Instant(*at), *publisher, news);
                Ok(())
            }
            EdgeEvent::Consensus { at } => {
                let now = self.at(*at)?;
                self.edge.consider_news(now);
                Ok(())
            }
            EdgeEvent::Wake { at, flow } => {
                let (now, flow) = (self.at(*at)?, self.flow(*flow)?);
                self.edge.wake(now, flow);
                Ok(())
            }
            EdgeEvent::Turn { at, sent, drained } => self.turn(*at, sent, *drained),
            EdgeEvent::Reload { at, configuration } => {
                self.at(*at)?;
                self.reload(read(configuration).map_err(ReplayError::Impossible)?);
                Ok(())
            }
        }
    }

    fn turn(&mut self, at: u64, sent: &[SentPacket], drained: bool) -> Result<(), ReplayError> {
        let now = self.at(at)?;
        self.edge.handle_timeout(now);
        let polls = sent.iter().copied().map(Some).chain(drained.then_some(None));
        for recorded in polls {
            let transmit = self.edge.poll_transmit(now);
            self.forget_dropped();
            self.decisions += 1;
            let replayed = transmit.as_ref().map(|(flow, transmit)| SentPacket::new(*flow, transmit));
            if let Some(sent) = replayed {
                match sent {
                    SentPacket::Data(flow, _) => self.totals[flow as usize].sent += 1,
                    SentPacket::Query(flow, _) => self.totals[flow as usize].queries += 1,
                }
            }
            let text = |sent: Option<SentPacket>| match sent {
                None => "nothing".to_owned(),
                Some(SentPacket::Data(flow, size)) => self.described(flow as usize, &format!("{size} B")),
                Some(SentPacket::Query(flow, number)) => {
                    self.described(flow as usize, &format!("query {number}"))
                }
            };
            self.compare(at, || "transmission".into(), text(recorded), text(replayed))?;
        }
        Ok(())
    }

    /// Returns the number of compared decisions.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Returns the time of the last event.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the present totals of each VPN flow.
    pub fn totals(&self) -> Vec<FlowTotals> {
        let mut totals = self.totals.clone();
        for (flow, totals) in totals.iter_mut().enumerate() {
            let ingress = self.edge.window(flow);
            totals.window = ingress.map(|ingress| ingress.window());
            let paced = || self.edge.paced(flow).map(|paced| paced.counters().lost);
            totals.lost = ingress.map(|ingress| ingress.counters().lost).or_else(paced).unwrap_or(0);
        }
        totals
    }

    fn compare<T: PartialEq + fmt::Display>(
        &self,
        at: u64,
        what: impl FnOnce() -> String,
        recorded: T,
        replayed: T,
    ) -> Result<(), ReplayError> {
        if recorded == replayed {
            return Ok(());
        }
        let (recorded, replayed) = (recorded.to_string(), replayed.to_string());
        Err(ReplayError::Decision { at, what: what(), recorded, replayed })
    }

    fn described(&self, flow: usize, what: &str) -> String {
        self.totals.get(flow).map_or_else(
            || format!("{what} of unknown VPN flow {flow}"),
            |flow| format!("{what} of VPN {} to {}", flow.vpn, flow.peer),
        )
    }

    fn at(&mut self, at: u64) -> Result<Instant, ReplayError> {
        if at < self.now.0 {
            return Err(impossible("time decreases"));
        }
        self.now = Instant(at);
        Ok(self.now)
    }

    fn flow(&self, number: u32) -> Result<usize, ReplayError> {
        let flow = number as usize;
        if flow < self.totals.len() {
            return Ok(flow);
        }
        Err(impossible(&format!("no VPN flow {number} in the configuration")))
    }

    fn forget_dropped(&mut self) {
        while self.edge.poll_dropped().is_some() {}
    }
}

fn impossible(why: &str) -> ReplayError {
    ReplayError::Impossible(why.into())
}

fn totals(router: &PeConfig) -> Vec<FlowTotals> {
    flows::names(router)
        .map(|(vpn, peer)| FlowTotals { vpn: vpn.into(), peer: peer.into(), ..FlowTotals::default() })
        .collect()
}

#[cfg(test)]
mod tests;
