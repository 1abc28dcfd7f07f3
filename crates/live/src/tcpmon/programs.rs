//! The programs in the kernel (bpf/tcp.bpf.c): one for each tracepoint, which does without the others. They end
//! with this process, whatever ends it.

use super::filter::{Filter, MOST, Process};
use super::flows::Told;
use super::record::{self, Record};
use super::symbols::Symbols;
use crate::obstacle::Obstacle;
use aya::maps::{HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use std::collections::BTreeSet;

static OBJECT: &[u8] = include_bytes!("../../../../bpf/tcp.bpf.o");

/// The tracepoints, and what is not told without each.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("tcp_probe", "how flows stand at each ACK"),
    ("tcp_cong_state_set", "reductions and their causes"),
    ("tcp_retransmit_skb", "single retransmissions"),
    ("inet_sock_set_state", "beginnings and ends of flows"),
];

/// The programs, running.
pub struct Programs {
    filter: Filter,
    symbols: Symbols,
    missing: Vec<String>,
    sockets: BTreeSet<u64>,
    cgroups: BTreeSet<u64>,
    records: RingBuf<MapData>,
    kernel: Ebpf,
}

impl Programs {
    /// Loads them.
    pub fn load(filter: Filter) -> Result<Programs, Obstacle> {
        filter.check()?;
        let btf = Btf::from_sys_fs().map_err(|error| Obstacle {
            message: format!("the kernel tells nothing of its types: {error}"),
            remedy: "a kernel with CONFIG_DEBUG_INFO_BTF; without it flows are polled (--by polling)".into(),
            is_missing: true,
        })?;
        let mut kernel = load(&filter, &btf).map_err(refused)?;
        let mut missing = Vec::new();
        let mut running = 0;
        for (tracepoint, tells) in TRACEPOINTS {
            let program = kernel.program_mut(tracepoint).expect("it is in the object");
            let program: &mut BtfTracePoint = program.try_into().expect("it is of this kind");
            match program.load(tracepoint, &btf).and_then(|()| program.attach()) {
                Ok(_) => running += 1,
                Err(error) => missing.push(format!("{tracepoint}, which tells {tells}: {error}")),
            }
        }
        if running == 0 {
            return Err(refused(missing.join("; ")));
        }
        let records = match kernel.take_map("records") {
            Some(map @ Map::RingBuf(_)) => RingBuf::try_from(map).map_err(refused)?,
            _ => panic!("records is a ring"),
        };
        let symbols = Symbols::of_kernel().unwrap_or_default();
        if symbols.is_empty() {
            let note = "addresses of the kernel's functions, which tell local devices, ECN and tail-loss probes \
                apart for certain: sysctl kernel.kptr_restrict=1 and CAP_SYSLOG";
            missing.push(note.into());
        }
        let (sockets, cgroups) = Default::default();
        let mut programs = Programs { filter, symbols, missing, sockets, cgroups, records, kernel };
        programs.refresh();
        Ok(programs)
    }

    /// What cannot be told here, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Looks which sockets processes have now, and which cgroups there are. Call it a few times a second;
    /// yields the processes of which there is none.
    pub fn refresh(&mut self) -> Vec<Process> {
        let (sockets, gone) = self.filter.sockets();
        change(&mut self.kernel, "sockets", &mut self.sockets, sockets);
        let cgroups = self.filter.cgroup_numbers();
        change(&mut self.kernel, "cgroups", &mut self.cgroups, cgroups);
        gone
    }

    /// Takes the records that have come, in the order of time.
    pub fn poll(&mut self, mut take: impl FnMut(&Record, Told)) {
        while let Some(bytes) = self.records.next() {
            let Some((record, stack)) = record::read(&bytes) else { continue };
            let told = match self.symbols.is_empty() {
                true => Told::Unknown,
                false => Told::By(self.symbols.innermost(&stack)),
            };
            take(&record, told);
        }
    }

    /// Records for which there was no room.
    pub fn lost(&self) -> u64 {
        let map = self.kernel.map("lost").expect("it is in the object");
        let counts = PerCpuArray::<&MapData, u64>::try_from(map).and_then(|map| map.get(&0, 0));
        counts.map_or(0, |counts| counts.iter().sum())
    }
}

/// Makes a set of the kernel's the same as ours.
fn change(kernel: &mut Ebpf, name: &str, known: &mut BTreeSet<u64>, wanted: BTreeSet<u64>) {
    let map = kernel.map_mut(name).expect("it is in the object");
    let mut map = HashMap::<_, u64, u8>::try_from(map).expect("it is of this kind");
    for added in wanted.difference(known) {
        // A set that is full watches those it has.
        let _ = map.insert(added, 1, 0);
    }
    for removed in known.difference(&wanted) {
        let _ = map.remove(removed);
    }
    *known = wanted;
}

fn load(filter: &Filter, btf: &Btf) -> Result<Ebpf, EbpfError> {
    let mut addresses = [0_u64; MOST * 2];
    let mut masks = [0_u64; MOST * 2];
    for (at, network) in filter.addresses.iter().enumerate() {
        let (address, mask) = network.words();
        addresses[2 * at..][..2].copy_from_slice(&address);
        masks[2 * at..][..2].copy_from_slice(&mask);
    }
    EbpfLoader::new()
        .btf(Some(btf))
        .override_global("PORTS", &(filter.ports.len() as u32), true)
        .override_global("PORT", &filled(&filter.ports)[..], true)
        .override_global("NAMESPACES", &(filter.namespaces.len() as u32), true)
        .override_global("NAMESPACE", &filled(&filter.namespaces)[..], true)
        .override_global("ADDRESSES", &(filter.addresses.len() as u32), true)
        .override_global("ADDRESS", &addresses[..], true)
        .override_global("ADDRESS_MASK", &masks[..], true)
        .override_global("BY_SOCKET", &u32::from(!filter.processes.is_empty()), true)
        .override_global("BY_CGROUP", &u32::from(!filter.cgroups.is_empty()), true)
        .load(OBJECT)
}

fn filled<T: Copy + Default>(given: &[T]) -> [T; MOST] {
    let mut all = [T::default(); MOST];
    all.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    all
}

fn refused(error: impl std::fmt::Display) -> Obstacle {
    Obstacle {
        message: format!("the kernel takes no programs that watch TCP: {error}"),
        remedy:
            "run it as root, or with CAP_BPF and CAP_PERFMON; without them flows are polled (--by polling)"
                .into(),
        is_missing: true,
    }
}
