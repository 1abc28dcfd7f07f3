//! Forwarders between generator and receiver.

use super::Outcome;
use super::open_vswitch::{self, Task};
use super::stage::{Frames, IN, OUT, RATES, RECEIVER, RUN, SENDER, Stage, rate, receive, received};
use aya::EbpfLoader;
use aya::programs::{Xdp, XdpMode};
use netstage_core::forward::Model;
use netstage_core::forward::lpm::Shape;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::routes::{Metrics, Route};
use netstage_host::netns::{Namespace, ethtool, spawn_in};
use netstage_router::fast_path::FastPath;
use netstage_router::fib::{Fib, Interface};
use netstage_router::tables::{Sizes, Tables};
use netstage_routing::source::path::{Change, Destination, Meaning, Path};
use netstage_scenario::tester::Operation;
use netstage_tester::form::{self, Destinations};
use netstage_tester::generator::{self, End, Stream};
use netstage_wire::mpls::Label;
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Numbers of destination networks: usual, few, and as many as the Internet has.
pub const USUAL: u32 = 50_000;
pub const FEW: u32 = 10;
pub const MANY: u32 = 1_000_000;
/// First network: 11.0.0.0/24.
pub const FIRST: u32 = 11 << 24;
/// Labels of received and of sent packets.
pub const LABEL: u32 = 300;
const SWAPPED: u32 = 400;
const NEXT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);

/// Setup between generator and receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Unmodified frames, which gives the maximum rate.
    Bare,
    /// Generator of the router tester, with numbers, timestamps and checksums.
    Stamped,
    /// Generator used here for routers.
    Scattered,
    Trafgen,
    Kernel,
    FibLookup,
    Ip(u32),
    Push,
    Swap,
    Pop,
    SwitchPush,
    SwitchSwap,
    SwitchPop,
}

impl Way {
    pub const ALL: &[Way] = &[
        Way::Bare,
        Way::Stamped,
        Way::Scattered,
        Way::Trafgen,
        Way::Kernel,
        Way::FibLookup,
        Way::Ip(FEW),
        Way::Ip(USUAL),
        Way::Ip(MANY),
        Way::Push,
        Way::Swap,
        Way::Pop,
        Way::SwitchPush,
        Way::SwitchSwap,
        Way::SwitchPop,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Way::Bare => "bare live frames",
            Way::Stamped => "generator of the tester",
            Way::Scattered => "generator of these rates",
            Way::Trafgen => "trafgen",
            Way::Kernel => "kernel IPv4, 50,000 routes",
            Way::FibLookup => "XDP FIB lookup, 50,000 routes",
            Way::Ip(FEW) => "IPv4, 10 routes",
            Way::Ip(USUAL) => "IPv4, 50,000 routes",
            Way::Ip(_) => "IPv4, 1,000,000 routes",
            Way::Push => "PUSH, 50,000 routes",
            Way::Swap => "SWAP",
            Way::Pop => "POP, 50,000 routes",
            Way::SwitchPush => "Open vSwitch PUSH",
            Way::SwitchSwap => "Open vSwitch SWAP",
            Way::SwitchPop => "Open vSwitch POP",
        }
    }

    /// Creates the network on which the setup is measured.
    pub fn prepare(self) -> Outcome<Stage> {
        let is_direct = matches!(self, Way::Bare | Way::Stamped | Way::Scattered | Way::Trafgen);
        let mut stage = Stage::new(is_direct)?;
        let router = &stage.router;
        let between: Box<dyn Any> = match self {
            Way::Bare | Way::Stamped | Way::Scattered => Box::new(()),
            Way::Trafgen => Box::new(open_vswitch::installed("trafgen", "netsniff-ng")?),
            Way::Kernel => Box::new(by_kernel(router)?),
            Way::FibLookup => Box::new(by_fib_lookup(router)?),
            Way::Ip(_) | Way::Push | Way::Swap | Way::Pop => Box::new(by_program(router, self)?),
            Way::SwitchPush => Box::new(open_vswitch::Switch::start(router, Task::Push(SWAPPED))?),
            Way::SwitchSwap => Box::new(open_vswitch::Switch::start(router, Task::Swap(LABEL, SWAPPED))?),
            Way::SwitchPop => Box::new(open_vswitch::Switch::start(router, Task::Pop(LABEL))?),
        };
        stage.between = between;
        Ok(stage)
    }

    /// Returns received frames per second.
    pub fn rate(self, stage: &Stage, length: usize) -> Outcome<f64> {
        let networks = match self {
            Way::Ip(networks) => networks,
            _ => USUAL,
        };
        let is_labeled = matches!(self, Way::Swap | Way::Pop | Way::SwitchSwap | Way::SwitchPop);
        let label = Label::new(LABEL).filter(|_| is_labeled);
        let generator = if self == Way::Bare { "bare" } else { "scatter" };
        let frames = Frames { generator, networks, label, length };
        match self {
            Way::Stamped => by_tester(stage, length),
            Way::Trafgen => by_trafgen(stage, frames),
            _ => rate(&stage.tester, frames),
        }
    }
}

