//! One trial: sends frames through the router, in one or both directions, and collects the result.

use super::form::{self, Destinations};
use super::generator::{self, End, Stream};
use super::lsps::Lsps;
use super::port::Port;
use super::program::{Arrival, Progress, Receiver, Settings, Tally};
use netstage_host::clock::monotonic_ns;
use netstage_host::kernel_program::Error;
use netstage_host::netns::Namespace;
use netstage_scenario::tester::{Generator, Operation, Tester, Way};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time from the end of the preparation to the first frame.
const PREPARATION_NS: u64 = generator::SETTING_UP_NS + 10_000_000;
/// Time beyond the requested duration after which late senders are stopped.
const OVERTIME_NS: u64 = 20_000_000;
/// Overtime limit on a busy machine, if all frames must be sent.
const LONGEST_OVERTIME_NS: u64 = 10_000_000_000;

/// Traffic of a trial, in total over all directions and ports.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Operation of the router.
    pub operation: Operation,
    /// Lengths of IP packets, in turn.
    pub lengths: Vec<u16>,
    /// Frames per second.
    pub rate: f64,
    /// Number of frames.
    pub frames: u64,
    /// Maximum time to wait for frames in flight.
    pub drain: Duration,
    /// Number of the trial, carried in every frame.
    pub number: u16,
    /// Whether the trial ends after its duration, or as soon as it is void. Otherwise it ends after the last
    /// frame.
    pub ends_early: bool,
}

/// Share of the trial's time, times the number of senders, that one sender may lose. Beyond it the offered load is
/// certainly too low (`Patience::tolerance` of the searches is half of it).
const LOST_SHARE: f64 = 0.02;
/// Minimum of the time that may be lost. A short trial continues, because its final load is a better measure of the
/// tester than its beginning.
const MIN_LOST_NS: u64 = 100_000_000;

/// Error that prevents a trial.
#[derive(Debug)]
pub enum Failed {
    /// The kernel programs cannot be used.
    Programs(Error),
    /// A port cannot be used.
    Port(io::Error),
    /// Labels are unknown, for the reason in this message.
    Labels(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Programs(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Port(error)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Programs(error) => error.fmt(f),
            Failed::Port(error) => write!(f, "the tester cannot use its ports: {error}"),
            Failed::Labels(message) => f.write_str(message),
        }
    }
}

/// Result of a trial.
#[derive(Clone, Debug, Default)]
pub struct Came {
    /// Frames sent.
    pub sent: u64,
    /// Offered load of all streams in frames per second.
    pub offered: f64,
    /// Maximum number of frames sent back to back.
    pub burst: u32,
    /// Counts and delays of the receivers.
    pub tally: Tally,
    /// Description of the first wrong frame.
    pub wrong: Option<String>,
    /// Arrival times after the event, if the trial has one.
    pub watched: Option<Watched>,
}

impl Came {
    /// Returns whether exactly this number of frames came back, without duplicates.
    pub fn is_clean(&self, frames: u64) -> bool {
        self.tally.received == frames && self.tally.duplicates == 0
    }
}

/// Arrival times of packets to each network after an event (CLOCK_MONOTONIC).
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Time of the event.
    pub event_ns: u64,
    /// Time at which the last packet was sent.
    pub end_ns: u64,
    /// Arrivals by port and network.
    pub arrivals: Vec<Vec<Arrival>>,
}

/// Event during a trial.
#[derive(Clone, Copy)]
pub struct Happening<'a> {
    /// Time after the start of the trial.
    pub after: Duration,
    /// Action that causes the event.
    pub cause: &'a dyn Fn(),
}

/// Receiving port of a direction at which packets are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Port of the network's peer.
    Spread,
    /// One port, by its position in the direction.
    By(usize),
    /// Any port.
    Anywhere,
}

impl Leaving {
    /// Returns the number of ports that take turns, and the turn of the port at a position. A turn outside the
    /// number expects no packets.
    fn turn(self, position: usize, ports: usize) -> (u32, u32) {
        match self {
            Leaving::Spread => (ports as u32, position as u32),
            Leaving::By(only) if only != position => (1, 1),
            Leaving::By(_) | Leaving::Anywhere => (1, 0),
        }
    }
}

/// Resources with which trials are run.
#[derive(Debug)]
pub struct Means<'a> {
    /// Configuration of the test.
    pub tester: &'a Tester,
    /// Ports, in the order of the configuration.
    pub ports: &'a [Port],
    /// Namespace of the ports.
    pub namespace: &'a Namespace,
    /// Generator of the frames.
    pub generator: Generator,
    /// Label switched paths.
    pub lsps: &'a Lsps,
    /// Port at which packets are expected.
    pub leaving: Leaving,
    /// Whether the ports are connected to each other, without a router.
    pub is_loop: bool,
}

