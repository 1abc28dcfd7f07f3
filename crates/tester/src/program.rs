//! XDP programs of a trial (bpf/trial.bpf.c): one generates frames, one checks received frames. Both are loaded
//! for each trial, with its settings as constants.

use super::fault_kind::FaultKind;
use super::template::{self, Destinations, FrameTemplate};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, Pod};
use netstage_core::measure::lateness::LatenessLimits;
use netstage_host::bpf_error::BpfError;
use netstage_host::ports::kernel::Mapping;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

static OBJECT: &[u8] = include_bytes!("../../../bpf/trial.bpf.o");

/// Maximum number of seconds whose delays are reported separately.
const SECONDS: u32 = 4096;
/// Delays are counted in buckets: 2 to this power for each power of two nanoseconds.
const FINE: u32 = 7;
const OCTAVES: u32 = 40 - FINE;
/// Maximum bytes of a stored frame.
const SAMPLE: usize = 2048;
/// Counters of the program after those of the kinds of faults: correct packets, and packets with wrong contents.
const RECEIVED: u32 = FaultKind::ALL.len() as u32;
const WRONG: u32 = RECEIVED + 1;
/// Stream that no port sends.
const NO_STREAM: u8 = u8::MAX;
/// Maximum number of streams that a port receives.
const MAX_STREAMS: usize = 8;
/// Maximum number of different packet lengths.
const SIZES: usize = 12;
const MAX_LABELS: usize = 3;
const MAX_PEERS: usize = 64;
/// Word offsets of the fields of `struct progress`.
const START: usize = 0;
const SEQUENCE: usize = 4;
const LAST: usize = 6;
const IS_OVER: usize = 9;
const LOST: usize = 10;
const EVENT: usize = 12;
const LATE: usize = 14;
const STALL: usize = 16;
const STALLED_AT: usize = 18;
const HELD: usize = 20;

/// Settings of a program for one trial and port.
#[derive(Clone, Debug)]
pub struct TrialProgramSettings<'a> {
    /// Template of the frames.
    pub form: &'a FrameTemplate,
    /// Destination networks.
    pub to: Destinations,
    /// Lengths of IP packets, in turn.
    pub lengths: &'a [u16],
    /// Number of the trial, carried in every frame.
    pub trial: u16,
    /// Number of the sent or first received stream, and number of streams.
    pub streams: (u8, u8),
    /// Source address of each received stream.
    pub sources: &'a [IpAddr],
    /// Number of receiving ports that take turns, and position of this port among them.
    pub port: (u32, u32),
    /// Time between batches in 1/1024 ns.
    pub batch_gap: u64,
    /// Frames per batch.
    pub batch: u32,
    /// Limits of lateness. The generator catches up on their maximum.
    pub limits: LatenessLimits,
    /// Maximum time lost in total, beyond which the trial ends.
    pub max_lost_ns: u64,
    /// Number of frames of the trial.
    pub frames: u64,
    /// Record the arrival times of each network's packets.
    pub records_arrivals: bool,
    /// Stream that the receiver's port sends, if any.
    pub own_stream: Option<u8>,
    /// Delay after which a packet is late, nanoseconds.
    pub max_delay_ns: u64,
}

/// Arrival times of packets to a network (CLOCK_MONOTONIC), or zero if none arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkArrival {
    /// Time of the first packet after the event.
    pub first_ns: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// Longest time between two packets of which the second arrived after the event.
    pub gap_ns: u64,
    /// Time of that second packet.
    pub gap_end_ns: u64,
}

