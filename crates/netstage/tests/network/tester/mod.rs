//! Tests of the router tester with real routers in namespaces: netstage's router and the Linux kernel, with correct and
//! incorrect forwarding. Rates are low, because the tests verify every packet, not the performance of the machine.

pub mod additional_routes;
pub mod convergence;
pub mod core;
pub mod faults;
mod forwarder;
pub mod frr;
pub mod gobgp;
pub mod kernel;
pub mod labels;
pub mod ldp;
mod network;
pub mod ovs;
pub mod uml;
pub mod verdicts;

use self::network::{TesterNetwork, assert_all_received, ip, refusal, to_ipv6, trials};
use crate::support::{TemporaryFolder, run_page};
use netstage_harness::needs;
use netstage_host::netns::Netlink;
use serde_json::Value;

fn a_router_forwards_in_both_directions_by_labels_and_routes() {
    let world = TesterNetwork::new("tester-own");
    let head = "router = \"netstage\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nbidirectional = true\n\
                sizes = [\"imix\"]\n";
    let operations = "operations = [\"ip\", \"swap\", \"pop\", \"php\", \"unlabeled\"]\n";
    let rest = "[routes]\ncount = 1000\n[labels]\npeers = 4\n";
    let configuration = world.configure(&format!("{head}{operations}"), rest);
    let router = world.start(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 5);
    assert_all_received(&cells);
    // The tester has removed its temporary addresses.
    let addresses = Netlink::open(&world.tester).unwrap().addresses().unwrap();
    assert!(!addresses.iter().any(|own| own.address.is_ipv4()), "{addresses:?}");
    drop(router);
    world.remove_record();
    let configuration = world.configure(&format!("{head}operations = [\"push\"]\n"), rest);
    let router = world.start(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    assert_all_received(&cells);
    drop(router);
}

fn the_kernel_forwards_ip_from_every_generator() {
    let world = TesterNetwork::new("tester-kernel");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    // IMIX has packets of 46 to 1498 B. XDP live frames are tested with single sizes.
    for (generator, sizes) in
        [("xdp", &["46 B", "1498 B"][..]), ("af-xdp", &["imix"]), ("af-packet", &["imix"])]
    {
        let head = format!(
            "router = \"Linux\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = {sizes:?}\n\
             generator = \"{generator}\"\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 50\n");
        ip(&world.router, &world.setup(&configuration, "linux"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), sizes.len());
        assert_all_received(&cells);
        world.remove_record();
    }
}

fn another_generator_is_used_for_an_interface_without_live_frames() {
    let world = TesterNetwork::new("tester-auto");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    ip(&world.tester, "link add mac0 link port0 type macvlan\nlink set mac0 up\n");
    let head = "router = \"Linux\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n";
    let configuration = world.configure(head, "[routes]\ncount = 50\n");
    let text = std::fs::read_to_string(&configuration).unwrap().replace("\"port0\"", "\"mac0\"");
    std::fs::write(&configuration, text).unwrap();
    ip(&world.router, &world.setup(&configuration, "linux"));
    let output = world.test(&configuration);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let record = result["record"].to_string();
    assert!(record.contains("The tester sends by AF_XDP"), "{record}");
    assert!(record.contains("XDP live frames do not leave mac0"), "{record}");
    assert_all_received(&trials(&output));
}

fn incorrect_forwarding_is_reported() {
    let world = TesterNetwork::new("tester-wrong");
    let head = "ready_within = \"1 s\"\nrouter = \"box\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
                sizes = [\"46 B\"]\noperations = [\"swap\"]\n";
    let configuration = world.configure(head, "[routes]\ncount = 1000\n[labels]\n");
    let right = world.setup(&configuration, "netstage");
    for (from, to, message) in [
        (
            "swap 3000",
            "swap 3007",
            "box forwarded 500 incorrectly: labels 3007 (TTL 47) instead of 3000 (TTL 47)",
        ),
        ("eth1", "eth2", "to the wrong port"),
        ("2000", "2500", "500 came back from box: it lacks routes or labels"),
    ] {
        let router =
            world.start(&right.replacen(from, to, 1).replace("192.0.2.6 dev eth2", "192.0.2.10 dev eth2"));
        let refusal = refusal(&world.test(&configuration));
        assert!(refusal.contains(message), "{refusal}");
        drop(router);
        let _ = std::fs::remove_dir_all(world.folder.join("out"));
    }
}

fn ipv6_packets_are_forwarded_with_and_without_labels() {
    let world = TesterNetwork::new("tester-ipv6");
    world.add_ipv6();
    let head = "router = \"netstage\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"imix\"]\n";
    let rest = "[routes]\ncount = 200\nfirst = \"2001:db8::\"\n[labels]\npeers = 3\n";
    for operations in ["\"ip\", \"swap\", \"pop\", \"php\", \"unlabeled\"", "\"push\""] {
        let configuration = world.configure(&format!("{head}operations = [{operations}]\n"), rest);
        to_ipv6(&configuration);
        let router = world.start(&world.setup(&configuration, "netstage"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(',').count());
        assert_all_received(&cells);
        drop(router);
        world.remove_record();
    }
    // An IPv4 router forwards IPv6 packets with labels (6PE).
    let configuration = world.configure(&format!("{head}operations = [\"push\", \"swap\"]\n"), rest);
    let router = world.start(&world.setup(&configuration, "netstage"));
    assert_all_received(&trials(&world.test(&configuration)));
    drop(router);
    world.remove_record();
}

/// Runs the commands of docs/router-test.md.
fn the_commands_of_the_guide_work() {
    needs::namespaces();
    let folder = TemporaryFolder::new("tester-guide");
    let text = run_page("router-test.md", &folder);
    let record = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join(name).join("record.json")).unwrap()).unwrap()
    };
    let (own, linux) = (record("record"), record("linux"));
    assert_eq!((own["cells"].as_array().unwrap().len(), linux["cells"].as_array().unwrap().len()), (9, 3));
    for name in ["record/report.html", "linux/report.html", "comparison.html"] {
        assert!(std::fs::read_to_string(folder.join(name)).unwrap().contains("<html"), "{name}");
    }
    assert!(text.contains("Comparison of record, linux"), "{text}");
}

netstage_harness::tests![
    a_router_forwards_in_both_directions_by_labels_and_routes,
    the_kernel_forwards_ip_from_every_generator,
    another_generator_is_used_for_an_interface_without_live_frames,
    incorrect_forwarding_is_reported,
    ipv6_packets_are_forwarded_with_and_without_labels,
    #[ignore = "takes some minutes of measuring, and needs ethtool"]
    the_commands_of_the_guide_work,
];
