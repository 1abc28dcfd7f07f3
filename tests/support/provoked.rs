//! Transfers between two namespaces that are slow for one injected cause. The parameters of each case are drawn from
//! a seed.
#![allow(dead_code)]

use crate::injector::{Injected, InjectedPair, Injection, address};
use netstage_core::rng::RandomStream;
use netstage_core::tcp::diagnosis::Bottleneck;
use netstage_host::netns::{Namespace, spawn_in};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Port of the receiver.
pub const PORT: u16 = 5001;
const MBIT: u64 = 1_000_000;
/// Rate in bits per second and queue in bytes of a line that does not limit.
const FAST: (u64, usize) = (100 * MBIT, 4 << 20);
/// Duration of a transfer.
const SPAN: Duration = Duration::from_secs(7);

/// Kind of injected cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provocation {
    /// Line with a short queue.
    PathFull,
    /// The same with BBR.
    PathFullOfBbr,
    /// Line with a long queue.
    Bufferbloat,
    /// Random loss.
    Loss,
    /// Token bucket that drops.
    Policer,
    /// Small SO_RCVBUF.
    ReceiveBuffer,
    /// Receiver that reads at a low rate.
    SlowReader,
    /// Receiver that stops reading.
    ZeroWindow,
    /// Small SO_SNDBUF.
    SendBuffer,
    /// Sender that writes at a low rate.
    SlowWriter,
    /// Sender that pauses.
    Idle,
    /// Path that drops large packets without ICMP.
    BlackHole,
    /// Interruption.
    Blackout,
    /// Random congestion marks.
    Marks,
    /// Short queue of the sender's device.
    LocalDevice,
    /// Path MTU that falls, reported by ICMP; not one of [`Provocation::ALL`], since it hardly takes time.
    ReportedPathMtu,
}

impl Provocation {
    /// Causes that take most of the time.
    pub const ALL: [Provocation; 15] = [
        Provocation::PathFull,
        Provocation::PathFullOfBbr,
        Provocation::Bufferbloat,
        Provocation::Loss,
        Provocation::Policer,
        Provocation::ReceiveBuffer,
        Provocation::SlowReader,
        Provocation::ZeroWindow,
        Provocation::SendBuffer,
        Provocation::SlowWriter,
        Provocation::Idle,
        Provocation::BlackHole,
        Provocation::Blackout,
        Provocation::Marks,
        Provocation::LocalDevice,
    ];

    /// Returns the bottleneck that a diagnosis must name.
    pub fn bottleneck(self) -> Bottleneck {
        match self {
            Provocation::PathFull | Provocation::PathFullOfBbr | Provocation::ReportedPathMtu => {
                Bottleneck::PathFull
            }
            Provocation::Bufferbloat => Bottleneck::Bufferbloat,
            Provocation::Loss => Bottleneck::Loss,
            Provocation::Policer => Bottleneck::Policer,
            Provocation::ReceiveBuffer => Bottleneck::ReceiveBuffer,
            Provocation::SlowReader => Bottleneck::SlowReader,
            Provocation::ZeroWindow => Bottleneck::ZeroWindow,
            Provocation::SendBuffer => Bottleneck::SendBuffer,
            Provocation::SlowWriter | Provocation::Idle => Bottleneck::Application,
            Provocation::BlackHole => Bottleneck::PathMtu,
            Provocation::Blackout => Bottleneck::Outage,
            Provocation::Marks => Bottleneck::Ecn,
            Provocation::LocalDevice => Bottleneck::LocalDevice,
        }
    }

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Provocation::PathFull => "full path",
            Provocation::PathFullOfBbr => "full path, BBR",
            Provocation::Bufferbloat => "bufferbloat",
            Provocation::Loss => "random loss",
            Provocation::Policer => "policer",
            Provocation::ReceiveBuffer => "small receive buffer",
            Provocation::SlowReader => "slow reader",
            Provocation::ZeroWindow => "stopped reader",
            Provocation::SendBuffer => "small send buffer",
            Provocation::SlowWriter => "slow writer",
            Provocation::Idle => "pauses",
            Provocation::BlackHole => "path MTU black hole",
            Provocation::Blackout => "interruption",
            Provocation::Marks => "congestion marks",
            Provocation::LocalDevice => "short device queue",
            Provocation::ReportedPathMtu => "reported path MTU",
        }
    }
}

/// Behavior of an application.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Without pauses.
    Bulk,
    /// This many bytes at a time, with a pause after each.
    Steps(usize, Duration),
    /// Without pauses for the first time, then nothing for the second.
    Bursts(Duration, Duration),
}

