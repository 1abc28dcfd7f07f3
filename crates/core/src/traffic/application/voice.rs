//! A telephone call over RTP (RFC 3550), with speech in both directions.
//!
//! A packet is sent every packet time; with talk spurts, only during a spurt (durations of ITU-T P.59). The
//! receiver plays the packets that arrive within its jitter buffer.

use super::playout::Playout;
use super::{
    ApplicationError, ApplicationMessage, Context, EndpointRole, HEADER, MAX_DATAGRAM_PAYLOAD,
    MessageContent, ModelEndpoint, Observation,
};
use crate::measure::emodel::{self, Call, CodecImpairment};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Length of the RTP header without extensions (RFC 3550 section 5.1), bytes.
const RTP_HEADER: u32 = 12;
/// Silence after which the missing packets count as lost.
const OUTAGE: Duration = Duration::from_secs(1);

/// A telephone call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Voice {
    /// Codec.
    pub codec: Codec,
    /// Bit rate of the coded speech.
    pub rate: BitRate,
    /// Duration of the speech in a packet.
    pub packet: Duration,
    /// Mean lengths of talk spurts and pauses, exponential; `None` for continuous packets.
    pub spurts: Option<(Duration, Duration)>,
    /// Size of the jitter buffer.
    pub jitter_buffer: Duration,
}

/// Speech codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Codec {
    /// ITU-T G.711, 64 kbit/s.
    G711,
    /// ITU-T G.729, 8 kbit/s.
    G729,
    /// Opus (RFC 6716).
    Opus,
}

impl Codec {
    /// Returns the usual bit rate; for Opus in the range that RFC 7587 recommends for full-band speech.
    pub fn rate(self) -> BitRate {
        match self {
            Codec::G711 => BitRate(64_000),
            Codec::G729 => BitRate(8_000),
            Codec::Opus => BitRate(32_000),
        }
    }

    /// Returns the look-ahead of the coder (G.729 section 2.4; RFC 6716 section 2).
    pub fn look_ahead(self) -> Duration {
        match self {
            Codec::G711 => Duration::ZERO,
            Codec::G729 => Duration::from_millis(5),
            Codec::Opus => Duration::from_micros(6_500),
        }
    }
}

impl Codec {
    /// Returns the impairment by loss, with concealment.
    fn impairment(self) -> CodecImpairment {
        match self {
            Codec::G711 => CodecImpairment::G711_CONCEALED,
            Codec::G729 => CodecImpairment::G729A,
            Codec::Opus => CodecImpairment::OPUS_ASSUMED,
        }
    }

    /// Returns the mean opinion score by the E-model (ITU-T G.107) for a share of randomly lost packets and a
    /// mouth-to-ear delay. Echo is canceled; other parameters have their defaults.
    pub fn opinion_score(self, loss: f64, delay: Duration) -> f64 {
        let call = Call {
            one_way_delay: delay,
            loss,
            burst_ratio: 1.0,
            codec: self.impairment(),
            talker_echo: f64::INFINITY,
            advantage: 0.0,
        };
        emodel::rate(&call).mean_opinion_score
    }
}

impl Voice {
    /// Returns the payload of a packet including the RTP header, bytes.
    pub fn payload(&self) -> u32 {
        let bytes = u128::from(self.rate.0) * u128::from(self.packet.0) / 8_000_000_000;
        u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(RTP_HEADER)
    }

    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        let has_valid_spurts = self.spurts.is_none_or(|(talk, pause)| talk.0 > 0 && pause.0 > 0);
        if self.packet.0 == 0 || !has_valid_spurts {
            Err(ApplicationError::ZeroTime)
        } else if self.payload() < HEADER {
            Err(ApplicationError::SmallMessage)
        } else if self.payload() > MAX_DATAGRAM_PAYLOAD {
            Err(ApplicationError::LargeDatagram)
        } else {
            Ok(())
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct VoiceEndpoint {
    model: Voice,
    role: EndpointRole,
    /// Departure time of the next packet; [`Instant::NEVER`] before the call.
    next: Instant,
    spurt_until: Instant,
    number: u32,
    playout: Playout,
    last_received: Instant,
}

impl VoiceEndpoint {
    pub fn new(model: &Voice, role: EndpointRole) -> VoiceEndpoint {
        VoiceEndpoint {
            model: model.clone(),
            role,
            next: Instant::NEVER,
            spurt_until: Instant::NEVER,
            number: 0,
            playout: Playout::new(Some(model.jitter_buffer)),
            last_received: Instant::NEVER,
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = context.now;
        if let Some((talk, _)) = self.model.spurts {
            self.spurt_until = context.now + context.exponential(talk);
        }
    }

    fn send_packet(&mut self, context: &mut Context) {
        context.send(0, self.model.payload(), self.number, MessageContent::Data);
        self.number = self.number.wrapping_add(1);
        self.next += self.model.packet;
        if let Some((talk, pause)) = self.model.spurts
            && self.next >= self.spurt_until
        {
            self.next = self.spurt_until + context.exponential(pause);
            self.spurt_until = self.next + context.exponential(talk);
        }
    }

    /// Returns the time at which the missing packets count as lost.
    fn outage_at(&self) -> Instant {
        let expects_packets = self.model.spurts.is_none() && self.last_received != Instant::NEVER;
        if expects_packets { self.last_received + OUTAGE } else { Instant::NEVER }
    }
}

impl ModelEndpoint for VoiceEndpoint {
    fn start(&mut self, context: &mut Context) {
        if self.role == EndpointRole::Client {
            context.open(0);
        }
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.begin(context);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if self.next == Instant::NEVER {
            self.begin(context);
        }
        self.last_received = context.now;
        let delay = context.now.since(message.sent);
        if self.playout.arrive(context, message.number, delay)
            && let Some(playout_delay) = self.playout.delay()
        {
            let delay = playout_delay + self.model.packet + self.model.codec.look_ahead();
            context.observe(Observation::MouthToEar { at: context.now, delay });
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.send_packet(context);
        }
        while self.outage_at() <= context.now {
            self.playout.miss(context, (OUTAGE.0 / self.model.packet.0) as u32);
            self.last_received += OUTAGE;
        }
    }

    fn deadline(&self) -> Instant {
        self.next.min(self.outage_at())
    }
}
