//! A generator, what is between, and a receiver: namespaces, links, frames and counts.

use super::Outcome;
use super::ways::FIRST;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_wire::ethernet::{Mac, ethertype};
use netstage_wire::mpls::{Entry, Label};
use std::any::Any;
use std::time::{Duration, Instant};

pub static RATES: &[u8] = include_bytes!("../../../bpf/rates.bpf.o");

pub const SENDER: Mac = [2, 0, 0, 0, 0, 1];
pub const IN: Mac = [2, 0, 0, 0, 0, 2];
pub const OUT: Mac = [2, 0, 0, 0, 0, 3];
pub const RECEIVER: Mac = [2, 0, 0, 0, 0, 4];
const SECONDS: f64 = 0.5;
/// Frames of one run of the generator, whose preparation takes milliseconds, and of one batch there.
pub const RUN: u32 = 1 << 20;
const BATCH: u32 = 64;

/// What is between generator and receiver, as long as it is kept.
pub struct Stage {
    pub tester: Namespace,
    pub router: Namespace,
    /// What forwards.
    pub between: Box<dyn Any>,
}

impl Stage {
    /// A router's namespace between both links, or one link from end to end.
    pub fn new(is_direct: bool) -> Outcome<Stage> {
        let (tester, router) = (Namespace::new()?, Namespace::new()?);
        let links = match is_direct {
            true => vec![(("from", SENDER), (&tester, "to", RECEIVER))],
            false => vec![(("from", SENDER), (&router, "in", IN)), (("to", RECEIVER), (&router, "out", OUT))],
        };
        for ((name, mac), (namespace, other, other_mac)) in links {
            let end = VethEnd { namespace: &tester, name, mac };
            create_veth(end, VethEnd { namespace, name: other, mac: other_mac }, VethOptions::default())?;
            for (namespace, name) in [(&tester, name), (namespace, other)] {
                ethtool::offloads_off(namespace, name)?;
                Netlink::open(namespace)?.set_up(name)?;
            }
        }
        Ok(Stage { tester, router, between: Box::new(()) })
    }
}

/// What a generator makes.
#[derive(Clone, Copy)]
pub struct Frames {
    /// Its program.
    pub generator: &'static str,
    /// Networks that frames go to.
    pub networks: u32,
    /// A label before the packet.
    pub label: Option<Label>,
    /// Bytes of a frame, with its check sequence.
    pub length: usize,
}

impl Frames {
    /// UDP to the first network.
    pub fn template(&self) -> Vec<u8> {
        let kind = if self.label.is_some() { ethertype::MPLS } else { ethertype::IPV4 };
        let mut frame = [&IN[..], &SENDER, &kind.to_be_bytes()].concat();
        let entry = self.label.map(|label| Entry { label, traffic_class: 0, bottom: true, ttl: 64 });
        frame.extend(entry.into_iter().flat_map(Entry::to_bytes));
        // Four bytes of the frame on a wire are its check sequence.
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

    fn load(&self, names: &[&str], frame: &[u8]) -> Outcome<Ebpf> {
        let mut beginning = [0_u64; 6];
        for (word, bytes) in beginning.iter_mut().zip(frame.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let labels = if self.label.is_some() { 4_u32 } else { 0 };
        // Near the golden section, and without a common factor.
        let step = (self.networks * 5 / 8..).find(|step| step % 2 == 1 && step % 5 != 0).unwrap_or(0);
        let step = step % self.networks;
        let mut program = EbpfLoader::new()
            .override_global("NETWORKS", &self.networks, true)
            .override_global("STEP", &step, true)
            .override_global("LABELS", &labels, true)
            .override_global("BEGINNING", &beginning[..], true)
            .load(RATES)?;
        for name in names {
            let xdp: &mut Xdp = program.program_mut(name).ok_or(*name)?.try_into()?;
            xdp.load()?;
        }
        Ok(program)
    }
}

/// Frames that arrive in a second.
pub fn rate(tester: &Namespace, frames: Frames) -> Outcome<f64> {
    let from = Netlink::open(tester)?.link("from")?.index;
    tester.run(|| {
        let frame = frames.template();
        let receiver = receive(tester)?;
        let mut program = frames.load(&[frames.generator], &frame)?;
        let mut run = || generate(&mut program, frames.generator, &frame, from);
        run()?;
        let (before, start) = (seen(&receiver)?, Instant::now());
        while start.elapsed().as_secs_f64() < SECONDS {
            run()?;
        }
        let elapsed = start.elapsed();
        let arrived = seen(&receiver)? - before;
        // What is still on its way is none of the next one's.
        std::thread::sleep(Duration::from_millis(20));
        Ok(arrived as f64 / elapsed.as_secs_f64())
    })?
}

/// The receiver's counter of what arrives, which drops it. It ends with what is returned.
pub fn receive(tester: &Namespace) -> Outcome<Ebpf> {
    let to = Netlink::open(tester)?.link("to")?.index;
    let none = Frames { generator: "", networks: 1, label: None, length: 64 };
    let mut program = none.load(&["receive"], &none.template())?;
    let xdp: &mut Xdp = program.program_mut("receive").ok_or("receive")?.try_into()?;
    tester.run(|| xdp.attach_to_if_index(to, XdpMode::Driver))??;
    Ok(program)
}

fn generate(program: &mut Ebpf, name: &str, frame: &[u8], from: u32) -> Outcome<()> {
    // struct xdp_md: beginning, end, metadata, interface, queue, interface it leaves by.
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

pub fn seen(program: &Ebpf) -> Outcome<u64> {
    let map = program.map("seen").ok_or("seen")?;
    let counts: PerCpuArray<&MapData, u64> = PerCpuArray::try_from(map)?;
    Ok(counts.get(&0, 0)?.iter().sum())
}
