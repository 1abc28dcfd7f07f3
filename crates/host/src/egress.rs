//! Limits on everything that a group of threads sends: interfaces, destinations, one token bucket of bytes for all,
//! and a budget. The kernel applies them to each packet of every socket that the threads and the programs they start
//! open, whatever the transport (bpf/egress.bpf.c). Packet sockets are not included.
//!
//! The threads are those of a threaded cgroup (version 2) below the process's own, so that other threads of the same
//! process are not limited. The cgroup is removed on drop; a killed process leaves an empty one, which the next
//! process removes.

use crate::bpf_error::BpfError;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, LpmTrie, MapData};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType};
use aya::{Ebpf, Pod};
use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static OBJECT: &[u8] = include_bytes!("../../../bpf/egress.bpf.o");

/// Length of `struct destination` without its length, and of the family in front of the address, in bits.
const DESTINATION: usize = 20;
const FAMILY_BITS: u32 = 32;
/// Number of `enum rule`, and maximum number of interfaces.
const RULES: usize = 4;
const MAX_INTERFACES: usize = 16;
/// The bucket holds the bytes of this part of a second, and at least as many as a few packets.
const BUCKETS_PER_SECOND: u64 = 20;
const MIN_BURST_BYTES: u64 = 16 << 10;

/// Limits of what is sent. A limit that is absent does not apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EgressLimits {
    /// Rate of all packets together, with their IP headers.
    pub rate: Option<BitRate>,
    /// Prefixes of the permitted destinations.
    pub destinations: Option<Vec<IpPrefix>>,
    /// Names of the permitted interfaces; the loopback interface is always permitted.
    pub interfaces: Option<Vec<String>>,
    /// Number of bytes that may still be sent.
    pub budget: Option<u64>,
}

/// Packets dropped by each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressDrops {
    /// Because of their interface.
    pub interface: u64,
    /// Because of their destination.
    pub destination: u64,
    /// Because of the rate.
    pub rate: u64,
    /// Because the budget is spent.
    pub budget: u64,
}

/// `struct limits`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct KernelLimits {
    rate: u64,
    burst: u64,
    has_budget: u32,
    has_destinations: u32,
    has_interfaces: u32,
    interfaces: [u32; MAX_INTERFACES],
    unused: u32,
}

