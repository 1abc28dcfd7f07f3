//! Limits the windows hosts advertise to each other through this machine (bpf/gateway.bpf.c). The programs are on
//! the interface by links that end with this process, whatever ends it.

use super::filter::Filter;
use super::selection::{Selection, refused, types};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::obstacle::Obstacle;
use netstage_wire::ethernet;

static OBJECT: &[u8] = include_bytes!("../../../bpf/gateway.bpf.o");

/// What passed so far, segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Their window was lowered.
    pub lowered: u64,
    /// It was small enough.
    pub unchanged: u64,
    /// Their connection began before: how its windows are scaled is not known.
    pub unknown: u64,
}

/// The limit, in force.
pub struct Gateway {
    kernel: Ebpf,
}

impl Gateway {
    /// Of windows that are advertised, by segments that enter or leave by an interface of the calling thread's
    /// namespace. Only ports and addresses can be chosen.
    pub fn new(interface: &str, window: u32, filter: Filter) -> Result<Gateway, Obstacle> {
        let Filter { processes, namespaces, cgroups, .. } = &filter;
        if !processes.is_empty() || !namespaces.is_empty() || !cgroups.is_empty() {
            let remedy = "choose by --port and --address";
            return Err(Obstacle::new("a gateway knows no processes, namespaces or cgroups", remedy));
        }
        let here =
            Namespace::of_this_thread().map_err(|error| Obstacle::system("no network namespace", &error))?;
        let link = Netlink::open(&here).and_then(|mut netlink| netlink.link(interface)).map_err(|_| {
            Obstacle::new(format!("there is no interface {interface} here"), "ip link shows those there are")
        })?;
        // What has no station, a tunnel for one, has no Ethernet header.
        let link_header = if link.mac.is_some() { ethernet::HEADER as u32 } else { 0 };
        let constants = [("WINDOW", window), ("LINK_HEADER", link_header)];
        let (mut kernel, _) = Selection::load(OBJECT, &constants, filter, &types()?)?;
        let program = kernel.program_mut("limit_window").expect("it is in the object");
        let program: &mut SchedClassifier = program.try_into().expect("it is of this kind");
        program.load().map_err(refused)?;
        for way in [TcAttachType::Ingress, TcAttachType::Egress] {
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            program.attach_with_options(interface, way, options).map_err(|error| Obstacle {
                message: format!("the kernel puts no program on {interface}: {error}"),
                remedy: "root, and Linux 6.6 or newer (tcx), whose programs end with their process".into(),
                is_missing: true,
            })?;
        }
        Ok(Gateway { kernel })
    }

    /// What passed so far.
    pub fn passed(&self) -> Passed {
        let map = self.kernel.map("counts").expect("it is in the object");
        let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("it is of this kind");
        let count = |what| map.get(&what, 0).map_or(0, |counts| counts.iter().sum());
        Passed { lowered: count(0), unchanged: count(1), unknown: count(2) }
    }
}