/// First frame with a kind of fault (`struct sample`).
#[derive(Clone, Copy)]
#[repr(C)]
struct StoredFrame {
    length: u32,
    stored: u32,
    time: u64,
    bytes: [u8; SAMPLE],
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for StoredFrame {}

/// Network, kind of fault and stream (`struct faulty`).
#[derive(Clone, Copy)]
#[repr(C)]
struct FaultyKey {
    network: u32,
    kind: u16,
    stream: u16,
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for FaultyKey {}

/// Generator program.
pub struct Generator {
    program: Ebpf,
    progress: Arc<Mapping>,
    frame: Vec<u8>,
    context: Vec<u8>,
    batch: u32,
}

/// Progress of a generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneratorProgress {
    /// Frames sent.
    pub sent: u64,
    /// Time of the last frame (CLOCK_MONOTONIC).
    pub last_ns: u64,
    /// Frames sent late, which may have formed a burst.
    pub late: u64,
    /// Time by which stalls have shifted the schedule.
    pub lost_ns: u64,
    /// Maximum lateness of a frame, and the time at which it was due (CLOCK_MONOTONIC).
    pub stall_ns: u64,
    /// See `stall_ns`.
    pub stalled_at_ns: u64,
    /// Maximum time between the timestamp of a frame and its departure.
    pub held_ns: u64,
    /// Maximum number of frames that a port sent back to back.
    pub burst: u64,
}

impl Generator {
    /// Loads the program, to send through an interface in the namespace of the calling thread.
    pub fn load(settings: &TrialProgramSettings<'_>, interface: u32) -> Result<Generator, BpfError> {
        let mut program = load(settings)?;
        xdp(&mut program, "generate")?.load()?;
        let progress = Arc::new(progress(&program)?);
        let longest = settings.lengths.iter().copied().max().unwrap_or(0);
        let frame = vec![0; settings.form.overhead() + usize::from(longest)];
        // struct xdp_md: data, data_end, data_meta, ingress interface, queue, egress interface.
        let context = [0, frame.len() as u32, 0, interface, 0, 0];
        let context = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        Ok(Generator { program, progress, frame, context, batch: settings.batch })
    }

    /// Calls the program this number of times, rounded up to whole batches. Frames that become due are sent.
    pub fn run(&mut self, calls: u32) -> Result<(), BpfError> {
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            ctx_in: Some(&self.context),
            repeat: calls.next_multiple_of(self.batch),
            attrs: TestRunAttrs::new().xdp_live_frames(self.batch),
            ..TestRunOptions::new()
        };
        match xdp(&mut self.program, "generate")?.test_run(options) {
            Ok(_) => Ok(()),
            Err(ProgramError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::Interrupted => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the progress.
    pub fn progress(&self) -> GeneratorProgress {
        let words = self.progress.words();
        let long = |at: usize| {
            u64::from(words[at].load(Ordering::Relaxed))
                | u64::from(words[at + 1].load(Ordering::Relaxed)) << 32
        };
        GeneratorProgress {
            sent: long(SEQUENCE),
            last_ns: long(LAST),
            lost_ns: long(LOST),
            late: long(LATE),
            stall_ns: long(STALL),
            stalled_at_ns: long(STALLED_AT),
            held_ns: long(HELD),
            burst: u64::from(self.batch),
        }
    }

    /// Sets the start time (CLOCK_MONOTONIC).
    pub fn start(&self, at_ns: u64) {
        set_time(&self.progress, START, at_ns);
    }

    /// Returns whether the generator has ended.
    pub fn is_over(&self) -> bool {
        self.progress.words()[IS_OVER].load(Ordering::Relaxed) != 0
    }

    /// Returns a handle that stops the generator.
    pub fn stop_handle(&self) -> GeneratorStop {
        GeneratorStop(Arc::clone(&self.progress))
    }
}

/// Handle that stops a generator from any thread.
#[derive(Debug)]
pub struct GeneratorStop(Arc<Mapping>);

impl GeneratorStop {
    /// Stops the generator.
    pub fn stop(&self) {
        self.0.words()[IS_OVER].store(1, Ordering::Relaxed);
    }
}

/// Receiver program, which checks frames.
pub struct FrameReceiver {
    program: Ebpf,
    progress: Mapping,
    networks: u32,
}

/// First frame with a kind of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSample {
    /// Kind of fault.
    pub kind: FaultKind,
    /// Length of the frame.
    pub length: usize,
    /// Its bytes, at most the first 2,048.
    pub bytes: Vec<u8>,
    /// Time of its arrival (CLOCK_MONOTONIC).
    pub at_ns: u64,
}

/// Packets of a stream to a network with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultCount {
    /// Kind of fault; `None` for any wrong contents.
    pub kind: Option<FaultKind>,
    /// Number of the network.
    pub network: u32,
    /// Number of the stream.
    pub stream: u16,
    /// Number of packets.
    pub packets: u64,
}

/// Counts and delays of a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverTally {
    /// Correct frames, without duplicates.
    pub received: u64,
    /// Duplicates of correct frames.
    pub duplicates: u64,
    /// Received frames that arrived after a frame sent later.
    pub reordered: u64,
    /// Frames of the trial with wrong contents.
    pub wrong: u64,
    /// Frames of the trial that arrived at the wrong port, also at the one that sent them.
    pub stray: u64,
    /// Number of packets with each kind of fault, in the order of [`FaultKind::ALL`].
    pub kinds: Vec<u64>,
    /// Packets with faults by network.
    pub faults: Vec<FaultCount>,
    /// Correct packets to each network.
    pub networks: Vec<u64>,
    /// Number of frames and sum of their delays in nanoseconds, for each second of transmission.
    pub seconds: Vec<(u64, u64)>,
    /// Delays in nanoseconds, accurate to 1 %, each with its number of frames.
    pub delays: Vec<(u64, u64)>,
    /// First frame with each kind of fault.
    pub samples: Vec<FaultSample>,
}

