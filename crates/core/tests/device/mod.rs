//! A simulated device under test, and the tester in front of it: a queue of so many packets
//! served at so many packets per second, with loss, noise and a generator that has limits.
#![allow(dead_code, reason = "each test uses some of it")]

use netstage_core::measure::trial::{Delays, Length, Trial, TrialResult};
use netstage_core::rng::Stream;
use netstage_core::time::Duration;

pub struct Device {
    /// Packets per second it forwards.
    pub capacity: f64,
    /// Packets it holds.
    pub buffer: f64,
    /// Each packet is lost with this probability, whatever the load.
    pub loss: f64,
    /// Capacity of a trial varies by this standard deviation, as a share of it.
    pub noise: f64,
    /// A trial meets a stall (an interrupt, say) with this probability per second, which
    /// costs `stall_packets`.
    pub stall_rate: f64,
    pub stall_packets: f64,
    /// The generator's ceiling, packets per second.
    pub generator: f64,
    /// The receiver drops what exceeds this, packets per second.
    pub receiver: f64,
    pub rng: Stream,
    pub trials: u32,
    /// Traffic time spent.
    pub spent: f64,
}

impl Device {
    pub fn new(capacity: f64) -> Device {
        Device {
            capacity,
            buffer: 0.0,
            loss: 0.0,
            noise: 0.0,
            stall_rate: 0.0,
            stall_packets: 0.0,
            generator: f64::INFINITY,
            receiver: f64::INFINITY,
            rng: Stream::new(1, "device"),
            trials: 0,
            spent: 0.0,
        }
    }

    pub fn seeded(self, seed: u64) -> Device {
        Device { rng: Stream::new(seed, "device"), ..self }
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
        lost += self.lost_by_chance((sent - lost).max(0.0));
        let delivered = (sent - lost.ceil()).max(0.0);
        let dropped = (delivered - self.receiver * seconds).max(0.0).floor();
        let wait = Duration::from_secs_f64(queued.min(self.buffer) / capacity);
        TrialResult {
            sent: sent as u64,
            received: (delivered - dropped) as u64,
            receiver_dropped: dropped as u64,
            sending: Duration::from_secs_f64(seconds),
            delays: Some(Delays {
                minimum: Duration::ZERO,
                mean: wait / 2,
                median: wait / 2,
                p99: wait,
                p999: wait,
                maximum: wait,
            }),
            tagged_delay: trial.tag_after.map(|_| wait + Duration::from_micros(10)),
            ..TrialResult::default()
        }
    }

    /// Binomial, by the normal approximation where many are expected.
    fn lost_by_chance(&mut self, sent: f64) -> f64 {
        let mean = sent * self.loss;
        if mean > 50.0 {
            return (mean + self.rng.normal() * (mean * (1.0 - self.loss)).sqrt()).round().clamp(0.0, sent);
        }
        self.poisson(mean).min(sent)
    }

    fn poisson(&mut self, mean: f64) -> f64 {
        let (mut count, mut left) = (0.0, mean - self.rng.exponential(1.0));
        while left >= 0.0 {
            count += 1.0;
            left -= self.rng.exponential(1.0);
        }
        count
    }
}
