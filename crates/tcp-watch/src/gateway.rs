//! Limits the windows that hosts advertise to each other through this machine (bpf/gateway.bpf.c). The programs
//! are attached by links that end with this process for any reason.

use super::filter::Filter;
use super::selection::{Selection, program_error, types};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::startup_error::StartupError;
use netstage_wire::ethernet;

static OBJECT: &[u8] = include_bytes!("../../../bpf/gateway.bpf.o");

/// Counters of processed segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounters {
    /// Segments whose window was lowered.
    pub lowered: u64,
    /// Segments whose window was within the limit.
    pub unchanged: u64,
    /// Segments of connections established earlier, whose window scale is unknown.
    pub unknown: u64,
}

/// Active limit.
pub struct Gateway {
    kernel: Ebpf,
}

impl Gateway {
    /// Limits windows advertised in segments that enter or leave an interface of the calling thread's
    /// namespace. Only ports and addresses can be filtered.
    pub fn new(interface: &str, window: u32, filter: Filter) -> Result<Gateway, StartupError> {
        let Filter { processes, namespaces, cgroups, .. } = &filter;
        if !processes.is_empty() || !namespaces.is_empty() || !cgroups.is_empty() {
            let remedy = "filter by --port and --address";
            return Err(StartupError::new("a gateway cannot filter by process, namespace or cgroup", remedy));
        }
        let namespace = Namespace::of_this_thread()
            .map_err(|error| StartupError::from_system("cannot open the network namespace", &error))?;
        let link =
            Netlink::open(&namespace).and_then(|mut netlink| netlink.link(interface)).map_err(|_| {
                StartupError::new(
                    format!("there is no interface {interface}"),
                    "list the interfaces with ip link",
                )
            })?;
        // An interface without a MAC address, such as a tunnel, has no Ethernet header.
        let link_header = if link.mac.is_some() { ethernet::HEADER as u32 } else { 0 };
        let constants = [("WINDOW", window), ("LINK_HEADER", link_header)];
        let (mut kernel, _) = Selection::load(OBJECT, &constants, filter, &types()?)?;
        let program = kernel.program_mut("limit_window").expect("the BPF object contains it");
        let program: &mut SchedClassifier = program.try_into().expect("the type matches");
        program.load().map_err(program_error)?;
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            program.attach_with_options(interface, direction, options).map_err(|error| StartupError {
                message: format!("cannot attach the program to {interface}: {error}"),
                remedy: "root, and Linux 6.6 or newer (tcx), whose programs end with their process".into(),
                is_missing: true,
            })?;
        }
        Ok(Gateway { kernel })
    }

    /// Returns the counters.
    pub fn counters(&self) -> GatewayCounters {
        let map = self.kernel.map("counts").expect("the BPF object contains it");
        let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("the type matches");
        let count = |index| map.get(&index, 0).map_or(0, |counts| counts.iter().sum());
        GatewayCounters { lowered: count(0), unchanged: count(1), unknown: count(2) }
    }
}
