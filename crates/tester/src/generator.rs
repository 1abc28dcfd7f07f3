//! Senders of frames: a program in the kernel, or the calling thread through a port. Both pace the frames and
//! report the achieved progress.

use super::program::{Generator, GeneratorProgress, GeneratorStop, TrialProgramSettings};
use super::template::{Destinations, FrameStamp, FrameTemplate};
use netstage_core::measure::lateness::{Departure, LatenessLimits};
use netstage_core::measure::steady::MAX_BURST_TIME;
use netstage_core::time::{Duration, Instant};
use netstage_host::bpf_error::BpfError;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_host::ports::FramePort;
use netstage_host::ports::af_packet::{self, AfPacket};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_traffic::pacing::Pacer;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Stream of frames from one port.
#[derive(Clone, Debug)]
pub struct FrameStream {
    /// Template of the frames.
    pub form: FrameTemplate,
    /// Destination networks.
    pub to: Destinations,
    /// Lengths of IP packets, in turn.
    pub lengths: Vec<u16>,
    /// Number of the trial.
    pub trial: u16,
    /// Number of the stream.
    pub number: u8,
    /// Frames per second.
    pub rate: f64,
    /// Number of frames.
    pub frames: u64,
    /// Maximum time lost to lateness. Beyond it the trial is void, and the stream ends early.
    pub max_lost_ns: u64,
}

/// Approximate duration of a batch of the kernel program. Shorter batches cost more than they gain.
const BATCH_NS: f64 = MAX_BURST_TIME.0 as f64;
/// Maximum number of frames in a batch.
const MAX_BATCH: u32 = 64;
/// Maximum time until the kernel calls the program for the first time. The kernel waits for an RCU grace
/// period, which takes tens of milliseconds on some kernels.
pub const MAX_SETUP_NS: u64 = 100_000_000;
/// Maximum number of calls of the program per run; each run costs the setup time again.
const MAX_CALLS: u64 = 1 << 31;
/// Minimum duration of a call that finds no frame due, because it polls the clock repeatedly.
const IDLE_NS: u64 = 1_000;
/// Early end of a trial, shared by all its senders.
#[derive(Debug, Default)]
pub struct TrialStop {
    is_stopped: AtomicBool,
    brakes: Mutex<Vec<GeneratorStop>>,
}

impl TrialStop {
    /// Stops all senders.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.brakes().iter().for_each(GeneratorStop::stop);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn brakes(&self) -> std::sync::MutexGuard<'_, Vec<GeneratorStop>> {
        self.brakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, brake: GeneratorStop) {
        self.brakes().push(brake);
    }
}

impl FrameStream {
    /// Returns the number of frames that the kernel program sends back to back.
    pub fn batch(&self) -> u32 {
        ((self.rate * BATCH_NS / 1e9) as u32).clamp(1, MAX_BATCH)
    }

    /// Returns the limits of lateness of batches of this number of frames.
    fn limits(&self, batch: u32) -> LatenessLimits {
        LatenessLimits::for_gap(Duration((f64::from(batch) / self.rate * 1e9) as u64))
    }

    fn settings(&self) -> TrialProgramSettings<'_> {
        let batch = self.batch();
        TrialProgramSettings {
            form: &self.form,
            to: self.to,
            lengths: &self.lengths,
            trial: self.trial,
            streams: (self.number, 1),
            sources: &[],
            port: (1, 0),
            batch_gap: (f64::from(batch) / self.rate * 1e9 * 1024.0) as u64,
            batch,
            limits: self.limits(batch),
            max_lost_ns: self.max_lost_ns,
            frames: self.frames,
            records_arrivals: false,
            own_stream: None,
            max_delay_ns: u64::MAX,
        }
    }
}

/// Sends by the kernel program, from the namespace of the calling thread. `start` is called after preparation
/// and returns the time of the first frame.
pub fn send_in_kernel(
    stream: &FrameStream,
    interface: u32,
    start: impl FnOnce() -> u64,
    end: &TrialStop,
) -> Result<GeneratorProgress, BpfError> {
    let generator = Generator::load(&stream.settings(), interface);
    // Other senders wait for this call, even if this sender failed.
    let start_ns = start();
    raise_priority();
    let mut generator = generator?;
    // A call may last as long as the trial.
    end.register(generator.stop_handle());
    generator.start(start_ns);
    loop {
        let progress = generator.progress();
        if progress.sent >= stream.frames || generator.is_over() || end.is_stopped() {
            generator.stop_handle().stop();
            return Ok(progress);
        }
        // Surplus calls after the last frame would delay the end.
        let next = start_ns + (progress.sent as f64 / stream.rate * 1e9) as u64;
        let left = stream.frames - progress.sent;
        let sending = (left as f64 / stream.rate * 1e9) as u64;
        let idle = (next.saturating_sub(monotonic_ns()) + sending) / IDLE_NS;
        generator.run((left + idle + u64::from(stream.batch())).min(MAX_CALLS) as u32)?;
    }
}