/// Returns the rate of the tester's generator at an unattainable requested rate.
fn by_tester(stage: &Stage, length: usize) -> Outcome<f64> {
    let receiver = receive(&stage.tester)?;
    let from = Netlink::open(&stage.tester)?.link("from")?.index;
    let stream = Stream {
        form: form::sent(Operation::Ip, Vec::new(), Ipv4Addr::new(10, 0, 0, 2).into(), [SENDER, IN]),
        to: Destinations { first: Ipv4Addr::from(FIRST).into(), networks: USUAL, peers: 1 },
        // Without Ethernet header and check sequence.
        lengths: vec![(length - 18) as u16],
        trial: 0,
        number: 0,
        rate: 50e6,
        frames: RUN.into(),
        most_lost_ns: u64::MAX,
    };
    let (before, end) = (received(&receiver)?, End::default());
    let mut start_ns = 0;
    let start = || {
        start_ns = monotonic_ns();
        start_ns
    };
    let sent = stage.tester.run(|| generator::in_kernel(&stream, from, start, &end))??;
    std::thread::sleep(Duration::from_millis(20));
    let arrived = received(&receiver)? - before;
    if arrived < sent.sent {
        return Err(format!("{} of {} frames arrived", arrived, sent.sent).into());
    }
    // The kernel's setup time is included, as in the other measurements.
    Ok(sent.sent as f64 * 1e9 / (sent.last_ns - start_ns) as f64)
}

/// Returns the rate of trafgen for the same frame, measured for a second.
fn by_trafgen(stage: &Stage, frames: Frames) -> Outcome<f64> {
    let receiver = receive(&stage.tester)?;
    let bytes: Vec<String> = frames.template().iter().map(|byte| byte.to_string()).collect();
    let file = std::env::temp_dir().join(format!("netstage-trafgen-{}.conf", std::process::id()));
    std::fs::write(&file, format!("{{ {} }}\n", bytes.join(", ")))?;
    // Child processes end with the first process of the namespace.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "trafgen"]);
    command.args(["--dev", "from", "--cpus", "1", "--num", "0", "--conf"]).arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut sending = spawn_in(&stage.tester, command)?;
    // Trafgen needs time to start.
    std::thread::sleep(Duration::from_millis(500));
    let (before, start) = (received(&receiver)?, Instant::now());
    std::thread::sleep(Duration::from_millis(1000));
    let rate = (received(&receiver)? - before) as f64 / start.elapsed().as_secs_f64();
    sending.kill()?;
    sending.wait()?;
    std::fs::remove_file(file)?;
    match rate > 0.0 {
        true => Ok(rate),
        false => Err("trafgen sent no frames".into()),
    }
}

