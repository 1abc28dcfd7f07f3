//! Sessions with FRR's ldpd, in namespaces that end with the test. FRR runs unchanged, and needs neither root
//! nor MPLS in the kernel for what is looked at here: what it is told, tells and releases.
//!
//! ```text
//! cargo test --release -p netstage-core --test ldp_frr -- --ignored --nocapture
//! ```

mod driver;

use driver::Driver;
use netstage_core::ldp::{Binding, Config, Event, Speaker};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::Label;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What each end tells the other.
const MAPPINGS: u32 = 10_000;
/// Set where the test already is in namespaces of its own.
const INSIDE: &str = "NETSTAGE_LDP_FRR_INSIDE";

fn ours(number: u32) -> Fec {
    Fec::prefix(Ipv4Addr::from(0x0b00_0000 | number << 8).into(), 24).unwrap()
}

fn theirs(number: u32) -> Fec {
    Fec::prefix(Ipv4Addr::from(0x0c00_0000 | number << 8).into(), 24).unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn shell(script: &str) -> String {
    run(Command::new("sh").args(["-ec", script]))
}

/// Runs a test again in namespaces of its own, and tells whether this is that run.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own =
        ["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let may = Command::new("unshare").args(own).arg("true").stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: namespaces are not allowed here");
    } else if !PathBuf::from("/usr/lib/frr/ldpd").exists() {
        println!("skipped: FRR's ldpd is not installed (apt-get install frr)");
    } else {
        let mut again = Command::new("unshare");
        again.args(own).arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
        let status = again.args(["--exact", test, "--ignored", "--nocapture"]).status().unwrap();
        assert!(status.success(), "{test}: {status}");
    }
    false
}

/// FRR in a namespace, joined to this one by a link.
struct Frr {
    namespace: Child,
    folder: PathBuf,
}

