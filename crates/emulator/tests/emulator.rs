//! Link emulator between namespaces, with real packets of kernel sockets.

#[path = "../../../tests/support/apart.rs"]
mod apart;
#[path = "../../../tests/support/pair.rs"]
mod pair;

use apart::{EmulatedPair, address, line};
use netstage_core::link;
use netstage_core::quantity::Capacity;
use netstage_core::time::Duration;
use netstage_emulator::netem;
use netstage_harness::{needs, skip};
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::realtime::{Grants, Rank};
use std::net::UdpSocket;
use std::thread;
use std::time;

fn socket(namespace: &Namespace, own: u8) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((address(own), 5000))).unwrap().unwrap();
    socket.connect((address(1 - own), 5000)).unwrap();
    socket.set_read_timeout(Some(time::Duration::from_secs(10))).unwrap();
    socket
}

/// Sends packets of `size` bytes at the IP layer, `rate` per second, for this time. Returns their number.
fn send(socket: &UdpSocket, size: usize, rate: u64, milliseconds: u64) -> u64 {
    let payload = vec![0; size - 28];
    let start = monotonic_ns();
    let mut sent = 0;
    loop {
        let elapsed = monotonic_ns() - start;
        if elapsed > milliseconds * 1_000_000 {
            return sent;
        }
        while sent < elapsed * rate / 1_000_000_000 {
            socket.send(&payload).unwrap();
            sent += 1;
        }
        thread::sleep(time::Duration::from_micros(100));
    }
}

fn a_round_trip_takes_twice_the_delay() {
    needs::namespaces();
    let (mut round_trips, report) =
        EmulatedPair::new().emulate(line(100_000_000, Duration::from_millis(10)), |left, right| {
            let (near, far) = (socket(left, 0), socket(right, 1));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut buffer = [0; 100];
                    for _ in 0..20 {
                        let length = far.recv(&mut buffer).unwrap();
                        far.send(&buffer[..length]).unwrap();
                    }
                });
                let round_trip = |number: u8| {
                    let start = monotonic_ns();
                    near.send(&[number; 72]).unwrap();
                    let mut buffer = [0; 100];
                    let length = near.recv(&mut buffer).unwrap();
                    assert_eq!(buffer[..length], [number; 72]);
                    monotonic_ns() - start
                };
                (0..20).map(round_trip).collect::<Vec<u64>>()
            })
        });
    round_trips.sort();
    // 100 bytes at 100 Mbit/s take 8 µs in each direction.
    println!("median round trip: 20.016 ms + {} µs", (round_trips[10] - 20_016_000) / 1000);
    assert!(round_trips[0] >= 20_016_000, "never early: {round_trips:?}");
    let totals = report.links[0].directions.each_ref().map(|direction| direction.totals);
    assert!(totals.iter().all(|totals| (totals.entered, totals.delivered) == (20, 20)), "{totals:?}");
    assert_eq!(report.void, []);
}

/// Overloads a line for two seconds and returns the relative error of its rate, as measured by the receiver and as
/// reported by the emulator.
fn rate_error(rate: u64) -> (f64, f64) {
    let packets = rate / (1500 * 8);
    let (received, report) =
        EmulatedPair::new().emulate(line(rate, Duration::from_millis(5)), |left, right| {
            let (near, far) = (socket(left, 0), socket(right, 1));
            far.set_read_timeout(Some(time::Duration::from_millis(500))).unwrap();
            thread::scope(|scope| {
                let receiver = scope.spawn(move || {
                    let mut buffer = [0; 1500];
                    let (mut first, mut last, mut count) = (0, 0, 0_u64);
                    while far.recv(&mut buffer).is_ok() {
                        last = monotonic_ns();
                        // The line is busy from the first packet on.
                        if count == 0 {
                            first = last;
                        }
                        count += 1;
                    }
                    (count - 1) as f64 * 1500.0 * 8.0 / ((last - first) as f64 / 1e9)
                });
                send(&near, 1500, packets * 11 / 10, 2000);
                receiver.join().unwrap()
            })
        });
    let direction = &report.links[0].directions[0];
    assert!(direction.totals.dropped > 0, "the line was overloaded");
    assert_eq!(report.void, []);
    println!("{} Mbit/s: {:?} {:?}", rate / 1_000_000, direction.saturated, direction.lateness);
    (received / rate as f64 - 1.0, direction.saturated.unwrap().error)
}

fn a_saturated_line_keeps_its_rate() {
    needs::namespaces();
    for rate in [10_000_000, 100_000_000] {
        let (received, emulated) = rate_error(rate);
        println!(
            "{} Mbit/s: {:+.4} % at the receiver, {:+.4} % by the emulator",
            rate / 1_000_000,
            received * 100.0,
            emulated * 100.0
        );
        // On a busy machine the sender pauses at times; a line is never faster than configured.
        assert!((-0.75..0.02).contains(&received), "{received}");
    }
}

/// `netem::is_available` agrees with the kernel.
fn netem_is_available_if_the_kernel_has_it() {
    needs::namespaces();
    let scratch = Namespace::new().unwrap();
    let mut netlink = Netlink::open(&scratch).unwrap();
    // A queue discipline that every kernel has verifies that the request works.
    netlink.set_queue_discipline("lo", "pfifo", 100_u32.to_ne_bytes().to_vec()).unwrap();
    match netem::is_available().unwrap() {
        true => {
            let line = line(10_000_000, Duration::from_millis(5));
            let netem::NetemStages { line, way } = netem::stages(&line).unwrap();
            for stage in [line, way] {
                netlink.set_queue_discipline("lo", "netem", stage.options()).unwrap();
            }
        }
        false => skip("this kernel has no netem (CONFIG_NET_SCH_NETEM)"),
    }
}

/// Measures the accuracy on an idle machine: make bench-emulator.
fn measures_accuracy_at_full_load() {
    needs::namespaces();
    println!("      rate  size     pps  rate error   late p50     p99     max  > 100 µs  processor");
    for (rate, size) in [(10_000_000, 1500), (100_000_000, 1500), (51_200_000, 128), (1_000_000_000, 1500)] {
        let packets = rate / (size * 8);
        // The buffer is large enough for a sender that is delayed by a busy machine.
        let line = link::LinkDirectionConfig {
            buffer: Capacity::Packets(2000),
            ..line(rate, Duration::from_millis(5))
        };
        let ((), report) = EmulatedPair::new().emulate(line, |left, right| {
            let (near, _far) = (socket(left, 0), socket(right, 1));
            Grants::request(Rank::Traffic);
            send(&near, size as usize, packets * 101 / 100, 4000);
        });
        let direction = &report.links[0].directions[0];
        let (lateness, saturated) = (direction.lateness, direction.saturated.unwrap());
        println!(
            "{:5} Mbit/s {size:5} {packets:7} {:+10.4} % {:7} µs {:4} µs {:4} µs {:7.3} % {:8.0} %",
            rate / 1_000_000,
            saturated.error * 100.0,
            lateness.p50_ns / 1000,
            lateness.p99_ns / 1000,
            lateness.max_ns / 1000,
            lateness.share_over_100_us * 100.0,
            report.processor_ns as f64 / 4e7,
        );
        println!("             {:?} {:?} {:?}", direction.totals, report.void, report.grants);
    }
}

netstage_harness::tests![
    a_round_trip_takes_twice_the_delay,
    a_saturated_line_keeps_its_rate,
    netem_is_available_if_the_kernel_has_it,
    #[ignore = "measurement: needs an idle machine"]
    measures_accuracy_at_full_load,
];
netstage_harness::main![self];
