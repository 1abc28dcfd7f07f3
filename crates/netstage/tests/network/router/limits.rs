//! Tests of shaped ports, full tables and label loops.

use crate::router::network::{TIMEOUT, TwoSites, counted, interface, route, socket, state};
use crate::support::{TemporaryFolder, within};
use netstage_router::daemon::reload;
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv4Tos};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Sends bursts of datagrams with pauses from one host to the other until a time. All bytes are `mark`, which
/// identifies the sender. Returns the number of datagrams.
fn flood(near: &UdpSocket, length: usize, mark: u8, (burst, pause): (u32, Duration), until: Instant) -> u32 {
    let mut sent = 0;
    while Instant::now() < until {
        for _ in 0..burst {
            near.send_to(&vec![mark; length], "10.0.1.2:7").unwrap();
        }
        sent += burst;
        std::thread::sleep(pause);
    }
    sent
}

fn a_shaped_port_limits_the_rate_and_prefers_urgent_packets() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-shaped");
    // The host marks voice with DSCP 46; it has traffic class 5 in the LSP.
    let classes = "classes = [{ dscp = [40, 46], buffer = \"20 packets\" }, { dscp = [], priority = 1, buffer = \"20 packets\" }]";
    let tables = format!("[port.core0]\nrate = \"4 Mbit/s\"\n{classes}\n");
    world.configure(&folder, 0, "", &tables);
    world.configure(&folder, 1, "", "");
    let _routers = [0, 1].map(|site| world.start(&folder, site));
    assert!(within(TIMEOUT, || world.reaches(100)));
    let slow = interface(&folder, 0, "core0").slow.unwrap();
    assert!(slow.contains("is shaped"), "{slow}");
    assert!(
        within(TIMEOUT, || interface(&folder, 0, "edge0").slow.is_none()),
        "the other direction uses the fast path"
    );

    let [bulk, far] = world.sockets();
    let voice = world.hosts[0].run(|| UdpSocket::bind("10.0.0.2:0")).unwrap().unwrap();
    setsockopt(&voice, Ipv4Tos, &(46 << 2)).unwrap();
    let begin = Instant::now();
    let until = begin + Duration::from_secs(2);
    let receiving = std::thread::spawn(move || {
        let (mut received, mut bytes, mut last) = ([0_u32; 2], [0; 2000], Instant::now());
        while let Ok(length) = far.recv(&mut bytes) {
            received[usize::from(bytes[0])] += 1;
            last = Instant::now();
            assert!(length > 0);
        }
        (received, last)
    });
    // A burst exceeds the queue, so that it overflows even if a busy machine wakes the sender late. Voice uses a tenth
    // of the rate.
    let bursts = (40, Duration::from_millis(30));
    let sending = std::thread::spawn(move || flood(&bulk, 1_200, 0, bursts, until));
    let voice_sent = flood(&voice, 200, 1, (1, Duration::from_millis(4)), until);
    let sent = sending.join().unwrap();
    let ([bulk_received, voice_received], last) = receiving.join().unwrap();
    assert_eq!(voice_received, voice_sent, "no voice packet is lost");
    let dropped = counted(&state(&folder, 0), "program", "queue_full");
    assert!(
        dropped > 0 && u64::from(bulk_received) + dropped == u64::from(sent),
        "{bulk_received} + {dropped} of {sent}"
    );
    // Headers have 46 bytes: Ethernet, a label, IP and UDP.
    let bits = f64::from(bulk_received * (1_200 + 46) + voice_received * (200 + 46)) * 8.0;
    let rate = bits / last.duration_since(begin).as_secs_f64();
    assert!((1.0e6..=4.3e6).contains(&rate), "{rate} bit/s");
}