impl Frr {
    fn start(address: Ipv4Addr, own: Ipv4Addr) -> Frr {
        let folder = std::env::temp_dir().join(format!("netstage-ldp-{}-{own}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let namespace = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn().unwrap();
        let pid = namespace.id();
        let net = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
        while net(&pid.to_string()) == net("self") {
            std::thread::yield_now();
        }
        let frr = Frr { namespace, folder };
        shell(&format!(
            "ip link set lo up
             ip link add ours type veth peer name theirs netns {pid}
             ip addr add {own}/24 dev ours
             ip link set ours up
             ip route add 224.0.0.0/4 dev ours"
        ));
        frr.inside(&format!("ip link set lo up; ip addr add {address}/24 dev theirs; ip link set theirs up"));
        let mut routes = String::new();
        for number in 0..MAPPINGS {
            let prefix = Ipv4Addr::from(0x0c00_0000 | number << 8);
            writeln!(routes, "route add {prefix}/24 via {own}").unwrap();
        }
        let here = frr.folder.display();
        std::fs::write(frr.folder.join("routes"), routes).unwrap();
        frr.inside(&format!("ip -batch {here}/routes"));
        let configuration = format!(
            "mpls ldp\n router-id {address}\n address-family ipv4\n  discovery transport-address {address}\n  \
             interface theirs\n exit-address-family\n"
        );
        std::fs::write(frr.folder.join("ldpd.conf"), configuration).unwrap();
        // FRR's daemons stay root, which has to be of the group of its sockets.
        let common = format!("-d -u root -g root -z {here}/zserv.api --vty_socket {here} -A 127.0.0.1 -P 0");
        frr.inside(&format!(
            "sed 's/^\\(frrvty:.*:\\)[^:]*$/\\1root/' /etc/group > {here}/group
             mount --bind {here}/group /etc/group
             /usr/lib/frr/zebra {common} -f /dev/null -i {here}/zebra.pid
             /usr/lib/frr/ldpd {common} -f {here}/ldpd.conf -i {here}/ldpd.pid --ctl_socket {here}"
        ));
        frr
    }

    fn inside(&self, script: &str) -> String {
        run(Command::new("nsenter").args(["-t", &self.namespace.id().to_string(), "-n", "sh", "-ec", script]))
    }

    /// What a command of its says, while a speaker goes on.
    fn says(&self, driver: &mut Driver, command: &str) -> String {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(&self.folder).args(["-c", command]).stderr(Stdio::null());
        let asked = std::thread::spawn(move || run(&mut vtysh));
        driver.until(command, 60, |_| asked.is_finished());
        asked.join().unwrap()
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        _ = self.namespace.kill();
        _ = self.namespace.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// How many bindings FRR has from this end, and how many of them with a label like this.
fn bindings(json: &str, label: &str) -> usize {
    let label = format!("\"remoteLabel\":\"{label}\"");
    json.split("\"prefix\":\"")
        .skip(1)
        .filter(|entry| entry.starts_with("11.") && entry.contains(&label))
        .count()
}

fn session(own: Ipv4Addr, address: Ipv4Addr) -> Driver {
    let frr = Frr::start(address, own);
    let peer = Identifier { router: address, space: 0 };
    let mut speaker = Speaker::new(Config::new(own, own));
    speaker.set_addresses([own.into()]);
    for number in 0..MAPPINGS {
        let label = Label::new(1000 + number).unwrap();
        speaker.bind(ours(number), Binding::Transit { label, next_hop: address.into() }).unwrap();
    }
    let label = Label::new(500).unwrap();
    speaker.bind(theirs(5), Binding::Transit { label, next_hop: address.into() }).unwrap();
    let mut driver = Driver::new(speaker, own);

    let seconds = driver.until("a session", 60, |driver| driver.events.contains(&Event::Up { peer }));
    println!("a session is up after {seconds:.3} s");
    let seconds = driver.until("all of FRR's mappings", 60, |driver| {
        let told: Vec<Fec> = driver.speaker.mappings_of(peer).map(|(fec, _)| fec).collect();
        told.len() > MAPPINGS as usize
            && (0..MAPPINGS).all(|number| told.binary_search(&theirs(number)).is_ok())
    });
    println!("FRR's {MAPPINGS} mappings are here {seconds:.3} s later");
    let mut asked = 0;
    let begin = driver.now();
    loop {
        let known = frr.says(&mut driver, "show mpls ldp binding json");
        let is_ours = |number| known.contains(&format!("\"remoteLabel\":\"{}\"", 1000 + number));
        asked += 1;
        if known.matches("\"prefix\":\"11.").count() == MAPPINGS as usize && (0..MAPPINGS).all(is_ours) {
            break;
        }
        assert!(driver.now().since(begin).as_secs_f64() < 60.0, "FRR does not take all mappings");
    }
    let seconds = driver.now().since(begin).as_secs_f64();
    println!("FRR has this end's {MAPPINGS} mappings, and shows them (asked {asked} times, {seconds:.3} s)");
    let (next, _) = driver.speaker.outgoing(theirs(5)).expect("FRR's label for its prefix");
    assert_eq!(next, peer);

    for number in 0..MAPPINGS {
        driver.speaker.unbind(ours(number));
    }
    let mut free = 0;
    let seconds = driver.until("all releases", 60, |driver| {
        free += driver.events.drain(..).filter(|event| matches!(event, Event::Free { .. })).count();
        free == MAPPINGS as usize
    });
    println!("FRR has released all {MAPPINGS} labels {seconds:.3} s after they were withdrawn");
    assert_eq!(bindings(&frr.says(&mut driver, "show mpls ldp binding json"), "imp-null"), 0);
    driver.speaker.bind(ours(7), Binding::Egress { label: None }).unwrap();
    driver.until("penultimate-hop popping", 20, |driver| {
        bindings(&frr.says(driver, "show mpls ldp binding json"), "imp-null") == 1
    });

    frr.says(&mut driver, "clear mpls ldp neighbor");
    driver.until("the session's end", 20, |driver| {
        driver.events.iter().any(|event| matches!(event, Event::Down { .. }))
    });
    let seconds = driver.until("its return", 60, |driver| driver.events.contains(&Event::Up { peer }));
    println!("after FRR has cleared it the session is back in {seconds:.3} s");
    driver
}

#[test]
#[ignore = "needs FRR and namespaces"]
fn the_session_is_opened_by_this_end() {
    if is_inside("the_session_is_opened_by_this_end") {
        let driver = session(Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 1));
        assert!(driver.connected > 0 && driver.accepted == 0);
    }
}

#[test]
#[ignore = "needs FRR and namespaces"]
fn the_session_is_opened_by_frr() {
    if is_inside("the_session_is_opened_by_frr") {
        let driver = session(Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 3));
        assert!(driver.connected == 0 && driver.accepted > 0);
    }
}
