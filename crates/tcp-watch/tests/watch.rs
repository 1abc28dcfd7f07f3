//! Compares causes of window reductions with the truth: each cause is provoked by a line or an application that
//! gives no other cause, and the kernel's own counters (/proc/net/netstat) must agree.

#[path = "../../../tests/support/apart.rs"]
mod apart;
#[path = "../../../tests/support/pair.rs"]
mod pair;

use apart::{EmulatedPair, address, line};
use netstage_core::link::{self, Jitter, JitterDistribution, LinkChange};
use netstage_core::quantity::Capacity;
use netstage_core::queue::{self, CodelConfig};
use netstage_core::tcp::event::{CongestionState, FlowEvent, FlowEventKind, SendLimit, WindowChangeCause};
use netstage_core::time::{Duration, Instant};
use netstage_harness::{needs, skip};
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::flows::Flows;
use netstage_tcp_watch::programs::Programs;
use netstage_tcp_watch::record::TcpRecord;
use netstage_tcp_watch::source::{RecordSource, SourceKind};
use nix::sys::stat::fstat;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::thread;
use std::time;

const PORT: u16 = 5001;
const MBIT: u64 = 1_000_000;

/// Test case: the line, the behavior of both ends, and the possible causes.
struct CauseCase {
    name: &'static str,
    line: link::LinkDirectionConfig,
    algorithm: &'static str,
    /// Settings of both ends.
    settings: &'static [(&'static str, &'static str)],
    /// Queueing discipline of the sender's device, as arguments of tc(8).
    device: Option<&'static str>,
    receive_buffer: Option<usize>,
    send: fn(&mut TcpStream, time::Duration),
    /// Provoked cause, and its minimum count.
    provoked: WindowChangeCause,
    at_least: u64,
    /// Other possible causes.
    others: &'static [WindowChangeCause],
}

impl CauseCase {
    fn new(
        name: &'static str,
        line: link::LinkDirectionConfig,
        provoked: WindowChangeCause,
        at_least: u64,
    ) -> CauseCase {
        CauseCase {
            name,
            line,
            algorithm: "cubic",
            settings: &[],
            device: None,
            receive_buffer: None,
            send: bulk,
            provoked,
            at_least,
            others: &[],
        }
    }
}

/// Sends as fast as possible.
fn bulk(stream: &mut TcpStream, span: time::Duration) {
    let end = time::Instant::now() + span;
    let data = [0; 16_384];
    while time::Instant::now() < end && stream.write_all(&data).is_ok() {}
}

/// Sends bursts with pauses of several timeouts.
fn pauses(stream: &mut TcpStream, span: time::Duration) {
    let end = time::Instant::now() + span;
    while time::Instant::now() < end && stream.write_all(&[0; 300_000]).is_ok() {
        thread::sleep(time::Duration::from_millis(900));
    }
}

/// Sends bursts that never fill the window, then a small constant rate.
fn trickle(stream: &mut TcpStream, span: time::Duration) {
    let end = time::Instant::now() + span;
    for size in [20_000, 30_000, 40_000, 60_000, 60_000] {
        let _ = stream.write_all(&vec![0; size]);
        thread::sleep(time::Duration::from_millis(50));
    }
    while time::Instant::now() < end && stream.write_all(&[0; 3_000]).is_ok() {
        thread::sleep(time::Duration::from_millis(40));
    }
}

/// Sends short responses, whose last segments are often lost.
fn answers(stream: &mut TcpStream, span: time::Duration) {
    let end = time::Instant::now() + span;
    while time::Instant::now() < end && stream.write_all(&[0; 6_000]).is_ok() {
        thread::sleep(time::Duration::from_millis(60));
    }
}

/// Possible consequences of a loss, and of an application that sends little or is delayed by a busy machine.
const EVERY_LOSS: &[WindowChangeCause] = &[
    WindowChangeCause::FastRetransmit,
    WindowChangeCause::TailLossProbe,
    WindowChangeCause::Timeout,
    WindowChangeCause::Undo,
    WindowChangeCause::ApplicationLimited,
    WindowChangeCause::IdleRestart,
];

