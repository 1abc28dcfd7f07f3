//! The router tester around real routers, in namespaces: netstage's own and the Linux kernel, right and wrong.
//! Rates are low: what is seen is that every packet is looked at, not how fast this machine is.

pub mod beside;
pub mod convergence;
pub mod faults;
pub mod frr;
pub mod gobgp;
pub mod kernel;
pub mod labels;
pub mod ovs;
pub mod uml;
mod world;

use self::world::{World, all_came_back, ip, refusal, to_ipv6, trials};
use crate::support::{Folder, run_page};
use netstage_harness::needs;
use netstage_host::netns::Netlink;
use serde_json::Value;

fn a_router_does_both_ways_what_labels_and_routes_say() {
    let world = World::new("tester-own");
    let head = "router = \"netstage\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\nboth_ways = true\n\
                sizes = [\"imix\"]\n";
    let operations = "operations = [\"ip\", \"swap\", \"pop\", \"php\", \"unlabelled\"]\n";
    let rest = "[routes]\ncount = 1000\n[labels]\npeers = 4\n";
    let configuration = world.configure(&format!("{head}{operations}"), rest);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 5);
    all_came_back(&cells);
    // The addresses the tester lent are gone.
    let addresses = Netlink::open(&world.tester).unwrap().addresses().unwrap();
    assert!(!addresses.iter().any(|own| own.address.is_ipv4()), "{addresses:?}");
    drop(router);
    world.forget();
    let configuration = world.configure(&format!("{head}operations = [\"push\"]\n"), rest);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    all_came_back(&cells);
    drop(router);
}

fn the_kernel_forwards_ip_as_every_generator_sends_it() {
    let world = World::new("tester-kernel");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    // A mix has packets of 46 to 1498 B; the program in the kernel makes those of one size otherwise.
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
        all_came_back(&cells);
        world.forget();
    }
}

fn an_interface_that_takes_no_live_frames_is_sent_by_otherwise() {
    let world = World::new("tester-auto");
    world.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    ip(&world.tester, "link add mac0 link port0 type macvlan\nlink set mac0 up\n");
    let head = "router = \"Linux\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n";
    let configuration = world.configure(head, "[routes]\ncount = 50\n");
    let text = std::fs::read_to_string(&configuration).unwrap().replace("\"port0\"", "\"mac0\"");
    std::fs::write(&configuration, text).unwrap();
    ip(&world.router, &world.setup(&configuration, "linux"));
    let output = world.test(&configuration);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let said = told["record"].to_string();
    assert!(said.contains("The tester sends by AF_XDP"), "{said}");
    assert!(said.contains("live frames of XDP do not leave by mac0"), "{said}");
    all_came_back(&trials(&output));
}

fn a_router_that_does_otherwise_is_told_apart() {
    let world = World::new("tester-wrong");
    let head = "ready_within = \"1 s\"\nrouter = \"box\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
                sizes = [\"46 B\"]\noperations = [\"swap\"]\n";
    let configuration = world.configure(head, "[routes]\ncount = 1000\n[labels]\n");
    let right = world.setup(&configuration, "netstage");
    for (from, to, message) in [
        (
            "swap 3000",
            "swap 3007",
            "box forwarded 500 otherwise than it shall: labels 3007 (time to live 47) instead of 3000 (time to live 47)",
        ),
        ("eth1", "eth2", "to another port than the one they shall leave by"),
        ("2000", "2500", "500 came back from box: it does not know all routes or labels yet"),
    ] {
        let router =
            world.begin(&right.replacen(from, to, 1).replace("192.0.2.6 dev eth2", "192.0.2.10 dev eth2"));
        let refusal = refusal(&world.test(&configuration));
        assert!(refusal.contains(message), "{refusal}");
        drop(router);
        let _ = std::fs::remove_dir_all(world.folder.join("out"));
    }
}

fn packets_of_ipv6_are_forwarded_with_and_without_labels() {
    let world = World::new("tester-ipv6");
    world.give_ipv6();
    let head = "router = \"netstage\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"imix\"]\n";
    let rest = "[routes]\ncount = 200\nfirst = \"2001:db8::\"\n[labels]\npeers = 3\n";
    for operations in ["\"ip\", \"swap\", \"pop\", \"php\", \"unlabelled\"", "\"push\""] {
        let configuration = world.configure(&format!("{head}operations = [{operations}]\n"), rest);
        to_ipv6(&configuration);
        let router = world.begin(&world.setup(&configuration, "netstage"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(',').count());
        all_came_back(&cells);
        drop(router);
        world.forget();
    }
    // Under labels a router of IPv4 carries them too (6PE).
    let configuration = world.configure(&format!("{head}operations = [\"push\", \"swap\"]\n"), rest);
    let router = world.begin(&world.setup(&configuration, "netstage"));
    all_came_back(&trials(&world.test(&configuration)));
    drop(router);
    world.forget();
}

/// The shell blocks of docs/router-test.md, as they stand.
fn the_guide_does_what_it_says() {
    needs::namespaces();
    let folder = Folder::new("tester-guide");
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
    a_router_does_both_ways_what_labels_and_routes_say,
    the_kernel_forwards_ip_as_every_generator_sends_it,
    an_interface_that_takes_no_live_frames_is_sent_by_otherwise,
    a_router_that_does_otherwise_is_told_apart,
    packets_of_ipv6_are_forwarded_with_and_without_labels,
    #[ignore = "takes some minutes of measuring, and needs ethtool"]
    the_guide_does_what_it_says,
];