/// Case with drawn parameters.
#[derive(Clone, Debug)]
pub struct Provoked {
    pub provocation: Provocation,
    seed: u64,
    injection: Injection,
    /// Rate of a slow line or policer in bits per second.
    rate: u64,
    algorithm: &'static str,
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
    write: Pace,
    read: Pace,
    /// Queueing discipline of the sender's device, as arguments of tc(8).
    device: Option<String>,
    marks: bool,
    /// Time after which the observation begins, if not before the transfer.
    pub observed_after: Option<Duration>,
}

/// Result of a case.
pub struct Played<T> {
    /// Result of the observer.
    pub observed: T,
    pub injected: Injected,
    pub kernel: KernelTimes,
    /// Time for which the sending and the receiving application paused on purpose.
    pauses: [Duration; 2],
}

/// The kernel's own account of a sender (TCP_INFO), in percent of the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTimes {
    pub receive_window: f64,
    pub send_buffer: f64,
}

impl Provoked {
    /// Draws the parameters of a case.
    pub fn draw(provocation: Provocation, seed: u64) -> Provoked {
        let mut random = RandomStream::new(seed, provocation.name());
        let mut case = Provoked::base(provocation, seed, &mut random);
        case.inject(provocation, &mut random);
        case
    }

    /// Draws the parameters of a case with two causes.
    pub fn draw_pair(pair: [Provocation; 2], seed: u64) -> Provoked {
        let mut random = RandomStream::new(seed, &format!("{} and {}", pair[0].name(), pair[1].name()));
        let mut case = Provoked::base(pair[0], seed, &mut random);
        pair.into_iter().for_each(|provocation| case.inject(provocation, &mut random));
        case.observed_after = None;
        case
    }

    /// Draws what all causes have in common: a fast line.
    fn base(provocation: Provocation, seed: u64, random: &mut RandomStream) -> Provoked {
        let mut between = |low: u64, high: u64| low + random.below(high - low + 1);
        let delay = Duration::from_millis(between(5, 25));
        Provoked {
            provocation,
            seed,
            injection: Injection { delay, line: Some(FAST), ..Injection::default() },
            rate: between(8, 30) * MBIT,
            algorithm: if between(0, 1) == 0 { "cubic" } else { "reno" },
            send_buffer: None,
            receive_buffer: None,
            write: Pace::Bulk,
            read: Pace::Bulk,
            device: None,
            marks: false,
            observed_after: (between(0, 3) == 0).then(|| Duration::from_millis(between(100, 1_500))),
        }
    }

    /// Adds a cause.
    fn inject(&mut self, provocation: Provocation, random: &mut RandomStream) {
        let mut between = |low: u64, high: u64| low + random.below(high - low + 1);
        let (rate, round_trip) = (self.rate, 2 * self.injection.delay);
        let queue = |wait: Duration| (rate as f64 / 8.0 * wait.as_secs_f64()) as usize;
        let milliseconds = Duration::from_millis;
        match provocation {
            Provocation::PathFull => {
                // At least ten packets, and at most a third of what counts as bufferbloat.
                let capacity = queue(round_trip.min(milliseconds(16))).max(15_000);
                self.injection.line = Some((rate, capacity));
            }
            Provocation::PathFullOfBbr => {
                self.algorithm = "bbr";
                self.injection.line = Some((rate, queue(milliseconds(60))));
            }
            Provocation::Bufferbloat => {
                self.injection.line = Some((rate, queue(milliseconds(between(160, 400)))));
            }
            Provocation::Loss => self.injection.loss = between(5, 20) as f64 / 1_000.0,
            Provocation::Policer => {
                self.injection.policer = Some((rate, between(10_000, 40_000) as usize));
            }
            Provocation::ReceiveBuffer => self.receive_buffer = Some(between(8_000, 40_000) as usize),
            Provocation::SlowReader => {
                self.receive_buffer = Some(between(30_000, 100_000) as usize);
                self.read = Pace::Steps(between(1_500, 4_000) as usize, milliseconds(10));
            }
            Provocation::ZeroWindow => {
                self.read =
                    Pace::Bursts(milliseconds(between(200, 400)), milliseconds(between(1_200, 1_800)));
                self.receive_buffer = Some(200_000);
            }
            Provocation::SendBuffer => self.send_buffer = Some(between(8_000, 40_000) as usize),
            Provocation::SlowWriter => {
                self.write = Pace::Steps(between(500, 6_000) as usize, milliseconds(between(10, 60)));
            }
            Provocation::Idle => {
                self.write = Pace::Bursts(milliseconds(between(20, 100)), milliseconds(between(600, 1_200)));
            }
            Provocation::BlackHole => {
                let from = if between(0, 1) == 0 { 0 } else { between(300, 1_500) };
                self.injection.largest = Some((between(1_200, 1_480) as usize, milliseconds(from)));
            }
            Provocation::Blackout => {
                let (start, length) = (between(500, 1_000), between(3_000, 4_000));
                self.injection.blackouts = vec![milliseconds(start)..milliseconds(start + length)];
            }
            Provocation::Marks => {
                self.marks = true;
                self.injection.marks = between(10, 40) as f64 / 1_000.0;
            }
            Provocation::LocalDevice => {
                let rate = between(30, 60);
                self.device =
                    Some(format!("tbf rate {rate}mbit burst 15000 limit {}", between(6_000, 9_000)));
            }
            Provocation::ReportedPathMtu => {
                self.injection.line = Some((rate, queue(round_trip)));
                self.injection.largest = Some((1_300, milliseconds(500)));
                self.observed_after = None;
                self.injection.reports_largest = true;
            }
        }
    }