impl FrameReceiver {
    /// Loads the program and attaches it to an interface in the namespace of the calling thread.
    pub fn attach(settings: &TrialProgramSettings<'_>, interface: u32) -> Result<FrameReceiver, BpfError> {
        let mut program = load(settings)?;
        let receive = xdp(&mut program, "receive")?;
        receive.load()?;
        receive
            .attach_to_if_index(interface, XdpMode::Driver)
            .or_else(|_| receive.attach_to_if_index(interface, XdpMode::Skb))?;
        Ok(FrameReceiver { progress: progress(&program)?, program, networks: settings.to.networks })
    }

    /// Sets the time from which seconds are counted (CLOCK_MONOTONIC).
    pub fn start(&self, at_ns: u64) {
        set_time(&self.progress, START, at_ns);
    }

    /// Sets the time of the event after which arrivals are recorded (CLOCK_MONOTONIC).
    pub fn mark(&self, at_ns: u64) {
        set_time(&self.progress, EVENT, at_ns);
    }

    /// Returns the arrival times for each of this number of networks.
    pub fn arrivals(&self, networks: u32) -> Result<Vec<NetworkArrival>, BpfError> {
        let arrivals: Array<&MapData, [u64; 4]> = map(&self.program, "arrivals")?;
        let arrival = |network| {
            let [first_ns, last_ns, gap_ns, gap_end_ns] = arrivals.get(&network, 0)?;
            Ok(NetworkArrival { first_ns, last_ns, gap_ns, gap_end_ns })
        };
        (0..networks).map(arrival).collect()
    }

    /// Returns the number of correct frames received, without duplicates.
    pub fn received(&self) -> Result<u64, BpfError> {
        count(&self.program, RECEIVED)
    }

    /// Returns all counts and delays.
    pub fn tally(&self, seconds: u32) -> Result<ReceiverTally, BpfError> {
        let kinds = FaultKind::ALL.map(|kind| count(&self.program, kind as u32));
        let kinds = kinds.into_iter().collect::<Result<Vec<u64>, BpfError>>()?;
        let of_kind = |kind: FaultKind| kinds[kind as usize];
        let mut tally = ReceiverTally {
            received: self.received()?,
            duplicates: of_kind(FaultKind::Duplicate),
            reordered: of_kind(FaultKind::Reordered),
            wrong: count(&self.program, WRONG)?,
            stray: of_kind(FaultKind::Stray) + of_kind(FaultKind::Returned),
            samples: self.samples(&kinds)?,
            faults: self.faults()?,
            networks: self.networks()?,
            ..ReceiverTally::default()
        };
        tally.kinds = kinds;
        self.add_delays(&mut tally, seconds)?;
        Ok(tally)
    }

    fn add_delays(&self, tally: &mut ReceiverTally, seconds: u32) -> Result<(), BpfError> {
        let per_second: PerCpuArray<&MapData, [u64; 2]> = map(&self.program, "seconds")?;
        let delays: PerCpuArray<&MapData, [u64; 1 << FINE]> = map(&self.program, "delays")?;
        for second in 0..seconds.min(SECONDS) {
            let sum = per_second.get(&second, 0)?;
            let add = |total: (u64, u64), cpu: &[u64; 2]| (total.0 + cpu[0], total.1 + cpu[1]);
            tally.seconds.push(sum.iter().fold((0, 0), add));
        }
        for octave in 0..OCTAVES {
            let cpus = delays.get(&octave, 0)?;
            for fine in 0..1 << FINE {
                let frames: u64 = cpus.iter().map(|buckets| buckets[fine]).sum();
                if frames > 0 {
                    tally.delays.push((bucket_delay(octave, fine as u64), frames));
                }
            }
        }
        Ok(())
    }

