//! Links between ports, in real time: reads frames with the moments at which they came, lets
//! the links decide, and sends each frame when it is due.
//!
//! Decisions use the frames' own times, so reading late moves none of them; only sending can
//! be late, and is measured.

use super::config::Config;
use super::links::{Arrived, Links};
use super::report::{EndedBin, Report};
use super::timing::Timing;
use super::verdict::{self, Faults};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, thread_cpu_ns};
use netstage_host::ports::Port;
use netstage_host::realtime::{Awake, Grants, Rank};
use netstage_host::wait::Waiter;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Frames read from one port, or sent to one, before the others have their turn.
const BATCH: usize = 256;

/// Arrival times may lie this far ahead of the clock, no more: timestamps are converted from
/// the wall clock, which may be stepped.
const AHEAD: Duration = Duration::from_millis(1);

/// Why there is no emulator.
#[derive(Debug)]
pub enum Error {
    /// Each link needs its two ports.
    Ports {
        /// Number of links.
        links: usize,
        /// Number of pairs of ports.
        ports: usize,
    },
    /// A bin has no width.
    Interval,
    /// The system has no descriptors left to wait with.
    Waiting(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Ports { links, ports } => {
                write!(f, "{links} links need as many pairs of ports, not {ports}")
            }
            Error::Interval => write!(f, "the measure interval is zero"),
            Error::Waiting(error) => write!(f, "cannot wait for the emulator's ports: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Links between pairs of ports.
#[derive(Debug)]
pub struct Emulator<P> {
    config: Config,
    links: Links,
    /// Two per link: a frame of direction `d` comes in at port `d` and leaves at port `d ^ 1`.
    ports: Vec<Attachment<P>>,
    /// Per direction.
    timing: Vec<Timing>,
    waiter: Waiter,
    epoch: Epoch,
    /// The run is over: frames are carried on, shortfalls no longer matter.
    over: bool,
    /// Ports that may have frames.
    ready: Vec<usize>,
    /// Of the batch being sent: when each frame was due, and how long it was on the line.
    sent: Vec<(Instant, Duration)>,
    telling: Option<Telling>,
}

/// Bins told while the run goes on.
#[derive(Debug)]
struct Telling {
    to: Sender<EndedBin>,
    /// The next bin to tell of.
    bin: usize,
    /// When: a bin after it ended, since links look back when something happens to them.
    at: Instant,
}

#[derive(Debug)]
struct Attachment<P> {
    port: P,
    /// Frames it had missed when the run began.
    missed_before: u64,
    failed: Option<Failure>,
    /// More frames are waiting than were read: what came after this is not known yet.
    read_until: Instant,
}

#[derive(Debug)]
struct Failure {
    reason: String,
    /// Afterwards, interfaces go as the network is taken down.
    in_run: bool,
}

impl<P: Port> Emulator<P> {
    /// Idle links; `ports` are those of each link's ends.
    pub fn new(config: Config, ports: Vec<[P; 2]>) -> Result<Emulator<P>, Error> {
        if ports.len() != config.links.len() {
            return Err(Error::Ports { links: config.links.len(), ports: ports.len() });
        }
        if config.interval == Duration::ZERO {
            return Err(Error::Interval);
        }
        let mut waiter = Waiter::precise().map_err(Error::Waiting)?;
        let attach = |port| Attachment { port, missed_before: 0, failed: None, read_until: Instant::NEVER };
        let mut ports: Vec<_> = ports.into_iter().flatten().map(attach).collect();
        for (index, attached) in ports.iter_mut().enumerate() {
            waiter.add(index, attached.port.fd()).map_err(Error::Waiting)?;
            attached.missed_before = attached.port.missed();
        }
        Ok(Emulator {
            links: Links::new(&config),
            timing: ports.iter().map(|_| Timing::new()).collect(),
            config,
            ports,
            waiter,
            epoch: Epoch(0),
            over: false,
            ready: Vec::new(),
            sent: Vec::new(),
            telling: None,
        })
    }

    /// Has every bin told once it is settled, in the run to come.
    pub fn tell_bins(&mut self, to: Sender<EndedBin>) {
        let at = Instant::ZERO + self.config.interval * 2;
        self.telling = Some(Telling { to, bin: 0, at });
    }

    /// Passes frames at once until `stop` is set, before it is known when the run begins.
    pub fn carry(&mut self, stop: &AtomicBool) {
        // A start that does not come: whatever comes, comes before it.
        self.epoch = Epoch(u64::MAX);
        while !stop.load(Ordering::Relaxed) && self.waiter.wait(u64::MAX, &mut self.ready).is_ok() {
            self.turn(Instant::ZERO, &mut || Instant::ZERO);
        }
        for attached in &mut self.ports {
            attached.missed_before = attached.port.missed();
        }
    }

    /// Carries frames until `stop` is set. The run begins at `epoch`; frames that come before
    /// pass at once. Call it on a thread of its own: it asks for real-time scheduling.
    pub fn run(mut self, epoch: Epoch, stop: &AtomicBool) -> Report {
        let (grants, _awake) = (Grants::request(Rank::Links), Awake::request());
        self.epoch = epoch;
        let (mut faults, processor_before) = (Vec::new(), thread_cpu_ns());
        while !stop.load(Ordering::Relaxed) {
            let tell_at = self.telling.as_ref().map_or(Instant::NEVER, |telling| telling.at);
            let due = epoch.monotonic_ns(self.links.poll_timeout().min(tell_at));
            if let Err(error) = self.waiter.wait(due, &mut self.ready) {
                faults.push(format!("the emulator could not wait for its ports and ended early: {error}"));
                break;
            }
            self.turn(epoch.now(), &mut || epoch.now());
            self.tell(epoch.now());
        }
        let processor_ns = thread_cpu_ns() - processor_before;
        Report { processor_ns, ..self.finish(epoch.now(), grants, faults) }
    }

    /// Reads what is ready, and sends what is due by `now`.
    fn turn(&mut self, now: Instant, clock: &mut dyn FnMut() -> Instant) {
        if now > self.links.shared.end && !self.over {
            self.end_run();
        }
        for index in std::mem::take(&mut self.ready) {
            self.read(index, now);
        }
        self.pass_beside();
        for direction in 0..self.ports.len() {
            let until = now.min(self.ports[direction].read_until);
            if self.links.is_due(direction, until) {
                self.send(direction, until, clock);
            }
        }
    }

    fn read(&mut self, index: usize, now: Instant) {
        let attached = &mut self.ports[index];
        if attached.failed.is_some() {
            return;
        }
        let (links, epoch) = (&mut self.links, self.epoch);
        let latest = now + AHEAD;
        let mut last = Instant::ZERO;
        let read = attached.port.receive(BATCH, &mut |received| {
            let arrived = if received.at_ns < epoch.0 {
                Arrived::BeforeStart
            } else {
                last = epoch.instant(received.at_ns).min(latest);
                Arrived::At(last)
            };
            links.handle_frame(index, arrived, received.frame);
        });
        match read {
            Ok(frames) => attached.read_until = if frames >= BATCH { last } else { Instant::NEVER },
            Err(error) => self.fail(index, &error),
        }
    }

    /// Sends what is due on a direction. A frame has left when the system has taken it.
    fn send(&mut self, direction: usize, until: Instant, clock: &mut dyn FnMut() -> Instant) {
        self.sent.clear();
        while self.sent.len() < BATCH
            && let Some(departure) = self.links.poll_departure(direction, until)
        {
            self.transmit(direction, departure.frame.bytes());
            self.sent.push((departure.due, departure.transmission));
            self.links.recycle(departure.frame);
        }
        if self.sent.is_empty() {
            return;
        }
        self.flush(direction);
        let (left, end) = (clock(), self.links.shared.end);
        for (due, transmission) in self.sent.drain(..).filter(|(due, _)| *due <= end) {
            self.timing[direction].record(due, left, transmission);
        }
    }

    /// Tells of the bins that are settled by `now`.
    fn tell(&mut self, now: Instant) {
        let Some(telling) = &mut self.telling else { return };
        while telling.at <= now && telling.bin < self.links.shared.grid.bins {
            let directions = self.links.directions.iter().map(|direction| direction.ended_bin(telling.bin));
            // Whoever no longer listens misses nothing.
            let _ = telling.to.send(EndedBin { bin: telling.bin, directions: directions.collect() });
            telling.bin += 1;
            telling.at += self.config.interval;
        }
        if telling.bin >= self.links.shared.grid.bins {
            self.telling = None;
        }
    }

    fn pass_beside(&mut self) {
        while let Some(beside) = self.links.poll_beside() {
            self.transmit(beside.direction, beside.bytes());
            self.flush(beside.direction);
            self.links.give_back(beside);
        }
    }

    fn transmit(&mut self, direction: usize, bytes: &[u8]) {
        let far = &mut self.ports[direction ^ 1];
        if far.failed.is_some() {
            return self.refuse(direction, 1);
        }
        match far.port.send(bytes) {
            Ok(true) => {}
            Ok(false) => {
                self.flush(direction);
                match self.ports[direction ^ 1].port.send(bytes) {
                    Ok(true) => {}
                    Ok(false) => self.refuse(direction, 1),
                    Err(error) => self.fail(direction ^ 1, &error),
                }
            }
            Err(error) => self.fail(direction ^ 1, &error),
        }
    }

    fn flush(&mut self, direction: usize) {
        let far = &mut self.ports[direction ^ 1];
        if far.failed.is_some() {
            return;
        }
        match far.port.flush() {
            Ok(refused) => self.refuse(direction, refused as u64),
            Err(error) => self.fail(direction ^ 1, &error),
        }
    }

    fn refuse(&mut self, direction: usize, frames: u64) {
        let refused = &mut self.links.directions[direction].totals.refused;
        *refused += if self.over { 0 } else { frames };
    }

    /// A port is gone; the other links go on.
    fn fail(&mut self, index: usize, error: &io::Error) {
        let attached = &mut self.ports[index];
        self.waiter.remove(index, attached.port.fd());
        attached.failed = Some(Failure { reason: error.to_string(), in_run: !self.over });
        attached.read_until = Instant::NEVER;
    }

    /// What goes wrong from now on harms no result.
    fn end_run(&mut self) {
        self.over = true;
        for (direction, attached) in self.links.directions.iter_mut().zip(&mut self.ports) {
            direction.totals.missed = attached.port.missed().saturating_sub(attached.missed_before);
        }
    }

    fn finish(mut self, now: Instant, grants: Grants, mut void: Vec<String>) -> Report {
        if !self.over {
            self.end_run();
        }
        let in_run = |failure: Failure| failure.in_run.then_some(failure.reason);
        let failed = self.ports.into_iter().map(|attached| attached.failed.and_then(in_run)).collect();
        let faults = Faults { failed, too_long: self.links.too_long, stopped: now };
        let mut report = verdict::report(&self.config, self.links, self.timing, now);
        report.grants = grants;
        verdict::judge(&mut report, &self.config, &faults);
        void.append(&mut report.void);
        report.void = void;
        report
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
