//! Measures the cost of a frame for each kind of port on a veth pair. Prints the result without judging it.
//!
//! ```text
//! cargo test --release -p netstage-host --test port_rates -- --ignored --nocapture
//! ```

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_harness::{needs, skip};
use netstage_host::netns::Namespace;
use netstage_host::ports::FramePort;
use netstage_host::ports::af_packet::AfPacket;
use netstage_host::ports::af_xdp::AfXdp;
use nix::poll::{PollFd, PollFlags, poll};
use nix::time::{ClockId, clock_gettime};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const DURATION: Duration = Duration::from_secs(1);
/// Frames between two flushes.
const BATCH: usize = 64;

type Open = fn(&Namespace, &str) -> io::Result<Box<dyn FramePort + Send>>;

fn af_packet(namespace: &Namespace, link: &str) -> io::Result<Box<dyn FramePort + Send>> {
    Ok(Box::new(AfPacket::open(namespace, link, Default::default())?))
}

fn af_xdp(namespace: &Namespace, link: &str) -> io::Result<Box<dyn FramePort + Send>> {
    Ok(Box::new(AfXdp::open(namespace, link, Default::default())?))
}

/// Returns the processor time of this thread, including kernel time.
fn processor_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Result of one side: frames and processor time.
struct PortWork {
    frames: u64,
    processor_ns: u64,
}

impl PortWork {
    fn ns_per_frame(&self) -> u64 {
        self.processor_ns / self.frames.max(1)
    }
}

/// Keeps at most `window` frames unreceived, so that none need be lost.
fn send(port: &mut dyn FramePort, length: usize, window: u64, received: &AtomicU64) -> PortWork {
    let mut frame = [&RIGHT_MAC[..], &LEFT_MAC, &[0x88, 0xb5]].concat();
    frame.resize(length, 0);
    let (start, processor) = (Instant::now(), processor_time_ns());
    let mut frames = 0;
    while start.elapsed() < DURATION {
        if frames - received.load(Ordering::Relaxed) + BATCH as u64 > window {
            thread::yield_now();
            continue;
        }
        frames += (0..BATCH).map_while(|_| port.send(&frame).unwrap().then_some(())).count() as u64;
        frames -= port.flush().unwrap() as u64;
    }
    PortWork { frames, processor_ns: processor_time_ns() - processor }
}

fn receive(port: &mut dyn FramePort, ended: &AtomicBool, received: &AtomicU64) -> PortWork {
    let processor = processor_time_ns();
    let mut frames = 0;
    loop {
        let count = port.receive(BATCH, &mut |frame| assert!(frame.frame.len() >= 60)).unwrap();
        frames += count as u64;
        received.store(frames + port_missed(port, count), Ordering::Relaxed);
        if count == 0 {
            if ended.load(Ordering::Relaxed) {
                return PortWork { frames, processor_ns: processor_time_ns() - processor };
            }
            let fd = port.fd().unwrap();
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 10_u8).unwrap();
        }
    }
}

/// Requested only when idle, because it is a system call.
fn port_missed(port: &mut dyn FramePort, count: usize) -> u64 {
    if count == 0 { port.missed() } else { 0 }
}

fn measure(name: &str, open: Open, length: usize, window: u64) {
    let pair = Pair::new(Default::default());
    let mut to = match open(&pair.right, "right0") {
        Ok(port) => port,
        Err(error) => skip(format!("{name}: {error}")),
    };
    let mut from = open(&pair.left, "left0").unwrap();
    let (ended, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sent, received_work) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&mut *to, &ended, &received));
        let sent = send(&mut *from, length, window, &received);
        ended.store(true, Ordering::Relaxed);
        (sent, receiver.join().unwrap())
    });
    println!(
        "{name:10} {length:5} {:9.2} {:14} {:17} {:9.2}",
        received_work.frames as f64 / DURATION.as_secs_f64() / 1e6,
        sent.ns_per_frame(),
        received_work.ns_per_frame(),
        100.0 * (sent.frames - received_work.frames) as f64 / sent.frames as f64,
    );
}

fn measure_cost_per_frame() {
    needs::namespaces();
    println!("port       bytes      Mpps  ns/frame sent  ns/frame received  % missed");
    for length in [64, 512, 1514] {
        measure("af_packet", af_packet, length, 1024);
        // Half the capacity of the driver's ring.
        measure("af_xdp", af_xdp, length, 1024);
    }
}

netstage_harness::tests![
    #[ignore = "a measurement, not a test"]
    measure_cost_per_frame,
];
netstage_harness::main![self];
