//! Namespaces, links, frames and counters of a generator, a router and a receiver.

use super::BenchResult;
use super::datapaths::FIRST;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_wire::ethernet::{Mac, ethertype};
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use std::any::Any;
use std::time::{Duration, Instant};

pub static RATES: &[u8] = include_bytes!("../../../bpf/rates.bpf.o");

pub const SENDER: Mac = [2, 0, 0, 0, 0, 1];
pub const IN: Mac = [2, 0, 0, 0, 0, 2];
pub const OUT: Mac = [2, 0, 0, 0, 0, 3];
pub const RECEIVER: Mac = [2, 0, 0, 0, 0, 4];
const SECONDS: f64 = 0.5;
/// Frames per run of the generator, whose setup takes milliseconds, and per batch of a run.
pub const RUN: u32 = 1 << 20;
const BATCH: u32 = 64;

/// Network of generator, router and receiver, which exists as long as this value.
pub struct BenchNetwork {
    pub tester: Namespace,
    pub router: Namespace,
    /// Forwarder that must be kept alive.
    pub forwarder: Box<dyn Any>,
}

impl BenchNetwork {
    /// Creates a router's namespace between two links, or a single link.
    pub fn new(is_single_link: bool) -> BenchResult<BenchNetwork> {
        let (tester, router) = (Namespace::new()?, Namespace::new()?);
        let links = match is_single_link {
            true => vec![(("from", SENDER), (&tester, "to", RECEIVER))],
            false => vec![(("from", SENDER), (&router, "in", IN)), (("to", RECEIVER), (&router, "out", OUT))],
        };
        for ((name, mac), (namespace, other, other_mac)) in links {
            let end = VethEnd { namespace: &tester, name, mac };
            create_veth(end, VethEnd { namespace, name: other, mac: other_mac }, VethOptions::default())?;
            for (namespace, name) in [(&tester, name), (namespace, other)] {
                ethtool::disable_offloads(namespace, name)?;
                Netlink::open(namespace)?.set_up(name)?;
            }
        }
        Ok(BenchNetwork { tester, router, forwarder: Box::new(()) })
    }
}

/// Frames of a generator.
#[derive(Clone, Copy)]
pub struct Frames {
    /// BPF program of the generator.
    pub generator: &'static str,
    /// Number of destination networks.
    pub networks: u32,
    /// Label of the packets.
    pub label: Option<LabelValue>,
    /// Frame length in bytes including the check sequence.
    pub length: usize,
}

impl Frames {
    /// Returns a frame with a UDP packet to the first network.
    pub fn template(&self) -> Vec<u8> {
        let kind = if self.label.is_some() { ethertype::MPLS } else { ethertype::IPV4 };
        let mut frame = [&IN[..], &SENDER, &kind.to_be_bytes()].concat();
        let entry =
            self.label.map(|label| LabelStackEntry { label, traffic_class: 0, bottom: true, ttl: 64 });
        frame.extend(entry.into_iter().flat_map(LabelStackEntry::to_bytes));
        // On a wire, four bytes of the frame are its check sequence.
        let bytes = (self.length - 4 - frame.len()) as u16;
        let mut packet = vec![0; bytes.into()];
        (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
        packet[2..4].copy_from_slice(&bytes.to_be_bytes());
        packet[12..16].copy_from_slice(&[10, 0, 0, 2]);
        packet[16..20].copy_from_slice(&(FIRST + 1).to_be_bytes());
        let checksum = netstage_wire::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(packet);
        frame
    }

    fn load(&self, names: &[&str], frame: &[u8]) -> BenchResult<Ebpf> {
        let mut start_of_frame = [0_u64; 6];
        for (word, bytes) in start_of_frame.iter_mut().zip(frame.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let labels = if self.label.is_some() { 4_u32 } else { 0 };
        // Close to the golden ratio, and coprime to the number of networks.
        let step = (self.networks * 5 / 8..).find(|step| step % 2 == 1 && step % 5 != 0).unwrap_or(0);
        let step = step % self.networks;
        let mut program = EbpfLoader::new()
            .override_global("NETWORKS", &self.networks, true)
            .override_global("STEP", &step, true)
            .override_global("LABELS", &labels, true)
            .override_global("BEGINNING", &start_of_frame[..], true)
            .load(RATES)?;
        for name in names {
            let xdp: &mut Xdp = program.program_mut(name).ok_or(*name)?.try_into()?;
            xdp.load()?;
        }
        Ok(program)
    }
}

/// Returns received frames per second.
pub fn rate(tester: &Namespace, frames: Frames) -> BenchResult<f64> {
    let from = Netlink::open(tester)?.link("from")?.index;
    tester.run(|| {
        let frame = frames.template();
        let receiver = receive(tester)?;
        let mut program = frames.load(&[frames.generator], &frame)?;
        let mut run = || generate(&mut program, frames.generator, &frame, from);
        run()?;
        let (before, start) = (received(&receiver)?, Instant::now());
        while start.elapsed().as_secs_f64() < SECONDS {
            run()?;
        }
        let elapsed = start.elapsed();
        let arrived = received(&receiver)? - before;
        // Frames in transit must not be counted in the next measurement.
        std::thread::sleep(Duration::from_millis(20));
        Ok(arrived as f64 / elapsed.as_secs_f64())
    })?
}

/// Attaches the receiver, which counts and drops arriving frames until the returned value is dropped.
pub fn receive(tester: &Namespace) -> BenchResult<Ebpf> {
    let to = Netlink::open(tester)?.link("to")?.index;
    let none = Frames { generator: "", networks: 1, label: None, length: 64 };
    let mut program = none.load(&["receive"], &none.template())?;
    let xdp: &mut Xdp = program.program_mut("receive").ok_or("receive")?.try_into()?;
    tester.run(|| xdp.attach_to_if_index(to, XdpMode::Driver))??;
    Ok(program)
}

fn generate(program: &mut Ebpf, name: &str, frame: &[u8], from: u32) -> BenchResult<()> {
    // struct xdp_md: data, data_end, data_meta, ingress interface, queue, egress interface.
    let context = [0, frame.len() as u32, 0, from, 0, 0];
    let context: Vec<u8> = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    let xdp: &mut Xdp = program.program_mut(name).ok_or(name)?.try_into()?;
    xdp.test_run(TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        repeat: RUN,
        attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
        ..TestRunOptions::new()
    })?;
    Ok(())
}

pub fn received(program: &Ebpf) -> BenchResult<u64> {
    let map = program.map("seen").ok_or("seen")?;
    let counts: PerCpuArray<&MapData, u64> = PerCpuArray::try_from(map)?;
    Ok(counts.get(&0, 0)?.iter().sum())
}
