//! Packets a second that one processor core carries from one veth pair to another: by the router's
//! program, by the kernel's own forwarding, and with nothing between.
//!
//! A program makes the frames (live frames of BPF_PROG_TEST_RUN), so making them, forwarding them and
//! counting them share the core. Needs root.

use aya::maps::{MapData, PerCpuArray};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use netstage_core::forward::Model;
use netstage_core::forward::lpm::Shape;
use netstage_live::netns::netlink::{Metrics, Netlink, Route, VethEnd, VethOptions, create_veth};
use netstage_live::netns::{Namespace, ethtool};
use netstage_live::router::fast_path::FastPath;
use netstage_live::router::fib::{Change, Destination, Fib, Interface, Meaning, Path};
use netstage_live::router::tables::{Sizes, Tables};
use netstage_wire::ethernet::{Mac, ethertype};
use netstage_wire::mpls::{Entry, Label};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

static OBJECT: &[u8] = include_bytes!("../../../bpf/tester.bpf.o");

const SENDER: Mac = [2, 0, 0, 0, 0, 1];
const IN: Mac = [2, 0, 0, 0, 0, 2];
const OUT: Mac = [2, 0, 0, 0, 0, 3];
const RECEIVER: Mac = [2, 0, 0, 0, 0, 4];
const NETWORKS: u32 = 50_000;
/// The first of them: 11.0.0.0/24.
const FIRST: u32 = 11 << 24;
const SECONDS: f64 = 1.5;
/// Frames of one run of the generator, whose preparation takes milliseconds, and of one batch there.
const RUN: u32 = 1 << 18;
const BATCH: u32 = 64;

/// What is done with a frame between.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Nothing,
    Kernel,
    Ip,
    Push,
    Swap,
    Pop,
}

fn main() -> Outcome<()> {
    println!("{:>6}  {:>28}  {:>6}  {:>6}", "bytes", "", "Mpps", "/IPv4");
    for length in [64, 1500] {
        let mut kernel = f64::NAN;
        for (way, name) in [
            (Way::Nothing, "generator to receiver"),
            (Way::Kernel, "kernel IPv4, 50,000 routes"),
            (Way::Ip, "IPv4, 50,000 routes"),
            (Way::Push, "PUSH, 50,000 routes"),
            (Way::Swap, "SWAP"),
            (Way::Pop, "POP, 50,000 routes"),
        ] {
            let rate = measure(way, length)?;
            if way == Way::Kernel {
                kernel = rate;
            }
            println!("{length:>6}  {name:>28}  {:>6.2}  {:>6.2}", rate / 1e6, rate / kernel);
        }
    }
    Ok(())
}

/// Frames that arrive in a second.
fn measure(way: Way, length: usize) -> Outcome<f64> {
    let (tester, router) = (Namespace::new()?, Namespace::new()?);
    let near = match way {
        Way::Nothing => vec![(("from", SENDER), (&tester, "to", RECEIVER))],
        _ => vec![(("from", SENDER), (&router, "in", IN)), (("to", RECEIVER), (&router, "out", OUT))],
    };
    for ((name, mac), (namespace, other, other_mac)) in near {
        let end = VethEnd { namespace: &tester, name, mac };
        create_veth(end, VethEnd { namespace, name: other, mac: other_mac }, VethOptions::default())?;
        for (namespace, name) in [(&tester, name), (namespace, other)] {
            ethtool::offloads_off(namespace, name)?;
            Netlink::open(namespace)?.set_up(name)?;
        }
    }
    let labels = matches!(way, Way::Swap | Way::Pop).then_some(Label::new(300).ok_or("a label")?);
    let frame = frame(length, labels);
    let from = Netlink::open(&tester)?.link("from")?.index;
    let to = Netlink::open(&tester)?.link("to")?.index;
    let mut program = tester.run(|| load(&frame, labels.is_some(), to))??;
    let _router: Box<dyn std::any::Any> = match way {
        Way::Nothing => Box::new(()),
        Way::Kernel => Box::new(by_kernel(&router)?),
        way => Box::new(by_program(&router, way)?),
    };
    tester.run(|| rate(&mut program, &frame, from))?
}

