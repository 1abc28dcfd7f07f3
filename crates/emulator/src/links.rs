//! All links of an emulator as one state machine without a clock.
//!
//! Pass frames to [`handle_frame`](Links::handle_frame), oldest first per direction. At the time returned by
//! [`poll_timeout`](Links::poll_timeout), call [`poll_departure`](Links::poll_departure) until it returns `None`. After
//! either, [`poll_bypass`](Links::poll_beside) returns the frames that bypass the links.

use super::classify::Classifier;
use super::config::EmulatorConfig;
use super::counts::Grid;
use super::direction::{EmulatedDirection, FrameDeparture, SharedLinkState};
use super::frame::EmulatedFrame;
use super::headers;
use super::pool::{BufferError, Pool};
use netstage_core::rng::RandomStream;
use netstage_core::time::Instant;
use std::collections::{BTreeMap, VecDeque};

/// All links of an emulator. Direction `2 × link` leads from end 0 to end 1, the next direction from end 1 to end 0.
#[derive(Debug)]
pub struct Links {
    pub(super) directions: Vec<EmulatedDirection>,
    /// Time of the next event of each direction.
    wake: Vec<Instant>,
    classifier: Classifier,
    pub(super) shared: SharedLinkState,
    bypassed: VecDeque<BypassFrame>,
    /// Length of the longest frame that was too long for a buffer.
    pub(super) too_long: Option<usize>,
}

/// Frame that bypasses its link.
#[derive(Debug)]
pub struct BypassFrame {
    /// Direction of the frame.
    pub direction: usize,
    buffer: Box<[u8]>,
    length: usize,
}

impl BypassFrame {
    /// Returns the whole frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// Arrival time of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArrivalTime {
    /// Before the run. The frame bypasses the link, so that hosts are reachable and neighbors are resolved when the
    /// run begins.
    BeforeStart,
    /// At this time of the run.
    At(Instant),
}

impl Links {
    /// Creates idle links.
    pub fn new(config: &EmulatorConfig) -> Links {
        let grid = Grid::new(config.interval, config.duration);
        let mut directions = Vec::new();
        for link in &config.links {
            for (index, direction) in link.directions.iter().enumerate() {
                // The stream has the same name in the simulator, so the same packets are lost.
                let rng = RandomStream::new(config.seed, &format!("link.{}", link.direction_name(index)));
                directions.push(EmulatedDirection::new(direction, rng, &link.delivers[index], grid));
            }
        }
        Links {
            wake: directions.iter().map(EmulatedDirection::poll_timeout).collect(),
            directions,
            classifier: Classifier::new(&config.labels, config.default_class),
            shared: SharedLinkState {
                pool: Pool::new(config.pool_bytes),
                grid,
                end: Instant::ZERO + config.duration,
                flow_lost: BTreeMap::new(),
            },
            bypassed: VecDeque::new(),
            too_long: None,
        }
    }

    /// Handles a frame that arrived at a direction.
    pub fn handle_frame(&mut self, index: usize, arrived: ArrivalTime, bytes: &[u8]) {
        let direction = &mut self.directions[index];
        if let ArrivalTime::At(at) = arrived {
            direction.count_broadcast(at, bytes);
        }
        let buffer = match self.shared.pool.allocate(bytes) {
            Ok(buffer) => buffer,
            Err(refused) => {
                let in_run = arrived <= ArrivalTime::At(self.shared.end);
                direction.totals.unbuffered += u64::from(in_run);
                if refused == BufferError::TooLong {
                    self.too_long = self.too_long.max(Some(bytes.len()));
                }
                return;
            }
        };
        match (arrived, headers::read(bytes)) {
            (ArrivalTime::At(at), Some(headers)) => {
                let found = self.classifier.find(headers.conversation.as_ref());
                let frame = EmulatedFrame::new(buffer, bytes.len(), &headers, found);
                // Counts of packets before and after a message would be wrong if a tunnel's packets changed places.
                let is_plain = headers.customer == headers.size;
                let conversation = headers.conversation.as_ref().filter(|_| is_plain);
                direction.handle_frame(at, frame, conversation, &mut self.shared);
                self.wake[index] = direction.poll_timeout();
            }
            (arrived, _) => {
                direction.totals.bypassed += 1;
                let passes = match arrived {
                    ArrivalTime::BeforeStart => true,
                    ArrivalTime::At(at) => direction.is_up(at, &mut self.shared),
                };
                self.wake[index] = direction.poll_timeout();
                let frame = BypassFrame { direction: index, buffer, length: bytes.len() };
                match passes {
                    true => self.bypassed.push_back(frame),
                    false => self.recycle_bypass(frame),
                }
            }
        }
    }

    /// Returns the time of the next event.
    pub fn poll_timeout(&self) -> Instant {
        self.wake.iter().copied().min().unwrap_or(Instant::NEVER)
    }

    /// Returns whether a direction has an event by `now`.
    #[inline]
    pub fn is_due(&self, direction: usize, now: Instant) -> bool {
        self.wake[direction] <= now
    }

    /// Returns the next frame that leaves a direction by `now`. Its buffer is released by [`recycle`](Links::recycle).
    pub fn poll_departure(&mut self, index: usize, now: Instant) -> Option<FrameDeparture> {
        let direction = &mut self.directions[index];
        let departure = direction.poll_departure(now, &mut self.shared);
        self.wake[index] = direction.poll_timeout();
        departure
    }

    /// Returns the next frame that bypasses its link. Its buffer is released by [`recycle_bypass`](Links::give_back).
    pub fn poll_bypass(&mut self) -> Option<BypassFrame> {
        self.bypassed.pop_front()
    }

    /// Releases the buffer of a bypassed frame that has left.
    pub fn recycle_bypass(&mut self, frame: BypassFrame) {
        self.shared.pool.release(frame.buffer);
    }

    /// Releases the buffer of a frame that has left.
    pub fn recycle(&mut self, frame: EmulatedFrame) {
        self.shared.recycle(frame);
    }
}
