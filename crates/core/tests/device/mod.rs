//! Simulated device under test with its tester: a queue of limited size and rate, with loss and noise, and a
//! generator and receiver with limits.
#![allow(dead_code, reason = "each test program uses a part of it")]

use netstage_core::measure::ArrivalWindow;
use netstage_core::measure::trial::{DelayStatistics, Length, Trial, TrialResult};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};

pub struct SimulatedDevice {
    /// Forwarding rate in packets per second.
    pub capacity: f64,
    /// Buffer size in packets.
    pub buffer: f64,
    /// Probability of the loss of each packet, regardless of the load.
    pub loss: f64,
    /// Standard deviation of a trial's capacity, as a share of the capacity.
    pub noise: f64,
    /// Probability per second that a trial has a stall (an interrupt, for example), which costs `stall_packets`.
    pub stall_rate: f64,
    pub stall_packets: f64,
    /// Maximum rate of the generator in packets per second.
    pub generator: f64,
    /// Maximum rate of the receiver in packets per second; it drops the excess.
    pub receiver: f64,
    pub rng: RandomStream,
    pub trials: u32,
    /// Total traffic time in seconds.
    pub spent: f64,
}

impl SimulatedDevice {
    pub fn new(capacity: f64) -> SimulatedDevice {
        SimulatedDevice {
            capacity,
            buffer: 0.0,
            loss: 0.0,
            noise: 0.0,
            stall_rate: 0.0,
            stall_packets: 0.0,
            generator: f64::INFINITY,
            receiver: f64::INFINITY,
            rng: RandomStream::new(1, "device"),
            trials: 0,
            spent: 0.0,
        }
    }

    pub fn seeded(self, seed: u64) -> SimulatedDevice {
        SimulatedDevice { rng: RandomStream::new(seed, "device"), ..self }
    }

    pub fn perform(&mut self, trial: &Trial) -> TrialResult {
        self.trials += 1;
        let load = trial.load.0.min(self.generator);
        let sent = match trial.length {
            Length::Time(duration) => (load * duration.as_secs_f64()).round(),
            Length::Packets(packets) => packets as f64,
        };
        let seconds = sent / load;
        self.spent += seconds;
        let capacity = self.capacity * (1.0 + self.noise * self.rng.normal());
        let queued = ((1.0 - capacity / load) * sent).max(0.0);
        let mut lost = (queued - self.buffer).max(0.0);
        lost += self.poisson(self.stall_rate * seconds)
            * (self.stall_packets - (capacity - load).max(0.0)).max(0.0);
        lost += self.random_loss((sent - lost).max(0.0));
        let delivered = (sent - lost.ceil()).max(0.0);
        let dropped = (delivered - self.receiver * seconds).max(0.0).floor();
        let wait = Duration::from_secs_f64(queued.min(self.buffer) / capacity);
        TrialResult {
            sent: sent as u64,
            received: (delivered - dropped) as u64,
            receiver_dropped: dropped as u64,
            sending: Duration::from_secs_f64(seconds),
            delays: Some(DelayStatistics {
                minimum: Duration::ZERO,
                mean: wait / 2,
                median: wait / 2,
                p99: Some(wait),
                p999: Some(wait),
                maximum: wait,
            }),
            tagged_delay: trial.tag_after.map(|_| wait + Duration::from_micros(10)),
            ..TrialResult::default()
        }
    }

    /// Returns a binomial random number, by the normal approximation if the mean is high.
    fn random_loss(&mut self, sent: f64) -> f64 {
        let mean = sent * self.loss;
        if mean > 50.0 {
            return (mean + self.rng.normal() * (mean * (1.0 - self.loss)).sqrt()).round().clamp(0.0, sent);
        }
        self.poisson(mean).min(sent)
    }

    fn poisson(&mut self, mean: f64) -> f64 {
        let (mut count, mut remaining) = (0.0, mean - self.rng.exponential(1.0));
        while remaining >= 0.0 {
            count += 1.0;
            remaining -= self.rng.exponential(1.0);
        }
        count
    }
}

/// Sends the packets of a trial through a line with a queue of `buffer` packets.
pub fn forward(capacity: f64, buffer: f64, trial: &Trial) -> TrialResult {
    let gap = 1.0 / trial.load.0;
    let sent = (trial.duration().as_secs_f64() / gap).round() as u64;
    let mut window = ArrivalWindow::new(Duration::from_secs_f64(sent as f64 * gap));
    let (mut free_at, mut received) = (0.0_f64, 0);
    for number in 0..sent {
        let at = number as f64 * gap;
        if (free_at - at) * capacity <= buffer {
            free_at = free_at.max(at) + 1.0 / capacity;
            received += 1;
            window.record(Instant((free_at * 1e9) as u64));
        }
    }
    let sending = Duration::from_secs_f64(sent as f64 * gap);
    TrialResult { sent, received, sending, arrivals: Some(window.arrivals()), ..TrialResult::default() }
}
