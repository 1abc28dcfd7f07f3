//! The XDP program (bpf/router.bpf.c) and its maps.
//!
//! It stays attached to an interface as long as this process holds the link: nothing remains after kill -9,
//! unless it is pinned ([`attachment`]).

pub mod attachment;

use super::counter::PacketCount;
use super::layout::{
    self, HOP, HopAddresses, INCOMING, INTERFACE, LABELS, MAX_INTERFACE_INDEX, MAX_PORTS, ROW, TABLE, TARGET,
};
use attachment::{Pin, XdpAttachment};
use aya::maps::xdp::XdpMapError;
use aya::maps::{DevMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, TestRun as _, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use netstage_core::forward::{ForwardingTarget, Hop, IncomingInterface, IncomingLabel};
use netstage_host::bpf_error;
use netstage_host::ports::kernel::Mapping;
use netstage_wire::ethernet::{self, Mac};
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Object file built by `make bpf`.
static OBJECT: &[u8] = include_bytes!("../../../../bpf/router.bpf.o");

/// Limit on the memory of counters per label or per target, for all CPUs together, bytes.
const COUNTERS: usize = 256 << 20;

/// Sizes of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of routes in all tables.
    pub rows: usize,
    /// Number of routing tables.
    pub tables: usize,
    /// Number of targets.
    pub targets: usize,
    /// Number of hops.
    pub hops: usize,
}

/// Reason why the fast path does not serve an interface.
#[derive(Debug)]
pub enum FastPathError {
    /// The kernel rejects the program.
    Kernel(bpf_error::BpfError),
    /// The interface index is not below [`INTERFACE_INDEX_LIMIT`], or there are more than [`MAX_PORTS`]
    /// interfaces.
    Beyond {
        /// Interface index in the kernel.
        index: u32,
    },
    /// The program cannot send to the interface.
    Port(XdpMapError),
    /// The program cannot be pinned, for this reason.
    Pin(String),
}

impl fmt::Display for FastPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastPathError::Kernel(error) => error.fmt(f),
            FastPathError::Beyond { index } => write!(
                f,
                "the XDP program serves {MAX_PORTS} interfaces with indices below {MAX_INTERFACE_INDEX}; this one has index {index}"
            ),
            FastPathError::Port(error) => write!(f, "the XDP program cannot send to the interface: {error}"),
            FastPathError::Pin(error) => write!(f, "cannot pin the XDP program: {error}"),
        }
    }
}

impl std::error::Error for FastPathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FastPathError::Kernel(error) => error.source(),
            FastPathError::Port(error) => Some(error),
            FastPathError::Beyond { .. } | FastPathError::Pin(_) => None,
        }
    }
}

impl From<ProgramError> for FastPathError {
    fn from(error: ProgramError) -> FastPathError {
        FastPathError::Kernel(error.into())
    }
}

netstage_host::counted! {
    /// Actions of the program on frames, in the order of its `enum total`.
    Total {
        Routed "routed" Info "IP packet forwarded."
        Pushed "pushed" Info "IP packet forwarded into an LSP."
        Swapped "swapped" Info "Label swapped."
        Uncovered "uncovered" Info "Label removed for the next router (penultimate hop popping)."
        Popped "popped" Info "Last label removed and the IP packet forwarded."
        ToSlowPath "to_slow_path" Info "Frame passed to the slow path."
        BadChecksum "bad_checksum" Error "IPv4 header with a wrong checksum."
        UnknownLabel "unknown_label" Error "Unknown label."
        UnexpectedLabel "unexpected_label" Error "Label on an interface it was not assigned for."
        Discarded "discarded" Info "Destination of a discard route."
        Spoofed "spoofed" Warning "No route leads back to the source (urpf_strict, urpf_loose)."
    }
}

/// Result of a test run with one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestRunResult {
    /// The frame is dropped.
    Drop,
    /// The frame is passed on unchanged.
    Pass,
    /// This frame is sent.
    Send(Vec<u8>),
}

/// Packets and bytes per CPU.
type PerCpuCounts = PerCpuArray<MapData, [u64; 2]>;

/// Loaded program and its tables.
pub struct FastPath {
    program: Ebpf,
    ports: DevMap<MapData>,
    totals: PerCpuCounts,
    label_counts: PerCpuCounts,
    target_counts: PerCpuCounts,
    port_counts: PerCpuCounts,
    routes: Arc<Mapping>,
    tables: Mapping,
    targets: Mapping,
    hops: Mapping,
    labels: Mapping,
    interfaces: Mapping,
    /// By interface number: interface index and attachment.
    attached: BTreeMap<u32, (u32, XdpAttachment)>,
}

