//! Test of netstage's router with GoBGP: its routes reach the kernel by FRR's zebra, and the router forwards by them.

use super::frr;
use super::network::{TesterNetwork, assert_all_received, ip, trials};
use netstage_harness::skip;
use std::path::Path;
use std::process::Command;

/// Oldest usable version. Earlier ones panic on an interface message of zebra (FRR 8.4).
const MIN_VERSION: u32 = 4;

fn need_gobgp() {
    let output = Command::new("gobgpd").arg("--version").output();
    let version =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let number = version.trim().trim_start_matches("gobgpd version ").split('.').next().unwrap_or_default();
    let is_usable = number.parse::<u32>().is_ok_and(|number| number >= MIN_VERSION);
    if !is_usable || !Path::new(frr::FOLDER).join("zebra").exists() {
        skip(format!("needs frr and GoBGP {MIN_VERSION} or newer; found: {version}"));
    }
}

fn gobgp_configures_the_router_by_zebra() {
    let world = TesterNetwork::new("tester-gobgp");
    need_gobgp();
    ip(&world.router, "link set lo up\n");
    let head = "router = \"netstage with GoBGP\"\nready_within = \"30 s\"\nfrom = [\"west\"]\n\
                to = [\"east\", \"south\"]\nsizes = [\"46 B\"]\n";
    let rest = "[routes]\ncount = 500\nby = \"bgp\"\n[bgp]\nown_as = 65002\nrouter_as = 65001\n";
    let configuration = world.configure(head, rest);
    let here = world.folder.display();
    let neighbor = |address: &str| {
        format!(
            "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{address}\"\npeer-as = 65002\n\
             [neighbors.transport.config]\npassive-mode = true\n"
        )
    };
    let text = format!(
        "[global.config]\nas = 65001\nrouter-id = \"192.0.2.1\"\n[zebra.config]\nenabled = true\n\
         url = \"unix:{here}/zserv.api\"\nversion = 6\nsoftware-name = \"frr8.4\"\n{}{}",
        neighbor("192.0.2.6"),
        neighbor("192.0.2.10")
    );
    std::fs::write(world.folder.join("gobgpd.toml"), text).unwrap();
    std::fs::write(world.folder.join("zebra.conf"), "").unwrap();
    let zebra = format!("{}/zebra {}", frr::FOLDER, frr::common(&world));
    let script = format!(
        "{zebra} -f {here}/zebra.conf -i {here}/zebra.pid
         until test -S {here}/zserv.api; do sleep 0.1; done
         exec gobgpd -f {here}/gobgpd.toml --api-hosts unix://{here}/gobgp.sock"
    );
    let _daemons = frr::daemons(&world, &script);
    let router = world.start("");
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    assert_all_received(&cells);
    drop(router);
}

netstage_harness::tests![
    #[ignore = "needs a GoBGP that speaks with Debian's zebra: docs/router.md"]
    gobgp_configures_the_router_by_zebra,
];
