//! Limits on everything that a group of threads sends: interfaces, destinations, one token bucket of bytes for all,
//! and a budget. The kernel applies them to each packet of every socket that the threads and the programs they start
//! open, whatever the transport (bpf/egress.bpf.c). Packet sockets are not included. TCP connections are paced as soon as the
//! tokens become few, so that they use the rate and lose few packets.
//!
//! The threads are those of a threaded cgroup, so that other threads of the same process are not limited.

use crate::bpf_error::BpfError;
use crate::cgroup::Cgroup;
use crate::netns::netlink::Netlink;
use crate::ports::kernel::bpf_call;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, LpmTrie, MapData};
use aya::programs::{CgroupAttachMode, CgroupSkb, SockOps};
use aya::{Ebpf, EbpfLoader, Pod};
use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

static OBJECT: &[u8] = include_bytes!("../../../bpf/egress.bpf.o");

/// Length of `struct destination` without its length, and of the family in front of the address, in bits.
const DESTINATION: usize = 20;
const FAMILY_BITS: u32 = 32;
/// Number of `enum rule`, and maximum number of interfaces.
const RULES: usize = 4;
const PACED: usize = 2 * RULES;
const MAX_INTERFACES: usize = 16;
/// The bucket holds the bytes of this part of a second, and at least as many as a few packets.
const BUCKETS_PER_SECOND: u64 = 20;
const MIN_BURST_BYTES: u64 = 16 << 10;
/// MTU that every interface for IPv4 has (RFC 791).
const MIN_IPV4_MTU: u32 = 68;
/// Setting with the smallest path MTU that a message from the network can cause.
const MIN_PATH_MTU: &str = "/proc/sys/net/ipv4/route/min_pmtu";
/// Allowance without a budget.
const UNLIMITED: u64 = u64::MAX;

/// Limits of what is sent. A limit that is absent does not apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EgressLimits {
    /// Rate of all packets together, with their IP headers.
    pub rate: Option<BitRate>,
    /// Prefixes of the permitted destinations.
    pub destinations: Option<Vec<IpPrefix>>,
    /// Names of the permitted interfaces; the loopback interface is always permitted.
    pub interfaces: Option<Vec<String>>,
    /// Whether the number of bytes is limited. None may be sent until [`EgressGroup::allow`] is called.
    pub has_budget: bool,
}

/// Packets dropped by each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressDrops {
    /// Because of their interface.
    pub interface: DroppedPackets,
    /// Because of their destination.
    pub destination: DroppedPackets,
    /// Because of the rate.
    pub rate: DroppedPackets,
    /// Because the budget is spent.
    pub budget: DroppedPackets,
    /// Round trips in which a TCP connection was paced, because the rate was used up.
    pub paced: u64,
}

/// Packets dropped by one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedPackets {
    /// Of TCP, which adapts its rate.
    pub tcp: u64,
    /// Of all other protocols.
    pub other: u64,
}

/// `struct limits`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct KernelLimits {
    rate: u64,
    burst: u64,
    allowance: u64,
    has_destinations: u32,
    has_interfaces: u32,
    interfaces: [u32; MAX_INTERFACES],
    min_mtu: u32,
    unused: u32,
}

/// `struct bucket`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Bucket {
    lock: u32,
    was_empty: u32,
    filled_ns: u64,
    tokens: i64,
    sent: u64,
    pace: u64,
    period_ns: u64,
    offered: u64,
    others: u64,
    is_used_up: u64,
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
    cgroup: Cgroup,
    limits: EgressLimits,
    kernel: Mutex<Kernel>,
}

#[derive(Debug)]
struct Kernel {
    program: Ebpf,
    limits: KernelLimits,
}

impl EgressGroup {
    /// Creates a group without threads. Needs root, and a writable hierarchy of cgroups of version 2.
    pub fn create(limits: EgressLimits) -> Result<EgressGroup, BpfError> {
        let cgroup = Cgroup::create().map_err(BpfError::Cgroup)?;
        let destinations = limits.destinations.as_ref().map_or(0, Vec::len);
        let entries = u32::try_from(destinations.max(1)).unwrap_or(u32::MAX);
        let mut loaded = EbpfLoader::new().map_max_entries("destinations", entries).load(OBJECT)?;
        let kernel_limits = write_limits(&mut loaded, &limits)?;
        let program = loaded.program_mut("limit_egress").expect("the BPF object contains it");
        let program: &mut CgroupSkb = program.try_into().expect("the type matches");
        program.load()?;
        let group = File::open(cgroup.folder()).map_err(BpfError::Cgroup)?;
        let descriptor = program.fd()?;
        attach(descriptor.as_fd(), group.as_fd()).map_err(BpfError::Cgroup)?;
        let pacing = loaded.program_mut("pace_tcp").expect("the BPF object contains it");
        let pacing: &mut SockOps = pacing.try_into().expect("the type matches");
        pacing.load()?;
        pacing.attach(&group, CgroupAttachMode::Single)?;
        let kernel = Kernel { program: loaded, limits: kernel_limits };
        Ok(EgressGroup { cgroup, limits, kernel: Mutex::new(kernel) })
    }

