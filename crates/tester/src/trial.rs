//! One trial: frames one or both ways through the router, and what came of them.

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

/// From when all is prepared to the first frame.
const PREPARATION_NS: u64 = generator::SETTING_UP_NS + 10_000_000;
/// How much longer than asked for frames are sent, by senders that are late.
const OVERTIME_NS: u64 = 20_000_000;
/// The same where all frames are to be sent, as long as it takes on a busy machine.
const LONGEST_OVERTIME_NS: u64 = 10_000_000_000;

/// What is sent in a trial, all ways and ports together.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What the router is to do with packets.
    pub operation: Operation,
    /// Lengths of IP packets, in turn.
    pub lengths: Vec<u16>,
    /// Frames a second.
    pub rate: f64,
    /// Frames.
    pub frames: u64,
    /// The longest wait for those still under way.
    pub drain: Duration,
    /// Told in every frame.
    pub number: u16,
    /// Whether it ends when it is to, or once it is void whatever follows; else when all is sent.
    pub ends_early: bool,
}

/// Where a sender has lost this share of the trial's time, times the number of senders, all together are sure
/// to have offered too little (`Patience::tolerance` of the searches is half of it).
const LOST_SHARE: f64 = 0.02;
/// Short trials go on: what they offer in the end says more of the tester than how they began.
const LEAST_LOST_NS: u64 = 100_000_000;

/// Why there is no trial.
#[derive(Debug)]
pub enum Failed {
    /// The kernel's programs cannot be used.
    Programs(Error),
    /// A port cannot be used.
    Port(io::Error),
    /// It is not known by which labels, in words.
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
            Failed::Labels(why) => f.write_str(why),
        }
    }
}

/// What came of a trial.
#[derive(Clone, Debug, Default)]
pub struct Came {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames a second that were offered, of all streams together.
    pub offered: f64,
    /// Frames sent back to back at most.
    pub burst: u32,
    /// What was seen of them.
    pub tally: Tally,
    /// Of the first frame that was wrong, in what.
    pub wrong: Option<String>,
    /// Where something happened meanwhile: when, and what was seen of it.
    pub watched: Option<Watched>,
}

impl Came {
    /// Whether so many frames came back, each once.
    pub fn is_clean(&self, frames: u64) -> bool {
        self.tally.received == frames && self.tally.duplicates == 0
    }
}

/// What was seen of packets to each network after an event. Times are CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// When it happened.
    pub event_ns: u64,
    /// When the last packet was sent.
    pub end_ns: u64,
    /// At each port, in order.
    pub arrivals: Vec<Vec<Arrival>>,
}

/// What happens during a trial.
#[derive(Clone, Copy)]
pub struct Happening<'a> {
    /// So long after its start.
    pub after: Duration,
    /// What is done.
    pub cause: &'a dyn Fn(),
}

/// By which of a way's receiving ports packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// By that of their network's peer.
    Spread,
    /// By one of them, the way's so manyth.
    By(usize),
    /// By any.
    Anywhere,
}

impl Leaving {
    /// For one of a way's receiving ports: of how many in turn it is which.
    fn turn(self, place: usize, ports: usize) -> (u32, u32) {
        match self {
            Leaving::Spread => (ports as u32, place as u32),
            Leaving::By(one) if one != place => (1, 1),
            Leaving::By(_) | Leaving::Anywhere => (1, 0),
        }
    }
}

/// What a trial is carried out with.
#[derive(Debug)]
pub struct Means<'a> {
    /// What is tested.
    pub tester: &'a Tester,
    /// Its ports, in order.
    pub ports: &'a [Port],
    /// Where they are.
    pub namespace: &'a Namespace,
    /// What sends.
    pub generator: Generator,
    /// Label switched paths.
    pub lsps: &'a Lsps,
    /// By which port packets leave.
    pub leaving: Leaving,
    /// Ports lead to each other: nothing is between.
    pub is_loop: bool,
}

/// What a port expects: the way, and which of its ports it is.
struct Expected<'a> {
    way: &'a Way,
    place: usize,
    form: form::Form,
    streams: (u8, u8),
    /// Of each stream.
    sources: Vec<IpAddr>,
}

