//! Routers that fail, and what the tester says of it.

use super::labels::{Distributor, transit};
use super::world::{PATIENCE, World, all_came_back, bird, bird_of, came_back_right, ip, refusal, trials};
use crate::support::within;
use netstage_harness::needs;
use netstage_host::netns::Netlink;
use netstage_host::ports::Port as _;
use netstage_host::ports::af_packet::{AfPacket, Options};
use netstage_routing::bgp::inject::Order;
use netstage_routing::bgp::machine::Settings;
use netstage_routing::bgp::nlri::Family;
use netstage_routing::bgp::open::Identity;
use netstage_routing::bgp::path::AsPath;
use netstage_routing::bgp::speaker::{self, Command, Endpoint, Report};
use netstage_routing::bgp::table::{Pattern, Spread, Table};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Trials that last long enough for something to happen in one.
const HEAD: &str = "trial = \"500 ms\"\nsearch = \"200 ms\"\nmax_rate = \"4 Mbit/s\"\n\
     router = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\n\
     sizes = [\"46 B\"]\noperations = [\"ip\"]\n";
/// More packets than the tester sends before it measures.
const BEFORE: u64 = 1_000;

/// Frames that have come to the router.
fn arrived(world: &World) -> u64 {
    Netlink::open(&world.router).unwrap().link("eth0").unwrap().statistics.received_packets
}

/// Waits until a trial is under way.
fn wait_for_a_trial(world: &World) {
    assert!(within(PATIENCE, || arrived(world) > BEFORE), "no trial begins");
}

fn a_router_that_answers_late_is_waited_for() {
    let world = World::new("tester-late");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\n");
    ip(&world.router, &world.setup(&configuration, "linux"));
    // Nobody answers for the address until it is asked for.
    ip(&world.router, "address delete 192.0.2.1/30 dev eth0\n");
    let before = arrived(&world);
    let tester = world.begin_test(&configuration);
    assert!(within(PATIENCE, || arrived(&world) > before), "nobody asks");
    ip(&world.router, "address add 192.0.2.1/30 dev eth0\n");
    all_came_back(&trials(&tester.output()));
    // And in vain.
    ip(&world.router, "address delete 192.0.2.1/30 dev eth0\n");
    world.forget();
    let refused = refusal(&world.test(&configuration));
    assert!(refused.contains("192.0.2.1 does not answer ARP at port0"), "{refused}");
}

/// Forwards as often as it is told, while it is told to.
fn forward(world: &World, times: usize, until: &AtomicBool) {
    let open = |link| AfPacket::open(&world.router, link, Options::default()).unwrap();
    let (mut from, mut to) = (open("eth0"), open("eth1"));
    while !until.load(Ordering::Relaxed) {
        let mut frames = Vec::new();
        from.receive(256, &mut |received| frames.push(received.frame.to_vec())).unwrap();
        for mut frame in frames.into_iter().filter(|frame| frame[12..14] == [8, 0] && frame[30] == 11) {
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3]);
            frame[22] -= 1;
            // The checksum is one's complement: what the word lost it gains (RFC 1624).
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

fn a_router_that_drops_or_doubles_is_told_so() {
    let world = World::new("tester-doubles");
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\n");
    for (times, message) in [(0, "none came back from box"), (2, "box sent 50 of them more than once")] {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| forward(&world, times, &over));
            let output = world.test(&configuration);
            over.store(true, Ordering::Relaxed);
            let refused = refusal(&output);
            assert!(refused.contains(message), "{refused}");
        });
        world.forget();
    }
}

/// A configuration whose search takes some seconds.
const LONG: &str = "[routes]\ncount = 50\n";

fn a_router_that_restarts_in_a_trial_is_waited_for() {
    let world = World::new("tester-restarts");
    let head = HEAD.replace("router =", "repeat = 3\nready_within = \"10 s\"\nrouter =");
    let configuration = world.configure(&head, LONG);
    let routes = world.setup(&configuration, "netstage");
    let router = world.begin(&routes);
    let tester = world.begin_test(&configuration);
    wait_for_a_trial(&world);
    drop(router);
    let _router = world.begin(&routes);
    let cells = trials(&tester.output());
    let last = cells.last().unwrap().2.last().unwrap();
    assert_eq!(last["lost"], 0, "{last}");
}

fn a_router_that_stops_in_a_trial_ends_the_test() {
    let world = World::new("tester-stops");
    let head = HEAD.replace("router =", "repeat = 5\nready_within = \"1 s\"\nrouter =");
    let configuration = world.configure(&head, LONG);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    let tester = world.begin_test(&configuration);
    wait_for_a_trial(&world);
    drop(router);
    let refused = refusal(&tester.output());
    assert!(refused.contains("none came back from box"), "{refused}");
}