    /// Returns the same case without a cause. Its throughput shows what the cause costs.
    pub fn without(&self, provocation: Provocation) -> Provoked {
        let mut case = self.clone();
        match provocation {
            Provocation::PathFull | Provocation::PathFullOfBbr => case.injection.line = Some(FAST),
            // The line stays; only its queue becomes short.
            Provocation::Bufferbloat => {
                case.injection.line = self.injection.line.map(|(rate, _)| (rate, rate as usize / 8 / 60));
            }
            Provocation::Loss => case.injection.loss = 0.0,
            Provocation::Policer => case.injection.policer = None,
            Provocation::ReceiveBuffer => case.receive_buffer = None,
            Provocation::SlowReader | Provocation::ZeroWindow => case.read = Pace::Bulk,
            Provocation::SendBuffer => case.send_buffer = None,
            Provocation::SlowWriter | Provocation::Idle => case.write = Pace::Bulk,
            Provocation::BlackHole | Provocation::ReportedPathMtu => case.injection.largest = None,
            Provocation::Blackout => case.injection.blackouts.clear(),
            Provocation::Marks => case.injection.marks = 0.0,
            Provocation::LocalDevice => case.device = None,
        }
        case
    }

    /// Returns the bottlenecks that a diagnosis may name.
    pub fn bottlenecks(&self) -> Vec<Bottleneck> {
        let reduces_window = matches!(
            self.provocation,
            Provocation::Loss | Provocation::Policer | Provocation::Marks | Provocation::LocalDevice
        );
        // The window may grow for seconds after a reduction that was not observed.
        let earlier =
            (reduces_window && self.observed_after.is_some()).then_some(Bottleneck::EarlierReduction);
        [Some(self.provocation.bottleneck()), earlier].into_iter().flatten().collect()
    }

    /// Describes the parameters.
    pub fn text(&self) -> String {
        let Provoked {
            injection,
            algorithm,
            send_buffer,
            receive_buffer,
            write,
            read,
            device,
            observed_after,
            ..
        } = self;
        format!(
            "{algorithm}, {injection:?}, SO_SNDBUF {send_buffer:?}, SO_RCVBUF {receive_buffer:?}, write {write:?}, \
             read {read:?}, device {device:?}, observed after {observed_after:?}"
        )
    }

    /// Runs the transfer, and the observer until its third argument returns true. The transfer begins when the observer
    /// calls its second argument. `keeps_frames` captures both ends.
    pub fn play<T: Send>(
        &self,
        keeps_frames: bool,
        observe: impl FnOnce(&Namespace, &dyn Fn(), &dyn Fn() -> bool) -> T + Send,
    ) -> Played<T> {
        let pair = InjectedPair::new();
        self.configure(&pair);
        let ((observed, kernel, pauses), injected) =
            pair.inject(&self.injection, self.seed, keeps_frames, |left, right| {
                let is_over = AtomicBool::new(false);
                let (begin, begun) = mpsc::channel();
                thread::scope(|scope| {
                    let is_over = &is_over;
                    let transfer = scope.spawn(move || {
                        let _ = begun.recv();
                        // The observer ends even if the transfer panics.
                        let _end = SetOnDrop(is_over);
                        // The flow stays open until the observer has ended.
                        self.transfer(left, right, || is_over.store(true, Ordering::Relaxed))
                    });
                    let observed = observe(left, &|| begin.send(()).unwrap_or_default(), &|| {
                        is_over.load(Ordering::Relaxed)
                    });
                    drop(begin);
                    let (kernel, pauses) = transfer.join().unwrap();
                    (observed, kernel, pauses)
                })
            });
        Played { observed, injected, kernel, pauses }
    }

