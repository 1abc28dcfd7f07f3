//! Who sends: a program in the kernel, or this thread through a port. Both send each frame at its time as
//! well as they can, and say how well that was.

use super::form::{Destinations, Form, Stamp};
use super::program::{Brake, Generator, Progress, Settings};
use netstage_core::measure::steady::BURST;
use netstage_host::clock::monotonic_ns;
use netstage_host::kernel_program::Error;
use netstage_host::netns::Namespace;
use netstage_host::ports::Port;
use netstage_host::ports::af_packet::{self, AfPacket};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_traffic::pace::Pacer;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a stream sends.
#[derive(Clone, Debug)]
pub struct Stream {
    /// How frames begin.
    pub form: Form,
    /// Where they go.
    pub to: Destinations,
    /// Lengths of IP packets, in turn.
    pub lengths: Vec<u16>,
    /// The trial.
    pub trial: u16,
    /// Its number.
    pub number: u8,
    /// Frames a second.
    pub rate: f64,
    /// Frames in all.
    pub frames: u64,
    /// Ends early once so much time was lost that the trial is void.
    pub most_lost_ns: u64,
}

/// A batch of the program in the kernel takes this long, about: shorter ones cost more than they give.
const BATCH_NS: f64 = BURST.0 as f64;
/// Most frames of a batch.
const MOST: u32 = 64;
/// What the kernel takes, at most, until it calls the program for the first time: it waits until no processor
/// runs what was there before (an RCU grace period, tens of milliseconds on some kernels).
pub const SETTING_UP_NS: u64 = 100_000_000;
/// Calls of the program, at most, before that is to be gone through again.
const CALLS: u64 = 1 << 31;
/// What a call takes at least that finds nothing due: it asks for the time over and over.
const IDLE_NS: u64 = 1_000;
/// Frames that are sent at once if all of them are late: what is later still is not made up for, since a burst
/// at full speed would be no load that was asked for.
const AT_ONCE: u64 = 64;
/// Nor is what is later than this, where frames follow each other faster.
const LATE_NS: u64 = 200_000;

/// The end of a trial before all is sent, for all its senders.
#[derive(Debug, Default)]
pub struct End {
    has_come: AtomicBool,
    brakes: Mutex<Vec<Brake>>,
}

impl End {
    /// Has them send no more.
    pub fn come(&self) {
        self.has_come.store(true, Ordering::Relaxed);
        self.brakes().iter().for_each(Brake::pull);
    }

    fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }

    fn brakes(&self) -> std::sync::MutexGuard<'_, Vec<Brake>> {
        self.brakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It ends this program too.
    fn ends(&self, brake: Brake) {
        self.brakes().push(brake);
    }
}

impl Stream {
    /// Frames that the program in the kernel sends back to back.
    pub fn batch(&self) -> u32 {
        ((self.rate * BATCH_NS / 1e9) as u32).clamp(1, MOST)
    }

    fn most_late_ns(&self) -> u64 {
        LATE_NS.max((AT_ONCE as f64 / self.rate * 1e9) as u64)
    }

    /// As the program is told.
    fn settings(&self) -> Settings<'_> {
        let batch = self.batch();
        Settings {
            form: &self.form,
            to: self.to,
            lengths: &self.lengths,
            trial: self.trial,
            streams: (self.number, 1),
            sources: &[],
            port: (1, 0),
            batch_gap: (f64::from(batch) / self.rate * 1e9 * 1024.0) as u64,
            batch,
            most_late_ns: self.most_late_ns(),
            most_lost_ns: self.most_lost_ns,
            frames: self.frames,
            watches: false,
        }
    }
}

/// Sends by the program in the kernel, from the calling thread's namespace. `start` is called when all is
/// prepared, and tells when the first frame is due.
pub fn in_kernel(
    stream: &Stream,
    interface: u32,
    start: impl FnOnce() -> u64,
    end: &End,
) -> Result<Progress, Error> {
    let generator = Generator::load(&stream.settings(), interface);
    // Others wait for this one, even if it cannot send.
    let start_ns = start();
    go_first();
    let mut generator = generator?;
    // A call may last as long as the trial.
    end.ends(generator.brake());
    generator.start(start_ns);
    loop {
        let progress = generator.progress();
        if progress.sent >= stream.frames || generator.is_over() || end.has_come() {
            generator.brake().pull();
            return Ok(progress);
        }
        // Those that are called when all is sent would hold up the end.
        let next = start_ns + (progress.sent as f64 / stream.rate * 1e9) as u64;
        let left = stream.frames - progress.sent;
        let sending = (left as f64 / stream.rate * 1e9) as u64;
        let idle = (next.saturating_sub(monotonic_ns()) + sending) / IDLE_NS;
        generator.run((left + idle + u64::from(stream.batch())).min(CALLS) as u32)?;
    }
}

/// Has the calling thread run before all others that are not real-time. Where it is refused, senders may be
/// late, and send less than was asked for.
fn go_first() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
}

/// Opens a port that only sends.
pub fn af_packet(namespace: &Namespace, link: &str) -> io::Result<AfPacket> {
    AfPacket::open(namespace, link, af_packet::Options::default())
}

/// The same by AF_XDP.
pub fn af_xdp(namespace: &Namespace, link: &str) -> io::Result<AfXdp> {
    AfXdp::open(namespace, link, af_xdp::Options { receives: false, ..af_xdp::Options::default() })
}

/// Sends through a port, frame by frame; `start` as above.
pub fn by_port<P: Port>(
    stream: &Stream,
    port: io::Result<P>,
    start: impl FnOnce() -> u64,
    end: &End,
) -> io::Result<Progress> {
    let mut start_ns = start();
    go_first();
    let (mut port, mut pacer, mut progress) = (port?, Pacer::for_this_thread(), Progress::default());
    let (gap, mut lost_ns) = (1e9 / stream.rate, 0);
    while progress.sent < stream.frames && !end.has_come() {
        let due = start_ns + (progress.sent as f64 * gap) as u64;
        pacer.wait(due, true, None);
        let now = monotonic_ns();
        if now < due {
            continue;
        }
        let lost = (now - due).saturating_sub(stream.most_late_ns());
        (start_ns, lost_ns) = (start_ns + lost, lost_ns + lost);
        if lost_ns > stream.most_lost_ns && progress.sent > stream.frames / 4 {
            break;
        }
        let all_due = ((now - start_ns) as f64 / gap) as u64 + 1;
        let until = all_due.min(stream.frames).min(progress.sent + AT_ONCE);
        while progress.sent < until {
            let sequence = progress.sent as u32;
            let length = stream.lengths[progress.sent as usize % stream.lengths.len()];
            let sent_ns = monotonic_ns();
            let stamp = Stamp { trial: stream.trial, stream: stream.number, sequence, sent_ns };
            if !port.send(&stream.form.frame(stamp, length, stream.to))? {
                break;
            }
            (progress.last_ns, progress.sent) = (sent_ns, progress.sent + 1);
        }
        port.flush()?;
    }
    Ok(progress)
}
