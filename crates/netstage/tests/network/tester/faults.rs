//! Tests of faulty routers and of the tester's reports.

use super::labels::{Distributor, transit};
use super::network::{
    TIMEOUT, TesterNetwork, assert_all_received, assert_received_correctly, bird, ip, refusal, start_bird,
    trials,
};
use crate::support::within;
use netstage_harness::needs;
use netstage_host::netns::Netlink;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_routing::bgp::inject::SendOrder;
use netstage_routing::bgp::nlri::BgpFamily;
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::AsPath;
use netstage_routing::bgp::session::BgpSettings;
use netstage_routing::bgp::speaker::{self, Endpoint, SpeakerCommand, SpeakerReport};
use netstage_routing::bgp::table::{BgpTable, NextHopAssignment, Pattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Settings with trials that are long enough for a fault to occur in one.
const HEAD: &str = "trial = \"500 ms\"\nsearch = \"200 ms\"\nmax_rate = \"4 Mbit/s\"\n\
     router = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\n\
     sizes = [\"46 B\"]\noperations = [\"ip\"]\n";
/// Number of packets that the tester exceeds only during trials.
const MAX_BEFORE_TRIALS: u64 = 1_000;

/// Returns the number of frames received by the router.
fn arrived(world: &TesterNetwork) -> u64 {
    Netlink::open(&world.router).unwrap().link("eth0").unwrap().statistics.received_packets
}

/// Waits until a trial is in progress.
fn wait_for_a_trial(world: &TesterNetwork) {
    assert!(within(TIMEOUT, || arrived(world) > MAX_BEFORE_TRIALS), "no trial starts");
}

fn the_tester_waits_for_a_router_that_responds_late() {
    let world = TesterNetwork::new("tester-late");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\n");
    ip(&world.router, &world.setup(&configuration, "linux"));
    // The address is removed until the first ARP request.
    ip(&world.router, "address delete 192.0.2.1/30 dev eth0\n");
    let before = arrived(&world);
    let tester = world.start_test(&configuration);
    assert!(within(TIMEOUT, || arrived(&world) > before), "no ARP request");
    ip(&world.router, "address add 192.0.2.1/30 dev eth0\n");
    assert_all_received(&trials(&tester.output()));
    // Without the address, the test fails.
    ip(&world.router, "address delete 192.0.2.1/30 dev eth0\n");
    world.remove_record();
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("192.0.2.1 does not answer ARP at port0"), "{error}");
}

/// Forwards each frame `times` times, until stopped.
fn forward(world: &TesterNetwork, times: usize, until: &AtomicBool) {
    let open = |link| AfPacket::open(&world.router, link, AfPacketOptions::default()).unwrap();
    let (mut from, mut to) = (open("eth0"), open("eth1"));
    while !until.load(Ordering::Relaxed) {
        let mut frames = Vec::new();
        from.receive(256, &mut |received| frames.push(received.frame.to_vec())).unwrap();
        for mut frame in frames.into_iter().filter(|frame| frame[12..14] == [8, 0] && frame[30] == 11) {
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3]);
            frame[22] -= 1;
            // The checksum increases as the time to live decreases (RFC 1624).
            let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x100;
            let folded = (sum & 0xffff) + (sum >> 16);
            frame[24..26].copy_from_slice(&(folded as u16).to_be_bytes());
            for _ in 0..times {
                while !to.send(&frame).unwrap() {
                    to.flush().unwrap();
                }
            }
        }
        to.flush().unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn a_router_that_drops_or_duplicates_packets_is_reported() {
    let world = TesterNetwork::new("tester-doubles");
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\n");
    for (times, message) in [(0, "none came back from box"), (2, "box sent 50 more than once")] {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| forward(&world, times, &over));
            let output = world.test(&configuration);
            over.store(true, Ordering::Relaxed);
            let error = refusal(&output);
            assert!(error.contains(message), "{error}");
        });
        world.remove_record();
    }
}

/// Settings whose search takes some seconds.
const LONG: &str = "[routes]\ncount = 50\n";

fn the_tester_waits_for_a_router_that_restarts_in_a_trial() {
    let world = TesterNetwork::new("tester-restarts");
    let head = HEAD.replace("router =", "repeat = 3\nready_within = \"10 s\"\nrouter =");
    let configuration = world.configure(&head, LONG);
    let routes = world.setup(&configuration, "netstage");
    let router = world.start(&routes);
    let tester = world.start_test(&configuration);
    wait_for_a_trial(&world);
    drop(router);
    let _router = world.start(&routes);
    let cells = trials(&tester.output());
    let last = cells.last().unwrap().2.last().unwrap();
    assert_eq!(last["lost"], 0, "{last}");
}

fn a_router_that_stops_in_a_trial_ends_the_test() {
    let world = TesterNetwork::new("tester-stops");
    let head = HEAD.replace("router =", "repeat = 5\nready_within = \"1 s\"\nrouter =");
    let configuration = world.configure(&head, LONG);
    let router = world.start(&world.setup(&configuration, "netstage"));
    let tester = world.start_test(&configuration);
    wait_for_a_trial(&world);
    drop(router);
    let error = refusal(&tester.output());
    assert!(error.contains("none came back from box"), "{error}");
}

