//! The program in the kernel (bpf/router.bpf.c) and its maps.
//!
//! It is on an interface as long as this process holds its link: after kill -9 nothing is left, unless it is
//! pinned ([`attachment`]).

pub mod attachment;

use super::counter::Count;
use super::layout::{
    self, HOP, INCOMING, INTERFACE, LABELS, MOST_INDEX, MOST_PORTS, ROW, Stations, TABLE, TARGET,
};
use attachment::{Attachment, Pin};
use aya::maps::xdp::XdpMapError;
use aya::maps::{DevMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, TestRun as _, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use netstage_core::forward::{Hop, Incoming, Target};
use netstage_host::kernel_program;
use netstage_host::ports::kernel::Mapping;
use netstage_wire::ethernet::{self, Mac};
use netstage_wire::mpls::Label;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The program, as `make bpf` made it.
static OBJECT: &[u8] = include_bytes!("../../../../bpf/router.bpf.o");

/// Counters per label or target take no more memory than this on all processors together.
const COUNTERS: usize = 256 << 20;

/// How large the maps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of routes, all tables together.
    pub rows: usize,
    /// Tables.
    pub tables: usize,
    /// Targets, and hops.
    pub targets: usize,
    /// Hops.
    pub hops: usize,
}

/// Why the fast path does not serve an interface.
#[derive(Debug)]
pub enum Error {
    /// The program cannot be used there.
    Kernel(kernel_program::Error),
    /// It serves interfaces of numbers below [`MOST_INDEX`], and [`MOST_PORTS`] of them.
    Beyond {
        /// The kernel's number of the interface.
        index: u32,
    },
    /// It cannot send by an interface.
    Port(XdpMapError),
    /// It cannot be pinned, to forward on if the router is killed.
    Pin(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Kernel(error) => error.fmt(f),
            Error::Beyond { index } => write!(
                f,
                "the router's program serves {MOST_PORTS} interfaces, of numbers below {MOST_INDEX}: this is {index}"
            ),
            Error::Port(error) => write!(f, "the router's program cannot send there: {error}"),
            Error::Pin(error) => write!(f, "the router's program cannot be pinned: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Kernel(error) => error.source(),
            Error::Port(error) => Some(error),
            Error::Beyond { .. } | Error::Pin(_) => None,
        }
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Kernel(error.into())
    }
}

netstage_host::counted! {
    /// What the program did with frames, in the order of its `enum total`.
    Total {
        Routed "routed" Info "An IP packet was sent on."
        Pushed "pushed" Info "An IP packet was put into an LSP."
        Swapped "swapped" Info "A label was swapped."
        Uncovered "uncovered" Info "A label was taken off for the next router (penultimate hop popping)."
        Popped "popped" Info "The last label was popped, and the packet beneath sent on."
        ToSlowPath "to_slow_path" Info "It is for the slow path to decide."
        BadChecksum "bad_checksum" Error "The checksum of the IPv4 header was wrong."
        UnknownLabel "unknown_label" Error "A label that was not given out."
        UnexpectedLabel "unexpected_label" Error "A label by an interface it was not given to."
        Discarded "discarded" Info "A route discards it."
    }
}

/// What became of a frame that was given to the program by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was dropped.
    Drop,
    /// It goes up, as it came.
    Pass,
    /// It leaves so, by some interface.
    Send(Vec<u8>),
}

/// Packets and bytes, by each processor.
type Counts = PerCpuArray<MapData, [u64; 2]>;

/// The program, loaded, and its tables.
pub struct FastPath {
    program: Ebpf,
    ports: DevMap<MapData>,
    totals: Counts,
    label_counts: Counts,
    target_counts: Counts,
    port_counts: Counts,
    routes: Arc<Mapping>,
    tables: Mapping,
    targets: Mapping,
    hops: Mapping,
    labels: Mapping,
    interfaces: Mapping,
    /// By number: where it is, and the kernel's number of the interface.
    attached: BTreeMap<u32, (u32, Attachment)>,
}

impl fmt::Debug for FastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastPath").finish_non_exhaustive()
    }
}

