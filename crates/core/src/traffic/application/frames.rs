//! Variable-bit-rate video: groups of pictures of I, P and B frames with log-normal sizes (Krunz, Sass,
//! Hughes, "Statistical characteristics and multiplexing of MPEG streams", INFOCOM 1995). The server sends
//! frames at fixed times, regardless of the network.

use super::playout::Playout;
use super::{
    ApplicationError, ApplicationMessage, Context, HEADER, MessageContent, ModelEndpoint, Observation,
    TransportKind,
};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet};
use serde::{Deserialize, Serialize};

/// Maximum payload of a packet that carries part of a frame, bytes.
const PART: u32 = 1_400;
/// Interval of the client's requests until it receives a frame.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Number of frames after which an incomplete frame is discarded.
const MAX_INCOMPLETE_AGE: u32 = 256;

/// Video frames of variable size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameVideo {
    /// Mean bit rate.
    pub rate: BitRate,
    /// Frames per second.
    pub frames_per_second: f64,
    /// Length of a group of pictures in frames.
    pub group: u32,
    /// B frames between two I or P frames.
    pub b_frames: u32,
    /// Relative mean sizes of I, P and B frames.
    pub sizes: [f64; 3],
    /// Standard deviation of the sizes of a kind of frame, relative to their mean.
    pub variation: f64,
    /// Size of the viewer's jitter buffer.
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
        let is_valid = self.sizes.iter().all(|size| *size > 0.0 && size.is_finite());
        if !is_valid
            || !(0.0..=100.0).contains(&self.variation)
            || self.means().iter().any(|mean| *mean > 1e8)
        {
            return Err(ApplicationError::Size);
        }
        Ok(())
    }

    fn interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.frames_per_second)
    }

    /// Returns 0, 1 or 2 for the I, P or B frame at an index of the group.
    fn kind(&self, index: u32) -> usize {
        if index == 0 { 0 } else { 1 + usize::from(!index.is_multiple_of(self.b_frames.saturating_add(1))) }
    }

    /// Returns the mean size of each kind of frame, bytes.
    fn means(&self) -> [f64; 3] {
        let weight: f64 = (0..self.group).map(|index| self.sizes[self.kind(index)]).sum();
        let frame = self.rate.as_f64() / 8.0 / self.frames_per_second;
        self.sizes.map(|size| size / weight * f64::from(self.group) * frame)
    }
}

/// The server.
#[derive(Clone, Debug)]
pub(crate) struct FrameVideoServer {
    model: FrameVideo,
    carriage: TransportKind,
    means: [f64; 3],
    connection: u32,
    started_at: Instant,
    next: Instant,
    frame: u32,
    number: u32,
}

impl FrameVideoServer {
    pub fn new(model: FrameVideo, carriage: TransportKind) -> FrameVideoServer {
        let means = model.means();
        let (started_at, next) = (Instant::NEVER, Instant::NEVER);
        FrameVideoServer { model, carriage, means, connection: 0, started_at, next, frame: 0, number: 0 }
    }

    fn send_frame(&mut self, context: &mut Context) {
        let mean = self.means[self.model.kind(self.frame % self.model.group)];
        let size = match self.model.variation {
            0.0 => mean,
            variation => context.rng.lognormal(mean, mean * variation).min(1e9),
        };
        let size = (size as u32).max(HEADER);
        let parts = if self.carriage == TransportKind::Stream { 1 } else { size.div_ceil(PART) };
        let mut remaining = size;
        for part in 0..parts {
            let bytes = remaining.div_ceil(parts - part);
            remaining -= bytes;
            let content = MessageContent::Part { frame: self.frame, parts };
            context.send(self.connection, bytes, self.number, content);
            self.number = self.number.wrapping_add(1);
        }
        self.frame = self.frame.wrapping_add(1);
        // Relative to the first frame, so that rounding errors do not add up.
        let elapsed = f64::from(self.frame) / self.model.frames_per_second;
        self.next = self.started_at + Duration::from_secs_f64(elapsed);
    }
}

impl ModelEndpoint for FrameVideoServer {
    fn message(&mut self, context: &mut Context, connection: u32, _: &ApplicationMessage) {
        self.connection = connection;
        if self.started_at == Instant::NEVER {
            self.started_at = context.now;
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
pub(crate) struct FrameVideoClient {
    frames: Playout,
    /// Received parts of incomplete frames: their numbers and the sum of their bytes.
    incomplete: BTreeMap<u32, (BTreeSet<u32>, u64)>,
    /// Time of the next request.
    next_request: Instant,
    interval: Duration,
}

impl FrameVideoClient {
    pub fn new(model: &FrameVideo) -> FrameVideoClient {
        FrameVideoClient {
            frames: Playout::new(Some(model.playout_delay)),
            incomplete: BTreeMap::new(),
            next_request: Instant::NEVER,
            interval: model.interval(),
        }
    }

    fn send_request(&mut self, context: &mut Context) {
        let content = MessageContent::Request { answer: 0, after: Duration::ZERO };
        context.send(0, HEADER, 0, content);
        self.next_request = context.now + REQUEST_INTERVAL;
    }
}

impl ModelEndpoint for FrameVideoClient {
    fn start(&mut self, context: &mut Context) {
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.send_request(context);
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        context.observe(Observation::Failure { at: context.now });
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        let MessageContent::Part { frame, parts } = message.content else { return };
        self.next_request = Instant::NEVER;
        let (received, bytes) = self.incomplete.entry(frame).or_default();
        if received.insert(message.number) {
            *bytes += u64::from(message.bytes);
        }
        if (received.len() as u64) < u64::from(parts) {
            return;
        }
        let bits = *bytes * 8;
        self.incomplete.remove(&frame);
        self.incomplete.retain(|other, _| *other > frame.saturating_sub(MAX_INCOMPLETE_AGE));
        if self.frames.arrive(context, frame, context.now.since(message.sent)) {
            let rate = bits as f64 / self.interval.as_secs_f64();
            let until = context.now + self.interval;
            context.observe(Observation::Playing { from: context.now, until, rate: rate as u64 });
        }
    }

    fn timeout(&mut self, context: &mut Context) {
        if self.next_request <= context.now {
            self.send_request(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next_request
    }
}
