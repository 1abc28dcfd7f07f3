//! Tests with BIRD: additional BGP tables besides the tested networks, and forwarding by the kernel.

use super::network::{TIMEOUT, TesterNetwork, assert_all_received, bird, refusal, to_ipv6, trials};
use crate::support::within;
use netstage_harness::needs;
use netstage_host::netns::spawn_in;
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Returns a record of MRT (RFC 6396).
fn record(kind: u16, subtype: u16, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    [&[0; 4], &kind.to_be_bytes()[..], &subtype.to_be_bytes(), &length.to_be_bytes(), body].concat()
}

/// Returns the IPv6 dump of a route collector (TABLE_DUMP_V2): its peers, then a record for each prefix of 49 bits, the
/// second half of 2001:db8:N::/48, from AS 70000.
fn dump(prefixes: u16) -> Vec<u8> {
    const PEER_INDEX_TABLE: u16 = 1;
    const RIB_IPV6_UNICAST: u16 = 4;
    // One IPv4 peer with an AS number of four bytes.
    let peer = [2, 198, 51, 100, 1, 198, 51, 100, 1, 0, 1, 0x11, 0x70];
    let mut file = record(13, PEER_INDEX_TABLE, &[&[198, 51, 100, 9, 0, 0, 0, 1][..], &peer].concat());
    // Origin, AS path, and the next hop 2001:db8:ffff::9 in the abbreviated form (section 4.3.4).
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 1, 0x11, 0x70];
    attributes.extend([0x80, 14, 17, 16, 0x20, 1, 0xd, 0xb8, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    for number in 0..prefixes {
        let [high, low] = number.to_be_bytes();
        let mut body = u32::from(number).to_be_bytes().to_vec();
        body.extend([49, 0x20, 1, 0xd, 0xb8, high, low, 0x80]);
        // One entry: peer, time and attributes.
        body.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(&attributes);
        file.extend(record(13, RIB_IPV6_UNICAST, &body));
    }
    file
}

fn assert_description(output: &Output, part: &str) {
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let description = result["record"]["description"].as_str().unwrap();
    assert!(description.contains(part), "{description}");
}

fn a_table_of_a_route_collector_is_announced_with_the_networks() {
    let world = TesterNetwork::new("tester-collector");
    needs::program("bird", "bird2");
    world.add_ipv6();
    world.router.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    // The first 200 prefixes are parts of tested networks.
    let file = world.folder.join("rib.20261101.0000");
    std::fs::write(&file, dump(1200)).unwrap();
    assert!(Command::new("gzip").arg(&file).status().unwrap().success());
    let head = "router = \"Linux with BIRD\"\nready_within = \"20 s\"\nfrom = [\"west\"]\nto = [\"east\"]\n\
                sizes = [\"imix\"]\noperations = [\"ip\"]\n";
    let rest = "[routes]\ncount = 200\nfirst = \"2001:db8::\"\nby = \"bgp\"\n\
                [bgp]\nadditional_routes = \"rib.20261101.0000.gz\"\n";
    let configuration = world.configure(head, rest);
    to_ipv6(&configuration);
    let _bird = bird(&world, &configuration);
    let tester = world.start_test(&configuration);
    // BIRD installs the routes in the kernel.
    let is_installed = || {
        let mut ip = Command::new("ip");
        ip.args(["-6", "route", "show", "2001:db8:4af:8000::/49"]).stdout(Stdio::piped());
        let output = spawn_in(&world.router, ip).unwrap().wait_with_output().unwrap();
        !output.stdout.is_empty()
    };
    assert!(within(TIMEOUT, is_installed), "the last route of the file is not in the kernel");
    let output = tester.output();
    assert_all_received(&trials(&output));
    assert_description(&output, "1000 routes of rib.20261101.0000.gz (200 left out)");
    // A truncated file is rejected with its name and the position, before any announcement.
    let whole = dump(3);
    std::fs::remove_file(world.folder.join("rib.20261101.0000.gz")).unwrap();
    std::fs::write(world.folder.join("rib.20261101.0000.gz"), &whole[..whole.len() - 1]).unwrap();
    world.remove_record();
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("rib.20261101.0000.gz: truncated or malformed MRT record at byte"), "{error}");
}

fn bird_receives_the_networks_and_the_kernel_or_netstage_forwards() {
    let world = TesterNetwork::new("tester-bird");
    needs::program("bird", "bird2");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let head =
        "router = \"Linux with BIRD\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nsizes = [\"46 B\"]\n";
    // Prefixes inside tested networks are omitted.
    let table = (0..2_100).map(|number| format!("11.{}.{}.128/25 192.0.2.9\n", number / 256, number % 256));
    std::fs::write(world.folder.join("table.txt"), table.collect::<String>()).unwrap();
    let rest = "[routes]\ncount = 2000\nby = \"bgp\"\n\
                [bgp]\nown_as = 65002\nrouter_as = 65001\nadditional_routes = \"table.txt\"\n";
    let configuration = world.configure(head, rest);
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("no BGP session with 192.0.2.5: connection error"), "{error}");
    world.remove_record();
    let _bird = bird(&world, &configuration);
    let output = world.test(&configuration);
    let cells = trials(&output);
    assert_eq!(cells.len(), 1);
    assert_all_received(&cells);
    assert_description(&output, "100 routes of table.txt (2000 left out)");
    // The kernel has the routes from BIRD, but netstage's router forwards by them.
    world.remove_record();
    let router = world.start("");
    let text = std::fs::read_to_string(&configuration).unwrap();
    std::fs::write(&configuration, text.replace("Linux with BIRD", "netstage with BIRD")).unwrap();
    assert_all_received(&trials(&world.test(&configuration)));
    drop(router);
    // Without netstage's router, nothing is forwarded.
    world.remove_record();
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("netstage with BIRD"), "{error}");
}

netstage_harness::tests![
    a_table_of_a_route_collector_is_announced_with_the_networks,
    #[ignore = "BIRD is tested with IPv6 networks in any case: make test-full"]
    bird_receives_the_networks_and_the_kernel_or_netstage_forwards,
];
