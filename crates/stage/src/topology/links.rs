//! Links of a network, emulated by netstage's emulator, by the kernel's netems, or by both.

use super::network::{EmulatedNetwork, chain_names, emulator_interface};
use super::spec::Spec;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::Duration;
use netstage_emulator::netem::{KernelLink, NetemMonitor, NetemReport};
use netstage_emulator::report::{BinReport, LinkReport};
use netstage_emulator::{Emulator, EmulatorConfig, EmulatorReport};
use netstage_host::clock::Epoch;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_host::ports::tun::Tun;
use netstage_host::ports::{FramePort, ReceivedFrame};
use netstage_host::startup_error::StartupError;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

/// All links of a network.
#[derive(Debug)]
pub struct Links {
    emulator: Emulator<LinkPort>,
    watch: Option<NetemMonitor>,
    /// Flag for each link that the kernel emulates.
    by_kernel: Vec<bool>,
    interval: Duration,
    duration: Duration,
}

impl Links {
    /// Opens the links of an existing network.
    pub fn new(
        spec: &Spec,
        mut config: EmulatorConfig,
        network: &mut EmulatedNetwork,
    ) -> Result<Links, StartupError> {
        let namespace = &network.emulator;
        let (interval, duration) = (config.interval, config.duration);
        let (mut ports, mut own, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        for (link, config) in spec.links.iter().zip(config.links) {
            if link.netem.is_some() {
                kernel.push(KernelLink { config, names: chain_names(link.index) });
                continue;
            }
            own.push(config);
            if let Some(tuns) = network.tuns.remove(&link.index) {
                ports.push(tuns.map(LinkPort::Tun));
                continue;
            }
            let port = |end| {
                let name = emulator_interface(link.index, end);
                AfPacket::open(namespace, &name, AfPacketOptions::default()).map(LinkPort::Ethernet).map_err(
                    |e| StartupError::without_remedy(format!("cannot open the emulator's port {name}: {e}")),
                )
            };
            ports.push([port(0)?, port(1)?]);
        }
        config.links = own;
        let watch = (!kernel.is_empty()).then(|| NetemMonitor::new(namespace, kernel)).transpose();
        Ok(Links {
            emulator: Emulator::new(config, ports)
                .map_err(|e| StartupError::without_remedy(e.to_string()))?,
            watch: watch.map_err(|e| StartupError::without_remedy(e.to_string()))?,
            by_kernel: spec.links.iter().map(|link| link.netem.is_some()).collect(),
            interval,
            duration,
        })
    }

    /// Forwards frames without emulation until `stop` is set, before the run.
    pub fn forward_before_run(&mut self, stop: &AtomicBool) {
        self.emulator.forward_before_run(stop);
    }

    /// Sends each bin of netstage's links to `to` once its counts are final. Bins of kernel links are not reported.
    pub fn report_bins(&mut self, to: Sender<BinReport>) {
        self.emulator.report_bins(to);
    }

    /// Emulates the links until `stop` is set. The run begins at `epoch`.
    pub fn run(self, epoch: Epoch, stop: &AtomicBool) -> EmulatorReport {
        let Links { emulator, watch, by_kernel, interval, duration } = self;
        let Some(watch) = watch else { return emulator.run(epoch, stop) };
        std::thread::scope(|scope| {
            let watching = scope.spawn(move || watch.run(epoch, interval, duration, stop));
            let report = emulator.run(epoch, stop);
            let watched = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let watched = watched.unwrap_or_else(|error| NetemReport {
                void: vec![VoidReason::new(
                    "the reader of the kernel's links",
                    format!("could not read the counters ({error})"),
                    FaultTime::Within(duration),
                )],
                ..NetemReport::default()
            });
            merge(report, watched, &by_kernel)
        })
    }
}

/// Emulator port of one end of a link.
#[derive(Debug)]
enum LinkPort {
    /// Peer of a node's veth interface.
    Ethernet(AfPacket),
    /// Descriptor of a node's TUN interface.
    Tun(Tun),
}

impl LinkPort {
    fn port(&mut self) -> &mut dyn FramePort {
        match self {
            LinkPort::Ethernet(port) => port,
            LinkPort::Tun(port) => port,
        }
    }
}

impl FramePort for LinkPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        self.port().receive(limit, each)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.port().send(frame)
    }

    fn flush(&mut self) -> io::Result<usize> {
        self.port().flush()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            LinkPort::Ethernet(port) => port.fd(),
            LinkPort::Tun(port) => port.fd(),
        }
    }

    fn missed(&mut self) -> u64 {
        self.port().missed()
    }
}

/// Merges both reports, with the links in the order of the network.
fn merge(mut report: EmulatorReport, watched: NetemReport, by_kernel: &[bool]) -> EmulatorReport {
    let mut own = std::mem::take(&mut report.links).into_iter();
    let mut kernel = watched.links.into_iter();
    let mut next =
        |by_kernel: &bool| -> Option<LinkReport> { if *by_kernel { kernel.next() } else { own.next() } };
    report.links = by_kernel.iter().filter_map(&mut next).collect();
    report.warnings.extend(watched.warnings);
    report.void.extend(watched.void);
    report
}
