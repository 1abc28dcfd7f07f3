//! The programs in the kernel (bpf/trial.bpf.c): one that makes frames, one that looks at what comes back.
//! Both are loaded anew for each trial, whose settings are constants in them.

use super::form::{self, Destinations, Form};
use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, Pod};
use netstage_host::kernel_program::Error;
use netstage_host::ports::kernel::Mapping;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

static OBJECT: &[u8] = include_bytes!("../../../bpf/trial.bpf.o");

/// Seconds of which delays are told one by one.
const SECONDS: u32 = 4096;
/// Delays are told in buckets: so many for each power of two.
const FINE: u32 = 7;
const OCTAVES: u32 = 40 - FINE;
/// Frames kept that were not as they had to be.
const SAMPLES: u32 = 8;
/// Bytes of a frame that are kept: the most of these that it has.
const KEPT: [usize; 9] = [128, 92, 88, 84, 80, 72, 68, 64, 60];
/// Streams a port may receive.
const MOST_STREAMS: usize = 8;
/// Lengths of packets in turn, and labels of a frame.
const SIZES: usize = 12;
const MOST_LABELS: usize = 3;
const MOST_PEERS: usize = 64;
/// Words of `struct progress`.
const START: usize = 0;
const SEQUENCE: usize = 4;
const LAST: usize = 6;
const IS_OVER: usize = 9;
const EVENT: usize = 12;

/// What all programs of a trial are told, and the one that is loaded.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// How frames begin.
    pub form: &'a Form,
    /// Where they go.
    pub to: Destinations,
    /// Lengths of IP packets, in turn.
    pub lengths: &'a [u16],
    /// The trial, told in every frame.
    pub trial: u16,
    /// The stream that is sent, or the first that is received and how many follow it.
    pub streams: (u8, u8),
    /// The source address of each stream that is received.
    pub sources: &'a [IpAddr],
    /// Of so many receiving ports in turn, which one this is.
    pub port: (u32, u32),
    /// From batch to batch, in 1024ths of a nanosecond.
    pub batch_gap: u64,
    /// Frames of a batch.
    pub batch: u32,
    /// What is later than this is not made up for.
    pub most_late_ns: u64,
    /// A trial that has lost more than this altogether ends.
    pub most_lost_ns: u64,
    /// Frames of the trial.
    pub frames: u64,
    /// Whether it is noted for each network when its packets come.
    pub watches: bool,
}

/// When packets to a network came (CLOCK_MONOTONIC); zero: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The first after the event.
    pub first_ns: u64,
    /// The last of all.
    pub last_ns: u64,
}

/// Counters of the programs, in the order of their `enum count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Received,
    Duplicate,
    Reordered,
    Wrong,
    Stray,
}

/// `struct sample`: the beginning of a frame that was not as it had to be.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sample {
    length: u32,
    stream: u32,
    bytes: [u8; 128],
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for Sample {}

/// Makes frames.
pub struct Generator {
    program: Ebpf,
    progress: Arc<Mapping>,
    frame: Vec<u8>,
    context: Vec<u8>,
    batch: u32,
}

/// How far a generator is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames it has made.
    pub sent: u64,
    /// When the last of them was (CLOCK_MONOTONIC).
    pub last_ns: u64,
}

impl Generator {
    /// Loads it, to send by an interface of the calling thread's namespace.
    pub fn load(settings: &Settings<'_>, interface: u32) -> Result<Generator, Error> {
        let mut program = load(settings)?;
        xdp(&mut program, "generate")?.load()?;
        let progress = Arc::new(progress(&program)?);
        let longest = settings.lengths.iter().copied().max().unwrap_or(0);
        let frame = vec![0; settings.form.around() + usize::from(longest)];
        // struct xdp_md: beginning, end, metadata, interface, queue, interface it leaves by.
        let context = [0, frame.len() as u32, 0, interface, 0, 0];
        let context = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        Ok(Generator { program, progress, frame, context, batch: settings.batch })
    }

    /// Calls it so often or a little more; frames that are due meanwhile are sent.
    pub fn run(&mut self, times: u32) -> Result<(), Error> {
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            ctx_in: Some(&self.context),
            repeat: times.next_multiple_of(self.batch),
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

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let words = self.progress.words();
        let long = |at: usize| {
            u64::from(words[at].load(Ordering::Relaxed))
                | u64::from(words[at + 1].load(Ordering::Relaxed)) << 32
        };
        Progress { sent: long(SEQUENCE), last_ns: long(LAST) }
    }

