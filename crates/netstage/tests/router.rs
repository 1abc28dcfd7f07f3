//! Two routers on real interfaces, in namespaces: hosts behind them reach each other through an LSP, with
//! and without the program in the kernel, as the kernel's routes and the routers' files say.

mod support;

use netstage_live::netns::netlink::{Metrics, Netlink, Route, VethEnd, VethOptions, create_veth};
use netstage_live::netns::user::{Privileges, privileges};
use netstage_live::netns::{Namespace, ethtool, spawn_in};
use netstage_live::router::daemon::{State, ask};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Folder, Process, within};

const PATIENCE: Duration = Duration::from_secs(20);
const PROGRAM: &str = env!("CARGO_BIN_EXE_netstage");

/// Hosts 10.0.0.2 and 10.0.1.2, the routers 10.0.0.1 and 10.0.1.1 before them, and 192.0.2.1 and .2 between.
struct World {
    hosts: [Namespace; 2],
    routers: [Namespace; 2],
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn join(left: (&Namespace, &str, u8), right: (&Namespace, &str, u8)) {
    let options = VethOptions { resolve_neighbours: true, ..VethOptions::default() };
    let end = |(namespace, name, mac)| VethEnd { namespace, name, mac: [2, 0, 0, 0, 0, mac] };
    create_veth(end(left), end(right), options).unwrap();
    for (namespace, name, _) in [left, right] {
        ethtool::offloads_off(namespace, name).unwrap();
        Netlink::open(namespace).unwrap().set_up(name).unwrap();
    }
}

impl World {
    /// Without privileges there is none.
    fn new() -> Option<World> {
        if privileges() != Privileges::Held {
            println!("skipped: needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW");
            return None;
        }
        let (hosts, routers) =
            ([(); 2].map(|()| Namespace::new().unwrap()), [(); 2].map(|()| Namespace::new().unwrap()));
        join((&routers[0], "core0", 1), (&routers[1], "core0", 2));
        for (site, (host, router)) in hosts.iter().zip(&routers).enumerate() {
            join((router, "edge0", 16 + site as u8), (host, "eth0", 32 + site as u8));
            // Frames that are redirected to it are lost otherwise.
            ethtool::switch_on(host, "eth0", &["rx-gro".into()]).unwrap();
            router.sysctl("net/ipv4/ip_forward", "1").unwrap();
            let mut netlink = Netlink::open(router).unwrap();
            netlink.add_address("core0", address(&format!("192.0.2.{}", site + 1)), 24).unwrap();
            netlink.add_address("edge0", address(&format!("10.0.{site}.1")), 24).unwrap();
            let mut netlink = Netlink::open(host).unwrap();
            netlink.add_address("eth0", address(&format!("10.0.{site}.2")), 24).unwrap();
            let default = Route {
                destination: (address("0.0.0.0"), 0),
                gateway: Some(address(&format!("10.0.{site}.1"))),
                link: "eth0",
                preferred_source: None,
                metrics: Metrics::default(),
            };
            netlink.add_route(&default).unwrap();
        }
        for (host, router) in hosts.iter().zip(&routers) {
            Netlink::open(host).unwrap().wait_until_ready("eth0").unwrap();
            Netlink::open(router).unwrap().wait_until_ready("core0").unwrap();
        }
        Some(World { hosts, routers })
    }

