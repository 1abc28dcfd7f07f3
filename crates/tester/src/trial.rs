//! One trial: sends frames through the router, in one or both directions, and collects the result.

use super::fault::{self, NetworkCounts};
use super::generator::{self, FrameStream, TrialStop};
use super::lsps::Lsps;
use super::port::OpenPort;
use super::program::{FrameReceiver, GeneratorProgress, NetworkArrival, ReceiverTally, TrialProgramSettings};
use super::template::{self, Destinations, ExpectedPackets};
use netstage_core::measure::lateness::LatenessLimits;
use netstage_host::bpf_error::BpfError;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_scenario::outcome::finding::PacketFault;
use netstage_scenario::tester::{Generator, Operation, Tester, TrafficDirection};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time from the end of the preparation to the first frame.
const PREPARATION_NS: u64 = generator::MAX_SETUP_NS + 10_000_000;
/// Time beyond the requested duration after which late senders are stopped.
const OVERTIME_NS: u64 = 20_000_000;
/// Overtime limit on a busy machine, if all frames must be sent.
const LONGEST_OVERTIME_NS: u64 = 10_000_000_000;

/// Traffic of a trial, in total over all directions and ports.
#[derive(Clone, Debug)]
pub struct TrialTraffic {
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

/// Minimum of the delay after which a packet is late.
const MIN_DELAY_LIMIT_NS: u128 = 100_000_000;

/// Error that prevents a trial.
#[derive(Debug)]
pub enum TrialError {
    /// The kernel programs cannot be used.
    Programs(BpfError),
    /// A port cannot be used.
    Port(io::Error),
    /// Labels are unknown, for the reason in this message.
    Labels(String),
}

impl From<BpfError> for TrialError {
    fn from(error: BpfError) -> TrialError {
        TrialError::Programs(error)
    }
}

impl From<io::Error> for TrialError {
    fn from(error: io::Error) -> TrialError {
        TrialError::Port(error)
    }
}

impl fmt::Display for TrialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrialError::Programs(error) => error.fmt(f),
            TrialError::Port(error) => write!(f, "the tester cannot use its ports: {error}"),
            TrialError::Labels(message) => f.write_str(message),
        }
    }
}

/// Result of a trial.
#[derive(Clone, Debug, Default)]
pub struct TrialOutcome {
    /// Frames sent.
    pub sent: u64,
    /// Offered load of all streams in frames per second.
    pub offered: f64,
    /// Maximum number of frames sent back to back.
    pub burst: u32,
    /// Frames sent late, in a burst that may have caused losses itself.
    pub late: u64,
    /// Maximum time between the timestamp of a frame and its departure, nanoseconds.
    pub held_ns: u64,
    /// Sender with the largest lateness.
    pub stall: Option<SenderStall>,
    /// Counts and delays of the receivers.
    pub tally: ReceiverTally,
    /// Description of the first wrong frame.
    pub wrong: Option<String>,
    /// Faults of the packets, by kind.
    pub faults: Vec<PacketFault>,
    /// Packets to each network, by direction.
    pub networks: Vec<NetworkCounts>,
    /// Arrival times after the event, if the trial has one.
    pub event_arrivals: Option<EventArrivals>,
}

/// Largest lateness of a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderStall {
    /// Interface of the port.
    pub interface: String,
    /// Lateness, nanoseconds.
    pub lateness_ns: u64,
    /// Time in the trial at which the late frame was due, nanoseconds.
    pub due_ns: u64,
}

/// Arrival times of packets to each network after an event (CLOCK_MONOTONIC).
#[derive(Clone, Debug, Default)]
pub struct EventArrivals {
    /// Time of the event.
    pub event_ns: u64,
    /// Time at which the last packet was sent.
    pub end_ns: u64,
    /// Arrivals by port and network.
    pub arrivals: Vec<Vec<NetworkArrival>>,
}

/// Event during a trial.
#[derive(Clone, Copy)]
pub struct TrialEvent<'a> {
    /// Time after the start of the trial.
    pub after: Duration,
    /// Action that causes the event.
    pub cause: &'a dyn Fn(),
}

/// Receiving port of a direction at which packets are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPort {
    /// Port of the network's peer.
    Spread,
    /// One port, by its position in the direction.
    Only(usize),
    /// Any port.
    Any,
}