    /// Lets it begin at a moment (CLOCK_MONOTONIC).
    pub fn start(&self, at_ns: u64) {
        tell(&self.progress, START, at_ns);
    }

    /// Whether it makes no more.
    pub fn is_over(&self) -> bool {
        self.progress.words()[IS_OVER].load(Ordering::Relaxed) != 0
    }

    /// By which it is stopped.
    pub fn brake(&self) -> Brake {
        Brake(Arc::clone(&self.progress))
    }
}

/// Stops a generator, from whichever thread.
#[derive(Debug)]
pub struct Brake(Arc<Mapping>);

impl Brake {
    /// Lets it make no more.
    pub fn pull(&self) {
        self.0.words()[IS_OVER].store(1, Ordering::Relaxed);
    }
}

/// Looks at what comes.
pub struct Receiver {
    program: Ebpf,
    progress: Mapping,
}

/// What a receiver has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames as they had to be, each counted once.
    pub received: u64,
    /// Further copies of them.
    pub duplicates: u64,
    /// Of those received, after one sent later.
    pub reordered: u64,
    /// Frames of the trial that were not as they had to be.
    pub wrong: u64,
    /// Frames of the trial that had to come elsewhere.
    pub stray: u64,
    /// Of each second, by when they were sent: frames, and the sum of their delays in nanoseconds.
    pub seconds: Vec<(u64, u64)>,
    /// How often each delay occurred, in nanoseconds, to 1 %.
    pub delays: Vec<(u64, u64)>,
    /// Frames that were wrong: their lengths and beginnings.
    pub samples: Vec<(usize, Vec<u8>)>,
}

impl Receiver {
    /// Loads it and puts it on an interface of the calling thread's namespace.
    pub fn attach(settings: &Settings<'_>, interface: u32) -> Result<Receiver, Error> {
        let mut program = load(settings)?;
        let receive = xdp(&mut program, "receive")?;
        receive.load()?;
        receive
            .attach_to_if_index(interface, XdpMode::Driver)
            .or_else(|_| receive.attach_to_if_index(interface, XdpMode::Skb))?;
        Ok(Receiver { progress: progress(&program)?, program })
    }

    /// Lets seconds count from a moment on (CLOCK_MONOTONIC).
    pub fn start(&self, at_ns: u64) {
        tell(&self.progress, START, at_ns);
    }

    /// Lets arrivals count from an event on (CLOCK_MONOTONIC).
    pub fn mark(&self, at_ns: u64) {
        tell(&self.progress, EVENT, at_ns);
    }

    /// When packets to each of so many networks came.
    pub fn arrivals(&self, networks: u32) -> Result<Vec<Arrival>, Error> {
        let arrivals: Array<&MapData, [u64; 2]> = map(&self.program, "arrivals")?;
        let arrival = |network| {
            let [first_ns, last_ns] = arrivals.get(&network, 0)?;
            Ok(Arrival { first_ns, last_ns })
        };
        (0..networks).map(arrival).collect()
    }

    /// Frames as they had to be, so far.
    pub fn received(&self) -> Result<u64, Error> {
        count(&self.program, Count::Received)
    }

    /// What it has seen.
    pub fn tally(&self, seconds: u32) -> Result<Tally, Error> {
        let count = |what| count(&self.program, what);
        let per_second: PerCpuArray<&MapData, [u64; 2]> = map(&self.program, "seconds")?;
        let delays: PerCpuArray<&MapData, [u64; 1 << FINE]> = map(&self.program, "delays")?;
        let samples: Array<&MapData, Sample> = map(&self.program, "samples")?;
        let wrong = count(Count::Wrong)?;
        let mut tally = Tally {
            received: count(Count::Received)?,
            duplicates: count(Count::Duplicate)?,
            reordered: count(Count::Reordered)?,
            wrong,
            stray: count(Count::Stray)?,
            ..Tally::default()
        };
        for second in 0..seconds.min(SECONDS) {
            let sum = per_second.get(&second, 0)?;
            let add = |all: (u64, u64), one: &[u64; 2]| (all.0 + one[0], all.1 + one[1]);
            tally.seconds.push(sum.iter().fold((0, 0), add));
        }
        for octave in 0..OCTAVES {
            let processors = delays.get(&octave, 0)?;
            for fine in 0..1 << FINE {
                let times: u64 = processors.iter().map(|times| times[fine]).sum();
                if times > 0 {
                    tally.delays.push((middle(octave, fine as u64), times));
                }
            }
        }
        for number in 0..wrong.min(u64::from(SAMPLES)) as u32 {
            let sample = samples.get(&number, 0)?;
            let kept = KEPT.into_iter().find(|kept| *kept <= sample.length as usize).unwrap_or(0);
            tally.samples.push((sample.length as usize, sample.bytes[..kept].to_vec()));
        }
        Ok(tally)
    }
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: Tally) {
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.wrong += other.wrong;
        self.stray += other.stray;
        self.seconds.resize(self.seconds.len().max(other.seconds.len()), (0, 0));
        for (all, one) in self.seconds.iter_mut().zip(other.seconds) {
            *all = (all.0 + one.0, all.1 + one.1);
        }
        self.delays.extend(other.delays);
        self.samples.extend(other.samples);
    }
}