    /// Moves the calling thread into the group. Threads and programs that it starts later are members, too.
    /// The permitted interfaces, and the smallest MTU, are looked up in the thread's namespace.
    pub fn enter(&self) -> io::Result<()> {
        let min_mtu = min_mtu()?;
        let set = |limits: &mut KernelLimits| {
            limits.min_mtu = min_mtu;
            limits.interfaces = self.limits.interfaces.as_deref().map_or(limits.interfaces, indices);
        };
        self.set_limits(set).map_err(io::Error::other)?;
        self.cgroup.enter()
    }

    /// Allows that [`sent`](EgressGroup::sent) rises to a number of bytes, where the limits have a budget.
    pub fn allow(&self, bytes: u64) -> Result<(), BpfError> {
        // The largest number stands for no limit.
        self.set_limits(|limits| limits.allowance = bytes.min(UNLIMITED - 1))
    }

    /// Returns the number of limited bytes that were sent since the creation of the group.
    pub fn sent(&self) -> Result<u64, BpfError> {
        let kernel = self.kernel();
        let map = kernel.program.map("buckets").expect("the BPF object contains it");
        Ok(Array::<&MapData, Bucket>::try_from(map)?.get(&0, 0)?.sent)
    }

    /// Returns the drops since the creation of the group.
    pub fn drops(&self) -> EgressDrops {
        let kernel = self.kernel();
        let map = kernel.program.map("drops").expect("the BPF object contains it");
        let drops = Array::<&MapData, u64>::try_from(map).expect("the type matches");
        let count = |index: usize| drops.get(&(index as u32), 0).unwrap_or(0);
        let [interface, destination, rate, budget] =
            std::array::from_fn(|rule| DroppedPackets { tcp: count(RULES + rule), other: count(rule) });
        EgressDrops { interface, destination, rate, budget, paced: count(PACED) }
    }

    fn set_limits(&self, change: impl FnOnce(&mut KernelLimits)) -> Result<(), BpfError> {
        let mut kernel = self.kernel();
        change(&mut kernel.limits);
        let limits = kernel.limits;
        set(&mut kernel.program, "limits", limits)
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attaches a program to all that a cgroup sends. Other than a link, the attachment does not end with the process: the
/// kernel still sends data of closed connections, which hold the removed cgroup and its programs until they end.
#[allow(unsafe_code)]
fn attach(program: BorrowedFd<'_>, group: BorrowedFd<'_>) -> io::Result<()> {
    // Command, type and flag of linux/bpf.h.
    const BPF_PROG_ATTACH: libc::c_long = 8;
    const BPF_CGROUP_INET_EGRESS: u32 = 1;
    const BPF_F_ALLOW_MULTI: u32 = 2;
    let descriptor = |fd: BorrowedFd<'_>| fd.as_raw_fd() as u32;
    let mut request = [descriptor(group), descriptor(program), BPF_CGROUP_INET_EGRESS, BPF_F_ALLOW_MULTI];
    // SAFETY: the request holds no pointers.
    unsafe { bpf_call(BPF_PROG_ATTACH, &mut request) }.map(drop)
}

/// Returns the numbers of the interfaces that have these names now.
fn indices(names: &[String]) -> [u32; MAX_INTERFACES] {
    let mut named = names.iter().filter_map(|name| nix::net::if_::if_nametoindex(name.as_str()).ok());
    // No interface has the number zero.
    std::array::from_fn(|_| named.next().unwrap_or(0))
}

fn write_limits(kernel: &mut Ebpf, limits: &EgressLimits) -> Result<KernelLimits, BpfError> {
    let rate = limits.rate.map_or(0, |rate| (rate.0 / 8).max(1));
    let burst = (rate / BUCKETS_PER_SECOND).max(MIN_BURST_BYTES);
    let in_kernel = KernelLimits {
        rate,
        burst,
        allowance: if limits.has_budget { 0 } else { UNLIMITED },
        has_destinations: limits.destinations.is_some().into(),
        has_interfaces: limits.interfaces.is_some().into(),
        interfaces: limits.interfaces.as_deref().map_or([0; MAX_INTERFACES], indices),
        min_mtu: MIN_IPV4_MTU,
        unused: 0,
    };
    set(kernel, "limits", in_kernel)?;
    set(kernel, "buckets", Bucket { tokens: burst as i64, ..Bucket::default() })?;
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
    Ok(in_kernel)
}

fn set<T: Pod>(kernel: &mut Ebpf, name: &str, value: T) -> Result<(), BpfError> {
    let map = kernel.map_mut(name).expect("the BPF object contains it");
    Ok(Array::<_, T>::try_from(map)?.set(0, value, 0)?)
}

/// Returns the smallest MTU with which the kernel may split packets of IPv4 in the thread's namespace. A route's own MTU,
/// which only the operator of the host can set, is not included.
fn min_mtu() -> io::Result<u32> {
    // Older kernels show the setting in the first namespace only.
    let path = fs::read_to_string(MIN_PATH_MTU).ok().and_then(|text| text.trim().parse().ok());
    let links = Netlink::open_in_current_namespace()?.links()?;
    let lowest = links.iter().map(|link| link.mtu).chain([path.unwrap_or(MIN_IPV4_MTU)]).min();
    Ok(lowest.unwrap_or_default().max(MIN_IPV4_MTU))
}