/// Waits until all that was sent has come back, at most as long as was asked for.
fn drain(
    asked: &Asked,
    receivers: &[(Expected<'_>, Receiver)],
    sent: u64,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let began = Instant::now();
    while began.elapsed() < asked.drain && !stop() {
        let received = receivers.iter().map(|(_, receiver)| receiver.received());
        if received.sum::<Result<u64, Error>>()? >= sent {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Means<'_> {
    /// Carries out a trial.
    pub fn run(&self, asked: &Asked, stop: &dyn Fn() -> bool) -> Result<Came, Failed> {
        self.run_while(asked, None, stop)
    }

    /// Carries out a trial in which something happens.
    pub fn run_while(
        &self,
        asked: &Asked,
        mut happening: Option<Happening<'_>>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Came, Failed> {
        let streams = self.streams(asked).map_err(Failed::Labels)?;
        let receivers = self.receivers(asked, happening.is_some())?;
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
            // A sender that falls short must not take longer for it.
            let overtime_ns = if asked.ends_early { OVERTIME_NS } else { LONGEST_OVERTIME_NS };
            let end_ns = at_ns + ((asked.frames as f64 / asked.rate * 1e9) as u64) + overtime_ns;
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
        drain(asked, &receivers, total, stop)?;
        let mut came = Came {
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
        came.watched = watched;
        let seconds = (asked.frames as f64 / asked.rate).ceil() as u32 + 1;
        for (expected, receiver) in &receivers {
            let tally = receiver.tally(seconds)?;
            if let (None, Some((length, bytes))) = (&came.wrong, tally.samples.first()) {
                let to = Destinations::of(self.tester, expected.way);
                came.wrong = Some(expected.form.differences(bytes, *length, to, &expected.sources));
            }
            came.tally.add(tally);
        }
        Ok(came)
    }

    /// Each sending port's stream.
    fn streams(&self, asked: &Asked) -> Result<Vec<(usize, Stream)>, String> {
        let count: usize = self.tester.ways.iter().map(|way| way.from.len()).sum();
        let mut streams = Vec::with_capacity(count);
        let most_lost_ns = match asked.ends_early {
            true => {
                let share = asked.frames as f64 / asked.rate * 1e9 * LOST_SHARE * count as f64;
                LEAST_LOST_NS.max(share as u64)
            }
            false => u64::MAX,
        };
        for way in &self.tester.ways {
            for &from in &way.from {
                let number = streams.len();
                let part = asked.frames / count as u64;
                let port = &self.ports[from];
                let (operation, tester) = (asked.operation, self.tester);
                let labels = self.lsps.incoming(tester, self.ports, operation, way, from)?;
                let macs = [port.mac, port.router];
                let source = form::source(port.settings.address.0, way.first);
                streams.push((
                    from,
                    Stream {
                        form: form::sent(operation, labels, source, macs),
                        to: Destinations::of(self.tester, way),
                        lengths: asked.lengths.clone(),
                        trial: asked.number,
                        number: number as u8,
                        rate: asked.rate / count as f64,
                        // What does not divide is the first one's.
                        most_lost_ns,
                        frames: part + if number == 0 { asked.frames % count as u64 } else { 0 },
                    },
                ));
            }
        }
        Ok(streams)
    }

    /// One at every port; where nothing is to come, all that comes is astray.
    fn receivers(&self, asked: &Asked, watches: bool) -> Result<Vec<(Expected<'_>, Receiver)>, Failed> {
        let mut receivers = Vec::new();
        for number in 0..self.ports.len() {
            let expected = self.expected(asked, number);
            let port = &self.ports[number];
            let settings = Settings {
                form: &expected.form,
                to: Destinations::of(self.tester, expected.way),
                lengths: &asked.lengths,
                trial: asked.number,
                streams: expected.streams,
                sources: &expected.sources,
                port: self.leaving.turn(expected.place, expected.way.to.len()),
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

    /// What is to come to a port.
    fn expected(&self, asked: &Asked, number: usize) -> Expected<'_> {
        let port = &self.ports[number];
        let (tester, mut first) = (self.tester, 0);
        for way in &tester.ways {
            if let Some(place) = way.to.iter().position(|to| *to == number) {
                let source = |from: &usize| form::source(self.ports[*from].settings.address.0, way.first);
                let sources: Vec<IpAddr> = way.from.iter().map(source).collect();
                let (operation, macs) = (asked.operation, [port.router, port.mac]);
                let labels = self.lsps.outgoing(tester, operation, way);
                let form = match self.is_loop {
                    true => form::sent(operation, labels, sources[0], macs),
                    false => form::forwarded(operation, tester.model, labels, sources[0], macs),
                };
                let streams = (first, way.from.len() as u8);
                return Expected { way, place, form, streams, sources };
            }
            first += way.from.len() as u8;
        }
        let source = form::source(port.settings.address.0, tester.ways[0].first);
        let form = form::sent(Operation::Ip, Vec::new(), source, [port.router, port.mac]);
        Expected { way: &tester.ways[0], place: 0, form, streams: (0, 0), sources: Vec::new() }
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
        // Where one of several falls short, the others need not go on.
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
                    // Others wait for this one, even if it cannot send.
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

/// Frames a second, from when the first was due: the last of `n` is due after `n - 1` gaps.
fn offered(progress: &Progress, from_ns: u64) -> f64 {
    let (time, gaps) = (progress.last_ns.saturating_sub(from_ns).max(1), progress.sent.saturating_sub(1));
    if gaps == 0 { progress.sent as f64 } else { gaps as f64 / (time as f64 / 1e9) }
}
