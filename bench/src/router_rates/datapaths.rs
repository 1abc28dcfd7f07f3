//! Forwarders between generator and receiver.

use super::BenchResult;
use super::network::{BenchNetwork, Frames, IN, OUT, RATES, RECEIVER, RUN, SENDER, rate, receive, received};
use super::open_vswitch::{self, SwitchOperation};
use aya::EbpfLoader;
use aya::programs::{Xdp, XdpMode};
use netstage_core::forward::lpm::LpmShape;
use netstage_core::forward::{IncomingInterface, SourceCheck, TunnelModel};
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, ethtool, spawn_in};
use netstage_router::fast_path::FastPath;
use netstage_router::fib::{Fib, FibInterface};
use netstage_router::tables::{Sizes, Tables};
use netstage_routing::source::path::{Destination, LabelAction, RoutePath, SourceChange};
use netstage_scenario::tester::Operation;
use netstage_tester::generator::{self, FrameStream, TrialStop};
use netstage_tester::template::{self, Destinations};
use netstage_wire::mpls::LabelValue;
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
/// Every interface accepts labels.
const LABELED: IncomingInterface =
    IncomingInterface { table: 0, mpls: true, rsvp: false, source_check: SourceCheck::Off };
const NEXT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);

/// Setup between generator and receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Datapath {
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
    /// IPv4 with strict uRPF.
    Verified,
    Push,
    Swap,
    Pop,
    SwitchPush,
    SwitchSwap,
    SwitchPop,
}

impl Datapath {
    pub const ALL: &[Datapath] = &[
        Datapath::Bare,
        Datapath::Stamped,
        Datapath::Scattered,
        Datapath::Trafgen,
        Datapath::Kernel,
        Datapath::FibLookup,
        Datapath::Ip(FEW),
        Datapath::Ip(USUAL),
        Datapath::Ip(MANY),
        Datapath::Verified,
        Datapath::Push,
        Datapath::Swap,
        Datapath::Pop,
        Datapath::SwitchPush,
        Datapath::SwitchSwap,
        Datapath::SwitchPop,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Datapath::Bare => "bare live frames",
            Datapath::Stamped => "generator of the tester",
            Datapath::Scattered => "generator of these rates",
            Datapath::Trafgen => "trafgen",
            Datapath::Kernel => "kernel IPv4, 50,000 routes",
            Datapath::FibLookup => "XDP FIB lookup, 50,000 routes",
            Datapath::Ip(FEW) => "IPv4, 10 routes",
            Datapath::Ip(USUAL) => "IPv4, 50,000 routes",
            Datapath::Ip(_) => "IPv4, 1,000,000 routes",
            Datapath::Verified => "IPv4, 50,000 routes, strict uRPF",
            Datapath::Push => "PUSH, 50,000 routes",
            Datapath::Swap => "SWAP",
            Datapath::Pop => "POP, 50,000 routes",
            Datapath::SwitchPush => "Open vSwitch PUSH",
            Datapath::SwitchSwap => "Open vSwitch SWAP",
            Datapath::SwitchPop => "Open vSwitch POP",
        }
    }

    /// Creates the network on which the setup is measured.
    pub fn prepare(self) -> BenchResult<BenchNetwork> {
        let is_direct =
            matches!(self, Datapath::Bare | Datapath::Stamped | Datapath::Scattered | Datapath::Trafgen);
        let mut stage = BenchNetwork::new(is_direct)?;
        let router = &stage.router;
        let between: Box<dyn Any> = match self {
            Datapath::Bare | Datapath::Stamped | Datapath::Scattered => Box::new(()),
            Datapath::Trafgen => Box::new(open_vswitch::installed("trafgen", "netsniff-ng")?),
            Datapath::Kernel => Box::new(by_kernel(router)?),
            Datapath::FibLookup => Box::new(by_fib_lookup(router)?),
            Datapath::Ip(_) | Datapath::Verified | Datapath::Push | Datapath::Swap | Datapath::Pop => {
                Box::new(by_program(router, self)?)
            }
            Datapath::SwitchPush => {
                Box::new(open_vswitch::Switch::start(router, SwitchOperation::Push(SWAPPED))?)
            }
            Datapath::SwitchSwap => {
                Box::new(open_vswitch::Switch::start(router, SwitchOperation::Swap(LABEL, SWAPPED))?)
            }
            Datapath::SwitchPop => {
                Box::new(open_vswitch::Switch::start(router, SwitchOperation::Pop(LABEL))?)
            }
        };
        stage.forwarder = between;
        Ok(stage)
    }

    /// Returns received frames per second.
    pub fn rate(self, stage: &BenchNetwork, length: usize) -> BenchResult<f64> {
        let networks = match self {
            Datapath::Ip(networks) => networks,
            _ => USUAL,
        };
        let is_labeled =
            matches!(self, Datapath::Swap | Datapath::Pop | Datapath::SwitchSwap | Datapath::SwitchPop);
        let label = LabelValue::new(LABEL).filter(|_| is_labeled);
        let generator = if self == Datapath::Bare { "bare" } else { "scatter" };
        let frames = Frames { generator, networks, label, length };
        match self {
            Datapath::Stamped => by_tester(stage, length),
            Datapath::Trafgen => by_trafgen(stage, frames),
            _ => rate(&stage.tester, frames),
        }
    }
}