fn a_packet_in_a_label_loop_is_dropped_when_its_time_to_live_expires() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-circle");
    for site in 0..2 {
        world.configure(&folder, site, "", "");
        let file = folder.join(format!("fib{site}.txt"));
        let routes = std::fs::read_to_string(&file).unwrap();
        let label_loop = match site {
            0 => "10.9.0.0/16 via 192.0.2.2 dev core0 push 500\nlabel 501 swap 500 via 192.0.2.2 dev core0\n",
            _ => "label 500 swap 501 via 192.0.2.1 dev core0\n",
        };
        std::fs::write(file, format!("{routes}{label_loop}")).unwrap();
    }
    let _routers = [0, 1].map(|site| world.start(&folder, site));
    assert!(within(TIMEOUT, || world.reaches(100)));
    let all = |name: &str| -> u64 {
        (0..2)
            .map(|site| {
                let state = state(&folder, site);
                let count_of = |path| {
                    let count = state.counters.iter().find(|count| count.path == path && count.name == name);
                    count.map_or(0, |count| count.packets)
                };
                count_of("kernel") + count_of("program")
            })
            .sum()
    };
    let ended = all("ttl_exceeded");
    let near = world.hosts[0].run(|| UdpSocket::bind("10.0.0.2:0")).unwrap().unwrap();
    near.set_ttl(64).unwrap();
    near.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Without this option only permanent errors are reported (ip(7)).
    setsockopt(&near, Ipv4RecvErr, &true).unwrap();
    near.connect("10.9.0.1:7").unwrap();
    near.send(b"round and round").unwrap();
    // The ICMP message is reported to the sender as an error.
    let error = near.recv(&mut [0; 16]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EHOSTUNREACH as i32), "{error}");
    assert_eq!(all("ttl_exceeded"), ended + 1);
    assert!(world.reaches(100), "other traffic is not affected");
}

fn a_full_table_rejects_new_entries_and_keeps_existing_ones() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-full");
    // Prefixes longer than 24 bits use a row per 24-bit prefix; each next hop uses an entry.
    world.configure(&folder, 0, "v4_rows = 16\nnext_hops = 16", "");
    world.configure(&folder, 1, "", "");
    let _far = world.start(&folder, 1);
    let mut near = world.start(&folder, 0);
    assert!(within(TIMEOUT, || world.reaches(100)));
    let file = folder.join("fib0.txt");
    let few = std::fs::read_to_string(&file).unwrap();
    let long: String = (0..40).map(|n| format!("10.50.{n}.1/32 discard\n")).collect();
    let hops: String =
        (0..40).map(|n| format!("10.60.{n}.0/24 via 192.0.2.{} dev core0\n", 10 + n)).collect();
    let labels: String =
        (0..40).map(|n| format!("label {} swap 600 via 192.0.2.{} dev core0\n", 700 + n, 60 + n)).collect();
    std::fs::write(&file, format!("{few}{long}{hops}{labels}")).unwrap();
    reload(&socket(&folder, 0)).unwrap();
    let rejected = || counted(&state(&folder, 0), "program", "refused_changes");
    assert!((60..120).contains(&rejected()), "{}", rejected());
    assert!(world.reaches(100));
    let is_present = ["10.50.0.1/32", "10.50.39.1/32"].map(|prefix| route(&folder, 0, prefix).is_some());
    assert_eq!(is_present, [true, false]);

    // Rejected entries are added when there is room again.
    std::fs::write(&file, format!("{few}{}", long.lines().skip(28).collect::<Vec<_>>().join("\n"))).unwrap();
    reload(&socket(&folder, 0)).unwrap();
    assert!(within(TIMEOUT, || rejected() == 0 && route(&folder, 0, "10.50.39.1/32").is_some()));
    assert!(world.reaches(100));
    near.signal("-TERM");
    let printed = String::from_utf8(near.output().stderr).unwrap();
    let alarm = "alarm: the route to 10.50.";
    assert!(printed.contains(alarm) && printed.contains("increase [router] `v4_rows`"), "{printed}");
    assert_eq!(printed.matches("was rejected").count(), 1, "{printed}");
}

netstage_harness::tests![
    a_shaped_port_limits_the_rate_and_prefers_urgent_packets,
    a_packet_in_a_label_loop_is_dropped_when_its_time_to_live_expires,
    a_full_table_rejects_new_entries_and_keeps_existing_ones,
];
