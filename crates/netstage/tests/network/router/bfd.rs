//! Tests of neighbors whose failure BFD detects: FRR's bfdd on the other side of a link, and routers with RSVP-TE.

use crate::router::network::{TIMEOUT, TwoSites, counted, interface, socket, start_in, state};
use crate::router::rsvp::{EAST, MIDDLE, Row};
use crate::support::network::{address, join};
use crate::support::{TemporaryFolder, TestProcess, within};
use netstage_harness::needs;
use netstage_host::netns::Netlink;
use netstage_host::realtime::{Rank, enter_realtime};
use netstage_router::daemon::state::BfdSessionState;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

const FRR: &str = "/usr/lib/frr";

fn session(folder: &TemporaryFolder, site: usize) -> BfdSessionState {
    state(folder, site).bfd.remove(0)
}

/// Starts a daemon of FRR at the far router; the process is that of the daemon.
fn daemon(
    world: &TwoSites,
    folder: &TemporaryFolder,
    name: &str,
    configuration: &str,
    options: &[&str],
) -> TestProcess {
    let here = folder.display();
    std::fs::write(folder.join(format!("{name}.conf")), configuration).unwrap();
    // FRR's daemons run as root, which must belong to the group of the sockets.
    let script = format!(
        "sed 's/^\\(frrvty:.*:\\)[^:]*$/\\1root/' /etc/group > {here}/group
         mount --bind {here}/group /etc/group
         exec {FRR}/{name} -u root -g root -z {here}/zserv.api --vty_socket {here} -P 0 -i {here}/{name}.pid \
             -f {here}/{name}.conf $@"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script, "sh"]);
    if name == "bfdd" {
        command.arg("--bfdctl").arg(folder.join("bfdd.sock"));
    }
    command.args(options);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    TestProcess::spawn_in(&world.routers[1], command)
}

/// Two links lead to the far router. Its BFD stops on one of them: the near router sends nothing over that link until it
/// is back.
fn traffic_leaves_a_neighbor_whose_bfdd_is_silent() {
    let world = TwoSites::new();
    needs::program("bfdd", "frr");
    join((&world.routers[0], "core1", 3), (&world.routers[1], "core1", 4));
    for (site, router) in world.routers.iter().enumerate() {
        let own = address(&format!("198.51.100.{}", site + 1));
        Netlink::open(router).unwrap().add_address("core1", own, 24).unwrap();
    }
    let folder = TemporaryFolder::new("router-bfd");
    let _zebra = daemon(&world, &folder, "zebra", "", &[]);
    assert!(within(TIMEOUT, || folder.join("zserv.api").exists()));
    let far =
        "bfd\n peer 192.0.2.1 interface core0\n  transmit-interval 20\n  receive-interval 20\n exit\nexit\n";
    let mut bfdd = daemon(&world, &folder, "bfdd", far, &[]);
    let routes = "10.0.1.0/24 via 192.0.2.2 dev core0 or via 198.51.100.2 dev core1\n";
    std::fs::write(folder.join("fib0.txt"), routes).unwrap();
    let configuration = format!(
        "[router]\ninterfaces = [\"edge0\", \"core0\", \"core1\"]\nroutes = \"fib0.txt\"\ncontrol = \"{}\"\n\
         v6_rows = 64\nfast_path = \"off\"\n[bfd]\nneighbors = [\"192.0.2.2\"]\ninterval = \"20 ms\"\n",
        socket(&folder, 0).display()
    );
    std::fs::write(folder.join("router0.toml"), configuration).unwrap();
    let _near = start_in(&world.routers[0], &folder, 0, TIMEOUT);
    let is_up = |is_up: bool| (session(&folder, 0).state == "up") == is_up;
    assert!(within(TIMEOUT, || is_up(true)), "{:?}", state(&folder, 0));
    assert!(
        within(TIMEOUT, || session(&folder, 0).detection_us == Some(60_000)),
        "{:?}",
        session(&folder, 0)
    );

    // Flows of 64 source ports take both links.
    let sent = |name: &str| interface(&folder, 0, name).sent.packets;
    let send = || {
        let before = ["core0", "core1"].map(sent);
        for _ in 0..64 {
            let from = world.hosts[0].run(|| UdpSocket::bind("10.0.0.2:0")).unwrap().unwrap();
            from.send_to(b"flow", "10.0.1.2:9").unwrap();
        }
        let all = || ["core0", "core1"].map(sent);
        assert!(
            within(TIMEOUT, || all().iter().sum::<u64>() >= before.iter().sum::<u64>() + 64),
            "{:?}",
            all()
        );
        all().iter().zip(&before).map(|(after, before)| after - before).collect::<Vec<u64>>()
    };
    assert!(within(TIMEOUT, || send().iter().all(|count| *count > 10)));
    bfdd.signal("-STOP");
    assert!(within(TIMEOUT, || is_up(false)));
    let reason = session(&folder, 0).reason;
    assert_eq!(reason.as_deref(), Some("control detection time expired"));
    assert_eq!(send(), [0, 64]);
    bfdd.signal("-CONT");
    assert!(within(TIMEOUT, || is_up(true)), "{:?}", session(&folder, 0));
    assert!(within(TIMEOUT, || send().iter().all(|count| *count > 10)));
}

/// A router in the middle freezes. Its neighbor ends the LSP through it when BFD is silent, long before RSVP-TE's hellos
/// are, and sets it up again afterwards.
fn an_lsp_ends_when_bfd_is_silent() {
    let row = Row::new("router-bfd-rsvp");
    let head = "fast_path = \"off\"";
    let bfd = |neighbor: &str| format!("[bfd]\nneighbors = [\"{neighbor}\"]\ninterval = \"20 ms\"\n");
    row.configure(0, [head, ""], &format!("{EAST}{}", bfd("10.1.0.2")));
    row.configure(1, [head, ""], "");
    row.configure(MIDDLE, [head, ""], &bfd("10.1.0.1"));
    for number in [0, 1, MIDDLE] {
        let file = row.folder.join(format!("router{number}.toml"));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, text.replace("hello = \"300 ms\"", "hello = \"1 h\"")).unwrap();
    }
    let [mut near, _far, mut middle] = [0, 1, MIDDLE].map(|number| row.start(number));
    row.wait_for_lsp(0, None);
    assert!(within(TIMEOUT, || session(&row.folder, 0).state == "up"));
    middle.signal("-STOP");
    assert!(within(TIMEOUT, || row.tunnels(0)[0].lsp.is_none()), "{:?}", row.tunnels(0));
    middle.signal("-CONT");
    row.wait_for_lsp(0, None);
    assert!(within(TIMEOUT, || row.world.reaches(100)));
    near.signal("-TERM");
    let log = String::from_utf8(near.output().stderr).unwrap();
    let lines =
        ["BFD: 10.1.0.2 on core0 is down", "RSVP-TE neighbor 10.1.0.2 has failed", "tunnel east is down"];
    let places = lines.map(|line| log.find(line).unwrap_or_else(|| panic!("{line}: {log}")));
    assert!(places.is_sorted(), "{log}");
}

