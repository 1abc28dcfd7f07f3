//! Real-time driver of the links: reads frames with their arrival times, passes them to the links and sends each
//! frame when it is due.
//!
//! The links use the arrival times, so a late read changes no result. Only sending can be late; the lateness is
//! measured.

use super::config::EmulatorConfig;
use super::links::{ArrivalTime, Links};
use super::report::{BinReport, EmulatorReport};
use super::timing::Timing;
use super::verdict::{self, Failure, Faults};
use netstage_core::measure::lateness::Stalls;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, thread_cpu_ns};
use netstage_host::ports::FramePort;
use netstage_host::realtime::{Grants, IdleStatePrevention, Rank};
use netstage_host::wait::Waiter;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Maximum number of frames read from or sent to one port before the next port is served.
const BATCH: usize = 256;

/// Maximum time by which an arrival time may be ahead of the clock. Timestamps are converted from the wall clock,
/// which may be stepped.
const MAX_AHEAD: Duration = Duration::from_millis(1);

/// Error of creating an emulator.
#[derive(Debug)]
pub enum EmulatorError {
    /// The number of port pairs differs from the number of links.
    Ports {
        /// Number of links.
        links: usize,
        /// Number of pairs of ports.
        ports: usize,
    },
    /// The measure interval is zero.
    Interval,
    /// The ports cannot be polled, for example because no file descriptors are left.
    Waiting(io::Error),
}

impl fmt::Display for EmulatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmulatorError::Ports { links, ports } => {
                write!(f, "{links} links need {links} pairs of ports; {ports} were given")
            }
            EmulatorError::Interval => write!(f, "the measure interval is zero; give a positive one"),
            EmulatorError::Waiting(error) => write!(f, "cannot poll the emulator's ports: {error}"),
        }
    }
}

impl std::error::Error for EmulatorError {}

/// Emulator of links between pairs of ports.
#[derive(Debug)]
pub struct Emulator<P> {
    config: EmulatorConfig,
    links: Links,
    /// Two ports per link. A frame of direction `d` is received at port `d` and sent at port `d ^ 1`.
    ports: Vec<AttachedPort<P>>,
    /// Timing of each direction.
    timing: Vec<Timing>,
    waiter: Waiter,
    epoch: Epoch,
    /// Arrival time of the last frame that was forwarded without emulation.
    bypassed_at: u64,
    /// Times in which frames were due and the thread did not run.
    stalls: Stalls,
    /// Time of the latest turn.
    turned_at: Instant,
    /// True after the run: frames are still forwarded, and errors no longer count.
    over: bool,
    /// Ports that may have frames to read.
    ready: Vec<usize>,
    /// Due time and transmission time of each frame of the batch that is being sent.
    sent: Vec<(Instant, Duration)>,
    bin_reporter: Option<BinReporter>,
}

/// Reports bins during the run.
#[derive(Debug)]
struct BinReporter {
    sender: Sender<BinReport>,
    /// Next bin to report.
    bin: usize,
    /// Time of the next report: one bin after the end of the bin, because links count past time only at their next
    /// event.
    at: Instant,
}

#[derive(Debug)]
struct AttachedPort<P> {
    port: P,
    /// Frames missed before the run.
    missed_before: u64,
    failed: Option<Failure>,
    /// Arrival time of the last frame read, if more frames are waiting. Later arrivals are not known yet.
    read_until: Instant,
}

impl<P: FramePort> Emulator<P> {
    /// Creates an emulator with idle links between these pairs of ports.
    pub fn new(config: EmulatorConfig, ports: Vec<[P; 2]>) -> Result<Emulator<P>, EmulatorError> {
        if ports.len() != config.links.len() {
            return Err(EmulatorError::Ports { links: config.links.len(), ports: ports.len() });
        }
        if config.interval == Duration::ZERO {
            return Err(EmulatorError::Interval);
        }
        let mut waiter = Waiter::precise().map_err(EmulatorError::Waiting)?;
        let attach = |port| AttachedPort { port, missed_before: 0, failed: None, read_until: Instant::NEVER };
        let mut ports: Vec<_> = ports.into_iter().flatten().map(attach).collect();
        for (index, attached) in ports.iter_mut().enumerate() {
            waiter.add(index, attached.port.fd()).map_err(EmulatorError::Waiting)?;
            attached.missed_before = attached.port.missed();
        }
        Ok(Emulator {
            links: Links::new(&config),
            timing: ports.iter().map(|_| Timing::new()).collect(),
            config,
            ports,
            waiter,
            epoch: Epoch(0),
            bypassed_at: 0,
            stalls: Stalls::default(),
            turned_at: Instant::ZERO,
            over: false,
            ready: Vec::new(),
            sent: Vec::new(),
            bin_reporter: None,
        })
    }

