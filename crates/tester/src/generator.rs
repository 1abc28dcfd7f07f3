//! Senders of frames: a program in the kernel, or the calling thread through a port. Both pace the frames and
//! report the achieved progress.

use super::program::{Generator, GeneratorProgress, GeneratorStop, TrialProgramSettings};
use super::template::{Destinations, FrameStamp, FrameTemplate};
use netstage_core::measure::steady::MAX_BURST_TIME;
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
/// Maximum number of late frames sent in a burst. Frames later than that shift the schedule instead, because
/// a burst at full speed is not the requested load.
const MAX_CATCH_UP: u64 = 64;
/// Minimum lateness that shifts the schedule, at rates at which the burst is shorter.
const LATE_NS: u64 = 200_000;

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

    fn max_late_ns(&self) -> u64 {
        LATE_NS.max((MAX_CATCH_UP as f64 / self.rate * 1e9) as u64)
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
            max_late_ns: self.max_late_ns(),
            max_lost_ns: self.max_lost_ns,
            frames: self.frames,
            records_arrivals: false,
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

/// Sends through a port, frame by frame. `start` is called after preparation and returns the time of the first
/// frame.
pub fn send_through_port<P: FramePort>(
    stream: &FrameStream,
    port: io::Result<P>,
    start: impl FnOnce() -> u64,
    end: &TrialStop,
) -> io::Result<GeneratorProgress> {
    let mut start_ns = start();
    raise_priority();
    let (mut port, mut pacer, mut progress) = (port?, Pacer::for_this_thread(), GeneratorProgress::default());
    let (gap, mut lost_ns) = (1e9 / stream.rate, 0);
    while progress.sent < stream.frames && !end.is_stopped() {
        let due = start_ns + (progress.sent as f64 * gap) as u64;
        pacer.wait(due, true, None);
        let now = monotonic_ns();
        if now < due {
            continue;
        }
        let lost = (now - due).saturating_sub(stream.max_late_ns());
        (start_ns, lost_ns) = (start_ns + lost, lost_ns + lost);
        if lost_ns > stream.max_lost_ns && progress.sent > stream.frames / 4 {
            break;
        }
        let total_due = ((now - start_ns) as f64 / gap) as u64 + 1;
        let until = total_due.min(stream.frames).min(progress.sent + MAX_CATCH_UP);
        while progress.sent < until {
            let sequence = progress.sent as u32;
            let length = stream.lengths[progress.sent as usize % stream.lengths.len()];
            let sent_ns = monotonic_ns();
            let stamp = FrameStamp { trial: stream.trial, stream: stream.number, sequence, sent_ns };
            if !port.send(&stream.form.frame(stamp, length, stream.to))? {
                break;
            }
            (progress.last_ns, progress.sent) = (sent_ns, progress.sent + 1);
        }
        port.flush()?;
    }
    Ok(progress)
}