fn a_session_that_ends_in_a_trial_voids_it() {
    let world = TesterNetwork::new("tester-resets");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let head = HEAD.replace("router =", "repeat = 3\nready_within = \"20 s\"\nrouter =");
    let rest = "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n";
    let configuration = world.configure(&head, rest);
    let first = bird(&world, &configuration);
    let tester = world.start_test(&configuration);
    wait_for_a_trial(&world);
    // The routes of the killed daemon remain in the kernel, so packets are still forwarded.
    drop(first);
    let _second = bird(&world, &configuration);
    let output = tester.output();
    let cells = trials(&output);
    let all = cells.iter().flat_map(|(_, _, trials)| trials);
    let void = all.filter(|trial| {
        trial["void"].as_str().is_some_and(|reason| reason.contains("BGP session with 192.0.2.5 ended"))
    });
    assert!(void.count() >= 1, "{}", String::from_utf8_lossy(&output.stdout));
}

fn an_unresponsive_peer_is_named() {
    let world = TesterNetwork::new("tester-holds");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    // Enough trials for the hold timer to expire in one of them.
    let head = HEAD.replace("router =", "repeat = 30\nready_within = \"2 s\"\nrouter =");
    let configuration = world.configure(&head, "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n");
    let bird_configuration =
        world.setup(&configuration, "bird").replace("neighbor", "hold time 3;\n\tneighbor");
    let mut bird = start_bird(&world, &bird_configuration);
    let tester = world.start_test(&configuration);
    wait_for_a_trial(&world);
    bird.signal("-STOP");
    let error = refusal(&tester.output());
    assert!(error.contains("no BGP session with 192.0.2.5"), "{error}");
}

fn a_flood_of_routes_from_a_peer_does_not_affect_the_test() {
    let world = TesterNetwork::new("tester-floods");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let static_routes = world.configure(HEAD, "[routes]\ncount = 50\n");
    ip(&world.router, &world.setup(&static_routes, "linux"));
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n");
    let pattern = Pattern {
        family: BgpFamily::Ipv4Unicast,
        first: "20.0.0.0/24".parse().unwrap(),
        count: 100_000,
        next_hops: vec![[192, 0, 2, 5].into()],
        spread: NextHopAssignment::InTurn,
        as_path: AsPath::default(),
        first_label: None,
        distinguisher: None,
    };
    let mut table = BgpTable::new();
    pattern.append_to(&mut table).unwrap();
    let table = Arc::new(table);
    let (commands, received) = tokio::sync::mpsc::unbounded_channel();
    let settings = BgpSettings {
        identity: OpenParameters {
            local_as: 65_001,
            peer_as: Some(65_002),
            identifier: [192, 0, 2, 5].into(),
            hold_time: netstage_core::time::Duration::from_secs(90),
            families: vec![BgpFamily::Ipv4Unicast],
            four_octet_as: true,
        },
        connects: false,
        connect_retry: netstage_core::time::Duration::from_secs(1),
        restart: Some(netstage_core::time::Duration::from_secs(1)),
    };
    let endpoint = Endpoint {
        local: [192, 0, 2, 5].into(),
        peer: [192, 0, 2, 6].into(),
        peer_port: 179,
        listen_port: Some(179),
        md5_key: None,
        security_hops: None,
    };
    commands.send(SpeakerCommand::Announce(Arc::clone(&table), SendOrder::Packed)).unwrap();
    let sender = commands.clone();
    let mut sent = 0;
    let flood = move |_, report| {
        // The table is withdrawn and announced repeatedly.
        if let SpeakerReport::Sent(written) = report
            && written.routes > 0
        {
            sent += 1;
            let table = Arc::clone(&table);
            let next = [SpeakerCommand::Announce, SpeakerCommand::Withdraw][sent % 2];
            let _ = sender.send(next(table, SendOrder::Packed));
        }
    };
    let router = world.router.try_clone().unwrap();
    let peer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let epoch = std::time::Instant::now();
        let speak = speaker::run(settings, endpoint, epoch, received, flood);
        router.run(|| runtime.block_on(speak)).unwrap().unwrap();
    });
    let cells = trials(&world.test(&configuration));
    commands.send(SpeakerCommand::Stop).unwrap();
    peer.join().unwrap();
    assert_received_correctly(&cells);
}

fn labels_of_a_session_that_ends_are_not_used() {
    let world = TesterNetwork::new("tester-forgets");
    let head = HEAD
        .replace("router =", "repeat = 30\nready_within = \"30 s\"\nrouter =")
        .replace("\"ip\"", "\"swap\"");
    let rest = "[routes]\n[labels]\nby = \"ldp\"\npush = 700\nloopback = \"198.51.100.1\"\n";
    let configuration = world.configure(&head, rest);
    let _router = world.start("label 4100 swap 700 via 192.0.2.6 dev eth1\n");
    let distributor = Distributor::start(&world.router, vec![transit(1, 4100)]);
    let tester = world.start_test(&configuration);
    wait_for_a_trial(&world);
    drop(distributor);
    let error = refusal(&tester.output());
    assert!(error.contains("swap: no LDP session with 192.0.2.1"), "{error}");
}

netstage_harness::tests![
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    the_tester_waits_for_a_router_that_responds_late,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_router_that_drops_or_duplicates_packets_is_reported,
    the_tester_waits_for_a_router_that_restarts_in_a_trial,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_router_that_stops_in_a_trial_ends_the_test,
    a_session_that_ends_in_a_trial_voids_it,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    an_unresponsive_peer_is_named,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_flood_of_routes_from_a_peer_does_not_affect_the_test,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    labels_of_a_session_that_ends_are_not_used,
];