/// UDP to the first network, beneath a label.
fn frame(length: usize, label: Option<Label>) -> Vec<u8> {
    let kind = if label.is_some() { ethertype::MPLS } else { ethertype::IPV4 };
    let mut frame = [&IN[..], &SENDER, &kind.to_be_bytes()].concat();
    frame.extend(
        label
            .into_iter()
            .flat_map(|label| Entry { label, traffic_class: 0, bottom: true, ttl: 64 }.to_bytes()),
    );
    // Four bytes of the frame on a wire are its check sequence.
    let bytes = (length - 4 - frame.len()) as u16;
    let mut packet = vec![0; bytes.into()];
    (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
    packet[2..4].copy_from_slice(&bytes.to_be_bytes());
    packet[12..16].copy_from_slice(&[10, 0, 0, 2]);
    packet[16..20].copy_from_slice(&(FIRST + 1).to_be_bytes());
    frame.extend(packet);
    frame
}

/// The generator, and the receiver on its interface.
fn load(frame: &[u8], is_labelled: bool, receiver: u32) -> Outcome<Ebpf> {
    let mut beginning = [0_u64; 6];
    for (word, bytes) in beginning.iter_mut().zip(frame.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let labels = if is_labelled { 4_u32 } else { 0 };
    let mut program = EbpfLoader::new()
        .override_global("NETWORKS", &NETWORKS, true)
        .override_global("LABELS", &labels, true)
        .override_global("BEGINNING", &beginning[..], true)
        .load(OBJECT)?;
    for name in ["generate", "receive"] {
        let xdp: &mut Xdp = program.program_mut(name).ok_or(name)?.try_into()?;
        xdp.load()?;
        if name == "receive" {
            xdp.attach_to_if_index(receiver, XdpMode::Driver)?;
        }
    }
    Ok(program)
}

/// The kernel forwards, with a route to each network.
fn by_kernel(router: &Namespace) -> Outcome<()> {
    router.sysctl("net/ipv4/ip_forward", "1")?;
    let mut netlink = Netlink::open(router)?;
    netlink.add_address("in", [10, 0, 0, 1].into(), 24)?;
    netlink.add_address("out", [10, 0, 1, 1].into(), 24)?;
    let next = IpAddr::from([10, 0, 1, 2]);
    netlink.add_neighbour("out", next, RECEIVER)?;
    for network in 0..NETWORKS {
        let destination = (Ipv4Addr::from(FIRST + (network << 8)).into(), 24);
        let route = Route {
            destination,
            gateway: Some(next),
            link: "out",
            preferred_source: None,
            metrics: Metrics::default(),
        };
        netlink.add_route(&route)?;
    }
    // Redirected frames arrive where NAPI is on: with generic receive offload, or a program.
    ethtool::switch_on(router, "in", &["rx-gro".into()])?;
    Ok(())
}

/// The router's program forwards, with a route to each network.
fn by_program(router: &Namespace, way: Way) -> Outcome<Tables> {
    let shape = |first| Shape { first, rows: 16 };
    let sizes = Sizes { tables: vec![(shape(24), shape(16))], targets: 16, hops: 16 };
    let fast_path = FastPath::load(sizes.capacity(), 1)?;
    let mut tables = Tables::new(sizes, vec![0, 0], 1, Some(fast_path));
    let interface = |mac| Interface { mac, mtu: 1500, table: 0, mpls: true };
    let mut fib = Fib::new(vec![interface(IN), interface(OUT)], 1, Model::Uniform);
    let next = IpAddr::from([10, 0, 1, 2]);
    fib.set_neighbour(&mut tables, (1, next), Some(RECEIVER));
    let path = |labels: &[u32]| {
        let labels = labels.iter().filter_map(|number| Label::new(*number)).collect();
        Destination::Paths(vec![Path { interface: 1, via: Some(next), labels }])
    };
    let told = |refused| format!("{refused}");
    let label = Label::new(300).ok_or("a label")?;
    let routes = match way {
        Way::Swap => None,
        Way::Push => Some(path(&[400])),
        _ => Some(path(&[])),
    };
    let meaning = match way {
        Way::Swap => Meaning::Forward(path(&[400])),
        _ => Meaning::Pop { table: 0 },
    };
    fib.apply(&mut tables, &Change::Label(label, Some(meaning))).map_err(told)?;
    for network in (0..NETWORKS).filter(|_| routes.is_some()) {
        let prefix = (0, (Ipv4Addr::from(FIRST + (network << 8)).into(), 24));
        fib.apply(&mut tables, &Change::Route(prefix, routes.clone())).map_err(told)?;
    }
    let (inside, outside) =
        (Netlink::open(router)?.link("in")?.index, Netlink::open(router)?.link("out")?.index);
    let program = tables.fast_path_mut().ok_or("it was loaded")?;
    router.run(|| -> Outcome<()> {
        program.attach(0, 0, inside, IN)?;
        program.attach(1, 0, outside, OUT)?;
        Ok(())
    })??;
    Ok(tables)
}

fn rate(program: &mut Ebpf, frame: &[u8], from: u32) -> Outcome<f64> {
    // struct xdp_md: beginning, end, metadata, interface, queue, interface it leaves by.
    let context = [0, frame.len() as u32, 0, from, 0, 0];
    let context: Vec<u8> = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    let run = |program: &mut Ebpf| -> Outcome<()> {
        let xdp: &mut Xdp = program.program_mut("generate").ok_or("generate")?.try_into()?;
        xdp.test_run(TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            repeat: RUN,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::new()
        })?;
        Ok(())
    };
    run(program)?;
    let (before, start) = (seen(program)?, Instant::now());
    while start.elapsed().as_secs_f64() < SECONDS {
        run(program)?;
    }
    let elapsed = start.elapsed();
    std::thread::sleep(Duration::from_millis(20));
    Ok((seen(program)? - before) as f64 / elapsed.as_secs_f64())
}

fn seen(program: &Ebpf) -> Outcome<u64> {
    let map = program.map("seen").ok_or("seen")?;
    let counts: PerCpuArray<&MapData, u64> = PerCpuArray::try_from(map)?;
    Ok(counts.get(&0, 0)?.iter().sum())
}
