//! Adaptive video over HTTP (DASH, ISO/IEC 23009-1): segments of constant length are fetched one after the
//! other into a buffer.
//!
//! The bit rate is selected by the buffer level (BBA-0 of Huang et al., "A Buffer-Based Approach to Rate
//! Adaptation", SIGCOMM 2014, Algorithm 1) or by the throughput of the last segments (the harmonic mean of
//! FESTIVE: Jiang et al., CoNEXT 2012, section 4.2).

use super::{ApplicationError, ApplicationMessage, Context, MessageContent, ModelEndpoint, Observation};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Segmented video with an adaptive bit rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveVideo {
    /// Available bit rates in ascending order.
    pub rates: Vec<BitRate>,
    /// Media time of a segment.
    pub segment: Duration,
    /// Capacity of the buffer in media time.
    pub buffer: Duration,
    /// Media time that must be buffered before playout starts or resumes.
    pub startup: Duration,
    /// Selection of the bit rate.
    pub adaptation: Adaptation,
    /// Size of a request, bytes.
    pub request: u32,
}

/// Selection of the bit rate of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adaptation {
    /// By the buffer level: the lowest rate up to `reservoir`, the highest from `reservoir + cushion`.
    Buffer {
        /// Media time up to which the lowest rate is selected.
        reservoir: Duration,
        /// Media time over which the rate increases.
        cushion: Duration,
    },
    /// By the throughput of the last segments: the highest rate below `share` of it.
    Throughput {
        /// Share of the throughput.
        share: f64,
        /// Number of segments over which the throughput is averaged.
        window: u32,
    },
    /// Always the highest rate.
    Fixed,
}