    /// Sends each bin of the next run to `to` once its counts are final.
    pub fn report_bins(&mut self, to: Sender<BinReport>) {
        let at = Instant::ZERO + self.config.interval * 2;
        self.bin_reporter = Some(BinReporter { sender: to, bin: 0, at });
    }

    /// Forwards frames without emulation until `stop` is set, before the start time of the run is known.
    pub fn forward_before_run(&mut self, stop: &AtomicBool) {
        self.await_start();
        while !stop.load(Ordering::Relaxed) && self.waiter.wait(u64::MAX, &mut self.ready).is_ok() {
            self.turn(Instant::ZERO, &mut || Instant::ZERO);
        }
        for attached in &mut self.ports {
            attached.missed_before = attached.port.missed();
        }
    }

    /// Forwards all frames without emulation from now on, until [`start`](Emulator::start).
    pub fn await_start(&mut self) {
        // The start is infinitely far away, so each frame arrives before it.
        self.epoch = Epoch(u64::MAX);
    }

    /// Starts the run at `epoch`. Returns the reason why the run is void if frames of it were forwarded before.
    pub fn start(&mut self, epoch: Epoch) -> Option<VoidReason> {
        self.epoch = epoch;
        let late = self.bypassed_at.checked_sub(epoch.0).filter(|_| self.bypassed_at > 0)?;
        let fault = "learned the start of the run late: frames passed without emulation";
        Some(VoidReason::new("the emulator", fault, FaultTime::Until(Instant(late))))
    }

    /// Emulates the links until `stop` is set. The run begins at `epoch`; earlier frames are forwarded without
    /// emulation. Requires a thread of its own, for which it requests real-time scheduling.
    pub fn run(mut self, epoch: Epoch, stop: &AtomicBool) -> EmulatorReport {
        let (grants, _awake) = (Grants::request(Rank::Links), IdleStatePrevention::request());
        let (mut faults, processor_before) = (Vec::from_iter(self.start(epoch)), thread_cpu_ns());
        while !stop.load(Ordering::Relaxed) {
            let report_at = self.bin_reporter.as_ref().map_or(Instant::NEVER, |reporter| reporter.at);
            let due = epoch.monotonic_ns(self.links.poll_timeout().min(report_at));
            if let Err(error) = self.waiter.wait(due, &mut self.ready) {
                let fault = format!("could not poll its ports ({error}) and stopped");
                faults.push(VoidReason::new("the emulator", fault, FaultTime::At(epoch.now())));
                break;
            }
            self.turn(epoch.now(), &mut || epoch.now());
            self.report_ended_bins(epoch.now());
        }
        let processor_ns = thread_cpu_ns() - processor_before;
        EmulatorReport { processor_ns, ..self.finish(epoch.now(), grants, faults) }
    }

    /// Runs one turn of a driver in virtual time: reads all ports and sends the frames that are due by `now`. Returns the
    /// time at which the next frame is due.
    pub fn handle_timeout(&mut self, now: Instant) -> Instant {
        self.ready = (0..self.ports.len()).collect();
        self.turn(now, &mut || now);
        self.links.poll_timeout()
    }

    /// Returns the report of a run in virtual time that ended at `now`.
    pub fn into_report(self, now: Instant) -> EmulatorReport {
        self.finish(now, Grants::default(), Vec::new())
    }

    /// Reads the ready ports and sends the frames that are due by `now`.
    fn turn(&mut self, now: Instant, clock: &mut dyn FnMut() -> Instant) {
        let before = std::mem::replace(&mut self.turned_at, now);
        if now > self.links.shared.end && !self.over {
            self.end_run();
        }
        for index in std::mem::take(&mut self.ready) {
            self.read(index, now);
        }
        self.send_bypassed();
        let mut first_due = Instant::NEVER;
        for direction in 0..self.ports.len() {
            let until = now.min(self.ports[direction].read_until);
            if self.links.is_due(direction, until) {
                first_due = first_due.min(self.send(direction, until, clock));
            }
        }
        // A thread that runs all the time and cannot keep up has no stalls; its frames are late.
        self.stalls.record(first_due.max(before), now);
    }

