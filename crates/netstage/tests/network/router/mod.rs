//! Two routers on real interfaces, in namespaces: hosts behind them reach each other through an LSP, with
//! and without the program in the kernel, as the kernel's routes and the routers' files say.

pub mod changes;
pub mod killed;
pub mod limits;
pub mod told;
mod world;

use self::world::{World, counted, interface, label, route, socket, state};
use crate::support::Folder;

fn sites_reach_each_other(fast_path: &str) {
    let world = World::new();
    let folder = Folder::new(&format!("router-{fast_path}"));
    let mut routers = world.begin_both(&folder, &format!("fast_path = \"{fast_path}\""));
    world.transfer();
    let state = state(&folder, 0);
    assert_eq!(state.fast_path, fast_path != "off");
    if state.fast_path {
        // All but what came before stations were known.
        let (pushed, popped) = (counted(&state, "kernel", "pushed"), counted(&state, "kernel", "popped"));
        assert!(pushed > 700 && popped > 700, "{pushed} {popped}");
        assert!(counted(&state, "program", "forwarded") < 100);
        let label = label(&folder, 0, 300).unwrap();
        // It was asked later, when the last of them may just have passed.
        assert!(label.to == "pop" && label.packets.is_some_and(|packets| packets >= popped), "{label:?}");
    } else {
        assert!(counted(&state, "program", "forwarded") > 1400);
    }
    let to = |prefix| route(&folder, 0, prefix).unwrap().to;
    assert_eq!(to("10.0.1.0/24"), "via 192.0.2.2 dev core0 push 301");
    assert_eq!(to("10.0.0.0/24"), "dev edge0", "the kernel's own");
    assert!(state.neighbours.iter().any(|one| one.address == "192.0.2.2" && one.station.is_some()));

    // The kernel forwards nothing meanwhile, and all is as before at the end.
    assert_eq!(world.forwards(), "0");
    routers[0].signal("-TERM");
    let [near, _far] = routers;
    let output = near.output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("ready; control socket"), "{said}");
    assert_eq!(world.forwards(), "1");
    assert!(!socket(&folder, 0).exists());
}

fn sites_reach_each_other_by_the_program_in_the_kernel() {
    sites_reach_each_other("auto");
}

fn sites_reach_each_other_by_the_slow_path() {
    sites_reach_each_other("off");
}

fn labels_pass_a_line_without_ethernet() {
    let world = World::new();
    let folder = Folder::new("router-tun");
    let line = world.join_core_by_tun();
    // The program in the kernel has the Ethernet of the sites.
    let _routers = [0, 1].map(|site| {
        world.configure(&folder, site, "", "");
        world.begin(&folder, site)
    });
    world.transfer();
    let state = state(&folder, 0);
    assert!(counted(&state, "program", "forwarded") > 1400);
    assert_eq!(route(&folder, 0, "10.0.1.0/24").unwrap().to, "via 192.0.2.2 dev core0 push 301");
    let slow = |name| interface(&folder, 0, name).slow;
    assert!(slow("core0").is_some_and(|why| why.contains("Ethernet")), "{:?}", slow("core0"));
    assert!(line.labelled() > 700);
}

fn what_is_wrong_is_told_with_its_remedy() {
    let world = World::new();
    let folder = Folder::new("router-refuses");
    let run = |text: &str| {
        let file = folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        world.refused(&file)
    };
    let control = format!("control = \"{}\"\n", folder.join("a.sock").display());
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"eth7\"]\n"));
    assert!(code == Some(1) && said.contains("there is no interface eth7"), "{code:?} {said}");
    std::fs::write(folder.join("fib.txt"), "10.0.0.0/8 dev edge0\n10.1.0.0/16 via core0\n").unwrap();
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"edge0\"]\nroutes = \"fib.txt\"\n"));
    assert!(code == Some(1) && said.contains("line 2: `core0` is not an IP address"), "{code:?} {said}");
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"edge0\", \"edge0\"]\n"));
    assert!(code == Some(2) && said.contains("`edge0` is named twice"), "{code:?} {said}");
    assert_eq!(world.forwards(), "1", "it is put back");
}

netstage_harness::tests![
    sites_reach_each_other_by_the_program_in_the_kernel,
    sites_reach_each_other_by_the_slow_path,
    labels_pass_a_line_without_ethernet,
    what_is_wrong_is_told_with_its_remedy,
];