fn cases() -> Vec<CauseCase> {
    let ms = Duration::from_millis;
    let clean = || line(20 * MBIT, ms(10));
    let wide = || link::LinkDirectionConfig { buffer: Capacity::Packets(2_000), ..line(200 * MBIT, ms(10)) };
    let outages = |every: u64, lasts: u64, change: fn(bool) -> LinkChange| -> Vec<(Instant, LinkChange)> {
        let pairs = (1..20).map(|n| n * every);
        let at = |time: u64| Instant(time * 1_000_000);
        pairs.flat_map(|start| [(at(start), change(true)), (at(start + lasts), change(false))]).collect()
    };
    // The receiver's window starts small, and every burst ends.
    let limited_by_receiver = &[WindowChangeCause::ReceiverWindow, WindowChangeCause::ApplicationLimited];
    let marking = CodelConfig { target: ms(3), interval: ms(50), ecn: true };
    vec![
        CauseCase {
            device: Some("tbf rate 60mbit burst 15000 limit 6000"),
            ..CauseCase::new("a small queue of the device", wide(), WindowChangeCause::LocalDevice, 2)
        },
        CauseCase {
            settings: &[("net.ipv4.tcp_ecn", "1")],
            ..CauseCase::new(
                "a marking queue",
                link::LinkDirectionConfig {
                    queue: queue::QueueConfig::Codel(marking),
                    buffer: Capacity::Packets(2_000),
                    ..clean()
                },
                WindowChangeCause::Ecn,
                2,
            )
        },
        CauseCase {
            others: EVERY_LOSS,
            ..CauseCase::new(
                "random loss",
                link::LinkDirectionConfig { loss: 0.005, ..clean() },
                WindowChangeCause::FastRetransmit,
                2,
            )
        },
        CauseCase {
            others: EVERY_LOSS,
            ..CauseCase::new(
                "bursts of loss",
                link::LinkDirectionConfig {
                    schedule: outages(700, 12, |begins| LinkChange {
                        loss: Some(if begins { 1.0 } else { 0.0 }),
                        ..LinkChange::default()
                    }),
                    ..clean()
                },
                WindowChangeCause::FastRetransmit,
                2,
            )
        },
        CauseCase {
            others: EVERY_LOSS,
            ..CauseCase::new(
                "blackouts",
                link::LinkDirectionConfig {
                    schedule: outages(1_500, 700, |begins| LinkChange {
                        up: Some(!begins),
                        ..LinkChange::default()
                    }),
                    ..clean()
                },
                WindowChangeCause::Timeout,
                1,
            )
        },
        CauseCase {
            others: EVERY_LOSS,
            ..CauseCase::new(
                "reordering",
                link::LinkDirectionConfig {
                    jitter: Jitter {
                        amount: ms(12),
                        distribution: JitterDistribution::Uniform,
                        reorder: true,
                    },
                    buffer: Capacity::Packets(2_000),
                    ..clean()
                },
                WindowChangeCause::Undo,
                1,
            )
        },
        CauseCase {
            send: pauses,
            others: limited_by_receiver,
            ..CauseCase::new("pauses", wide(), WindowChangeCause::IdleRestart, 2)
        },
        CauseCase {
            send: trickle,
            others: &[WindowChangeCause::ReceiverWindow, WindowChangeCause::IdleRestart],
            ..CauseCase::new("a trickle", wide(), WindowChangeCause::ApplicationLimited, 1)
        },
        CauseCase {
            receive_buffer: Some(8_192),
            ..CauseCase::new("a small receive buffer", wide(), WindowChangeCause::ReceiverWindow, 1)
        },
        CauseCase {
            send: answers,
            others: EVERY_LOSS,
            ..CauseCase::new(
                "lost tails",
                link::LinkDirectionConfig { loss: 0.06, ..clean() },
                WindowChangeCause::FastRetransmit,
                2,
            )
        },
    ]
}

/// Events of a case, and the kernel's counters.
struct ObservedCase {
    events: Vec<FlowEvent>,
    counters: BTreeMap<String, u64>,
    lost: u64,
}

impl ObservedCase {
    fn times(&self, cause: WindowChangeCause) -> u64 {
        self.events.iter().filter(|event| event.kind == FlowEventKind::Window(cause)).count() as u64
    }

    /// Returns the number of recoveries that started during a reduction, which the kernel counts too.
    fn parts(&self) -> u64 {
        let begins = |pair: &[FlowEvent]| {
            let states = [pair[0].snapshot.state, pair[1].snapshot.state];
            states == [CongestionState::Reducing, CongestionState::Recovery]
        };
        self.events.windows(2).filter(|pair| begins(pair)).count() as u64
    }

    fn counted(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.counters.get(*name).copied().unwrap_or(0)).sum()
    }
}

