//! Who works the links of a network: the emulator, the kernel's netems, or each some of them.

use super::network::{Network, chain_names, emulator_interface};
use super::spec::Spec;
use netstage_core::time::Duration;
use netstage_emulator::netem::{KernelLink, Watch, Watched};
use netstage_emulator::report::{EndedBin, LinkReport};
use netstage_emulator::{Config, Emulator, Report};
use netstage_host::clock::Epoch;
use netstage_host::obstacle::Obstacle;
use netstage_host::ports::af_packet::{AfPacket, Options};
use netstage_host::ports::tun::Tun;
use netstage_host::ports::{Port, Received};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

/// All links of a network.
#[derive(Debug)]
pub struct Links {
    emulator: Emulator<LinkPort>,
    watch: Option<Watch>,
    /// Of each link, whether the kernel works it.
    by_kernel: Vec<bool>,
    interval: Duration,
    duration: Duration,
}

impl Links {
    /// Of a network that is there.
    pub fn new(spec: &Spec, mut config: Config, network: &mut Network) -> Result<Links, Obstacle> {
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
                AfPacket::open(namespace, &name, Options::default())
                    .map(LinkPort::Ethernet)
                    .map_err(|e| Obstacle::broken(format!("cannot open the emulator's port {name}: {e}")))
            };
            ports.push([port(0)?, port(1)?]);
        }
        config.links = own;
        let watch = (!kernel.is_empty()).then(|| Watch::new(namespace, kernel)).transpose();
        Ok(Links {
            emulator: Emulator::new(config, ports).map_err(|e| Obstacle::broken(e.to_string()))?,
            watch: watch.map_err(|e| Obstacle::broken(e.to_string()))?,
            by_kernel: spec.links.iter().map(|link| link.netem.is_some()).collect(),
            interval,
            duration,
        })
    }

    /// Carries frames at once until `stop` is set: the run has not begun.
    pub fn carry(&mut self, stop: &AtomicBool) {
        self.emulator.carry(stop);
    }

    /// Has every bin of the emulator's links told once it is settled. Of those the kernel works, none is.
    pub fn tell_bins(&mut self, to: Sender<EndedBin>) {
        self.emulator.tell_bins(to);
    }

    /// Works them until `stop` is set. The run begins at `epoch`.
    pub fn run(self, epoch: Epoch, stop: &AtomicBool) -> Report {
        let Links { emulator, watch, by_kernel, interval, duration } = self;
        let Some(watch) = watch else { return emulator.run(epoch, stop) };
        std::thread::scope(|scope| {
            let watching = scope.spawn(move || watch.run(epoch, interval, duration, stop));
            let report = emulator.run(epoch, stop);
            let watched = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let watched = watched.unwrap_or_else(|error| Watched {
                void: vec![format!("what the kernel's links counted is not known: {error}")],
                ..Watched::default()
            });
            joined(report, watched, &by_kernel)
        })
    }
}

/// The emulator's side of a link's end.
#[derive(Debug)]
enum LinkPort {
    /// A veth's far end.
    Ethernet(AfPacket),
    /// The far side of a TUN interface.
    Tun(Tun),
}

impl LinkPort {
    fn port(&mut self) -> &mut dyn Port {
        match self {
            LinkPort::Ethernet(port) => port,
            LinkPort::Tun(port) => port,
        }
    }
}

impl Port for LinkPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
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

/// One report of both, its links in the order of the network.
fn joined(mut report: Report, watched: Watched, by_kernel: &[bool]) -> Report {
    let mut own = std::mem::take(&mut report.links).into_iter();
    let mut kernel = watched.links.into_iter();
    let mut next =
        |by_kernel: &bool| -> Option<LinkReport> { if *by_kernel { kernel.next() } else { own.next() } };
    report.links = by_kernel.iter().filter_map(&mut next).collect();
    report.warnings.extend(watched.warnings);
    report.void.extend(watched.void);
    report
}
