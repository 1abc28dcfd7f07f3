//! BPF programs in the kernel (bpf/tcp.bpf.c), one per tracepoint, each of which works without the others. They
//! are detached when this process ends for any reason.

use super::filter::{Filter, ProcessFilter};
use super::flows::ChangeOrigin;
use super::polling::report_state_changes;
use super::record::{self, RecordKind, TcpRecord};
use super::selection::{Selection, program_error, types};
use super::symbols::Symbols;
use aya::Ebpf;
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use aya::programs::BtfTracePoint;
use netstage_host::startup_error::StartupError;
use std::collections::BTreeMap;

static OBJECT: &[u8] = include_bytes!("../../../bpf/tcp.bpf.o");

/// Size of the ring buffer in bytes.
const RING_BYTES: usize = 1 << 24;
const STATE_CHANGE: &str = "tcp_cong_state_set";
/// Tracepoints, and the information that is missing without each. Linux has tcp_cong_state_set since 5.19.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("tcp_probe", "state of flows at each ACK"),
    (STATE_CHANGE, "exact reductions, which are inferred from two records"),
    ("tcp_retransmit_skb", "single retransmissions"),
    ("inet_sock_set_state", "start and end of flows"),
];

/// Running programs.
pub struct Programs {
    selection: Selection,
    symbols: Symbols,
    missing: Vec<String>,
    /// Last record of each connection by cookie, if congestion state changes have no tracepoint.
    last: Option<BTreeMap<u64, TcpRecord>>,
    records: RingBuf<MapData>,
    kernel: Ebpf,
}

impl Programs {
    /// Loads and attaches the programs.
    pub fn load(filter: Filter) -> Result<Programs, StartupError> {
        let btf = types()?;
        let (mut kernel, selection) = Selection::load(OBJECT, &[], filter, &btf)?;
        // Reading all kernel addresses takes time, so it is done before events arrive.
        let symbols = Symbols::of_kernel().unwrap_or_default();
        let (mut missing, mut last) = (Vec::new(), None);
        let mut running = 0;
        for (tracepoint, information) in TRACEPOINTS {
            let program = kernel.program_mut(tracepoint).expect("the BPF object contains it");
            let program: &mut BtfTracePoint = program.try_into().expect("the type matches");
            match program.load(tracepoint, &btf).and_then(|()| program.attach()) {
                Ok(_) => running += 1,
                Err(error) => {
                    missing.push(format!("{information} ({tracepoint}: {error})"));
                    last = last.or_else(|| (tracepoint == STATE_CHANGE).then(BTreeMap::new));
                }
            }
        }
        if running == 0 {
            return Err(program_error(missing.join("; ")));
        }
        if symbols.is_empty() {
            let note = "addresses of kernel functions, which distinguish local devices, ECN and tail-loss probes \
                reliably: set sysctl kernel.kptr_restrict=1 and grant CAP_SYSLOG";
            missing.push(note.into());
        }
        let records = match kernel.take_map("records") {
            Some(map @ Map::RingBuf(_)) => RingBuf::try_from(map).map_err(program_error)?,
            _ => panic!("records is not a ring buffer"),
        };
        let mut programs = Programs { selection, symbols, missing, last, records, kernel };
        programs.refresh();
        Ok(programs)
    }

    /// Returns the information that is not available, with the reason.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Updates the sockets and cgroups that the filter selects; returns the processes that do not exist. Call
    /// it a few times a second.
    pub fn refresh(&mut self) -> Vec<ProcessFilter> {
        self.selection.refresh(&mut self.kernel)
    }

    /// Reads records in order of time, at most as many as the ring holds, so that it returns even if they
    /// arrive faster than they are read.
    pub fn poll(&mut self, mut take: impl FnMut(&TcpRecord, ChangeOrigin)) {
        for _ in 0..RING_BYTES / record::RECORD {
            let Some(bytes) = self.records.next() else { return };
            let Some((record, stack)) = record::read(&bytes) else { continue };
            let origin = match self.symbols.is_empty() {
                true => ChangeOrigin::Unknown,
                false => ChangeOrigin::CallStack(self.symbols.innermost(&stack)),
            };
            if let Some(all) = &mut self.last {
                report_missed_state_changes(all, &record, &mut take);
            }
            take(&record, origin);
        }
    }

    /// Returns the number of records lost because the ring was full.
    pub fn lost(&self) -> u64 {
        let map = self.kernel.map("lost").expect("the BPF object contains it");
        let counts = PerCpuArray::<&MapData, u64>::try_from(map).and_then(|map| map.get(&0, 0));
        counts.map_or(0, |counts| counts.iter().sum())
    }
}

/// Reports state changes since a connection's last record, if they have no tracepoint.
fn report_missed_state_changes(
    all: &mut BTreeMap<u64, TcpRecord>,
    record: &TcpRecord,
    take: &mut impl FnMut(&TcpRecord, ChangeOrigin),
) {
    if record.kind == RecordKind::Closed {
        all.remove(&record.cookie);
    } else if let Some(last) = all.insert(record.cookie, *record) {
        report_state_changes(&last, record, take);
    }
}