    fn samples(&self, kinds: &[u64]) -> Result<Vec<FaultSample>, BpfError> {
        let samples: Array<&MapData, StoredFrame> = map(&self.program, "samples")?;
        let found = FaultKind::ALL.into_iter().filter(|kind| kinds[*kind as usize] > 0);
        let sample = |kind: FaultKind| {
            let frame = samples.get(&(kind as u32), 0)?;
            let bytes = frame.bytes[..(frame.stored as usize).min(SAMPLE)].to_vec();
            Ok(FaultSample { kind, length: frame.length as usize, bytes, at_ns: frame.time })
        };
        found.map(sample).collect()
    }

    fn faults(&self) -> Result<Vec<FaultCount>, BpfError> {
        let faulty: HashMap<&MapData, FaultyKey, u64> = map(&self.program, "faulty")?;
        let count = |entry: Result<(FaultyKey, u64), aya::maps::MapError>| {
            let (FaultyKey { network, kind, stream }, packets) = entry?;
            let kind = FaultKind::ALL.get(usize::from(kind)).copied();
            Ok(FaultCount { kind, network, stream, packets })
        };
        faulty.iter().map(count).collect()
    }

    /// Returns the number of correct packets to each network.
    fn networks(&self) -> Result<Vec<u64>, BpfError> {
        let Some(Map::Array(map)) = self.program.map("received") else { panic!("received is an array") };
        let counts = Mapping::from_socket(map.fd().as_fd(), 8 * self.networks as usize, 0);
        let counts = counts.map_err(BpfError::Maps)?;
        let (pairs, _) = counts.words().as_chunks::<2>();
        let long = |[low, high]: &[AtomicU32; 2]| {
            u64::from(low.load(Ordering::Relaxed)) | u64::from(high.load(Ordering::Relaxed)) << 32
        };
        Ok(pairs.iter().take(self.networks as usize).map(long).collect())
    }
}

impl ReceiverTally {
    /// Adds the counts and delays of another receiver.
    pub fn add(&mut self, other: ReceiverTally) {
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.wrong += other.wrong;
        self.stray += other.stray;
        self.seconds.resize(self.seconds.len().max(other.seconds.len()), (0, 0));
        for (all, one) in self.seconds.iter_mut().zip(other.seconds) {
            *all = (all.0 + one.0, all.1 + one.1);
        }
        self.kinds.resize(self.kinds.len().max(other.kinds.len()), 0);
        self.kinds.iter_mut().zip(other.kinds).for_each(|(all, one)| *all += one);
        self.networks.resize(self.networks.len().max(other.networks.len()), 0);
        self.networks.iter_mut().zip(other.networks).for_each(|(all, one)| *all += one);
        self.delays.extend(other.delays);
        self.samples.extend(other.samples);
        self.faults.extend(other.faults);
    }
}

/// Returns the delay in the middle of a bucket.
fn bucket_delay(octave: u32, fine: u64) -> u64 {
    match octave {
        0 => fine,
        octave => (((1 << FINE) + fine) << (octave - 1)) + ((1 << (octave - 1)) >> 1),
    }
}