fn run(case: &CauseCase, span: time::Duration, by: SourceKind) -> ObservedCase {
    let apart = EmulatedPair::new();
    for namespace in [&apart.left, &apart.right] {
        // Large enough for the receiver's window never to limit.
        namespace.sysctl("net.ipv4.tcp_rmem", "4096 4194304 8388608").unwrap();
        for (name, value) in case.settings {
            namespace.sysctl(name, value).unwrap();
        }
    }
    if let Some(queue) = case.device {
        let mut command = Command::new("tc");
        command.args(["qdisc", "add", "dev", "eth0", "root"]).args(queue.split(' '));
        assert!(spawn_in(&apart.left, command).unwrap().wait().unwrap().success());
    }
    let (observed, _) = apart.emulate(case.line.clone(), |left, right| {
        let namespace = fstat(left.as_fd()).unwrap().st_ino as u32;
        let filter = Filter { namespaces: vec![namespace], ..Filter::default() };
        let mut source = RecordSource::open(by, filter, &[left.try_clone().unwrap()]).unwrap();
        if by == SourceKind::Programs {
            assert_eq!(source.missing(), [] as [String; 0]);
        }
        let mut flows = Flows::new(monotonic_ns());
        let mut events = Vec::new();
        thread::scope(|scope| {
            let transfer = scope.spawn(|| transfer(case, left, right, span));
            let mut is_over = false;
            while !is_over {
                is_over = transfer.is_finished();
                let handle = |record: &TcpRecord, origin| {
                    flows.handle(record, origin, &mut |_, event| events.push(*event))
                };
                source.poll(handle).unwrap();
                thread::sleep(time::Duration::from_millis(10));
            }
            transfer.join().unwrap();
        });
        // Events may be reported before or after the kernel counts them.
        let text = loop {
            let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
            let text = left.run(read).unwrap().unwrap();
            let known = events.len();
            source
                .poll(|record, origin| flows.handle(record, origin, &mut |_, event| events.push(*event)))
                .unwrap();
            if events.len() == known {
                break text;
            }
        };
        ObservedCase { events, counters: counters(&text), lost: source.lost() }
    });
    observed
}

/// Sends data as the case requires; returns once the receiver has observed the end.
fn transfer(case: &CauseCase, left: &Namespace, right: &Namespace, span: time::Duration) {
    let new = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    let listener = right.run(new).unwrap();
    if let Some(bytes) = case.receive_buffer {
        listener.set_recv_buffer_size(bytes).unwrap();
    }
    listener.bind(&SocketAddr::from((address(1), PORT)).into()).unwrap();
    listener.listen(1).unwrap();
    let sender = left.run(new).unwrap();
    sender.set_tcp_congestion(case.algorithm.as_bytes()).unwrap();
    sender.set_tcp_nodelay(true).unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (socket, _) = listener.accept().unwrap();
            let mut buffer = vec![0; 1 << 16];
            let mut stream = TcpStream::from(socket);
            while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        });
        sender.connect(&SocketAddr::from((address(1), PORT)).into()).unwrap();
        let mut stream = TcpStream::from(sender);
        (case.send)(&mut stream, span);
        drop(stream);
        receiver.join().unwrap();
    });
}