/// Gives the calling thread the highest priority below real-time. Without the privilege, senders may be late
/// and send less than requested.
fn raise_priority() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
}

/// Opens an AF_PACKET port for sending only.
pub fn open_af_packet(namespace: &Namespace, link: &str) -> io::Result<AfPacket> {
    AfPacket::open(namespace, link, af_packet::AfPacketOptions::default())
}

/// Opens an AF_XDP port for sending only.
pub fn open_af_xdp(namespace: &Namespace, link: &str) -> io::Result<AfXdp> {
    AfXdp::open(namespace, link, af_xdp::AfXdpOptions { receives: false, ..af_xdp::AfXdpOptions::default() })
}

/// Schedule of the frames of a port. A stall beyond the limits shifts the schedule: the frames keep their spacing and no
/// backlog leaves back to back. Frames that are late within the limits are counted.
struct FrameSchedule {
    start_ns: u64,
    gap: f64,
    limits: LatenessLimits,
    progress: GeneratorProgress,
}

impl FrameSchedule {
    fn new(stream: &FrameStream, start_ns: u64) -> FrameSchedule {
        let limits = stream.limits(1);
        FrameSchedule { start_ns, gap: 1e9 / stream.rate, limits, progress: GeneratorProgress::default() }
    }

    /// Returns the time at which the next frame is due.
    fn due(&self) -> u64 {
        self.start_ns + (self.progress.sent as f64 * self.gap) as u64
    }

    /// Returns whether the next frame is due at `now`, and shifts the schedule if the frame is too late.
    fn admit(&mut self, now: u64) -> bool {
        let due = self.due();
        if now < due {
            return false;
        }
        let lateness = now - due;
        if lateness > self.progress.stall_ns {
            (self.progress.stall_ns, self.progress.stalled_at_ns) = (lateness, due);
        }
        if self.departure(due, now) == Departure::Skipped {
            self.start_ns += lateness;
            self.progress.lost_ns += lateness;
        }
        true
    }

    fn departure(&self, due: u64, now: u64) -> Departure {
        self.limits.departure(Instant(due), Instant(now))
    }

    /// Records that the next frame was queued, with this timestamp.
    fn record_sent(&mut self, stamped: u64) {
        self.progress.late += u64::from(self.departure(self.due(), stamped) == Departure::Late);
        (self.progress.last_ns, self.progress.sent) = (stamped, self.progress.sent + 1);
    }

    /// Records that the last `frames` frames left at `now`, back to back. The thread may have been stopped after the
    /// timestamp of the first: they are then late, and their delays contain the stop.
    fn record_left(&mut self, frames: u64, stamped: u64, now: u64) {
        let held = now.saturating_sub(stamped);
        self.progress.held_ns = self.progress.held_ns.max(held);
        self.progress.burst = self.progress.burst.max(frames);
        if self.departure(stamped, now) == Departure::Skipped {
            self.progress.late = (self.progress.late + frames).min(self.progress.sent);
        }
    }
}

/// Sends through a port, frame by frame. `start` is called after preparation and returns the time of the first
/// frame.
pub fn send_through_port<P: FramePort>(
    stream: &FrameStream,
    port: io::Result<P>,
    start: impl FnOnce() -> u64,
    end: &TrialStop,
) -> io::Result<GeneratorProgress> {
    let start_ns = start();
    raise_priority();
    let mut port = port?;
    send_with(stream, &mut port, start_ns, end, Pacer::for_this_thread(), monotonic_ns)
}

/// Waits for the times at which frames are due.
trait FramePacer {
    fn wait(&mut self, until_ns: u64);
}

impl FramePacer for Pacer {
    fn wait(&mut self, until_ns: u64) {
        Pacer::wait(self, until_ns, true, None);
    }
}

