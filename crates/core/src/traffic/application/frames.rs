//! Video in frames of variable bit rate: groups of pictures of I, P and B frames whose sizes
//! are log-normal (Krunz, Sass, Hughes, "Statistical characteristics and multiplexing of MPEG
//! streams", INFOCOM 1995). The server sends each frame at its time, whatever the network does.

use super::playout::Playout;
use super::{ApplicationError, Carriage, Content, Context, HEADER, Machine, Message, Observation};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet};
use serde::{Deserialize, Serialize};

/// Payload of a packet that carries part of a frame.
const PART: u32 = 1_400;
/// A client that sees no frame asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Incomplete frames this far behind are forgotten.
const FORGOTTEN: u32 = 256;

/// Video in frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameVideo {
    /// Mean bit rate.
    pub rate: BitRate,
    /// Frames per second.
    pub frames_per_second: f64,
    /// Frames from one I frame to the next.
    pub group: u32,
    /// B frames between two I or P frames.
    pub b_frames: u32,
    /// Mean size of I, P and B frames, relative to each other.
    pub sizes: [f64; 3],
    /// Deviation of the sizes of a kind of frame, relative to their mean.
    pub variation: f64,
    /// What the viewer buffers against varying delay.
    pub playout_delay: Duration,
}

impl FrameVideo {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        if self.group == 0 {
            return Err(ApplicationError::ZeroCount);
        }
        if !(self.frames_per_second > 0.0 && self.frames_per_second <= 10_000.0) {
            return Err(ApplicationError::ZeroTime);
        }
        if self.rate.0 == 0 {
            return Err(ApplicationError::Rates);
        }
        let sound = self.sizes.iter().all(|size| *size > 0.0 && size.is_finite());
        if !sound || !(0.0..=100.0).contains(&self.variation) || self.means().iter().any(|mean| *mean > 1e8) {
            return Err(ApplicationError::Size);
        }
        Ok(())
    }

    fn interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.frames_per_second)
    }

    /// 0, 1 or 2 for the I, P or B frame at a place of the group.
    fn kind(&self, place: u32) -> usize {
        if place == 0 { 0 } else { 1 + usize::from(!place.is_multiple_of(self.b_frames.saturating_add(1))) }
    }

    /// Mean bytes of each kind of frame.
    fn means(&self) -> [f64; 3] {
        let weight: f64 = (0..self.group).map(|place| self.sizes[self.kind(place)]).sum();
        let frame = self.rate.as_f64() / 8.0 / self.frames_per_second;
        self.sizes.map(|size| size / weight * f64::from(self.group) * frame)
    }
}

/// The server.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    model: FrameVideo,
    carriage: Carriage,
    means: [f64; 3],
    connection: u32,
    began: Instant,
    next: Instant,
    frame: u32,
    number: u32,
}

impl Source {
    pub fn new(model: FrameVideo, carriage: Carriage) -> Source {
        let means = model.means();
        let (began, next) = (Instant::NEVER, Instant::NEVER);
        Source { model, carriage, means, connection: 0, began, next, frame: 0, number: 0 }
    }

    fn send_frame(&mut self, context: &mut Context) {
        let mean = self.means[self.model.kind(self.frame % self.model.group)];
        let size = match self.model.variation {
            0.0 => mean,
            variation => context.rng.lognormal(mean, mean * variation).min(1e9),
        };
        let size = (size as u32).max(HEADER);
        let of = if self.carriage == Carriage::Stream { 1 } else { size.div_ceil(PART) };
        let mut left = size;
        for part in 0..of {
            let bytes = left.div_ceil(of - part);
            left -= bytes;
            context.send(self.connection, bytes, self.number, Content::Part { frame: self.frame, of });
            self.number = self.number.wrapping_add(1);
        }
        self.frame = self.frame.wrapping_add(1);
        // Counted from the first frame, so that nothing adds up.
        let elapsed = f64::from(self.frame) / self.model.frames_per_second;
        self.next = self.began + Duration::from_secs_f64(elapsed);
    }
}

impl Machine for Source {
    fn message(&mut self, context: &mut Context, connection: u32, _: &Message) {
        self.connection = connection;
        if self.began == Instant::NEVER {
            self.began = context.now;
            self.next = context.now;
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.send_frame(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}

/// The client.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    frames: Playout,
    /// Parts of incomplete frames that have come: their numbers and bytes.
    incomplete: BTreeMap<u32, (BTreeSet<u32>, u64)>,
    /// When to ask again.
    ask: Instant,
    interval: Duration,
}

impl Sink {
    pub fn new(model: &FrameVideo) -> Sink {
        Sink {
            frames: Playout::new(Some(model.playout_delay)),
            incomplete: BTreeMap::new(),
            ask: Instant::NEVER,
            interval: model.interval(),
        }
    }

    fn ask(&mut self, context: &mut Context) {
        let content = Content::Request { answer: 0, after: Duration::ZERO };
        context.send(0, HEADER, 0, content);
        self.ask = context.now + ASK_AGAIN;
    }
}

impl Machine for Sink {
    fn start(&mut self, context: &mut Context) {
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.ask(context);
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &Message) {
        let Content::Part { frame, of } = message.content else { return };
        self.ask = Instant::NEVER;
        let (parts, bytes) = self.incomplete.entry(frame).or_default();
        if parts.insert(message.number) {
            *bytes += u64::from(message.bytes);
        }
        if (parts.len() as u64) < u64::from(of) {
            return;
        }
        let bits = *bytes * 8;
        self.incomplete.remove(&frame);
        self.incomplete.retain(|other, _| *other > frame.saturating_sub(FORGOTTEN));
        if self.frames.arrive(context, frame, context.now.since(message.sent)) {
            let rate = bits as f64 / self.interval.as_secs_f64();
            let until = context.now + self.interval;
            context.observe(Observation::Playing { from: context.now, until, rate: rate as u64 });
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        if self.ask <= context.now {
            self.ask(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.ask
    }
}