    fn read(&mut self, index: usize, now: Instant) {
        let attached = &mut self.ports[index];
        if attached.failed.is_some() {
            return;
        }
        let (links, epoch, bypassed_at) = (&mut self.links, self.epoch, &mut self.bypassed_at);
        let latest = now + MAX_AHEAD;
        let mut last = Instant::ZERO;
        let read = attached.port.receive(BATCH, &mut |received| {
            let arrived = if received.at_ns < epoch.0 {
                *bypassed_at = received.at_ns;
                ArrivalTime::BeforeStart
            } else {
                last = epoch.instant(received.at_ns).min(latest);
                ArrivalTime::At(last)
            };
            links.handle_frame(index, arrived, received.frame);
        });
        match read {
            Ok(frames) => attached.read_until = if frames >= BATCH { last } else { Instant::NEVER },
            Err(error) => self.fail(index, &error),
        }
    }

    /// Sends the frames of a direction that are due. The departure time of a frame is the time at which the system
    /// accepted it. Returns the time at which the first was due.
    fn send(&mut self, direction: usize, until: Instant, clock: &mut dyn FnMut() -> Instant) -> Instant {
        self.sent.clear();
        while self.sent.len() < BATCH
            && let Some(departure) = self.links.poll_departure(direction, until)
        {
            self.transmit(direction, departure.frame.bytes());
            self.sent.push((departure.due, departure.transmission));
            self.links.recycle(departure.frame);
        }
        let Some(&(first_due, _)) = self.sent.first() else { return Instant::NEVER };
        self.flush(direction);
        let (departure, end) = (clock(), self.links.shared.end);
        for (due, transmission) in self.sent.drain(..).filter(|(due, _)| *due <= end) {
            self.timing[direction].record(due, departure, transmission);
        }
        if first_due <= end { first_due } else { Instant::NEVER }
    }

    /// Reports the bins whose counts are final at `now`.
    fn report_ended_bins(&mut self, now: Instant) {
        let Some(reporter) = &mut self.bin_reporter else { return };
        while reporter.at <= now && reporter.bin < self.links.shared.grid.bins {
            let directions = self.links.directions.iter().map(|direction| direction.ended_bin(reporter.bin));
            // A receiver that is gone needs no bins.
            let _ = reporter.sender.send(BinReport { bin: reporter.bin, directions: directions.collect() });
            reporter.bin += 1;
            reporter.at += self.config.interval;
        }
        if reporter.bin >= self.links.shared.grid.bins {
            self.bin_reporter = None;
        }
    }

    fn send_bypassed(&mut self) {
        while let Some(frame) = self.links.poll_bypass() {
            self.transmit(frame.direction, frame.bytes());
            self.flush(frame.direction);
            self.links.recycle_bypass(frame);
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

    /// Marks a port as failed. The other links continue.
    fn fail(&mut self, index: usize, error: &io::Error) {
        let attached = &mut self.ports[index];
        self.waiter.remove(index, attached.port.fd());
        attached.failed = Some(Failure { reason: error.to_string(), at: self.turned_at });
        attached.read_until = Instant::NEVER;
    }

    /// Ends the run. Later errors do not void it.
    fn end_run(&mut self) {
        self.over = true;
        for (direction, attached) in self.links.directions.iter_mut().zip(&mut self.ports) {
            direction.totals.missed = attached.port.missed().saturating_sub(attached.missed_before);
        }
    }

    fn finish(mut self, now: Instant, grants: Grants, mut void: Vec<VoidReason>) -> EmulatorReport {
        if !self.over {
            self.end_run();
        }
        // After the run, interfaces disappear as the network is removed.
        let in_run = |failure: &Failure| failure.at <= self.links.shared.end;
        let failed = self.ports.into_iter().map(|attached| attached.failed.filter(in_run)).collect();
        let faults = Faults { failed, too_long: self.links.too_long, stopped: now };
        void.extend(self.stalls.void_reason("the emulator", self.config.duration));
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
