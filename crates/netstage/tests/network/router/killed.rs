//! Tests of killed routers: remains, restart and cleanup.

use crate::router::network::{
    DatagramStream, StreamEnd, TIMEOUT, TwoSites, counted, interfaces, socket, state,
};
use crate::support::{TemporaryFolder, TestProcess, netstage, output_text, within};
use nix::mount::{MsFlags, mount, umount};
use std::path::{Path, PathBuf};

/// Mounted bpffs for pins, removed at the end of the test.
struct Pins(PathBuf);

impl Pins {
    fn new(folder: &Path) -> Pins {
        let path = folder.join("bpf");
        std::fs::create_dir(&path).unwrap();
        mount(Some("bpf"), &path, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        Pins(path)
    }

    /// Returns the sorted names of all pins.
    fn all(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        let pins = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
        let mut names: Vec<String> = pins.map(|pin| pin.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = umount(&self.0);
    }
}

fn clean(world: &TwoSites, folder: &TemporaryFolder) -> (Option<i32>, String) {
    let mut command = netstage(&["clean", "--socket"]);
    command.arg(socket(folder, 0));
    let output = TestProcess::spawn_in(&world.routers[0], command).output();
    (output.status.code(), output_text(&output))
}

fn kill(mut router: TestProcess) {
    router.signal("-KILL");
    drop(router.output());
}

fn forwarding_ends_with_a_killed_router_and_settings_are_restored() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-killed");
    let [near, _far] = world.start_both(&folder, "");
    assert!(world.reaches(100));
    let (code, printed) = clean(&world, &folder);
    assert!(code == Some(1) && printed.contains("a router is running"), "{code:?} {printed}");
    kill(near);
    assert!(!world.reaches(100), "the BPF program ends with the router");
    // The next router knows the settings before the first.
    let mut again = world.start(&folder, 0);
    assert!(within(TIMEOUT, || world.reaches(100)));
    assert_eq!(world.forwards(), "0");
    again.signal("-TERM");
    assert!(again.output().status.success());
    assert_eq!(world.forwards(), "1");

    // The settings are restored by hand.
    kill(world.start(&folder, 0));
    assert_eq!(world.forwards(), "0");
    let (code, printed) = clean(&world, &folder);
    assert!(
        code == Some(0)
            && printed.contains("restored net/ipv4/conf/edge0/forwarding")
            && printed.contains("restored ip -6 rule iif edge0"),
        "{code:?} {printed}"
    );
    assert_eq!(world.forwards(), "1");
    assert!(!socket(&folder, 0).exists());
    let (code, printed) = clean(&world, &folder);
    assert!(code == Some(0) && printed.contains("nothing to clean up"), "{code:?} {printed}");
}

fn forwarding_continues_after_a_kill_until_the_next_router_starts() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-forwards-on");
    let pins = Pins::new(&folder);
    let head = format!("when_killed = \"forward\"\npins = \"{}\"", pins.0.display());
    let [near, _far] = world.start_both(&folder, &head);
    world.transfer();
    assert_eq!(pins.all(), ["core0", "core0", "edge0", "edge0"]);
    let stream = DatagramStream::start(&world);
    kill(near);
    let sent = stream.sent();
    assert!(within(TIMEOUT, || stream.sent() > sent + 300), "frames are forwarded in the meantime");
    // The kernel forgets neighbors it does not use, if its table is full.
    let mut flush = std::process::Command::new("ip");
    flush.args(["neighbor", "flush", "dev", "core0"]);
    assert!(netstage_host::netns::spawn_in(&world.routers[0], flush).unwrap().wait().unwrap().success());
    let near = world.start(&folder, 0);
    assert!(within(TIMEOUT, || interfaces(&folder, 0).iter().all(|interface| interface.slow.is_none())));
    let before = counted(&state(&folder, 0), "kernel", "pushed");
    assert!(within(TIMEOUT, || counted(&state(&folder, 0), "kernel", "pushed") > before + 100));
    let StreamEnd { sent, lost, .. } = stream.end();
    assert!(sent > 500 && lost.is_empty(), "{lost:?} of {sent}: {:#?}", state(&folder, 0));
    assert_eq!(pins.all(), ["core0", "core0", "edge0", "edge0"]);

    // A router that fails to start changes nothing.
    kill(near);
    let file = folder.join("router0.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, good.replace("\"edge0\"", "\"edge0\", \"edge7\"")).unwrap();
    let (_, printed) = world.refused(&file);
    assert!(printed.contains("there is no interface edge7"), "{printed}");
    assert!(world.reaches(100));
    std::fs::write(&file, good).unwrap();
    let near = world.start(&folder, 0);

    // Remains are removed by hand.
    kill(near);
    assert!(world.reaches(100));
    let (code, printed) = clean(&world, &folder);
    assert!(code == Some(0) && printed.contains("4 settings, 2 programs"), "{code:?} {printed}");
    assert_eq!((pins.all(), world.forwards()), (vec!["core0".into(), "edge0".into()], "1".into()));
    // The next router leaves nothing after a normal end.
    let mut near = world.start(&folder, 0);
    near.signal("-TERM");
    assert!(near.output().status.success());
    assert_eq!(pins.all(), ["core0", "edge0"]);
}

fn a_router_without_a_bpffs_for_pins_does_not_start() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-no-pins");
    let head = format!("when_killed = \"forward\"\npins = \"{}\"", folder.join("pins").display());
    let file = world.configure(&folder, 0, &head, "");
    let (code, printed) = world.refused(&file);
    assert!(printed.contains("it is not in a bpffs") && printed.contains("mount -t bpf"), "{printed}");
    assert_eq!((code, world.forwards().as_str()), (Some(1), "1"));
}

netstage_harness::tests![
    forwarding_ends_with_a_killed_router_and_settings_are_restored,
    forwarding_continues_after_a_kill_until_the_next_router_starts,
    a_router_without_a_bpffs_for_pins_does_not_start,
];
