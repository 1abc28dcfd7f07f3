//! A filter, as the programs in the kernel know it (bpf/tcp.h).

use super::filter::{Filter, MOST, Process};
use aya::maps::{Array, HashMap};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use netstage_host::obstacle::Obstacle;
use std::collections::{BTreeMap, BTreeSet};

/// `SOCKET_WORDS`.
const SOCKET_WORDS: u64 = 1024;

/// The filter of an object's programs, and what it comes to at present.
#[derive(Debug)]
pub(super) struct Selection {
    filter: Filter,
    sockets: BTreeSet<u64>,
    cgroups: BTreeSet<u64>,
}

/// The kernel's own types, which say where their members are.
pub(super) fn types() -> Result<Btf, Obstacle> {
    Btf::from_sys_fs().map_err(|error| Obstacle {
        message: format!("the kernel tells nothing of its types: {error}"),
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF (/sys/kernel/btf/vmlinux)".into(),
        is_missing: true,
    })
}

/// The kernel does not take a program.
pub(super) fn refused(error: impl std::fmt::Display) -> Obstacle {
    Obstacle {
        message: format!("the kernel takes no programs for its TCP: {error}"),
        remedy: "run it as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN".into(),
        is_missing: true,
    }
}

impl Selection {
    /// Hands an object to the kernel, with the filter in it and constants by their names.
    pub fn load(
        object: &[u8],
        constants: &[(&str, u32)],
        filter: Filter,
        btf: &Btf,
    ) -> Result<(Ebpf, Selection), Obstacle> {
        filter.check()?;
        let kernel = load(object, constants, &filter, btf).map_err(refused)?;
        let (sockets, cgroups) = Default::default();
        Ok((kernel, Selection { filter, sockets, cgroups }))
    }

    /// Looks which sockets processes have now, and which cgroups there are; yields the processes of which there is
    /// none.
    pub fn refresh(&mut self, kernel: &mut Ebpf) -> Vec<Process> {
        let (sockets, gone) = self.filter.sockets();
        let bits_before = bits(&self.sockets);
        change(kernel, "sockets", &mut self.sockets, sockets);
        set_bits(kernel, &bits_before, &bits(&self.sockets));
        let cgroups = self.filter.cgroup_numbers();
        change(kernel, "cgroups", &mut self.cgroups, cgroups);
        gone
    }
}

/// Words of `socket_bits`, and which bits they have set.
fn bits(sockets: &BTreeSet<u64>) -> BTreeMap<u32, u64> {
    let mut words = BTreeMap::new();
    for inode in sockets {
        *words.entry((inode / 64 % SOCKET_WORDS) as u32).or_default() |= 1 << (inode % 64);
    }
    words
}

fn set_bits(kernel: &mut Ebpf, before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) {
    let map = kernel.map_mut("socket_bits").expect("it is in the object");
    let mut map = Array::<_, u64>::try_from(map).expect("it is of this kind");
    for word in before.keys().chain(after.keys()) {
        let of = |words: &BTreeMap<u32, u64>| words.get(word).copied().unwrap_or(0);
        if of(before) != of(after) {
            // A word of the map's is always there.
            let _ = map.set(*word, of(after), 0);
        }
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

fn load(object: &[u8], constants: &[(&str, u32)], filter: &Filter, btf: &Btf) -> Result<Ebpf, EbpfError> {
    let mut addresses = [0_u64; MOST * 2];
    let mut masks = [0_u64; MOST * 2];
    for (at, network) in filter.addresses.iter().enumerate() {
        let (address, mask) = network.words();
        addresses[2 * at..][..2].copy_from_slice(&address);
        masks[2 * at..][..2].copy_from_slice(&mask);
    }
    let mut loader = EbpfLoader::new();
    for (name, value) in constants {
        loader.override_global(name, value, true);
    }
    loader
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
        .load(object)
}

fn filled<T: Copy + Default>(given: &[T]) -> [T; MOST] {
    let mut all = [T::default(); MOST];
    all.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    all
}