/// The far router runs the sessions of its bfdd, which learns their states, counters, and that a frozen neighbor is down.
/// They are down after the end of the router, which does not forward any more, until it is back.
fn a_router_runs_the_sessions_of_bfdd() {
    let world = TwoSites::new();
    needs::program("bfdd", "frr");
    let folder = TemporaryFolder::new("router-bfdd");
    let _zebra = daemon(&world, &folder, "zebra", "", &[]);
    assert!(within(TIMEOUT, || folder.join("zserv.api").exists()));
    let peer = |address: &str| {
        format!(" peer {address} interface core0\n  transmit-interval 30\n  receive-interval 30\n exit\n")
    };
    // Nobody answers at the second address.
    let sessions = format!("bfd\n{}{}exit\n", peer("192.0.2.1"), peer("192.0.2.77"));
    let plane = format!("unix:{}", folder.join("plane.sock").display());
    let _bfdd = daemon(&world, &folder, "bfdd", &sessions, &["--dplaneaddr", &plane]);
    let bfd = format!("[bfd]\nbfdd = \"{}\"\n", folder.join("plane.sock").display());
    world.configure(&folder, 1, "", &bfd);
    let mut far = start_in(&world.routers[1], &folder, 1, TIMEOUT);
    world.configure(&folder, 0, "", "[bfd]\nneighbors = [\"192.0.2.2\"]\ninterval = \"20 ms\"\n");
    let mut near = start_in(&world.routers[0], &folder, 0, TIMEOUT);
    let show = |what: &str| {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(&*folder).args(["-d", "bfdd", "-c", &format!("show bfd {what} json")]);
        let peers: Vec<serde_json::Value> =
            serde_json::from_slice(&vtysh.output().unwrap().stdout).unwrap_or_default();
        peers.into_iter().find(|peer| peer["peer"] == "192.0.2.1").unwrap_or_default()
    };
    let is = |status: &str| show("peers")["status"] == status;
    let known = || state(&folder, 1).bfd;
    assert!(within(TIMEOUT, || is("up")), "{:?} {:?}", show("peers"), known());
    assert_eq!(known().len(), 2, "{:?}", known());
    let first = &known()[0];
    assert!(first.interface == "core0" && known().iter().any(|session| session.state == "down"), "{first:?}");
    assert_eq!(show("peers")["remote-receive-interval"], 20);
    let received = || show("peers counters")["control-packet-input"].as_u64().unwrap();
    let before = received();
    assert!(within(TIMEOUT, || received() > before), "{before}");

    near.signal("-STOP");
    assert!(within(TIMEOUT, || is("down")), "{:?}", show("peers"));
    near.signal("-CONT");
    assert!(within(TIMEOUT, || is("up")), "{:?}", show("peers"));

    far.signal("-TERM");
    assert!(within(TIMEOUT, || far.child().try_wait().unwrap().is_some()));
    assert!(within(TIMEOUT, || is("down") && session(&folder, 0).state != "up"), "{:?}", show("peers"));
    let _far = start_in(&world.routers[1], &folder, 1, TIMEOUT);
    assert!(within(TIMEOUT, || known().iter().any(|session| session.state == "up")), "{:?}", known());
    assert!(within(TIMEOUT, || is("up")), "{:?}", show("peers"));
}

