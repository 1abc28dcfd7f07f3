//! Test of convergence: routes are withdrawn and announced while packets flow.

use super::network::{TesterNetwork, bird, found, trials};
use netstage_harness::needs;

fn packets_follow_withdrawn_and_announced_routes() {
    let world = TesterNetwork::new("tester-convergence");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let rest = "[routes]\ncount = 500\nby = \"bgp\"\n[bgp]\nown_as = 65002\nrouter_as = 65001\n\
                [convergence]\nrate = \"10 Mbit/s\"\nbefore = \"300 ms\"\nafter = \"3 s\"\n";
    for to in ["\"east\"", "\"east\", \"south\""] {
        let head = format!("router = \"BIRD\"\nready_within = \"20 s\"\nfrom = [\"west\"]\nto = [{to}]\n");
        let configuration = world.configure(&head, rest);
        let bird = bird(&world, &configuration);
        let output = world.test(&configuration);
        let cells = trials(&output);
        let events: Vec<&str> = cells.iter().map(|(event, _, _)| event.as_str()).collect();
        assert_eq!(events, ["withdraw", "announce"]);
        // A void run on a busy machine has no findings.
        for cell in (0..2).filter(|_| output.status.code() == Some(0)) {
            let time =
                |metric| found(&output, cell, metric).unwrap_or_else(|| panic!("{metric}: {output:?}"));
            let [first, last] = ["test.convergence.first", "test.convergence"].map(time);
            assert!((0.0..3.0).contains(&first) && first <= last && last < 3.0, "{first} {last}");
        }
        if to.contains("south") && output.status.code() == Some(0) {
            // With alternative routes, packets are lost only until the router uses them.
            let lost = found(&output, 0, "test.lost").unwrap();
            assert!(lost < 30_000.0, "{lost}");
        }
        drop(bird);
        world.remove_record();
    }
}

netstage_harness::tests![
    #[ignore = "a minute of sessions that end and come: make test-full"]
    packets_follow_withdrawn_and_announced_routes,
];