/// Parses the counters of /proc/net/netstat: a line of names, then a line of values.
fn counters(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.chunks_exact(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// Causes that the kernel counts too, with the names of its counters.
const COUNTED: [(WindowChangeCause, &[&str]); 4] = [
    (WindowChangeCause::FastRetransmit, &["TCPSackRecovery", "TCPRenoRecovery"]),
    (WindowChangeCause::TailLossProbe, &["TCPLossProbeRecovery"]),
    (WindowChangeCause::Timeout, &["TCPTimeouts"]),
    (WindowChangeCause::Undo, &["TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo"]),
];

/// Changes by cause, in the order of `WindowChangeCause::ALL`: reported or counted changes, and wrongly reported ones.
#[derive(Default)]
struct CauseTally([(u64, u64); WindowChangeCause::ALL.len()]);

impl CauseTally {
    fn add(&mut self, other: &CauseTally) {
        for (sum, (all, wrong)) in self.0.iter_mut().zip(other.0) {
            *sum = (sum.0 + all, sum.1 + wrong);
        }
    }

    fn total(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |sum, entry| (sum.0 + entry.0, sum.1 + entry.1))
    }
}

/// Compares the reported causes of a case with the truth.
fn judge(case: &CauseCase, observed: &ObservedCase) -> CauseTally {
    let mut tally = CauseTally::default();
    let mut line = format!("{:40}", case.name);
    for cause in WindowChangeCause::ALL {
        let times = observed.times(cause);
        let truth = COUNTED.iter().find(|(counted, _)| *counted == cause);
        let parts = if cause == WindowChangeCause::FastRetransmit { observed.parts() } else { 0 };
        let truth = truth.map(|(_, names)| observed.counted(names).saturating_sub(parts));
        let is_possible = case.provoked == cause || case.others.contains(&cause);
        tally.0[cause as usize] = match truth {
            Some(truth) => (times.max(truth), times.abs_diff(truth)),
            None if is_possible => (times, 0),
            None => (times, times),
        };
        if times > 0 || truth.is_some_and(|truth| truth > 0) {
            let truth = truth.map_or(String::new(), |truth| format!(" of {truth}"));
            line.push_str(&format!(
                "  {} {times}{truth}{}",
                cause.name(),
                if is_possible { "" } else { " (!)" }
            ));
        }
    }
    println!("{line}");
    tally
}

fn examine(case: &CauseCase, span: time::Duration, by: SourceKind) -> CauseTally {
    let observed = run(case, span, by);
    assert_eq!(observed.lost, 0, "{}", case.name);
    let tally = judge(case, &observed);
    let provoked = observed.times(case.provoked);
    assert!(provoked >= case.at_least, "{}: {} {provoked} times", case.name, case.provoked.name());
    if case.provoked == WindowChangeCause::ReceiverWindow {
        let acks = observed.events.iter().filter(|event| event.kind == FlowEventKind::Acknowledged);
        let held = acks.clone().filter(|event| event.snapshot.limit() == SendLimit::PeerWindow).count();
        assert!(held * 2 > acks.count(), "{held} ACKs found the peer's window full");
    }
    tally
}

/// Runs each case in separate namespaces, three at a time because they mostly wait.
fn examine_all(cases: &[CauseCase], span: time::Duration, by: SourceKind) -> CauseTally {
    let mut tally = CauseTally::default();
    for some in cases.chunks(3) {
        thread::scope(|scope| {
            let under_way: Vec<_> =
                some.iter().map(|case| scope.spawn(move || examine(case, span, by))).collect();
            under_way.into_iter().for_each(|case| tally.add(&case.join().unwrap()));
        });
    }
    let (all, wrong) = tally.total();
    println!("{all} changes, {wrong} reported wrongly");
    tally
}

/// Requires namespaces and BPF programs.
fn needs_programs() {
    needs::namespaces();
    if let Err(obstacle) = Programs::load(Filter::default()) {
        skip(obstacle.to_string());
    }
}

fn reported_causes_are_correct_on_every_path() {
    needs_programs();
    let mut tally = CauseTally::default();
    for algorithm in ["cubic", "reno"] {
        for delay in [1, 10, 40] {
            println!("{algorithm}, {} ms of round trip", 2 * delay);
            for case in cases() {
                let line =
                    link::LinkDirectionConfig { delay: Duration::from_millis(delay), ..case.line.clone() };
                let case = CauseCase { line, algorithm, ..case };
                let observed = run(&case, time::Duration::from_secs(8), SourceKind::Programs);
                assert_eq!(observed.lost, 0, "{}", case.name);
                tally.add(&judge(&case, &observed));
            }
        }
    }
    println!("\n| cause | reported or counted | wrong |\n| :-- | --: | --: |");
    for (cause, (all, wrong)) in WindowChangeCause::ALL.iter().zip(tally.0) {
        println!("| {} | {all} | {wrong} |", cause.name());
    }
    let (all, wrong) = tally.total();
    assert!(wrong * 100 <= all, "{wrong} of {all} are wrong");
    // Of some 150 undos counted by the kernel, one or two were not reported in some runs: 1 % is too strict for
    // them.
    for (cause, (all, wrong)) in WindowChangeCause::ALL.iter().zip(tally.0) {
        assert!(wrong * 50 <= all, "{}: {wrong} of {all} are wrong", cause.name());
    }
}

/// Tracing has fewer values per event, but the same stacks, which determine most causes.
fn causes_from_tracing_are_mostly_correct() {
    needs_programs();
    if let Err(obstacle) = RecordSource::open(SourceKind::Tracing, Filter::default(), &[]) {
        skip(obstacle.to_string());
    }
    let mut causes = vec![
        WindowChangeCause::LocalDevice,
        WindowChangeCause::Ecn,
        WindowChangeCause::FastRetransmit,
        WindowChangeCause::Timeout,
        WindowChangeCause::IdleRestart,
    ];
    let cases: Vec<CauseCase> = cases()
        .into_iter()
        .filter(|case| {
            let index = causes.iter().position(|cause| *cause == case.provoked);
            index.map(|index| causes.remove(index)).is_some()
        })
        .collect();
    let total = examine_all(&cases, time::Duration::from_secs(3), SourceKind::Tracing).total();
    // Changes before the first poll of a flow are not reported.
    assert!(total.1 * 10 <= total.0, "{} of {} are wrong", total.1, total.0);
}

fn reported_causes_are_correct() {
    needs_programs();
    let total = examine_all(&cases(), time::Duration::from_secs(4), SourceKind::Programs).total();
    assert!(total.1 * 100 <= total.0, "{} of {} are wrong", total.1, total.0);
}

netstage_harness::tests![
    #[ignore = "takes ten minutes"]
    reported_causes_are_correct_on_every_path,
    causes_from_tracing_are_mostly_correct,
    reported_causes_are_correct,
];
netstage_harness::main![self];
