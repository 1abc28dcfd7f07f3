//! The programs in the kernel (bpf/tcp.bpf.c): one for each tracepoint, which does without the others. They end
//! with this process, whatever ends it.

use super::filter::{Filter, Process};
use super::flows::Told;
use super::polling::turns;
use super::record::{self, Happened, Record};
use super::selection::{Selection, refused, types};
use super::symbols::Symbols;
use aya::Ebpf;
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use aya::programs::BtfTracePoint;
use netstage_host::obstacle::Obstacle;
use std::collections::BTreeMap;

static OBJECT: &[u8] = include_bytes!("../../../bpf/tcp.bpf.o");

/// Bytes of the ring of records.
const RING: usize = 1 << 24;
const TURNS: &str = "tcp_cong_state_set";
/// The tracepoints, and what is not told without each. Linux has that of congestion control from 5.19 on.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("tcp_probe", "how flows stand at each ACK"),
    (TURNS, "reductions as they happen: they are what two records suggest"),
    ("tcp_retransmit_skb", "single retransmissions"),
    ("inet_sock_set_state", "beginnings and ends of flows"),
];

/// The programs, running.
pub struct Programs {
    selection: Selection,
    symbols: Symbols,
    missing: Vec<String>,
    /// Where turns are not told: each connection's last record, by its number.
    last: Option<BTreeMap<u64, Record>>,
    records: RingBuf<MapData>,
    kernel: Ebpf,
}

impl Programs {
    /// Loads them.
    pub fn load(filter: Filter) -> Result<Programs, Obstacle> {
        let btf = types()?;
        let (mut kernel, selection) = Selection::load(OBJECT, &[], filter, &btf)?;
        // Reading all of the kernel's addresses takes a moment: before events come that would wait for it.
        let symbols = Symbols::of_kernel().unwrap_or_default();
        let (mut missing, mut last) = (Vec::new(), None);
        let mut running = 0;
        for (tracepoint, tells) in TRACEPOINTS {
            let program = kernel.program_mut(tracepoint).expect("it is in the object");
            let program: &mut BtfTracePoint = program.try_into().expect("it is of this kind");
            match program.load(tracepoint, &btf).and_then(|()| program.attach()) {
                Ok(_) => running += 1,
                Err(error) => {
                    missing.push(format!("{tracepoint}, which tells {tells}: {error}"));
                    last = last.or_else(|| (tracepoint == TURNS).then(BTreeMap::new));
                }
            }
        }
        if running == 0 {
            return Err(refused(missing.join("; ")));
        }
        if symbols.is_empty() {
            let note = "addresses of the kernel's functions, which tell local devices, ECN and tail-loss probes \
                apart for certain: sysctl kernel.kptr_restrict=1 and CAP_SYSLOG";
            missing.push(note.into());
        }
        let records = match kernel.take_map("records") {
            Some(map @ Map::RingBuf(_)) => RingBuf::try_from(map).map_err(refused)?,
            _ => panic!("records is a ring"),
        };
        let mut programs = Programs { selection, symbols, missing, last, records, kernel };
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
        self.selection.refresh(&mut self.kernel)
    }

    /// Takes records that have come, in the order of time: as many as the ring holds, so that it comes to an end where
    /// they come faster than they are taken.
    pub fn poll(&mut self, mut take: impl FnMut(&Record, Told)) {
        for _ in 0..RING / record::RECORD {
            let Some(bytes) = self.records.next() else { return };
            let Some((record, stack)) = record::read(&bytes) else { continue };
            let told = match self.symbols.is_empty() {
                true => Told::Unknown,
                false => Told::By(self.symbols.innermost(&stack)),
            };
            if let Some(all) = &mut self.last {
                turned(all, &record, &mut take);
            }
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

/// The turns since a connection's last record, where they are not told themselves.
fn turned(all: &mut BTreeMap<u64, Record>, record: &Record, take: &mut impl FnMut(&Record, Told)) {
    if record.happened == Happened::Closed {
        all.remove(&record.cookie);
    } else if let Some(last) = all.insert(record.cookie, *record) {
        turns(&last, record, take);
    }
}
