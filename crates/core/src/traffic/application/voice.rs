//! A telephone call over RTP (RFC 3550): both ends speak and listen.
//!
//! Without talk-spurts a packet leaves every packet time; with them, only while speaking
//! (durations of ITU-T P.59). The listener plays what comes within its jitter buffer.

use super::playout::Playout;
use super::{
    ApplicationError, Content, Context, HEADER, LARGEST_DATAGRAM, Machine, Message, Observation, Role,
};
use crate::measure::emodel::{self, Call, CodecImpairment};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// RTP header without extensions (RFC 3550 section 5.1).
const RTP_HEADER: u32 = 12;
/// A talker unheard for so long is taken for lost, not late.
const OUTAGE: Duration = Duration::from_secs(1);

/// A telephone call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Voice {
    /// How speech is coded.
    pub codec: Codec,
    /// Bit rate of the coded speech.
    pub rate: BitRate,
    /// Speech in one packet.
    pub packet: Duration,
    /// Mean lengths of talk-spurts and pauses, exponential; `None` for a packet every packet time.
    pub spurts: Option<(Duration, Duration)>,
    /// Size of the jitter buffer.
    pub jitter_buffer: Duration,
}

/// How speech is coded.
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
    /// Its usual bit rate: for Opus in the range RFC 7587 recommends for full-band speech.
    pub fn rate(self) -> BitRate {
        match self {
            Codec::G711 => BitRate(64_000),
            Codec::G729 => BitRate(8_000),
            Codec::Opus => BitRate(32_000),
        }
    }

    /// How far the coder looks ahead (G.729 section 2.4; RFC 6716 section 2).
    pub fn look_ahead(self) -> Duration {
        match self {
            Codec::G711 => Duration::ZERO,
            Codec::G729 => Duration::from_millis(5),
            Codec::Opus => Duration::from_micros(6_500),
        }
    }
}

impl Codec {
    /// How it bears loss, with concealment.
    fn impairment(self) -> CodecImpairment {
        match self {
            Codec::G711 => CodecImpairment::G711_CONCEALED,
            Codec::G729 => CodecImpairment::G729A,
            Codec::Opus => CodecImpairment::OPUS_ASSUMED,
        }
    }

    /// Mean opinion score by the E-model (ITU-T G.107): of a share of packets lost, at random,
    /// and a delay from mouth to ear; echo is cancelled, all else at its default.
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
    /// Payload of a packet, the RTP header included.
    pub fn payload(&self) -> u32 {
        let bytes = u128::from(self.rate.0) * u128::from(self.packet.0) / 8_000_000_000;
        u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(RTP_HEADER)
    }

    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        let spoken = self.spurts.is_none_or(|(talk, pause)| talk.0 > 0 && pause.0 > 0);
        if self.packet.0 == 0 || !spoken {
            Err(ApplicationError::ZeroTime)
        } else if self.payload() < HEADER {
            Err(ApplicationError::SmallMessage)
        } else if self.payload() > LARGEST_DATAGRAM {
            Err(ApplicationError::LargeDatagram)
        } else {
            Ok(())
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Talker {
    model: Voice,
    role: Role,
    /// When the next packet leaves; [`Instant::NEVER`] before the call.
    next: Instant,
    spurt_until: Instant,
    number: u32,
    heard: Playout,
    last_heard: Instant,
}

impl Talker {
    pub fn new(model: &Voice, role: Role) -> Talker {
        Talker {
            model: model.clone(),
            role,
            next: Instant::NEVER,
            spurt_until: Instant::NEVER,
            number: 0,
            heard: Playout::new(Some(model.jitter_buffer)),
            last_heard: Instant::NEVER,
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = context.now;
        if let Some((talk, _)) = self.model.spurts {
            self.spurt_until = context.now + context.exponential(talk);
        }
    }

    fn speak(&mut self, context: &mut Context) {
        context.send(0, self.model.payload(), self.number, Content::Data);
        self.number = self.number.wrapping_add(1);
        self.next += self.model.packet;
        if let Some((talk, pause)) = self.model.spurts
            && self.next >= self.spurt_until
        {
            self.next = self.spurt_until + context.exponential(pause);
            self.spurt_until = self.next + context.exponential(talk);
        }
    }

    /// When silence is no longer put down to delay.
    fn outage_at(&self) -> Instant {
        let expects = self.model.spurts.is_none() && self.last_heard != Instant::NEVER;
        if expects { self.last_heard + OUTAGE } else { Instant::NEVER }
    }
}

impl Machine for Talker {
    fn start(&mut self, context: &mut Context) {
        if self.role == Role::Client {
            context.open(0);
        }
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.begin(context);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &Message) {
        if self.next == Instant::NEVER {
            self.begin(context);
        }
        self.last_heard = context.now;
        let delay = context.now.since(message.sent);
        if self.heard.arrive(context, message.number, delay)
            && let Some(playout) = self.heard.delay()
        {
            let delay = playout + self.model.packet + self.model.codec.look_ahead();
            context.observe(Observation::MouthToEar { at: context.now, delay });
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.speak(context);
        }
        while self.outage_at() <= context.now {
            self.heard.miss(context, (OUTAGE.0 / self.model.packet.0) as u32);
            self.last_heard += OUTAGE;
        }
    }

    fn deadline(&self) -> Instant {
        self.next.min(self.outage_at())
    }
}
