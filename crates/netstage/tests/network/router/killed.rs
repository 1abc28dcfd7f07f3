//! What is left of a router that is killed, and who takes it over.

use crate::router::world::{PATIENCE, Stream, World, counted, interfaces, socket, state};
use crate::support::{Folder, Process, netstage, said, within};
use nix::mount::{MsFlags, mount, umount};
use std::path::{Path, PathBuf};

/// A file system for pins, which goes with the test.
struct Pins(PathBuf);

impl Pins {
    fn new(folder: &Path) -> Pins {
        let path = folder.join("bpf");
        std::fs::create_dir(&path).unwrap();
        mount(Some("bpf"), &path, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        Pins(path)
    }

    /// What is pinned there.
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

fn clean(world: &World, folder: &Folder) -> (Option<i32>, String) {
    let mut command = netstage(&["clean", "--socket"]);
    command.arg(socket(folder, 0));
    let output = Process::spawn_in(&world.routers[0], command).output();
    (output.status.code(), said(&output))
}

fn kill(mut router: Process) {
    router.signal("-KILL");
    drop(router.output());
}

fn a_killed_router_leaves_nothing_in_the_way_of_frames() {
    let world = World::new();
    let folder = Folder::new("router-killed");
    let [near, _far] = world.begin_both(&folder, "");
    assert!(world.reaches(100));
    let (code, said) = clean(&world, &folder);
    assert!(code == Some(1) && said.contains("a router is running"), "{code:?} {said}");
    kill(near);
    assert!(!world.reaches(100), "the program has gone with it");
    // The next one finds how settings were before the first.
    let mut again = world.begin(&folder, 0);
    assert!(within(PATIENCE, || world.reaches(100)));
    assert_eq!(world.forwards(), "0");
    again.signal("-TERM");
    assert!(again.output().status.success());
    assert_eq!(world.forwards(), "1");

    // Or they are put back by hand.
    kill(world.begin(&folder, 0));
    assert_eq!(world.forwards(), "0");
    let (code, said) = clean(&world, &folder);
    assert!(code == Some(0) && said.contains("put back net/ipv4/conf/edge0/forwarding"), "{code:?} {said}");
    assert_eq!(world.forwards(), "1");
    assert!(!socket(&folder, 0).exists());
    let (code, said) = clean(&world, &folder);
    assert!(code == Some(0) && said.contains("nothing was left"), "{code:?} {said}");
}

fn a_killed_router_forwards_on_until_the_next_takes_over() {
    let world = World::new();
    let folder = Folder::new("router-forwards-on");
    let pins = Pins::new(&folder);
    let head = format!("when_killed = \"forward\"\npins = \"{}\"", pins.0.display());
    let [near, _far] = world.begin_both(&folder, &head);
    world.transfer();
    assert_eq!(pins.all(), ["core0", "core0", "edge0", "edge0"]);
    let stream = Stream::begin(&world);
    kill(near);
    let sent = stream.sent();
    assert!(within(PATIENCE, || stream.sent() > sent + 300), "frames pass meanwhile");
    let near = world.begin(&folder, 0);
    assert!(within(PATIENCE, || interfaces(&folder, 0).iter().all(|interface| interface.slow.is_none())));
    let before = counted(&state(&folder, 0), "kernel", "pushed");
    assert!(within(PATIENCE, || counted(&state(&folder, 0), "kernel", "pushed") > before + 100));
    let (sent, lost) = stream.end();
    assert!(sent > 500 && lost.is_empty(), "{lost:?} of {sent}");
    assert_eq!(pins.all(), ["core0", "core0", "edge0", "edge0"]);

    // One that cannot begin leaves it as it is.
    kill(near);
    let file = folder.join("router0.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, good.replace("\"edge0\"", "\"edge0\", \"edge7\"")).unwrap();
    let (_, said) = world.refused(&file);
    assert!(said.contains("there is no interface edge7"), "{said}");
    assert!(world.reaches(100));
    std::fs::write(&file, good).unwrap();
    let near = world.begin(&folder, 0);

    // What nobody takes over is ended by hand.
    kill(near);
    assert!(world.reaches(100));
    let (code, said) = clean(&world, &folder);
    assert!(code == Some(0) && said.contains("4 settings, 2 programs"), "{code:?} {said}");
    assert_eq!((pins.all(), world.forwards()), (vec!["core0".into(), "edge0".into()], "1".into()));
    // The one that begins next and ends as it should leaves nothing.
    let mut near = world.begin(&folder, 0);
    near.signal("-TERM");
    assert!(near.output().status.success());
    assert_eq!(pins.all(), ["core0", "edge0"]);
}

fn where_nothing_can_be_pinned_it_does_not_begin() {
    let world = World::new();
    let folder = Folder::new("router-no-pins");
    let head = format!("when_killed = \"forward\"\npins = \"{}\"", folder.join("pins").display());
    let file = world.configure(&folder, 0, &head, "");
    let (code, said) = world.refused(&file);
    assert!(said.contains("it is not in a bpffs") && said.contains("mount -t bpf"), "{said}");
    assert_eq!((code, world.forwards().as_str()), (Some(1), "1"));
}

netstage_harness::tests![
    a_killed_router_leaves_nothing_in_the_way_of_frames,
    a_killed_router_forwards_on_until_the_next_takes_over,
    where_nothing_can_be_pinned_it_does_not_begin,
];