impl FastPath {
    /// Loads the program; it is on no interface yet. The seed is that of the router's decisions.
    pub fn load(capacity: Capacity, seed: u64) -> Result<FastPath, kernel_program::Error> {
        let counted = |wanted: usize| {
            let processors = aya::util::nr_cpus().unwrap_or(1);
            wanted.min(COUNTERS / size_of::<Count>() / processors) as u32
        };
        let mut program = EbpfLoader::new()
            .map_max_entries("routes", capacity.rows as u32)
            .map_max_entries("tables", capacity.tables as u32)
            .map_max_entries("targets", capacity.targets as u32 + 1)
            .map_max_entries("hops", capacity.hops as u32)
            .map_max_entries("target_counts", counted(capacity.targets + 1))
            .map_max_entries("label_counts", counted(LABELS))
            .override_global("SEED", &seed, true)
            .load(OBJECT)?;
        let shared = |name: &str, words: usize| {
            let Some(Map::Array(map)) = program.map(name) else { panic!("{name} is an array") };
            Mapping::of(map.fd().as_fd(), (words * 4).next_multiple_of(PAGE), 0)
                .map_err(kernel_program::Error::Maps)
        };
        let routes = Arc::new(shared("routes", capacity.rows * ROW)?);
        let tables = shared("tables", capacity.tables * TABLE)?;
        let targets = shared("targets", (capacity.targets + 1) * TARGET)?;
        let hops = shared("hops", capacity.hops * HOP)?;
        let labels = shared("labels", LABELS * INCOMING)?;
        let interfaces = shared("interfaces", MOST_INDEX as usize * INTERFACE)?;
        let xdp: &mut Xdp = program.program_mut("router").expect("it is there").try_into()?;
        xdp.load()?;
        let xdp: &mut Xdp = program.program_mut("probe").expect("it is there").try_into()?;
        xdp.load()?;
        let ports = DevMap::try_from(take(&mut program, "ports"))?;
        let mut counts = |name: &str| PerCpuArray::try_from(take(&mut program, name));
        let (totals, label_counts) = (counts("totals")?, counts("label_counts")?);
        let (target_counts, port_counts) = (counts("target_counts")?, counts("port_counts")?);
        Ok(FastPath {
            program,
            ports,
            totals,
            label_counts,
            target_counts,
            port_counts,
            routes,
            tables,
            targets,
            hops,
            labels,
            interfaces,
            attached: BTreeMap::new(),
        })
    }

    /// The memory of all routes.
    pub(super) fn routes(&self) -> Arc<Mapping> {
        Arc::clone(&self.routes)
    }

    /// Where a table's rows begin, of IPv4 and IPv6, and the bits that index the first of them.
    pub(super) fn set_table(&self, number: u32, v4: (usize, u32), v6: (usize, u32)) {
        write::<TABLE>(&self.tables, number as usize, &[v4.0 as u32, v4.1, v6.0 as u32, v6.1]);
    }

    pub(super) fn set_target(&self, number: u32, target: &Target) {
        let record = layout::target(target);
        let hops = if let Target::Hops(hops) = target { hops.len().min(TARGET - 1) } else { 0 };
        // Who still sees more hops than there are now finds those that were there.
        write::<TARGET>(&self.targets, number as usize, &record[..=hops]);
    }

    /// The slow path has its packets while it is written.
    pub(super) fn set_hop(&self, number: u32, hop: &Hop, stations: Option<Stations>) {
        let record = layout::hop(hop, stations);
        let is_ready = &self.hops.words()[number as usize * HOP + layout::IS_READY];
        is_ready.store(0, Ordering::Release);
        write::<HOP>(&self.hops, number as usize, &record[..layout::IS_READY]);
        is_ready.store(record[layout::IS_READY], Ordering::Release);
    }

    pub(super) fn set_label(&self, label: Label, incoming: Option<&Incoming>) {
        write::<INCOMING>(&self.labels, label.number() as usize, &layout::incoming(incoming));
    }

    /// Begins to serve an interface of the calling thread's namespace, by its number there and here. It takes
    /// over what is pinned, and pins itself where it is to stay.
    pub fn attach(
        &mut self,
        number: u32,
        table: u32,
        index: u32,
        mac: Mac,
        pin: Option<&Pin>,
    ) -> Result<(), Error> {
        if index >= MOST_INDEX || number as usize >= MOST_PORTS {
            return Err(Error::Beyond { index });
        }
        self.ports.set(number, index, None, 0).map_err(Error::Port)?;
        self.expect(number, table, index, mac);
        let attachment = Attachment::new(self.xdp(), index, pin)?;
        self.attached.insert(number, (index, attachment));
        Ok(())
    }

    /// Serves an interface no more; it may be gone.
    pub fn detach(&mut self, number: u32) {
        if let Some((index, _)) = self.attached.remove(&number) {
            write::<INTERFACE>(&self.interfaces, index as usize, &[0; INTERFACE]);
        }
    }

    /// Another station, or another table, of an interface that is served.
    pub fn change(&self, number: u32, table: u32, mac: Mac) {
        if let Some((index, _)) = self.attached.get(&number) {
            self.expect(number, table, *index, mac);
        }
    }