/// Frames expected at a port.
struct Expected<'a> {
    direction: &'a Way,
    /// Position of the port among the receiving ports of the direction.
    position: usize,
    form: form::Form,
    streams: (u8, u8),
    /// Source address of each stream.
    sources: Vec<IpAddr>,
}

/// Waits until all frames have come back, at most for the drain time.
fn drain(
    trial: &Asked,
    receivers: &[(Expected<'_>, Receiver)],
    sent: u64,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let started = Instant::now();
    while started.elapsed() < trial.drain && !stop() {
        let received = receivers.iter().map(|(_, receiver)| receiver.received());
        if received.sum::<Result<u64, Error>>()? >= sent {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Means<'_> {
    /// Runs a trial.
    pub fn run(&self, trial: &Asked, stop: &dyn Fn() -> bool) -> Result<Came, Failed> {
        self.run_while(trial, None, stop)
    }

    /// Runs a trial with an event.
    pub fn run_while(
        &self,
        trial: &Asked,
        mut happening: Option<Happening<'_>>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Came, Failed> {
        let streams = self.streams(trial).map_err(Failed::Labels)?;
        let receivers = self.receivers(trial, happening.is_some())?;
        let mut watched = happening.map(|_| Watched::default());
        let end = End::default();
        let (prepared, start_ns) = (Barrier::new(streams.len() + 1), AtomicU64::new(0));
        let start = || {
            prepared.wait();
            prepared.wait();
            start_ns.load(Ordering::Acquire)
        };
        let (sent, at_ns) = std::thread::scope(|scope| {
            let (end, start) = (&end, &start);
            let senders: Vec<_> = streams
                .iter()
                .map(|(port, stream)| scope.spawn(move || self.send(*port, stream, start, end)))
                .collect();
            prepared.wait();
            let at_ns = monotonic_ns() + PREPARATION_NS;
            receivers.iter().for_each(|(_, receiver)| receiver.start(at_ns));
            start_ns.store(at_ns, Ordering::Release);
            prepared.wait();
            // A sender that falls short must not take more time to send its frames.
            let overtime_ns = if trial.ends_early { OVERTIME_NS } else { LONGEST_OVERTIME_NS };
            let end_ns = at_ns + ((trial.frames as f64 / trial.rate * 1e9) as u64) + overtime_ns;
            while !senders.iter().all(|sender| sender.is_finished()) {
                if stop() || monotonic_ns() > end_ns {
                    end.come();
                }
                let is_due = |happening: &mut Happening<'_>| {
                    monotonic_ns() >= at_ns + happening.after.as_nanos() as u64
                };
                if let (Some(Happening { cause, .. }), Some(watched)) =
                    (happening.take_if(is_due), &mut watched)
                {
                    watched.event_ns = monotonic_ns();
                    receivers.iter().for_each(|(_, receiver)| receiver.mark(watched.event_ns));
                    cause();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let sent = senders.into_iter().map(|sender| sender.join().expect("senders do not panic"));
            let sent = sent.collect::<Result<Vec<Progress>, Failed>>();
            sent.map(|sent| (sent, at_ns))
        })?;
        let total: u64 = sent.iter().map(|progress| progress.sent).sum();
        drain(trial, &receivers, total, stop)?;
        let mut result = Came {
            sent: total,
            offered: sent.iter().map(|progress| offered(progress, at_ns)).sum(),
            burst: streams.iter().map(|(_, stream)| self.burst(stream)).max().unwrap_or(1),
            ..Came::default()
        };
        if let Some(watched) = &mut watched {
            let networks = self.tester.networks;
            let arrivals = receivers.iter().map(|(_, receiver)| receiver.arrivals(networks));
            watched.arrivals = arrivals.collect::<Result<_, Error>>()?;
            watched.end_ns = sent.iter().map(|progress| progress.last_ns).max().unwrap_or(0);
        }
        result.watched = watched;
        let seconds = (trial.frames as f64 / trial.rate).ceil() as u32 + 1;
        for (expected, receiver) in &receivers {
            let tally = receiver.tally(seconds)?;
            if let (None, Some((length, bytes))) = (&result.wrong, tally.samples.first()) {
                let to = Destinations::of(self.tester, expected.direction);
                result.wrong = Some(expected.form.differences(bytes, *length, to, &expected.sources));
            }
            result.tally.add(tally);
        }
        Ok(result)
    }

    /// Returns the stream of each sending port.
    fn streams(&self, trial: &Asked) -> Result<Vec<(usize, Stream)>, String> {
        let count: usize = self.tester.ways.iter().map(|direction| direction.from.len()).sum();
        let mut streams = Vec::with_capacity(count);
        let max_lost_ns = match trial.ends_early {
            true => {
                let share = trial.frames as f64 / trial.rate * 1e9 * LOST_SHARE * count as f64;
                MIN_LOST_NS.max(share as u64)
            }
            false => u64::MAX,
        };
        for direction in &self.tester.ways {
            for &from in &direction.from {
                let number = streams.len();
                let share = trial.frames / count as u64;
                let port = &self.ports[from];
                let (operation, tester) = (trial.operation, self.tester);
                let labels = self.lsps.incoming(tester, self.ports, operation, direction, from)?;
                let macs = [port.mac, port.router];
                let source = form::source(port.settings.address.0, direction.first);
                streams.push((
                    from,
                    Stream {
                        form: form::sent(operation, labels, source, macs),
                        to: Destinations::of(self.tester, direction),
                        lengths: trial.lengths.clone(),
                        trial: trial.number,
                        number: number as u8,
                        rate: trial.rate / count as f64,
                        most_lost_ns: max_lost_ns,
                        // The first stream also sends the remainder.
                        frames: share + if number == 0 { trial.frames % count as u64 } else { 0 },
                    },
                ));
            }
        }
        Ok(streams)
    }

    /// Attaches a receiver to every port. A port that expects no frames counts all as stray.
    fn receivers(&self, trial: &Asked, watches: bool) -> Result<Vec<(Expected<'_>, Receiver)>, Failed> {
        let mut receivers = Vec::new();
        for number in 0..self.ports.len() {
            let expected = self.expected(trial, number);
            let port = &self.ports[number];
            let settings = Settings {
                form: &expected.form,
                to: Destinations::of(self.tester, expected.direction),
                lengths: &trial.lengths,
                trial: trial.number,
                streams: expected.streams,
                sources: &expected.sources,
                port: self.leaving.turn(expected.position, expected.direction.to.len()),
                batch_gap: 0,
                batch: 1,
                most_late_ns: 0,
                most_lost_ns: u64::MAX,
                frames: 0,
                watches,
            };
            let attached = self.namespace.run(|| Receiver::attach(&settings, port.index));
            receivers.push((expected, attached??));
        }
        Ok(receivers)
    }

    /// Returns the frames expected at a port.
    fn expected(&self, trial: &Asked, number: usize) -> Expected<'_> {
        let port = &self.ports[number];
        let (tester, mut first) = (self.tester, 0);
        for direction in &tester.ways {
            if let Some(position) = direction.to.iter().position(|to| *to == number) {
                let source =
                    |from: &usize| form::source(self.ports[*from].settings.address.0, direction.first);
                let sources: Vec<IpAddr> = direction.from.iter().map(source).collect();
                let (operation, macs) = (trial.operation, [port.router, port.mac]);
                let labels = self.lsps.outgoing(tester, operation, direction);
                let form = match self.is_loop {
                    true => form::sent(operation, labels, sources[0], macs),
                    false => form::forwarded(operation, tester.model, labels, sources[0], macs),
                };
                let streams = (first, direction.from.len() as u8);
                return Expected { direction, position, form, streams, sources };
            }
            first += direction.from.len() as u8;
        }
        let source = form::source(port.settings.address.0, tester.ways[0].first);
        let form = form::sent(Operation::Ip, Vec::new(), source, [port.router, port.mac]);
        Expected { direction: &tester.ways[0], position: 0, form, streams: (0, 0), sources: Vec::new() }
    }

    fn burst(&self, stream: &Stream) -> u32 {
        if self.generator == Generator::Xdp { stream.batch() } else { 1 }
    }

    fn send(
        &self,
        port: usize,
        stream: &Stream,
        start: impl Fn() -> u64 + Copy + Send + Sync,
        end: &End,
    ) -> Result<Progress, Failed> {
        let sent = self.send_all(port, stream, start, end);
        // If one sender falls short, the others stop too.
        if sent.as_ref().is_ok_and(|progress| progress.sent < stream.frames) {
            end.come();
        }
        sent
    }

    fn send_all(
        &self,
        port: usize,
        stream: &Stream,
        start: impl Fn() -> u64 + Copy + Send + Sync,
        end: &End,
    ) -> Result<Progress, Failed> {
        let port = &self.ports[port];
        let (namespace, link) = (self.namespace, &port.settings.interface);
        let sent = match self.generator {
            Generator::Xdp | Generator::Auto => {
                let sent = namespace.run(|| generator::in_kernel(stream, port.index, start, end));
                return Ok(sent.inspect_err(|_| {
                    // Other senders wait for this call, even if this sender failed.
                    start();
                })??);
            }
            Generator::AfXdp => generator::by_port(stream, generator::af_xdp(namespace, link), start, end),
            Generator::AfPacket => {
                generator::by_port(stream, generator::af_packet(namespace, link), start, end)
            }
        };
        Ok(sent?)
    }
}

/// Returns the offered load in frames per second. The last of `n` frames is due `n - 1` gaps after the first.
fn offered(progress: &Progress, from_ns: u64) -> f64 {
    let (time, gaps) = (progress.last_ns.saturating_sub(from_ns).max(1), progress.sent.saturating_sub(1));
    if gaps == 0 { progress.sent as f64 } else { gaps as f64 / (time as f64 / 1e9) }
}