/// The delay that stands for a bucket.
fn middle(octave: u32, fine: u64) -> u64 {
    match octave {
        0 => fine,
        octave => (((1 << FINE) + fine) << (octave - 1)) + ((1 << (octave - 1)) >> 1),
    }
}

fn load(settings: &Settings<'_>) -> Result<Ebpf, Error> {
    let Settings { form, to, .. } = settings;
    let mut ethernet = [0_u16; 7];
    for (word, bytes) in ethernet.iter_mut().zip(form.ethernet.as_chunks::<2>().0) {
        *word = u16::from_ne_bytes(*bytes);
    }
    let mut ip = [0_u32; 10];
    for (word, bytes) in ip.iter_mut().zip(form.ip.bytes().as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let mut labels = [0_u32; MOST_LABELS];
    for (word, entry) in labels.iter_mut().zip(&form.labels) {
        *word = u32::from_be_bytes(entry.to_bytes());
    }
    let mut by_peer = [0_u32; MOST_PEERS];
    by_peer.iter_mut().zip(&form.by_peer).for_each(|(word, label)| *word = *label);
    // `struct source`: four words each.
    let mut sources = [0_u8; 16 * MOST_STREAMS];
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
        .override_global("UDP_PORTS", &u32::from_ne_bytes(form::ports()), true)
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
        .override_global("MOST_LATE", &settings.most_late_ns, true)
        .override_global("MOST_LOST", &settings.most_lost_ns, true)
        .override_global("FRAMES", &settings.frames, true)
        .override_global("WATCHED", &u8::from(settings.watches), true)
        .map_max_entries("arrivals", if settings.watches { to.networks } else { 1 })
        .load(OBJECT)?;
    Ok(program)
}

fn progress(program: &Ebpf) -> Result<Mapping, Error> {
    let Some(Map::Array(map)) = program.map("progress") else { panic!("progress is an array") };
    Mapping::of(map.fd().as_fd(), 4096, 0).map_err(Error::Maps)
}

/// Tells a program of a moment.
fn tell(progress: &Mapping, word: usize, at_ns: u64) {
    let words = progress.words();
    words[word + 1].store((at_ns >> 32) as u32, Ordering::Release);
    words[word].store(at_ns as u32, Ordering::Release);
}

fn xdp<'a>(program: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, Error> {
    Ok(program.program_mut(name).expect("it is in the object").try_into()?)
}

fn map<'a, T>(program: &'a Ebpf, name: &str) -> Result<T, Error>
where
    T: TryFrom<&'a Map, Error = aya::maps::MapError>,
{
    Ok(T::try_from(program.map(name).expect("it is in the object"))?)
}

fn count(program: &Ebpf, what: Count) -> Result<u64, Error> {
    let counts: PerCpuArray<&MapData, u64> = map(program, "counts")?;
    Ok(counts.get(&(what as u32), 0)?.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        assert_eq!([(0, 0), (0, 127), (1, 0), (1, 127)].map(|(o, f)| middle(o, f)), [0, 127, 128, 255]);
        assert_eq!((middle(2, 0), middle(2, 1)), (257, 259));
        let all = (0..OCTAVES).flat_map(|octave| (0..1 << FINE).map(move |fine| middle(octave, fine)));
        let all: Vec<u64> = all.collect();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(all.windows(2).skip(256).all(|pair| pair[1] * 100 < pair[0] * 101));
    }
}