impl AdaptiveVideo {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        let ascending = self.rates.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !ascending || self.rates.first().is_none_or(|rate| rate.0 == 0) {
            return Err(ApplicationError::Rates);
        }
        if self.segment.0 == 0 {
            return Err(ApplicationError::ZeroTime);
        }
        let largest = self.rates.last().map_or(0, |rate| self.bytes(*rate));
        if largest > u64::from(u32::MAX) {
            return Err(ApplicationError::Size);
        }
        if self.rates.first().is_some_and(|rate| self.bytes(*rate) < u64::from(super::HEADER)) {
            return Err(ApplicationError::SmallMessage);
        }
        let room = self.buffer >= self.segment && self.startup <= self.buffer && self.startup.0 > 0;
        match self.adaptation {
            _ if !room => Err(ApplicationError::Buffer),
            Adaptation::Buffer { reservoir, cushion } => {
                let fits = reservoir + cushion <= self.buffer && cushion.0 > 0;
                if fits { Ok(()) } else { Err(ApplicationError::Buffer) }
            }
            Adaptation::Throughput { share, window } if window == 0 || !(share > 0.0 && share <= 1.0) => {
                Err(ApplicationError::Share)
            }
            _ => Ok(()),
        }
    }

    /// Returns the size of a segment at a rate, bytes.
    fn bytes(&self, rate: BitRate) -> u64 {
        u64::try_from(u128::from(rate.0) * u128::from(self.segment.0) / 8_000_000_000).unwrap_or(u64::MAX)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AdaptiveVideoPlayer {
    model: AdaptiveVideo,
    started_at: Instant,
    /// Index of the current rate.
    rate: usize,
    fetched_from: Instant,
    /// Throughputs of the last segments, bits per second.
    throughputs: VecDeque<f64>,
    /// Rate and remaining media time of each buffered segment, the playing one first.
    buffer: VecDeque<(u64, Duration)>,
    /// Time up to which playout has been reported.
    played_until: Instant,
    phase: PlaybackPhase,
    waiting: bool,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaybackPhase {
    Starting,
    Playing,
    Stalled,
}

impl AdaptiveVideoPlayer {
    pub fn new(model: AdaptiveVideo) -> AdaptiveVideoPlayer {
        let rate = match model.adaptation {
            Adaptation::Fixed => model.rates.len().saturating_sub(1),
            _ => 0,
        };
        AdaptiveVideoPlayer {
            model,
            started_at: Instant::ZERO,
            rate,
            fetched_from: Instant::ZERO,
            throughputs: VecDeque::new(),
            buffer: VecDeque::new(),
            played_until: Instant::ZERO,
            phase: PlaybackPhase::Starting,
            waiting: false,
            number: 0,
        }
    }

    fn buffered(&self) -> Duration {
        self.buffer.iter().fold(Duration::ZERO, |sum, (_, remaining)| sum + *remaining)
    }

    /// Reports playing and stalled time up to now.
    fn play(&mut self, context: &mut Context) {
        while self.phase == PlaybackPhase::Playing && self.played_until < context.now {
            let Some((rate, remaining)) = self.buffer.front_mut() else {
                self.phase = PlaybackPhase::Stalled;
                break;
            };
            let span = (*remaining).min(context.now.since(self.played_until));
            let (from, until) = (self.played_until, self.played_until + span);
            context.observe(Observation::Playing { from, until, rate: *rate });
            self.played_until = until;
            *remaining = *remaining - span;
            if *remaining == Duration::ZERO {
                self.buffer.pop_front();
            }
        }
        if self.phase == PlaybackPhase::Stalled && self.played_until < context.now {
            context.observe(Observation::Stalled { from: self.played_until, until: context.now });
            self.played_until = context.now;
        }
    }

    fn fetch(&mut self, context: &mut Context) {
        if self.buffered() + self.model.segment > self.model.buffer {
            self.waiting = true;
            return;
        }
        self.waiting = false;
        let rate = self.select_rate();
        if rate != self.rate && self.number > 0 {
            context.observe(Observation::Switched { at: context.now });
        }
        self.rate = rate;
        self.number = self.number.wrapping_add(1);
        self.fetched_from = context.now;
        let answer = self.model.bytes(self.model.rates[rate]) as u32;
        let content = MessageContent::Request { answer, after: Duration::ZERO };
        context.send(0, self.model.request, self.number, content);
    }

    fn select_rate(&self) -> usize {
        let rates = &self.model.rates;
        let highest_below = |limit: f64| rates.iter().rposition(|rate| rate.as_f64() <= limit).unwrap_or(0);
        match self.model.adaptation {
            Adaptation::Fixed => rates.len() - 1,
            Adaptation::Throughput { share, .. } => {
                if self.throughputs.is_empty() {
                    return 0;
                }
                let inverses: f64 = self.throughputs.iter().map(|rate| 1.0 / rate).sum();
                highest_below(share * self.throughputs.len() as f64 / inverses)
            }
            Adaptation::Buffer { reservoir, cushion } => {
                let buffered = self.buffered();
                let top = rates.len() - 1;
                if buffered <= reservoir {
                    return 0;
                }
                if buffered >= reservoir + cushion {
                    return top;
                }
                let (lowest, highest) = (rates[0].as_f64(), rates[top].as_f64());
                let fraction = (buffered - reservoir).as_secs_f64() / cushion.as_secs_f64();
                let mapped = lowest + (highest - lowest) * fraction;
                let (up, down) = ((self.rate + 1).min(top), self.rate.saturating_sub(1));
                if self.rate < top && mapped >= rates[up].as_f64() {
                    rates.iter().rposition(|rate| rate.as_f64() < mapped).unwrap_or(0).max(up)
                } else if self.rate > 0 && mapped <= rates[down].as_f64() {
                    rates.iter().position(|rate| rate.as_f64() > mapped).unwrap_or(top).min(down)
                } else {
                    self.rate
                }
            }
        }
    }
}

impl ModelEndpoint for AdaptiveVideoPlayer {
    fn start(&mut self, context: &mut Context) {
        self.started_at = context.now;
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.fetch(context);
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        self.play(context);
        context.observe(Observation::Failure { at: context.now });
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if message.number != self.number {
            return;
        }
        self.play(context);
        if let Adaptation::Throughput { window, .. } = self.model.adaptation {
            let took = context.now.since(self.fetched_from).as_secs_f64();
            self.throughputs.push_back(f64::from(message.bytes) * 8.0 / took.max(1e-9));
            while self.throughputs.len() > window as usize {
                self.throughputs.pop_front();
            }
        }
        self.buffer.push_back((self.model.rates[self.rate].0, self.model.segment));
        if self.phase != PlaybackPhase::Playing && self.buffered() >= self.model.startup {
            if self.phase == PlaybackPhase::Starting {
                let took = context.now.since(self.started_at);
                context.observe(Observation::Startup { at: context.now, took });
            }
            self.phase = PlaybackPhase::Playing;
            self.played_until = context.now;
        }
        self.fetch(context);
    }

    fn timeout(&mut self, context: &mut Context) {
        self.play(context);
        if self.waiting {
            self.fetch(context);
        }
    }

    fn deadline(&self) -> Instant {
        if self.phase != PlaybackPhase::Playing {
            return Instant::NEVER;
        }
        let buffered = self.buffered();
        if self.waiting {
            // Time at which the buffer has room for a segment.
            return self.played_until + (buffered + self.model.segment - self.model.buffer);
        }
        // Just after the end of the buffer, so that the stall is detected.
        self.played_until + buffered + Duration(1)
    }

    fn stop(&mut self, context: &mut Context) {
        self.play(context);
    }
}