    /// A router whose file leads to the other site by a label, which the other one pops.
    fn begin(&self, folder: &Folder, site: usize, fast_path: &str) -> Process {
        let (far, own) = (1 - site, 300 + site);
        let routes = format!(
            "10.0.{far}.0/24 via 192.0.2.{} dev core0 push {}\nlabel {own} pop\n",
            far + 1,
            300 + far
        );
        std::fs::write(folder.join(format!("fib{site}.txt")), routes).unwrap();
        let text = format!(
            "[router]\ninterfaces = [\"edge0\", \"core0\"]\nmpls = [\"core0\"]\nroutes = \"fib{site}.txt\"\n\
             control = \"{}\"\nfast_path = \"{fast_path}\"\nv6_rows = 64\n",
            self.socket(folder, site).display()
        );
        let file = folder.join(format!("router{site}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["router", "run"]).arg(file).stderr(Stdio::piped());
        let process = Process::new(spawn_in(&self.routers[site], command).unwrap());
        assert!(
            within(PATIENCE, || ask(&self.socket(folder, site)).is_ok()),
            "router {site} does not answer"
        );
        process
    }

    fn socket(&self, folder: &Folder, site: usize) -> std::path::PathBuf {
        folder.join(format!("router{site}.sock"))
    }

    /// A megabyte there and back.
    fn transfer(&self) {
        const BYTES: usize = 1 << 20;
        let listener = self.hosts[1].run(|| TcpListener::bind("10.0.1.2:80")).unwrap().unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let connect = || TcpStream::connect_timeout(&"10.0.1.2:80".parse().unwrap(), PATIENCE);
        let mut stream = self.hosts[0].run(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|byte| (byte * 7 % 251) as u8).collect();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; BYTES];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent);
        echo.join().unwrap();
    }
}

fn counted(state: &State, path: &str, name: &str) -> u64 {
    let count = state.counters.iter().find(|count| count.path == path && count.name == name);
    count.unwrap_or_else(|| panic!("{path} counts {name}")).packets
}

fn sites_reach_each_other(fast_path: &str) {
    let Some(world) = World::new() else { return };
    let folder = Folder::new(&format!("router-{fast_path}"));
    let mut routers = [0, 1].map(|site| world.begin(&folder, site, fast_path));
    world.transfer();
    let state = ask(&world.socket(&folder, 0)).unwrap();
    assert_eq!(state.fast_path, fast_path != "off");
    if state.fast_path {
        // All but what came before stations were known.
        let (pushed, popped) = (counted(&state, "kernel", "pushed"), counted(&state, "kernel", "popped"));
        assert!(pushed > 700 && popped > 700, "{pushed} {popped}");
        assert!(counted(&state, "program", "forwarded") < 100);
        let label = state.labels.iter().find(|label| label.label == 300).unwrap();
        assert_eq!((label.to.as_str(), label.packets), ("pop", Some(popped)));
    } else {
        assert!(counted(&state, "program", "forwarded") > 1400);
    }
    let route = state.routes.iter().find(|route| route.prefix == "10.0.1.0/24").unwrap();
    assert_eq!(route.to, "via 192.0.2.2 dev core0 push 301");
    let connected = state.routes.iter().find(|route| route.prefix == "10.0.0.0/24").unwrap();
    assert_eq!(connected.to, "dev edge0", "the kernel's own");
    assert!(state.neighbours.iter().any(|one| one.address == "192.0.2.2" && one.station.is_some()));

    // The kernel forwards nothing meanwhile, and all is as before at the end.
    let forwards = || world.routers[0].sysctl_value("net/ipv4/conf/edge0/forwarding").unwrap();
    assert_eq!(forwards(), "0");
    routers[0].signal("-TERM");
    let [near, _far] = routers;
    let output = near.output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("ready; control socket"), "{said}");
    assert_eq!(forwards(), "1");
    assert!(!world.socket(&folder, 0).exists());
}

#[test]
fn sites_reach_each_other_by_the_program_in_the_kernel() {
    sites_reach_each_other("auto");
}

#[test]
fn sites_reach_each_other_by_the_slow_path() {
    sites_reach_each_other("off");
}

#[test]
fn what_is_wrong_is_told_with_its_remedy() {
    let Some(world) = World::new() else { return };
    let folder = Folder::new("router-refuses");
    let run = |text: &str| {
        let file = folder.join("router.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["router", "run"]).arg(file).stderr(Stdio::piped());
        let output = Process::new(spawn_in(&world.routers[0], command).unwrap()).output();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let control = format!("control = \"{}\"\n", folder.join("a.sock").display());
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"eth7\"]\n"));
    assert!(code == Some(1) && said.contains("there is no interface eth7"), "{code:?} {said}");
    std::fs::write(folder.join("fib.txt"), "10.0.0.0/8 dev edge0\n10.1.0.0/16 via core0\n").unwrap();
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"edge0\"]\nroutes = \"fib.txt\"\n"));
    assert!(code == Some(1) && said.contains("line 2: `core0` is no address"), "{code:?} {said}");
    let (code, said) = run(&format!("[router]\n{control}interfaces = [\"edge0\", \"edge0\"]\n"));
    assert!(code == Some(2) && said.contains("`edge0` is named twice"), "{code:?} {said}");
    assert_eq!(
        world.routers[0].sysctl_value("net/ipv4/conf/edge0/forwarding").unwrap(),
        "1",
        "it is put back"
    );
}