impl ExpectedPort {
    /// Returns the number of ports that take turns, and the turn of the port at a position. A turn outside the
    /// number expects no packets.
    fn turn(self, position: usize, ports: usize) -> (u32, u32) {
        match self {
            ExpectedPort::Spread => (ports as u32, position as u32),
            ExpectedPort::Only(only) if only != position => (1, 1),
            ExpectedPort::Only(_) | ExpectedPort::Any => (1, 0),
        }
    }
}

/// Resources with which trials are run.
#[derive(Debug)]
pub struct TrialRunner<'a> {
    /// Configuration of the test.
    pub tester: &'a Tester,
    /// Ports, in the order of the configuration.
    pub ports: &'a [OpenPort],
    /// Namespace of the ports.
    pub namespace: &'a Namespace,
    /// Generator of the frames.
    pub generator: Generator,
    /// Label switched paths.
    pub lsps: &'a Lsps,
    /// Port at which packets are expected.
    pub expected_port: ExpectedPort,
    /// Whether the ports are connected to each other, without a router.
    pub is_loop: bool,
}

/// Frames expected at a port.
struct ExpectedFrames<'a> {
    direction: &'a TrafficDirection,
    /// Index of the direction.
    number: usize,
    /// Position of the port among the receiving ports of the direction.
    position: usize,
    form: template::FrameTemplate,
    streams: (u8, u8),
    /// Source address of each stream.
    sources: Vec<IpAddr>,
}