/// `struct bucket`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Bucket {
    lock: u32,
    unused: u32,
    filled_ns: u64,
    tokens: i64,
    budget: i64,
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for KernelLimits {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Pod for Bucket {}

/// Cgroup whose threads are limited.
#[derive(Debug)]
pub struct EgressGroup {
    folder: PathBuf,
    limits: EgressLimits,
    kernel: Mutex<Ebpf>,
}

impl EgressGroup {
    /// Creates a group without threads. Needs root, and a writable hierarchy of cgroups of version 2.
    pub fn create(limits: EgressLimits) -> Result<EgressGroup, BpfError> {
        let folder = create_cgroup().map_err(BpfError::Maps)?;
        EgressGroup::attach(limits, &folder).inspect_err(|_| {
            let _ = fs::remove_dir(&folder);
        })
    }

    fn attach(limits: EgressLimits, folder: &Path) -> Result<EgressGroup, BpfError> {
        let mut kernel = Ebpf::load(OBJECT)?;
        write_limits(&mut kernel, &limits)?;
        let program = kernel.program_mut("limit_egress").expect("the BPF object contains it");
        let program: &mut CgroupSkb = program.try_into().expect("the type matches");
        program.load()?;
        let group = File::open(folder).map_err(BpfError::Maps)?;
        program.attach(group, CgroupSkbAttachType::Egress, CgroupAttachMode::Single)?;
        Ok(EgressGroup { folder: folder.to_owned(), limits, kernel: Mutex::new(kernel) })
    }

    /// Moves the calling thread into the group. Threads and programs that it starts later are members, too.
    /// The permitted interfaces are looked up in the thread's namespace.
    pub fn enter(&self) -> io::Result<()> {
        if self.limits.interfaces.is_some() {
            set(&mut self.kernel(), "limits", kernel_limits(&self.limits)).map_err(io::Error::other)?;
        }
        fs::write(self.folder.join("cgroup.threads"), "0")
    }

    /// Replaces the number of bytes that may still be sent, where the limits have a budget.
    pub fn set_budget(&self, bytes: u64) -> Result<(), BpfError> {
        let burst = burst_bytes(rate_bytes(&self.limits));
        let budget = i64::try_from(bytes).unwrap_or(i64::MAX);
        set(&mut self.kernel(), "buckets", Bucket { tokens: burst as i64, budget, ..Bucket::default() })
    }

    /// Returns the drops since the creation of the group.
    pub fn drops(&self) -> EgressDrops {
        let kernel = self.kernel();
        let map = kernel.map("drops").expect("the BPF object contains it");
        let drops = Array::<&MapData, u64>::try_from(map).expect("the type matches");
        let values: [u64; RULES] = std::array::from_fn(|index| drops.get(&(index as u32), 0).unwrap_or(0));
        let [interface, destination, rate, budget] = values;
        EgressDrops { interface, destination, rate, budget }
    }

    fn kernel(&self) -> MutexGuard<'_, Ebpf> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EgressGroup {
    fn drop(&mut self) {
        // It fails while threads are left, and is then left empty when the process ends.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns the bytes per second, or zero without a limit.
fn rate_bytes(limits: &EgressLimits) -> u64 {
    limits.rate.map_or(0, |rate| (rate.0 / 8).max(1))
}

fn burst_bytes(rate: u64) -> u64 {
    (rate / BUCKETS_PER_SECOND).max(MIN_BURST_BYTES)
}

/// Returns the limits with the interfaces that have the permitted names now.
fn kernel_limits(limits: &EgressLimits) -> KernelLimits {
    let rate = rate_bytes(limits);
    let named = limits.interfaces.iter().flatten();
    let mut named = named.filter_map(|name| nix::net::if_::if_nametoindex(name.as_str()).ok());
    KernelLimits {
        rate,
        burst: burst_bytes(rate),
        has_budget: limits.budget.is_some().into(),
        has_destinations: limits.destinations.is_some().into(),
        has_interfaces: limits.interfaces.is_some().into(),
        // No interface has the number zero.
        interfaces: std::array::from_fn(|_| named.next().unwrap_or(0)),
        unused: 0,
    }
}

fn write_limits(kernel: &mut Ebpf, limits: &EgressLimits) -> Result<(), BpfError> {
    set(kernel, "limits", kernel_limits(limits))?;
    let burst = burst_bytes(rate_bytes(limits));
    let budget = limits.budget.map_or(0, |budget| i64::try_from(budget).unwrap_or(i64::MAX));
    set(kernel, "buckets", Bucket { tokens: burst as i64, budget, ..Bucket::default() })?;
    let map = kernel.map_mut("destinations").expect("the BPF object contains it");
    let mut destinations = LpmTrie::<_, [u8; DESTINATION], u32>::try_from(map)?;
    for prefix in limits.destinations.iter().flatten() {
        let mut bytes = [0; DESTINATION];
        match prefix.address() {
            IpAddr::V4(address) => {
                bytes[0] = 4;
                bytes[4..8].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                bytes[0] = 6;
                bytes[4..].copy_from_slice(&address.octets());
            }
        }
        destinations.insert(&Key::new(FAMILY_BITS + u32::from(prefix.length()), bytes), 1, 0)?;
    }
    Ok(())
}

fn set<T: Pod>(kernel: &mut Ebpf, name: &str, value: T) -> Result<(), BpfError> {
    let map = kernel.map_mut(name).expect("the BPF object contains it");
    Ok(Array::<_, T>::try_from(map)?.set(0, value, 0)?)
}

/// Removes the cgroups of processes that have ended.
fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // It fails if a program of the process is still ending.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Creates a threaded cgroup below that of this process.
fn create_cgroup() -> io::Result<PathBuf> {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, "no hierarchy of cgroups of version 2 is mounted");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // Fields: number, parent, device, root, mount point, …, "-", type.
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 ")).ok_or_else(missing)?;
    let mut fields = mounted.split(' ').skip(3);
    let (root, mount) = fields.next().zip(fields.next()).ok_or_else(missing)?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or_else(missing)?;
    let own = Path::new(own).strip_prefix(root).map_err(|_| missing())?;
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    // Numbers of processes are unique in their namespace.
    let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    let (parent, prefix) = (Path::new(mount).join(own), format!("netstage-{namespace}-"));
    remove_abandoned(&parent, &prefix);
    let folder = parent.join(format!("{prefix}{}-{number}", std::process::id()));
    let described =
        |error: io::Error| io::Error::new(error.kind(), format!("cgroup {}: {error}", folder.display()));
    match fs::create_dir(&folder) {
        // Left behind by a killed process of the same number.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created.map_err(described)?,
    }
    fs::write(folder.join("cgroup.type"), "threaded").map_err(|error| {
        let _ = fs::remove_dir(&folder);
        described(error)
    })?;
    Ok(folder)
}