    fn configure(&self, pair: &InjectedPair) {
        if self.marks {
            for namespace in [&pair.left, &pair.right] {
                namespace.sysctl("net.ipv4.tcp_ecn", "1").unwrap();
            }
        }
        if let Some(queue) = &self.device {
            let mut command = Command::new("tc");
            command.args(["qdisc", "add", "dev", "eth0", "root"]).args(queue.split(' '));
            assert!(spawn_in(&pair.left, command).unwrap().wait().unwrap().success());
        }
    }

    /// Transfers data, and calls `ends` before the connection is closed.
    fn transfer(
        &self,
        left: &Namespace,
        right: &Namespace,
        ends: impl FnOnce(),
    ) -> (KernelTimes, [Duration; 2]) {
        let new = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let listener = right.run(new).unwrap();
        if let Some(bytes) = self.receive_buffer {
            listener.set_recv_buffer_size(bytes).unwrap();
        }
        listener.bind(&SocketAddr::from((address(1), PORT)).into()).unwrap();
        listener.listen(1).unwrap();
        let sender = left.run(new).unwrap();
        sender.set_tcp_congestion(self.algorithm.as_bytes()).unwrap();
        sender.set_tcp_nodelay(true).unwrap();
        if let Some(bytes) = self.send_buffer {
            sender.set_send_buffer_size(bytes).unwrap();
        }
        // A path that drops everything must not keep the test waiting.
        sender.set_linger(Some(Duration::ZERO)).unwrap();
        sender.connect(&SocketAddr::from((address(1), PORT)).into()).unwrap();
        sender.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (mut sender, mut receiver) = (TcpStream::from(sender), TcpStream::from(accepted));
        let end = Instant::now() + SPAN;
        let (write_pause, read_pause) = thread::scope(|scope| {
            let mut buffer = vec![0; 1 << 16];
            let reading = scope.spawn(move || {
                let paused = pace(self.read, end, |length| {
                    let length = length.unwrap_or(buffer.len());
                    let _ = receiver.read(&mut buffer[..length]);
                });
                (paused, receiver)
            });
            let data = vec![0; 1 << 16];
            let written = pace(self.write, end, |length| {
                let _ = sender.write(&data[..length.unwrap_or(16_384)]);
            });
            let (read, _receiver) = reading.join().unwrap();
            (written, read)
        });
        let kernel = kernel_times(&sender);
        ends();
        // The observer reads the last events before the connection is reset.
        thread::sleep(Duration::from_millis(100));
        (kernel, [write_pause, read_pause])
    }
}

/// Sets the flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T> Played<T> {
    /// Returns the share of the time for which the line was transmitting, percent.
    pub fn busy_percent(&self) -> f64 {
        100.0 * self.injected.busy.as_secs_f64() / SPAN.as_secs_f64()
    }

    /// Returns the share of the time that the cause took, percent, if the injector knows it.
    pub fn truth_percent(&self, provoked: &Provoked) -> Option<f64> {
        let pause = match provoked.provocation {
            Provocation::Idle => self.pauses[0],
            _ => return None,
        };
        Some(100.0 * pause.as_secs_f64() / SPAN.as_secs_f64())
    }
}

/// Calls `step` at a pace until `end`, with the length of a step if it is limited; returns the time of pauses.
fn pace(pace: Pace, end: Instant, mut step: impl FnMut(Option<usize>)) -> Duration {
    let start = Instant::now();
    let mut paused = Duration::ZERO;
    while Instant::now() < end {
        match pace {
            Pace::Bulk => step(None),
            Pace::Steps(length, pause) => {
                step(Some(length));
                thread::sleep(pause);
            }
            Pace::Bursts(active, pause) => {
                let elapsed = start.elapsed().as_nanos() % (active + pause).as_nanos();
                let left = Duration::from_nanos(((active + pause).as_nanos() - elapsed) as u64);
                if left <= pause {
                    let left = left.min(end.saturating_duration_since(Instant::now()));
                    thread::sleep(left);
                    paused += left;
                } else {
                    step(None);
                }
            }
        }
    }
    paused
}

/// Reads the kernel's account of a socket.
#[allow(unsafe_code)]
fn kernel_times(stream: &TcpStream) -> KernelTimes {
    // Offsets of tcpi_busy_time, tcpi_rwnd_limited and tcpi_sndbuf_limited in `struct tcp_info`, in microseconds.
    const TIMES: [usize; 2] = [176, 184];
    let mut info = [0_u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    assert_eq!(result, 0);
    let percent = |at: usize| {
        let microseconds = u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
        100.0 * microseconds as f64 / 1e6 / SPAN.as_secs_f64()
    };
    let [receive_window, send_buffer] = TIMES.map(percent);
    KernelTimes { receive_window, send_buffer }
}