    /// Interfaces that are served, and whether frames are redirected there as their driver has them, rather
    /// than as the kernel's own.
    pub fn attached(&self) -> impl Iterator<Item = (u32, bool)> {
        self.attached.iter().map(|(number, (_, attachment))| (*number, attachment.is_native()))
    }

    /// Takes frames of an interface for the router's.
    fn expect(&self, number: u32, table: u32, index: u32, mac: Mac) {
        let record = layout::interface(number, table, mac);
        write::<INTERFACE>(&self.interfaces, index as usize, &record);
    }

    /// What the program would do with a frame by an interface of the calling thread's namespace, which it
    /// need not be attached to.
    pub fn try_frame(
        &mut self,
        frame: &[u8],
        number: u32,
        table: u32,
        index: u32,
        mac: Mac,
    ) -> Result<Outcome, ProgramError> {
        const DROP: u32 = 1;
        const PASS: u32 = 2;
        self.expect(number, table, index, mac);
        // struct xdp_md: beginning, end, metadata, interface, queue, interface it leaves by.
        let context = [0, frame.len() as u32, 0, index, 0, 0];
        let context: Vec<u8> = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        let mut changed = vec![0; frame.len() + 64];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut changed),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = self.xdp().test_run(options)?;
        changed.truncate(result.data_size_out as usize);
        Ok(match result.return_value {
            DROP => Outcome::Drop,
            PASS => {
                assert_eq!(changed, frame, "what goes up is as it came");
                Outcome::Pass
            }
            _ => Outcome::Send(changed),
        })
    }

    /// What was done with frames.
    pub fn total(&self, total: Total) -> Count {
        sum(&self.totals, total as u32).unwrap_or_default()
    }

    /// Frames that came with a label; none where labels this high are not counted.
    pub fn of_label(&self, label: Label) -> Option<Count> {
        sum(&self.label_counts, label.number())
    }

    /// Frames that went to a target; none where targets this high are not counted.
    pub fn of_target(&self, number: u32) -> Option<Count> {
        sum(&self.target_counts, number)
    }

    /// Frames for the router that came by an interface, by its number here.
    pub fn received(&self, number: u32) -> Count {
        sum(&self.port_counts, number * 2).unwrap_or_default()
    }

    /// Frames that left by an interface.
    pub fn sent(&self, number: u32) -> Count {
        sum(&self.port_counts, number * 2 + 1).unwrap_or_default()
    }

    /// Sends a frame by an interface, as the program sends its own; it has been handed over, or lost, when
    /// this returns. The frame is to the interface itself, so nobody takes it.
    pub fn probe(&mut self, number: u32, mac: Mac) -> Result<(), ProgramError> {
        let mut frame = [0; PROBE];
        let header = ethernet::Header { destination: mac, source: mac, tags: &[], kind: LOCAL_EXPERIMENT };
        header.write(&mut frame).expect("there is room");
        frame[ethernet::HEADER] = number as u8;
        let options = TestRunOptions {
            data_in: Some(&frame),
            attrs: TestRunAttrs::new().xdp_live_frames(1),
            ..TestRunOptions::new()
        };
        self.named("probe").test_run(options).map(drop)
    }

    fn xdp(&mut self) -> &mut Xdp {
        self.named("router")
    }

    fn named(&mut self, name: &str) -> &mut Xdp {
        let program = self.program.program_mut(name).expect("it is there");
        program.try_into().expect("it is an XDP program")
    }
}

/// Bytes of a probe, and its EtherType (IEEE 802, local experiments).
const PROBE: usize = 60;
const LOCAL_EXPERIMENT: u16 = 0x88b5;

/// Memory is shared in whole pages.
const PAGE: usize = 4096;

fn take(program: &mut Ebpf, name: &str) -> Map {
    program.take_map(name).unwrap_or_else(|| panic!("{name} is there"))
}

/// Writes the beginning of a record, its first word last: that one says whether the others count.
fn write<const WORDS: usize>(map: &Mapping, number: usize, record: &[u32]) {
    let place = &map.words()[number * WORDS..][..record.len()];
    for (word, value) in place.iter().zip(record).rev() {
        word.store(*value, Ordering::Release);
    }
}

/// What all processors have counted.
fn sum(counts: &Counts, number: u32) -> Option<Count> {
    let values = counts.get(&number, 0).ok()?;
    Some(values.iter().fold(Count::default(), |sum, [packets, bytes]| Count {
        packets: sum.packets + packets,
        bytes: sum.bytes + bytes,
    }))
}