/// Returns the rate of the tester's generator at an unattainable requested rate.
fn by_tester(stage: &BenchNetwork, length: usize) -> BenchResult<f64> {
    let receiver = receive(&stage.tester)?;
    let from = Netlink::open(&stage.tester)?.link("from")?.index;
    let stream = FrameStream {
        form: template::sent_template(
            Operation::Ip,
            Vec::new(),
            Ipv4Addr::new(10, 0, 0, 2).into(),
            [SENDER, IN],
        ),
        to: Destinations { first: Ipv4Addr::from(FIRST).into(), networks: USUAL, peers: 1 },
        // Without Ethernet header and check sequence.
        lengths: vec![(length - 18) as u16],
        trial: 0,
        number: 0,
        rate: 50e6,
        frames: RUN.into(),
        max_lost_ns: u64::MAX,
    };
    let (before, end) = (received(&receiver)?, TrialStop::default());
    let mut start_ns = 0;
    let start = || {
        start_ns = monotonic_ns();
        start_ns
    };
    let sent = stage.tester.run(|| generator::send_in_kernel(&stream, from, start, &end))??;
    std::thread::sleep(Duration::from_millis(20));
    let arrived = received(&receiver)? - before;
    if arrived < sent.sent {
        return Err(format!("{} of {} frames arrived", arrived, sent.sent).into());
    }
    // The kernel's setup time is included, as in the other measurements.
    Ok(sent.sent as f64 * 1e9 / (sent.last_ns - start_ns) as f64)
}

/// Returns the rate of trafgen for the same frame, measured for a second.
fn by_trafgen(stage: &BenchNetwork, frames: Frames) -> BenchResult<f64> {
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
fn by_kernel(router: &Namespace) -> BenchResult<()> {
    router.sysctl("net/ipv4/ip_forward", "1")?;
    let mut netlink = Netlink::open(router)?;
    netlink.add_address("in", [10, 0, 0, 1].into(), 24)?;
    netlink.add_address("out", [10, 0, 1, 1].into(), 24)?;
    netlink.add_neighbor("out", NEXT.into(), RECEIVER)?;
    for network in 0..USUAL {
        let destination = (Ipv4Addr::from(FIRST + (network << 8)).into(), 24);
        let route = StaticRoute {
            destination,
            gateway: Some(NEXT.into()),
            link: "out",
            preferred_source: None,
            metrics: Metrics::default(),
        };
        netlink.add_route(&route)?;
    }
    // Redirected frames arrive only if NAPI is enabled, by generic receive offload or by a program.
    ethtool::enable_features(router, "in", &["rx-gro".into()])?;
    Ok(())
}

/// Attaches a minimal program that forwards by the kernel's routes.
fn by_fib_lookup(router: &Namespace) -> BenchResult<aya::Ebpf> {
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
fn by_program(router: &Namespace, way: Datapath) -> BenchResult<Tables> {
    let shape = |first| LpmShape { first, rows: 16 };
    let sizes = Sizes { tables: vec![(shape(24), shape(16))], targets: 16, hops: 16 };
    let fast_path = FastPath::load(sizes.capacity(), 1)?;
    let source_check = if way == Datapath::Verified { SourceCheck::Strict } else { SourceCheck::Off };
    let incoming = IncomingInterface { source_check, ..LABELED };
    let mut tables = Tables::new(sizes, vec![incoming; 2], 1, Some(fast_path));
    let interface = |mac| FibInterface { mac, mtu: 1500, incoming };
    let mut fib = Fib::new(vec![interface(IN), interface(OUT)], 1, TunnelModel::Uniform);
    let next = IpAddr::from(NEXT);
    fib.set_neighbor(&mut tables, (1, next), Some(RECEIVER));
    let path = |labels: &[u32]| {
        let labels = labels.iter().filter_map(|number| LabelValue::new(*number)).collect();
        Destination::Paths(vec![RoutePath { interface: 1, via: Some(next), labels }])
    };
    let to_text = |refused| format!("{refused}");
    let label = LabelValue::new(LABEL).ok_or("a label")?;
    let (routes, networks) = match way {
        Datapath::Swap => (None, 0),
        Datapath::Push => (Some(path(&[SWAPPED])), USUAL),
        Datapath::Ip(networks) => (Some(path(&[])), networks),
        _ => (Some(path(&[])), USUAL),
    };
    let meaning = match way {
        Datapath::Swap => LabelAction::Forward(path(&[SWAPPED])),
        _ => LabelAction::Pop { table: 0 },
    };
    fib.apply(&mut tables, &SourceChange::Label(label, Some(meaning))).map_err(to_text)?;
    for network in 0..networks {
        let prefix = (0, (Ipv4Addr::from(FIRST + (network << 8)).into(), 24));
        fib.apply(&mut tables, &SourceChange::Route(prefix, routes.clone())).map_err(to_text)?;
    }
    if way == Datapath::Verified {
        let back = Destination::Paths(vec![RoutePath { interface: 0, via: None, labels: Vec::new() }]);
        let prefix = (0, (Ipv4Addr::new(10, 0, 0, 0).into(), 24));
        fib.apply(&mut tables, &SourceChange::Route(prefix, Some(back))).map_err(to_text)?;
    }
    let (in_index, out_index) =
        (Netlink::open(router)?.link("in")?.index, Netlink::open(router)?.link("out")?.index);
    let program = tables.fast_path_mut().ok_or("the program is loaded")?;
    router.run(|| -> BenchResult<()> {
        program.attach(0, incoming, in_index, IN, None)?;
        program.attach(1, incoming, out_index, OUT, None)?;
        Ok(())
    })??;
    Ok(tables)
}