impl fmt::Debug for FastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastPath").finish_non_exhaustive()
    }
}

impl FastPath {
    /// Loads the program without attaching it. `seed` is that of the router's decisions.
    pub fn load(capacity: Capacity, seed: u64) -> Result<FastPath, bpf_error::BpfError> {
        let counted = |wanted: usize| {
            let processors = aya::util::nr_cpus().unwrap_or(1);
            wanted.min(COUNTERS / size_of::<PacketCount>() / processors) as u32
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
            let Some(Map::Array(map)) = program.map(name) else { panic!("map {name} is not an array") };
            Mapping::from_socket(map.fd().as_fd(), (words * 4).next_multiple_of(PAGE), 0)
                .map_err(bpf_error::BpfError::Maps)
        };
        let routes = Arc::new(shared("routes", capacity.rows * ROW)?);
        let tables = shared("tables", capacity.tables * TABLE)?;
        let targets = shared("targets", (capacity.targets + 1) * TARGET)?;
        let hops = shared("hops", capacity.hops * HOP)?;
        let labels = shared("labels", LABELS * INCOMING)?;
        let interfaces = shared("interfaces", MAX_INTERFACE_INDEX as usize * INTERFACE)?;
        let xdp: &mut Xdp =
            program.program_mut("router").expect("the object contains the program").try_into()?;
        xdp.load()?;
        let xdp: &mut Xdp =
            program.program_mut("probe").expect("the object contains the program").try_into()?;
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

    /// Returns the memory of all routes.
    pub(super) fn routes(&self) -> Arc<Mapping> {
        Arc::clone(&self.routes)
    }

    /// Sets the first row of a routing table and the number of bits that index it, for IPv4 and IPv6.
    pub(super) fn set_table(&self, number: u32, v4: (usize, u32), v6: (usize, u32)) {
        write::<TABLE>(&self.tables, number as usize, &[v4.0 as u32, v4.1, v6.0 as u32, v6.1]);
    }

    pub(super) fn set_target(&self, number: u32, target: &ForwardingTarget) {
        let record = layout::target(target);
        let hops = if let ForwardingTarget::Hops(hops) = target { hops.len().min(TARGET - 1) } else { 0 };
        // A CPU that still sees a greater number of hops finds the previous ones.
        write::<TARGET>(&self.targets, number as usize, &record[..=hops]);
    }

    /// While the record is written, the slow path handles its packets.
    pub(super) fn set_hop(&self, number: u32, hop: &Hop, stations: Option<HopAddresses>) {
        let record = layout::hop(hop, stations);
        let is_ready = &self.hops.words()[number as usize * HOP + layout::IS_READY];
        is_ready.store(0, Ordering::Release);
        write::<HOP>(&self.hops, number as usize, &record[..layout::IS_READY]);
        is_ready.store(record[layout::IS_READY], Ordering::Release);
    }

    pub(super) fn set_label(&self, label: LabelValue, incoming: Option<&IncomingLabel>) {
        write::<INCOMING>(&self.labels, label.number() as usize, &layout::incoming(incoming));
    }

    /// Starts to serve an interface, given by its number in the router and its index in the thread's network
    /// namespace. Takes over an existing pin, and pins the program if it must outlive the router.
    pub fn attach(
        &mut self,
        number: u32,
        incoming: IncomingInterface,
        index: u32,
        mac: Mac,
        pin: Option<&Pin>,
    ) -> Result<(), FastPathError> {
        if index >= MAX_INTERFACE_INDEX || number as usize >= MAX_PORTS {
            return Err(FastPathError::Beyond { index });
        }
        self.ports.set(number, index, None, 0).map_err(FastPathError::Port)?;
        self.expect(number, incoming, index, mac);
        let attachment = XdpAttachment::new(self.xdp(), index, pin)?;
        self.attached.insert(number, (index, attachment));
        Ok(())
    }

    /// Stops to serve an interface, which may no longer exist.
    pub fn detach(&mut self, number: u32) {
        if let Some((index, _)) = self.attached.remove(&number) {
            write::<INTERFACE>(&self.interfaces, index as usize, &[0; INTERFACE]);
        }
    }

    /// Changes the settings or MAC address of a served interface.
    pub fn change(&self, number: u32, incoming: IncomingInterface, mac: Mac) {
        if let Some((index, _)) = self.attached.get(&number) {
            self.expect(number, incoming, *index, mac);
        }
    }

    /// Returns the served interfaces, each with whether it runs in native mode.
    pub fn attached(&self) -> impl Iterator<Item = (u32, bool)> {
        self.attached.iter().map(|(number, (_, attachment))| (*number, attachment.is_native()))
    }

    /// Accepts frames to this MAC address on an interface.
    fn expect(&self, number: u32, incoming: IncomingInterface, index: u32, mac: Mac) {
        let record = layout::interface(number, incoming, mac);
        write::<INTERFACE>(&self.interfaces, index as usize, &record);
    }

    /// Runs the program on a frame as if received on an interface of the thread's network namespace. The
    /// program need not be attached there.
    pub fn try_frame(
        &mut self,
        frame: &[u8],
        number: u32,
        incoming: IncomingInterface,
        index: u32,
        mac: Mac,
    ) -> Result<TestRunResult, ProgramError> {
        const DROP: u32 = 1;
        const PASS: u32 = 2;
        self.expect(number, incoming, index, mac);
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
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
            DROP => TestRunResult::Drop,
            PASS => {
                assert_eq!(changed, frame, "a frame passed on is unchanged");
                TestRunResult::Pass
            }
            _ => TestRunResult::Send(changed),
        })
    }

    /// Returns the count of an action.
    pub fn total(&self, total: Total) -> PacketCount {
        sum(&self.totals, total as u32).unwrap_or_default()
    }

    /// Returns the frames received with a label; `None` if labels this high are not counted.
    pub fn of_label(&self, label: LabelValue) -> Option<PacketCount> {
        sum(&self.label_counts, label.number())
    }

    /// Returns the frames sent to a target; `None` if targets this high are not counted.
    pub fn of_target(&self, number: u32) -> Option<PacketCount> {
        sum(&self.target_counts, number)
    }

    /// Returns the frames received for the router on an interface, given by its number in the router.
    pub fn received(&self, number: u32) -> PacketCount {
        sum(&self.port_counts, number * 2).unwrap_or_default()
    }

    /// Returns the frames sent to an interface.
    pub fn sent(&self, number: u32) -> PacketCount {
        sum(&self.port_counts, number * 2 + 1).unwrap_or_default()
    }

    /// Sends a frame to an interface the way the program does. The frame has been delivered or lost when this
    /// returns. It is addressed to the interface itself, so no host accepts it.
    pub fn probe(&mut self, number: u32, mac: Mac) -> Result<(), ProgramError> {
        let mut frame = [0; PROBE];
        let header = ethernet::Header { destination: mac, source: mac, tags: &[], kind: LOCAL_EXPERIMENT };
        header.write(&mut frame).expect("the header fits");
        frame[ethernet::HEADER] = number as u8;
        let options = TestRunOptions {
            data_in: Some(&frame),
            attrs: TestRunAttrs::new().xdp_live_frames(1),
            ..TestRunOptions::new()
        };
        self.xdp_program("probe").test_run(options).map(drop)
    }

    fn xdp(&mut self) -> &mut Xdp {
        self.xdp_program("router")
    }

    fn xdp_program(&mut self, name: &str) -> &mut Xdp {
        let program = self.program.program_mut(name).expect("the object contains the program");
        program.try_into().expect("the program is an XDP program")
    }
}

/// Length of a probe in bytes, and its EtherType (IEEE 802, local experiments).
const PROBE: usize = 60;
const LOCAL_EXPERIMENT: u16 = 0x88b5;

/// Maps are shared in whole pages.
const PAGE: usize = 4096;

fn take(program: &mut Ebpf, name: &str) -> Map {
    program.take_map(name).unwrap_or_else(|| panic!("map {name} is missing"))
}

/// Writes the start of a record, first word last, because the first word validates the rest.
fn write<const WORDS: usize>(map: &Mapping, number: usize, record: &[u32]) {
    let words = &map.words()[number * WORDS..][..record.len()];
    for (word, value) in words.iter().zip(record).rev() {
        word.store(*value, Ordering::Release);
    }
}

/// Sums the counters of all CPUs.
fn sum(counts: &PerCpuCounts, number: u32) -> Option<PacketCount> {
    let values = counts.get(&number, 0).ok()?;
    Some(values.iter().fold(PacketCount::default(), |sum, [packets, bytes]| PacketCount {
        packets: sum.packets + packets,
        bytes: sum.bytes + bytes,
    }))
}