fn load(settings: &TrialProgramSettings<'_>) -> Result<Ebpf, BpfError> {
    let TrialProgramSettings { form, to, .. } = settings;
    let mut ethernet = [0_u16; 7];
    for (word, bytes) in ethernet.iter_mut().zip(form.ethernet.as_chunks::<2>().0) {
        *word = u16::from_ne_bytes(*bytes);
    }
    let mut ip = [0_u32; 10];
    for (word, bytes) in ip.iter_mut().zip(form.ip.bytes().as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let mut labels = [0_u32; MAX_LABELS];
    for (word, entry) in labels.iter_mut().zip(&form.labels) {
        *word = u32::from_be_bytes(entry.to_bytes());
    }
    let mut by_peer = [0_u32; MAX_PEERS];
    by_peer.iter_mut().zip(&form.by_peer).for_each(|(word, label)| *word = *label);
    // `struct source`: four words each.
    let mut sources = [0_u8; 16 * MAX_STREAMS];
    for (bytes, source) in sources.as_chunks_mut::<16>().0.iter_mut().zip(settings.sources) {
        match source {
            IpAddr::V4(source) => bytes[..4].copy_from_slice(&source.octets()),
            IpAddr::V6(source) => *bytes = source.octets(),
        }
    }
    let mut lengths = [0_u16; SIZES];
    lengths.iter_mut().zip(settings.lengths.iter().cycle()).for_each(|(word, length)| *word = *length);
    let program = EbpfLoader::new()
        .override_global("ETHERNET_HEADER", &ethernet[..], true)
        .override_global("IS_IPV6", &u8::from(form.ip.is_ipv6()), true)
        .override_global("IP_HEADER", &ip[..], true)
        .override_global("UDP_PORTS", &u32::from_ne_bytes(template::udp_ports()), true)
        .override_global("SOURCES", &sources[..], true)
        .override_global("LABELS", &(form.labels.len() as u32), true)
        .override_global("LABEL_ENTRIES", &labels[..], true)
        .override_global("PEER_LABELS", &by_peer[..], true)
        .override_global("FIRST", &to.first_host(), true)
        .override_global("NETWORKS", &to.networks, true)
        .override_global("PEERS", &to.peers, true)
        .override_global("SIZE_COUNT", &(settings.lengths.len() as u32), true)
        .override_global("LENGTHS", &lengths[..], true)
        .override_global("TRIAL", &settings.trial, true)
        .override_global("STREAM", &settings.streams.0, true)
        .override_global("STREAMS", &settings.streams.1, true)
        .override_global("PORTS", &settings.port.0, true)
        .override_global("PORT", &settings.port.1, true)
        .override_global("BATCH_GAP", &settings.batch_gap, true)
        .override_global("BATCH", &settings.batch, true)
        .override_global("ON_TIME", &settings.limits.on_time().0, true)
        .override_global("MOST_LATE", &settings.limits.max().0, true)
        .override_global("MOST_LOST", &settings.max_lost_ns, true)
        .override_global("FRAMES", &settings.frames, true)
        .override_global("WATCHED", &u8::from(settings.records_arrivals), true)
        .override_global("OWN_STREAM", &settings.own_stream.unwrap_or(NO_STREAM), true)
        .override_global("MOST_DELAY", &settings.max_delay_ns, true)
        .map_max_entries("received", to.networks)
        .map_max_entries("arrivals", if settings.records_arrivals { to.networks } else { 1 })
        .load(OBJECT)?;
    Ok(program)
}

fn progress(program: &Ebpf) -> Result<Mapping, BpfError> {
    let Some(Map::Array(map)) = program.map("progress") else { panic!("progress is an array") };
    Mapping::from_socket(map.fd().as_fd(), 4096, 0).map_err(BpfError::Maps)
}

/// Stores a time for a program.
fn set_time(progress: &Mapping, word: usize, at_ns: u64) {
    let words = progress.words();
    words[word + 1].store((at_ns >> 32) as u32, Ordering::Release);
    words[word].store(at_ns as u32, Ordering::Release);
}

fn xdp<'a>(program: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, BpfError> {
    Ok(program.program_mut(name).expect("name exists in the object").try_into()?)
}

fn map<'a, T>(program: &'a Ebpf, name: &str) -> Result<T, BpfError>
where
    T: TryFrom<&'a Map, Error = aya::maps::MapError>,
{
    Ok(T::try_from(program.map(name).expect("name exists in the object"))?)
}

fn count(program: &Ebpf, counter: u32) -> Result<u64, BpfError> {
    let counts: PerCpuArray<&MapData, u64> = map(program, "counts")?;
    Ok(counts.get(&counter, 0)?.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_delays_ascend_by_less_than_one_percent() {
        assert_eq!([(0, 0), (0, 127), (1, 0), (1, 127)].map(|(o, f)| bucket_delay(o, f)), [0, 127, 128, 255]);
        assert_eq!((bucket_delay(2, 0), bucket_delay(2, 1)), (257, 259));
        let all = (0..OCTAVES).flat_map(|octave| (0..1 << FINE).map(move |fine| bucket_delay(octave, fine)));
        let all: Vec<u64> = all.collect();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(all.windows(2).skip(256).all(|pair| pair[1] * 100 < pair[0] * 101));
    }
}