/// Errors name the setting and the remedy.
fn neighbors_that_cannot_be_detected_are_refused() {
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-bfd-refused");
    let file = world.configure(&folder, 0, "", "[bfd]\nneighbors = [\"10.9.9.9\"]\n");
    let (code, output) = world.refused(&file);
    assert!(
        code == Some(1) && output.contains("10.9.9.9 is in no subnet of the router's interfaces"),
        "{output}"
    );
    let file = world.configure(&folder, 0, "", "[bfd]\nneighbors = [\"192.0.2.2\"]\n");
    let _other = world.routers[0].run(|| UdpSocket::bind("0.0.0.0:3784")).unwrap().unwrap();
    let (code, output) = world.refused(&file);
    assert!(code == Some(1) && output.contains("another program speaks BFD here"), "{output}");
}

/// Sessions with a detection time of 30 ms stay up while programs start on all CPUs, as with a compiler. A machine that
/// stops a CPU stops a router, whose neighbor is right to find it silent: such pauses are measured by threads that no
/// program can delay, and explain a failure within a second of them.
fn sessions_stay_up_beside_an_hour_of_load() {
    let length = Duration::from_secs(3600);
    let world = TwoSites::new();
    if !std::thread::spawn(|| enter_realtime(Rank::Links)).join().unwrap() {
        netstage_harness::skip("real-time priority is refused");
    }
    let folder = TemporaryFolder::new("router-bfd-load");
    let _routers = [0, 1].map(|site| {
        let bfd = format!("[bfd]\nneighbors = [\"192.0.2.{}\"]\ninterval = \"10 ms\"\n", 2 - site);
        world.configure(&folder, site, "", &bfd);
        start_in(&world.routers[site], &folder, site, TIMEOUT)
    });
    let is_up = || [0, 1].iter().all(|site| session(&folder, *site).state == "up");
    world.wait_for_fast_path(&folder);
    assert!(within(TIMEOUT, is_up));
    let timeouts = || [0, 1].map(|site| counted(&state(&folder, site), "bfd", "detection_timeouts"));
    let cpus = available_parallelism().unwrap().get();
    let ended = AtomicBool::new(false);
    let pauses = Mutex::new(Vec::new());
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        for cpu in 0..cpus {
            let (ended, pauses) = (&ended, &pauses);
            scope.spawn(move || measure_pauses(cpu, ended, pauses));
            for _ in 0..2 {
                scope.spawn(|| {
                    let load = "head -c 20000000 /dev/urandom | sort | cksum";
                    while !ended.load(Ordering::Relaxed) {
                        let done = Command::new("sh").args(["-c", load]).stdout(Stdio::null()).status();
                        assert!(done.unwrap().success());
                    }
                });
            }
        }
        let (end, mut before) = (Instant::now() + length, timeouts());
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(250));
            let now = timeouts();
            if now != before {
                failures.push(Instant::now());
            }
            before = now;
        }
        ended.store(true, Ordering::Relaxed);
    });
    let pauses = pauses.into_inner().unwrap();
    let longest = pauses.iter().map(|(_, pause)| *pause).max().unwrap_or_default();
    println!(
        "{length:?}: {} failures; the machine stopped a CPU for at least {MIN_PAUSE:?} {} times, for at most {longest:?}",
        failures.len(),
        pauses.len()
    );
    let near = |failure: &Instant, at: &Instant| {
        failure.max(at).duration_since(*failure.min(at)) < Duration::from_secs(1)
    };
    failures.retain(|failure| !pauses.iter().any(|(at, _)| near(failure, at)));
    assert!(failures.is_empty(), "{} failures without a pause of the machine", failures.len());
}

/// Pauses from which a neighbor may be silent for 30 ms: it sends 9 to 10 ms after the previous packet, and starts late.
const MIN_PAUSE: Duration = Duration::from_millis(15);

/// Records the ends and lengths of pauses of a CPU.
fn measure_pauses(cpu: usize, ended: &AtomicBool, pauses: &Mutex<Vec<(Instant, Duration)>>) {
    let mut only = CpuSet::new();
    only.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
    assert!(enter_realtime(Rank::Links));
    let mut last = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
        let now = Instant::now();
        if now - last > MIN_PAUSE {
            pauses.lock().unwrap().push((now, now - last));
        }
        last = now;
    }
}

netstage_harness::tests![
    traffic_leaves_a_neighbor_whose_bfdd_is_silent,
    an_lsp_ends_when_bfd_is_silent,
    a_router_runs_the_sessions_of_bfdd,
    neighbors_that_cannot_be_detected_are_refused,
    #[ignore = "takes an hour"]
    sessions_stay_up_beside_an_hour_of_load,
];
