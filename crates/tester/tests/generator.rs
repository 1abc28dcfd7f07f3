//! Lateness that the generator in the kernel reports, compared with the timestamps in its frames.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_core::measure::lateness::LatenessLimits;
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;
use netstage_harness::needs;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::{Netlink, ethtool};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_scenario::tester::Operation;
use netstage_tester::generator::{FrameStream, MAX_SETUP_NS, TrialStop, send_in_kernel};
use netstage_tester::program::GeneratorProgress;
use netstage_tester::template::{self, Destinations};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};

const FRAMES: u64 = 600;
/// Offset of the timestamp: Ethernet, IPv4, UDP, and the beginning of the stamp.
const STAMP: usize = 14 + 20 + 8 + 10;

/// Stream of frames whose generator shares its processor with a program that spins at random times.
struct Case {
    stream: FrameStream,
    /// Maximum time of spinning, nanoseconds.
    spin_ns: u64,
}

impl Case {
    fn new(trial: u16, rate: f64, spin_ns: u64) -> Case {
        let from = "10.0.0.1".parse().unwrap();
        let stream = FrameStream {
            form: template::sent_template(Operation::Ip, Vec::new(), from, [LEFT_MAC, RIGHT_MAC]),
            to: Destinations { first: "10.1.0.0".parse().unwrap(), networks: 1, peers: 1 },
            lengths: vec![46],
            trial,
            number: 0,
            rate,
            frames: FRAMES,
            max_lost_ns: u64::MAX,
        };
        Case { stream, spin_ns }
    }

    /// Returns the time between batches in 1/1024 ns.
    fn batch_gap(&self) -> u64 {
        (f64::from(self.stream.batch()) / self.stream.rate * 1e9 * 1024.0) as u64
    }

    fn limits(&self) -> LatenessLimits {
        LatenessLimits::for_gap(Duration(self.batch_gap() >> 10))
    }

    /// Returns the progress, the start, and the timestamp of each frame.
    fn send(
        &self,
        pair: &Pair,
        port: &mut AfPacket,
        random: &mut RandomStream,
    ) -> (GeneratorProgress, u64, Vec<u64>) {
        let index = Netlink::open(&pair.left).unwrap().link("left0").unwrap().index;
        let start = monotonic_ns() + MAX_SETUP_NS;
        let has_ended = AtomicBool::new(false);
        let progress = std::thread::scope(|scope| {
            scope.spawn(|| {
                while self.spin_ns > 0 && !has_ended.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_nanos(random.below(20_000_000)));
                    let until = monotonic_ns() + random.below(self.spin_ns);
                    while monotonic_ns() < until {}
                }
            });
            let end = TrialStop::default();
            let progress = pair.left.run(|| send_in_kernel(&self.stream, index, || start, &end));
            has_ended.store(true, Ordering::Relaxed);
            progress.unwrap().unwrap()
        });
        let mut stamps = Vec::new();
        while stamps.len() < FRAMES as usize {
            let received = port.receive(256, &mut |received| {
                let Some(stamp) = received.frame.get(STAMP..STAMP + 8) else { return };
                if received.frame[STAMP - 8..STAMP - 6] == self.stream.trial.to_ne_bytes() {
                    stamps.push(u64::from_ne_bytes(stamp.try_into().unwrap()));
                }
            });
            assert!(received.unwrap() > 0, "{} of {FRAMES} frames", stamps.len());
        }
        (progress, start, stamps)
    }
}

/// Returns the number of frames later than the limit by more than `margin_ns`, if the schedule was shifted by the timestamps.
/// The generator shifts it by slightly earlier readings of the clock, so that it counts at least those.
fn late_frames(case: &Case, start: u64, stamps: &[u64], margin_ns: i64) -> u64 {
    let (limits, batch) = (case.limits(), u64::from(case.stream.batch()));
    let (mut shift, mut late) = (0, 0);
    for (frame, stamp) in stamps.iter().enumerate() {
        let due = start + ((frame as u64 / batch * case.batch_gap()) >> 10);
        if (frame as u64).is_multiple_of(batch) {
            shift = shift.max(stamp.saturating_sub(due + limits.max().0));
        }
        let lateness = *stamp as i64 - (due + shift) as i64;
        late += u64::from(lateness > limits.on_time().0 as i64 + margin_ns);
    }
    late
}

/// Returns the maximum length of a queue that these frames pass at the rate.
fn longest_queue(stamps: &[u64], rate: f64) -> f64 {
    let (mut length, mut longest, mut previous) = (0.0_f64, 0.0_f64, stamps[0]);
    for &at in stamps {
        length = (length - (at - previous) as f64 * rate / 1e9).max(0.0) + 1.0;
        (longest, previous) = (longest.max(length), at);
    }
    longest
}

fn late_frames_of_the_kernel_generator_are_counted() {
    needs::namespaces();
    needs::time(10);
    let pair = Pair::new(Default::default());
    ethtool::enable_features(&pair.right, "right0", &["rx-gro".into()]).unwrap();
    let mut port = AfPacket::open(&pair.right, "right0", AfPacketOptions::default()).unwrap();
    // All threads of the test share one processor.
    let mut one = CpuSet::new();
    let all = sched_getaffinity(None).unwrap();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    let seed = netstage_harness::seed("kernel generator");
    let (mut number, mut late, mut shifted) = (0, 0, 0);
    // Other load decides how often the generator is late.
    while number < 40 || (number < 200 && !(late > 10 && shifted > 5)) {
        let mut random = RandomStream::new(seed, &format!("case.{number}"));
        let rate = 10_f64.powf(3.5 + 2.0 * random.uniform());
        let spin_ns = [0, 400_000, 3_000_000][number % 3];
        let case = Case::new(number as u16, rate, spin_ns);
        let (progress, start, stamps) = case.send(&pair, &mut port, &mut random);
        let (limits, batch) = (case.limits(), case.stream.batch());
        let burst = |limit: Duration| limit.0 as f64 * rate / 1e9 + 2.0 * f64::from(batch) + 1.0;
        let [min, max] = [0, -20_000].map(|margin| late_frames(&case, start, &stamps, margin));
        let about =
            format!("case {number}: {rate} /s, batches of {batch}, {min} to {max} late, {progress:?}");
        // The clock was read before a stop and the frame timestamped after it, at most once per burst.
        let max = max + burst(limits.max()) as u64;
        assert!(progress.late >= min, "{about}");
        assert!(progress.late <= max || progress.held_ns > limits.max().0, "{about}");
        let longest = longest_queue(&stamps, rate);
        assert!(longest <= burst(limits.max()), "queue of {longest}, {about}");
        if progress.late == 0 {
            assert!(longest <= burst(limits.on_time()), "queue of {longest}, none late, {about}");
        }
        if progress.lost_ns > 0 {
            assert!(progress.stall_ns > limits.max().0 && progress.stalled_at_ns >= start, "{about}");
        }
        late += u64::from(progress.late > 0);
        shifted += u64::from(progress.lost_ns > 0);
        number += 1;
    }
    assert!(late > 10 && shifted > 5, "{late} cases with late frames, {shifted} with a shifted schedule");
}

netstage_harness::tests![late_frames_of_the_kernel_generator_are_counted];
netstage_harness::main![self];