/// Configures the kernel to forward, with a route to each network.
fn by_kernel(router: &Namespace) -> Outcome<()> {
    router.sysctl("net/ipv4/ip_forward", "1")?;
    let mut netlink = Netlink::open(router)?;
    netlink.add_address("in", [10, 0, 0, 1].into(), 24)?;
    netlink.add_address("out", [10, 0, 1, 1].into(), 24)?;
    netlink.add_neighbour("out", NEXT.into(), RECEIVER)?;
    for network in 0..USUAL {
        let destination = (Ipv4Addr::from(FIRST + (network << 8)).into(), 24);
        let route = Route {
            destination,
            gateway: Some(NEXT.into()),
            link: "out",
            preferred_source: None,
            metrics: Metrics::default(),
        };
        netlink.add_route(&route)?;
    }
    // Redirected frames arrive only if NAPI is enabled, by generic receive offload or by a program.
    ethtool::switch_on(router, "in", &["rx-gro".into()])?;
    Ok(())
}

/// Attaches a minimal program that forwards by the kernel's routes.
fn by_fib_lookup(router: &Namespace) -> Outcome<aya::Ebpf> {
    by_kernel(router)?;
    let mut netlink = Netlink::open(router)?;
    let links = [("forward", netlink.link("in")?.index), ("pass", netlink.link("out")?.index)];
    let mut program = EbpfLoader::new().load(RATES)?;
    for (name, link) in links {
        let xdp: &mut Xdp = program.program_mut(name).ok_or(name)?.try_into()?;
        xdp.load()?;
        router.run(|| xdp.attach_to_if_index(link, XdpMode::Driver))??;
    }
    Ok(program)
}

/// Attaches the router's program, with a route to each network.
fn by_program(router: &Namespace, way: Way) -> Outcome<Tables> {
    let shape = |first| Shape { first, rows: 16 };
    let sizes = Sizes { tables: vec![(shape(24), shape(16))], targets: 16, hops: 16 };
    let fast_path = FastPath::load(sizes.capacity(), 1)?;
    let mut tables = Tables::new(sizes, vec![0, 0], 1, Some(fast_path));
    let interface = |mac| Interface { mac, mtu: 1500, table: 0, mpls: true };
    let mut fib = Fib::new(vec![interface(IN), interface(OUT)], 1, Model::Uniform);
    let next = IpAddr::from(NEXT);
    fib.set_neighbour(&mut tables, (1, next), Some(RECEIVER));
    let path = |labels: &[u32]| {
        let labels = labels.iter().filter_map(|number| Label::new(*number)).collect();
        Destination::Paths(vec![Path { interface: 1, via: Some(next), labels }])
    };
    let to_text = |refused| format!("{refused}");
    let label = Label::new(LABEL).ok_or("a label")?;
    let (routes, networks) = match way {
        Way::Swap => (None, 0),
        Way::Push => (Some(path(&[SWAPPED])), USUAL),
        Way::Ip(networks) => (Some(path(&[])), networks),
        _ => (Some(path(&[])), USUAL),
    };
    let meaning = match way {
        Way::Swap => Meaning::Forward(path(&[SWAPPED])),
        _ => Meaning::Pop { table: 0 },
    };
    fib.apply(&mut tables, &Change::Label(label, Some(meaning))).map_err(to_text)?;
    for network in 0..networks {
        let prefix = (0, (Ipv4Addr::from(FIRST + (network << 8)).into(), 24));
        fib.apply(&mut tables, &Change::Route(prefix, routes.clone())).map_err(to_text)?;
    }
    let (in_index, out_index) =
        (Netlink::open(router)?.link("in")?.index, Netlink::open(router)?.link("out")?.index);
    let program = tables.fast_path_mut().ok_or("the program is loaded")?;
    router.run(|| -> Outcome<()> {
        program.attach(0, 0, in_index, IN, None)?;
        program.attach(1, 0, out_index, OUT, None)?;
        Ok(())
    })??;
    Ok(tables)
}