/// Waits until all frames have come back, at most for the drain time.
fn drain(
    trial: &TrialTraffic,
    receivers: &[(ExpectedFrames<'_>, FrameReceiver)],
    sent: u64,
    stop: &dyn Fn() -> bool,
) -> Result<(), BpfError> {
    let started = Instant::now();
    while started.elapsed() < trial.drain && !stop() {
        let received = receivers.iter().map(|(_, receiver)| receiver.received());
        if received.sum::<Result<u64, BpfError>>()? >= sent {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl TrialRunner<'_> {
    /// Runs a trial.
    pub fn run(&self, trial: &TrialTraffic, stop: &dyn Fn() -> bool) -> Result<TrialOutcome, TrialError> {
        self.run_while(trial, None, stop)
    }

    /// Runs a trial with an event.
    pub fn run_while(
        &self,
        trial: &TrialTraffic,
        mut happening: Option<TrialEvent<'_>>,
        stop: &dyn Fn() -> bool,
    ) -> Result<TrialOutcome, TrialError> {
        let streams = self.streams(trial).map_err(TrialError::Labels)?;
        let receivers = self.receivers(trial, happening.is_some())?;
        let mut watched = happening.map(|_| EventArrivals::default());
        let end = TrialStop::default();
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
                    end.stop();
                }
                let is_due = |happening: &mut TrialEvent<'_>| {
                    monotonic_ns() >= at_ns + happening.after.as_nanos() as u64
                };
                if let (Some(TrialEvent { cause, .. }), Some(watched)) =
                    (happening.take_if(is_due), &mut watched)
                {
                    watched.event_ns = monotonic_ns();
                    receivers.iter().for_each(|(_, receiver)| receiver.mark(watched.event_ns));
                    cause();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let sent = senders.into_iter().map(|sender| sender.join().expect("senders do not panic"));
            let sent = sent.collect::<Result<Vec<GeneratorProgress>, TrialError>>();
            sent.map(|sent| (sent, at_ns))
        })?;
        let total: u64 = sent.iter().map(|progress| progress.sent).sum();
        drain(trial, &receivers, total, stop)?;
        let mut result = self.sending(&streams, &sent, at_ns);
        if let Some(watched) = &mut watched {
            let networks = self.tester.networks;
            let arrivals = receivers.iter().map(|(_, receiver)| receiver.arrivals(networks));
            watched.arrivals = arrivals.collect::<Result<_, BpfError>>()?;
            watched.end_ns = sent.iter().map(|progress| progress.last_ns).max().unwrap_or(0);
        }
        result.event_arrivals = watched;
        let seconds = (trial.frames as f64 / trial.rate).ceil() as u32 + 1;
        self.count_faults(&mut result, trial, (&receivers[..], seconds), (&sent[..], at_ns))?;
        Ok(result)
    }

    /// Adds the counts of the receivers, and the faults of packets. The trial began at `at_ns`.
    fn count_faults(
        &self,
        result: &mut TrialOutcome,
        trial: &TrialTraffic,
        (receivers, seconds): (&[(ExpectedFrames<'_>, FrameReceiver)], u32),
        (sent, at_ns): (&[GeneratorProgress], u64),
    ) -> Result<(), TrialError> {
        let (tester, streams) = (self.tester, fault::directions_of_streams(self.tester));
        let mut networks: Vec<NetworkCounts> = Vec::new();
        for direction in 0..tester.directions.len() {
            let of_direction = streams.iter().zip(sent).filter(|(number, _)| **number == direction);
            networks.push(NetworkCounts::new(tester.networks, of_direction.map(|(_, sent)| sent.sent)));
        }
        let (mut examples, mut first_ns) = (Vec::new(), u64::MAX);
        for (expected, receiver) in receivers {
            let tally = receiver.tally(seconds)?;
            let packets = ExpectedPackets {
                to: Destinations::of_direction(tester, expected.direction),
                sources: &expected.sources,
                lengths: &trial.lengths,
            };
            for sample in &tally.samples {
                let example = expected.form.differences(&sample.bytes, sample.length, packets);
                if sample.kind.is_of_contents() && sample.at_ns < first_ns {
                    (result.wrong, first_ns) = (Some(example.clone()), sample.at_ns);
                }
                // A packet in the wrong place is not compared with those expected there.
                let is_compared = sample.kind.is_of_contents();
                examples.push(if is_compared { example } else { String::new() });
            }
            fault::count_networks(&mut networks, tester, expected.number, &tally);
            result.tally.add(tally);
        }
        result.faults = fault::faults(tester, &result.tally, &networks, &examples, at_ns);
        result.networks = networks;
        Ok(())
    }

    /// Returns the part of the outcome that the senders report.
    fn sending(
        &self,
        streams: &[(usize, FrameStream)],
        sent: &[GeneratorProgress],
        at_ns: u64,
    ) -> TrialOutcome {
        let senders = || streams.iter().zip(sent);
        let stall = senders().max_by_key(|(_, progress)| progress.stall_ns);
        TrialOutcome {
            sent: sent.iter().map(|progress| progress.sent).sum(),
            offered: sent.iter().map(|progress| offered(progress, at_ns)).sum(),
            burst: sent.iter().map(|progress| progress.burst as u32).max().unwrap_or(0).max(1),
            late: sent.iter().map(|progress| progress.late).sum(),
            held_ns: sent.iter().map(|progress| progress.held_ns).max().unwrap_or(0),
            stall: stall.map(|((port, _), progress)| SenderStall {
                interface: self.ports[*port].settings.interface.clone(),
                lateness_ns: progress.stall_ns,
                due_ns: progress.stalled_at_ns.saturating_sub(at_ns),
            }),
            ..TrialOutcome::default()
        }
    }

    /// Returns the stream of each sending port.
    fn streams(&self, trial: &TrialTraffic) -> Result<Vec<(usize, FrameStream)>, String> {
        let count: usize = self.tester.directions.iter().map(|direction| direction.from.len()).sum();
        let mut streams = Vec::with_capacity(count);
        let max_lost_ns = match trial.ends_early {
            true => {
                let share = trial.frames as f64 / trial.rate * 1e9 * LOST_SHARE * count as f64;
                MIN_LOST_NS.max(share as u64)
            }
            false => u64::MAX,
        };
        for direction in &self.tester.directions {
            for &from in &direction.from {
                let number = streams.len();
                let share = trial.frames / count as u64;
                let port = &self.ports[from];
                let (operation, tester) = (trial.operation, self.tester);
                let labels = self.lsps.incoming(tester, self.ports, operation, direction, from)?;
                let macs = [port.mac, port.router];
                let source = template::source_address(port.settings.address.0, direction.first_network);
                streams.push((
                    from,
                    FrameStream {
                        form: template::sent_template(operation, labels, source, macs),
                        to: Destinations::of_direction(self.tester, direction),
                        lengths: trial.lengths.clone(),
                        trial: trial.number,
                        number: number as u8,
                        rate: trial.rate / count as f64,
                        max_lost_ns,
                        // The first stream also sends the remainder.
                        frames: share + if number == 0 { trial.frames % count as u64 } else { 0 },
                    },
                ));
            }
        }
        Ok(streams)
    }

    /// Attaches a receiver to every port. A port that expects no frames counts all as stray.
    fn receivers(
        &self,
        trial: &TrialTraffic,
        watches: bool,
    ) -> Result<Vec<(ExpectedFrames<'_>, FrameReceiver)>, TrialError> {
        let mut receivers = Vec::new();
        for number in 0..self.ports.len() {
            let expected = self.expected(trial, number).map_err(TrialError::Labels)?;
            let port = &self.ports[number];
            let settings = TrialProgramSettings {
                form: &expected.form,
                to: Destinations::of_direction(self.tester, expected.direction),
                lengths: &trial.lengths,
                trial: trial.number,
                streams: expected.streams,
                sources: &expected.sources,
                port: self.expected_port.turn(expected.position, expected.direction.to.len()),
                batch_gap: 0,
                batch: 1,
                limits: LatenessLimits::for_gap(Default::default()),
                max_lost_ns: u64::MAX,
                frames: 0,
                records_arrivals: watches,
                own_stream: self.stream_of(number),
                max_delay_ns: trial.drain.as_nanos().max(MIN_DELAY_LIMIT_NS) as u64,
            };
            let attached = self.namespace.run(|| FrameReceiver::attach(&settings, port.index));
            receivers.push((expected, attached??));
        }
        Ok(receivers)
    }

    /// Returns the stream that a port sends, if any.
    fn stream_of(&self, port: usize) -> Option<u8> {
        let mut senders = self.tester.directions.iter().flat_map(|direction| &direction.from);
        senders.position(|from| *from == port).map(|stream| stream as u8)
    }

    /// Returns the frames expected at a port.
    fn expected(&self, trial: &TrialTraffic, number: usize) -> Result<ExpectedFrames<'_>, String> {
        let port = &self.ports[number];
        let (tester, mut first) = (self.tester, 0);
        for (index, direction) in tester.directions.iter().enumerate() {
            if let Some(position) = direction.to.iter().position(|to| *to == number) {
                let source = |from: &usize| {
                    template::source_address(self.ports[*from].settings.address.0, direction.first_network)
                };
                let sources: Vec<IpAddr> = direction.from.iter().map(source).collect();
                let (operation, macs) = (trial.operation, [port.router, port.mac]);
                let labels = self.lsps.outgoing(tester, self.ports, operation, direction)?;
                let form = match self.is_loop {
                    true => template::sent_template(operation, labels, sources[0], macs),
                    false => template::forwarded_template(
                        operation,
                        (tester.model, tester.hops),
                        labels,
                        sources[0],
                        macs,
                    ),
                };
                let streams = (first, direction.from.len() as u8);
                return Ok(ExpectedFrames { direction, number: index, position, form, streams, sources });
            }
            first += direction.from.len() as u8;
        }
        let source = template::source_address(port.settings.address.0, tester.directions[0].first_network);
        let form = template::sent_template(Operation::Ip, Vec::new(), source, [port.router, port.mac]);
        Ok(ExpectedFrames {
            direction: &tester.directions[0],
            number: 0,
            position: 0,
            form,
            streams: (0, 0),
            sources: Vec::new(),
        })
    }

    fn send(
        &self,
        port: usize,
        stream: &FrameStream,
        start: impl Fn() -> u64 + Copy + Send + Sync,
        end: &TrialStop,
    ) -> Result<GeneratorProgress, TrialError> {
        let sent = self.send_all(port, stream, start, end);
        // If one sender falls short, the others stop too.
        if sent.as_ref().is_ok_and(|progress| progress.sent < stream.frames) {
            end.stop();
        }
        sent
    }

    fn send_all(
        &self,
        port: usize,
        stream: &FrameStream,
        start: impl Fn() -> u64 + Copy + Send + Sync,
        end: &TrialStop,
    ) -> Result<GeneratorProgress, TrialError> {
        let port = &self.ports[port];
        let (namespace, link) = (self.namespace, &port.settings.interface);
        let sent = match self.generator {
            Generator::Xdp | Generator::Auto => {
                let sent = namespace.run(|| generator::send_in_kernel(stream, port.index, start, end));
                return Ok(sent.inspect_err(|_| {
                    // Other senders wait for this call, even if this sender failed.
                    start();
                })??);
            }
            Generator::AfXdp => {
                generator::send_through_port(stream, generator::open_af_xdp(namespace, link), start, end)
            }
            Generator::AfPacket => {
                generator::send_through_port(stream, generator::open_af_packet(namespace, link), start, end)
            }
        };
        Ok(sent?)
    }
}

/// Returns the offered load in frames per second. The last of `n` frames is due `n - 1` gaps after the first.
fn offered(progress: &GeneratorProgress, from_ns: u64) -> f64 {
    let (time, gaps) = (progress.last_ns.saturating_sub(from_ns).max(1), progress.sent.saturating_sub(1));
    if gaps == 0 { progress.sent as f64 } else { gaps as f64 / (time as f64 / 1e9) }
}