fn a_session_that_ends_in_a_trial_spoils_it() {
    let world = World::new("tester-resets");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let head = HEAD.replace("router =", "repeat = 3\nready_within = \"20 s\"\nrouter =");
    let rest = "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n";
    let configuration = world.configure(&head, rest);
    let first = bird(&world, &configuration);
    let tester = world.begin_test(&configuration);
    wait_for_a_trial(&world);
    // Killed, it leaves its routes in the kernel: packets flow on.
    drop(first);
    let _second = bird(&world, &configuration);
    let output = tester.output();
    let cells = trials(&output);
    let all = cells.iter().flat_map(|(_, _, trials)| trials);
    let spoiled = all.filter(|trial| {
        trial["void"].as_str().is_some_and(|why| why.contains("BGP session with 192.0.2.5 ended"))
    });
    assert!(spoiled.count() >= 1, "{}", String::from_utf8_lossy(&output.stdout));
}

fn a_peer_that_holds_is_named() {
    let world = World::new("tester-holds");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    // More than enough trials for the hold timer to run out in one of them.
    let head = HEAD.replace("router =", "repeat = 30\nready_within = \"2 s\"\nrouter =");
    let configuration = world.configure(&head, "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n");
    let held = world.setup(&configuration, "bird").replace("neighbor", "hold time 3;\n\tneighbor");
    let mut bird = bird_of(&world, &held);
    let tester = world.begin_test(&configuration);
    wait_for_a_trial(&world);
    bird.signal("-STOP");
    let refused = refusal(&tester.output());
    assert!(refused.contains("no BGP session with 192.0.2.5"), "{refused}");
}

fn a_peer_that_floods_is_read_and_no_more() {
    let world = World::new("tester-floods");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let told = world.configure(HEAD, "[routes]\ncount = 50\n");
    ip(&world.router, &world.setup(&told, "linux"));
    let configuration = world.configure(HEAD, "[routes]\ncount = 50\nby = \"bgp\"\n[bgp]\n");
    let pattern = Pattern {
        family: Family::Ipv4Unicast,
        first: "20.0.0.0/24".parse().unwrap(),
        count: 100_000,
        next_hops: vec![[192, 0, 2, 5].into()],
        spread: Spread::InTurn,
        as_path: AsPath::default(),
        first_label: None,
        distinguisher: None,
    };
    let mut table = Table::new();
    pattern.append_to(&mut table).unwrap();
    let table = Arc::new(table);
    let (commands, received) = tokio::sync::mpsc::unbounded_channel();
    let settings = Settings {
        identity: Identity {
            local_as: 65_001,
            peer_as: Some(65_002),
            identifier: [192, 0, 2, 5].into(),
            hold_time: netstage_core::time::Duration::from_secs(90),
            families: vec![Family::Ipv4Unicast],
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
    commands.send(Command::Announce(Arc::clone(&table), Order::Packed)).unwrap();
    let again = commands.clone();
    let mut sent = 0;
    let flood = move |_, report| {
        // Whatever was sent goes again, and again.
        if let Report::Sent(written) = report
            && written.routes > 0
        {
            sent += 1;
            let table = Arc::clone(&table);
            let next = [Command::Announce, Command::Withdraw][sent % 2];
            let _ = again.send(next(table, Order::Packed));
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
    commands.send(Command::Stop).unwrap();
    peer.join().unwrap();
    came_back_right(&cells);
}

fn labels_of_a_session_that_ends_are_not_used() {
    let world = World::new("tester-forgets");
    let head = HEAD
        .replace("router =", "repeat = 30\nready_within = \"30 s\"\nrouter =")
        .replace("\"ip\"", "\"swap\"");
    let rest = "[routes]\n[labels]\nby = \"ldp\"\npush = 700\nloopback = \"198.51.100.1\"\n";
    let configuration = world.configure(&head, rest);
    let _router = world.begin("label 4100 swap 700 via 192.0.2.6 dev eth1\n");
    let distributor = Distributor::begin(&world.router, vec![transit(1, 4100)]);
    let tester = world.begin_test(&configuration);
    wait_for_a_trial(&world);
    drop(distributor);
    let refused = refusal(&tester.output());
    assert!(refused.contains("swap: no LDP session with 192.0.2.1"), "{refused}");
}

netstage_harness::tests![
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_router_that_answers_late_is_waited_for,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_router_that_drops_or_doubles_is_told_so,
    a_router_that_restarts_in_a_trial_is_waited_for,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_router_that_stops_in_a_trial_ends_the_test,
    a_session_that_ends_in_a_trial_spoils_it,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_peer_that_holds_is_named,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    a_peer_that_floods_is_read_and_no_more,
    #[ignore = "one fault of many, and some seconds each: make test-full"]
    labels_of_a_session_that_ends_are_not_used,
];