fn send_with<P: FramePort>(
    stream: &FrameStream,
    port: &mut P,
    start_ns: u64,
    end: &TrialStop,
    mut pacer: impl FramePacer,
    clock: impl Fn() -> u64,
) -> io::Result<GeneratorProgress> {
    let mut schedule = FrameSchedule::new(stream, start_ns);
    while schedule.progress.sent < stream.frames && !end.is_stopped() {
        pacer.wait(schedule.due());
        let first_ns = clock();
        let (mut stamped, mut queued) = (first_ns, 0);
        while queued < u64::from(MAX_BATCH)
            && schedule.progress.sent < stream.frames
            && schedule.admit(stamped)
        {
            let sequence = schedule.progress.sent as u32;
            let length = stream.lengths[schedule.progress.sent as usize % stream.lengths.len()];
            let stamp = FrameStamp { trial: stream.trial, stream: stream.number, sequence, sent_ns: stamped };
            if !port.send(&stream.form.frame(stamp, length, stream.to))? {
                break;
            }
            schedule.record_sent(stamped);
            (stamped, queued) = (clock(), queued + 1);
        }
        port.flush()?;
        schedule.record_left(queued, first_ns, clock());
        let GeneratorProgress { lost_ns, sent, .. } = schedule.progress;
        if lost_ns > stream.max_lost_ns && sent > stream.frames / 4 {
            break;
        }
    }
    Ok(schedule.progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template;
    use netstage_core::rng::RandomStream;
    use netstage_host::ports::ReceivedFrame;
    use netstage_scenario::tester::Operation;
    use std::cell::{Cell, RefCell};
    use std::os::fd::BorrowedFd;

    /// Clock that stops the sender at random: each reading takes some time, a few take up to 500 ms.
    struct StallingClock {
        now: Cell<u64>,
        random: RefCell<RandomStream>,
        /// Probability of a stall at a reading.
        chance: f64,
    }

    impl StallingClock {
        fn read(&self) -> u64 {
            let mut random = self.random.borrow_mut();
            let stall = if random.chance(self.chance) { 1 + random.below(500_000_000) } else { 0 };
            self.now.set(self.now.get() + 50 + stall);
            self.now.get()
        }
    }

    impl FramePacer for &StallingClock {
        fn wait(&mut self, until_ns: u64) {
            self.now.set(self.now.get().max(until_ns) + self.random.borrow_mut().below(2_000));
        }
    }

    /// Port whose frames leave at the time of the flush.
    struct RecordingPort<'a> {
        clock: &'a StallingClock,
        queued: usize,
        left: Vec<u64>,
    }

    impl FramePort for RecordingPort<'_> {
        fn receive(&mut self, _: usize, _: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
            Ok(0)
        }

        fn send(&mut self, _: &[u8]) -> io::Result<bool> {
            self.queued += usize::from(self.queued < 16);
            Ok(self.queued < 16)
        }

        fn flush(&mut self) -> io::Result<usize> {
            let queued = std::mem::take(&mut self.queued).min(15);
            self.left.extend(std::iter::repeat_n(self.clock.now.get(), queued));
            Ok(0)
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn missed(&mut self) -> u64 {
            0
        }
    }

    /// Returns the progress, and the maximum length of a queue that the frames pass at the rate of the stream.
    fn send(stream: &FrameStream, seed: u64, chance: f64) -> (GeneratorProgress, f64) {
        let random = RefCell::new(RandomStream::new(seed, "clock"));
        let clock = StallingClock { now: Cell::new(0), random, chance };
        let mut port = RecordingPort { clock: &clock, queued: 0, left: Vec::new() };
        let end = TrialStop::default();
        let progress = send_with(stream, &mut port, 1_000_000, &end, &clock, || clock.read()).unwrap();
        assert_eq!(port.left.len() as u64, progress.sent);
        let (mut length, mut longest, mut previous) = (0.0_f64, 0.0_f64, 0);
        for at in port.left {
            length = (length - (at - previous) as f64 * stream.rate / 1e9).max(0.0) + 1.0;
            (longest, previous) = (longest.max(length), at);
        }
        (progress, longest)
    }

    fn stream(rate: f64, frames: u64) -> FrameStream {
        let from = "10.0.0.1".parse().unwrap();
        FrameStream {
            form: template::sent_template(Operation::Ip, Vec::new(), from, [Default::default(); 2]),
            to: Destinations { first: "10.1.0.0".parse().unwrap(), networks: 1, peers: 1 },
            lengths: vec![46],
            trial: 1,
            number: 0,
            rate,
            frames,
            max_lost_ns: u64::MAX,
        }
    }

    #[test]
    fn a_stalled_sender_keeps_the_spacing_of_its_frames() {
        let seed = netstage_harness::seed("generator");
        let (mut stalled, mut late_cases) = (0, 0);
        for case in 0..300 {
            let mut random = RandomStream::new(seed, &format!("case.{case}"));
            let rate = 10_f64.powf(2.0 + 3.7 * random.uniform());
            let stream = stream(rate, 2_000);
            let chance = if random.chance(0.8) { 0.002 } else { 0.0 };
            let (progress, longest) = send(&stream, random.next_u64(), chance);
            let gap = 1e9 / rate;
            // Frames held between timestamp and flush are a batch of the port; others are late by the limit.
            let held = progress.held_ns.min(stream.limits(1).max().0) as f64 / gap;
            let max = stream.limits(1).max().0 as f64 / gap + held + 17.0;
            assert!(progress.sent == 2_000 && longest <= max, "{rate} /s: {longest} of {max}, {progress:?}");
            if progress.late == 0 {
                let max = stream.limits(1).max().0.min(50_000).max(gap as u64) as f64 / gap + held + 17.0;
                assert!(longest <= max, "{rate} /s: {longest} of {max}, none late");
            }
            stalled += u64::from(progress.lost_ns > 0);
            late_cases += u64::from(progress.late > 0);
            if chance == 0.0 {
                assert_eq!((progress.lost_ns, progress.late), (0, 0), "{rate} /s");
            }
        }
        assert!(
            stalled > 50 && late_cases > 20,
            "{stalled} cases with stalls, {late_cases} with late frames"
        );
    }
}
