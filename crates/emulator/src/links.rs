//! All links of an emulator as one machine: it takes frames and the time, and returns what
//! leaves where and when to call again.
//!
//! Give it frames with [`handle_frame`](Links::handle_frame), oldest first per direction; when
//! [`poll_timeout`](Links::poll_timeout) says so, take what
//! [`poll_departure`](Links::poll_departure) holds. After either,
//! [`poll_beside`](Links::poll_beside) holds frames that leave at once.

use super::classify::Classifier;
use super::config::Config;
use super::counts::Grid;
use super::direction::{Departure, Direction, Shared};
use super::frame::Frame;
use super::headers;
use super::pool::{Pool, Refused};
use netstage_core::rng::Stream;
use netstage_core::time::Instant;
use std::collections::{BTreeMap, VecDeque};

/// All links of an emulator. Direction `2 × link` leads from end 0 to end 1, the next one back.
#[derive(Debug)]
pub struct Links {
    pub(super) directions: Vec<Direction>,
    /// When each direction has something to do.
    wake: Vec<Instant>,
    classifier: Classifier,
    pub(super) shared: Shared,
    beside: VecDeque<Beside>,
    /// The longest frame that found no buffer because of its length.
    pub(super) too_long: Option<usize>,
}

/// A frame that passes beside its link.
#[derive(Debug)]
pub struct Beside {
    /// The direction it goes.
    pub direction: usize,
    buffer: Box<[u8]>,
    length: usize,
}

impl Beside {
    /// The whole frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// When a frame came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrived {
    /// Before the run: it passes at once, so that the network can be reached and neighbours
    /// know each other when the run begins.
    BeforeStart,
    /// At this moment of the run.
    At(Instant),
}

impl Links {
    /// Idle links.
    pub fn new(config: &Config) -> Links {
        let grid = Grid::new(config.interval, config.duration);
        let mut directions = Vec::new();
        for link in &config.links {
            for (index, direction) in link.directions.iter().enumerate() {
                // The simulator's name for the stream: the same packets meet the same fate.
                let rng = Stream::new(config.seed, &format!("link.{}", link.direction_name(index)));
                directions.push(Direction::new(direction, rng, &link.delivers[index], grid));
            }
        }
        Links {
            wake: directions.iter().map(Direction::poll_timeout).collect(),
            directions,
            classifier: Classifier::new(&config.labels, config.others),
            shared: Shared {
                pool: Pool::new(config.pool_bytes),
                grid,
                end: Instant::ZERO + config.duration,
                flow_lost: BTreeMap::new(),
            },
            beside: VecDeque::new(),
            too_long: None,
        }
    }

    /// A frame comes to a direction.
    pub fn handle_frame(&mut self, index: usize, arrived: Arrived, bytes: &[u8]) {
        let direction = &mut self.directions[index];
        if let Arrived::At(at) = arrived {
            direction.notice(at, bytes);
        }
        let buffer = match self.shared.pool.keep(bytes) {
            Ok(buffer) => buffer,
            Err(refused) => {
                let in_run = arrived <= Arrived::At(self.shared.end);
                direction.totals.unkept += u64::from(in_run);
                if refused == Refused::TooLong {
                    self.too_long = self.too_long.max(Some(bytes.len()));
                }
                return;
            }
        };
        match (arrived, headers::read(bytes)) {
            (Arrived::At(at), Some(headers)) => {
                let found = self.classifier.find(headers.conversation.as_ref());
                let frame = Frame::new(buffer, bytes.len(), &headers, found);
                direction.handle_frame(at, frame, &mut self.shared);
                self.wake[index] = direction.poll_timeout();
            }
            (arrived, _) => {
                direction.totals.beside += 1;
                let passes = match arrived {
                    Arrived::BeforeStart => true,
                    Arrived::At(at) => direction.is_up(at, &mut self.shared),
                };
                self.wake[index] = direction.poll_timeout();
                let beside = Beside { direction: index, buffer, length: bytes.len() };
                match passes {
                    true => self.beside.push_back(beside),
                    false => self.give_back(beside),
                }
            }
        }
    }

    /// When something leaves next, or a line has something to do.
    pub fn poll_timeout(&self) -> Instant {
        self.wake.iter().copied().min().unwrap_or(Instant::NEVER)
    }

    /// Whether a direction has something to do by `now`.
    #[inline]
    pub fn is_due(&self, direction: usize, now: Instant) -> bool {
        self.wake[direction] <= now
    }

    /// The next frame that leaves a direction by `now`. Its bytes go back by
    /// [`recycle`](Links::recycle).
    pub fn poll_departure(&mut self, index: usize, now: Instant) -> Option<Departure> {
        let direction = &mut self.directions[index];
        let departure = direction.poll_departure(now, &mut self.shared);
        self.wake[index] = direction.poll_timeout();
        departure
    }

    /// The next frame that leaves at once. Its bytes go back by
    /// [`give_back`](Links::give_back).
    pub fn poll_beside(&mut self) -> Option<Beside> {
        self.beside.pop_front()
    }

    /// A frame that passed beside its link has left.
    pub fn give_back(&mut self, beside: Beside) {
        self.shared.pool.give(beside.buffer);
    }

    /// A frame has left.
    pub fn recycle(&mut self, frame: Frame) {
        self.shared.recycle(frame);
    }
}
