//! Filter in the form of the BPF programs (bpf/tcp.h).

use super::filter::{Filter, MAX_ENTRIES, ProcessFilter};
use aya::maps::{Array, HashMap};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use netstage_host::startup_error::StartupError;
use std::collections::{BTreeMap, BTreeSet};

/// `SOCKET_WORDS` of bpf/tcp.h.
const SOCKET_WORDS: u64 = 1024;

/// Filter of loaded programs, with the sockets and cgroups it currently selects.
#[derive(Debug)]
pub(super) struct Selection {
    filter: Filter,
    sockets: BTreeSet<u64>,
    cgroups: BTreeSet<u64>,
}

/// Returns the kernel's type information, which has the offsets of structure members.
pub(super) fn types() -> Result<Btf, StartupError> {
    Btf::from_sys_fs().map_err(|error| StartupError {
        message: format!("cannot read the kernel's type information: {error}"),
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF (/sys/kernel/btf/vmlinux)".into(),
        is_missing: true,
    })
}

/// Returns the error of a rejected program.
pub(super) fn program_error(error: impl std::fmt::Display) -> StartupError {
    StartupError {
        message: format!("the kernel rejects BPF programs for TCP: {error}"),
        remedy: "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN".into(),
        is_missing: true,
    }
}

impl Selection {
    /// Loads an object into the kernel with a filter and named constants.
    pub fn load(
        object: &[u8],
        constants: &[(&str, u32)],
        filter: Filter,
        btf: &Btf,
    ) -> Result<(Ebpf, Selection), StartupError> {
        filter.check()?;
        let kernel = load(object, constants, &filter, btf).map_err(program_error)?;
        let (sockets, cgroups) = Default::default();
        Ok((kernel, Selection { filter, sockets, cgroups }))
    }

    /// Updates the sockets and cgroups that the filter selects; returns the processes that do not exist.
    pub fn refresh(&mut self, kernel: &mut Ebpf) -> Vec<ProcessFilter> {
        let (sockets, missing) = self.filter.sockets();
        let bits_before = bits(&self.sockets);
        change(kernel, "sockets", &mut self.sockets, sockets);
        set_bits(kernel, &bits_before, &bits(&self.sockets));
        let cgroups = self.filter.cgroup_numbers();
        change(kernel, "cgroups", &mut self.cgroups, cgroups);
        missing
    }
}

/// Returns the nonzero words of `socket_bits`.
fn bits(sockets: &BTreeSet<u64>) -> BTreeMap<u32, u64> {
    let mut words = BTreeMap::new();
    for inode in sockets {
        *words.entry((inode / 64 % SOCKET_WORDS) as u32).or_default() |= 1 << (inode % 64);
    }
    words
}

fn set_bits(kernel: &mut Ebpf, before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) {
    let map = kernel.map_mut("socket_bits").expect("the BPF object contains it");
    let mut map = Array::<_, u64>::try_from(map).expect("the type matches");
    for word in before.keys().chain(after.keys()) {
        let word_of = |words: &BTreeMap<u32, u64>| words.get(word).copied().unwrap_or(0);
        if word_of(before) != word_of(after) {
            // Every word exists in the map.
            let _ = map.set(*word, word_of(after), 0);
        }
    }
}

/// Updates a set in the kernel to match ours.
fn change(kernel: &mut Ebpf, name: &str, current: &mut BTreeSet<u64>, wanted: BTreeSet<u64>) {
    let map = kernel.map_mut(name).expect("the BPF object contains it");
    let mut map = HashMap::<_, u64, u8>::try_from(map).expect("the type matches");
    for added in wanted.difference(current) {
        // A full set ignores further entries.
        let _ = map.insert(added, 1, 0);
    }
    for removed in current.difference(&wanted) {
        let _ = map.remove(removed);
    }
    *current = wanted;
}

fn load(object: &[u8], constants: &[(&str, u32)], filter: &Filter, btf: &Btf) -> Result<Ebpf, EbpfError> {
    let mut addresses = [0_u64; MAX_ENTRIES * 2];
    let mut masks = [0_u64; MAX_ENTRIES * 2];
    for (index, network) in filter.addresses.iter().enumerate() {
        let (address, mask) = network.words();
        addresses[2 * index..][..2].copy_from_slice(&address);
        masks[2 * index..][..2].copy_from_slice(&mask);
    }
    let mut loader = EbpfLoader::new();
    for (name, value) in constants {
        loader.override_global(name, value, true);
    }
    loader
        .btf(Some(btf))
        .override_global("PORTS", &(filter.ports.len() as u32), true)
        .override_global("PORT", &to_array(&filter.ports)[..], true)
        .override_global("NAMESPACES", &(filter.namespaces.len() as u32), true)
        .override_global("NAMESPACE", &to_array(&filter.namespaces)[..], true)
        .override_global("ADDRESSES", &(filter.addresses.len() as u32), true)
        .override_global("ADDRESS", &addresses[..], true)
        .override_global("ADDRESS_MASK", &masks[..], true)
        .override_global("BY_SOCKET", &u32::from(!filter.processes.is_empty()), true)
        .override_global("BY_CGROUP", &u32::from(!filter.cgroups.is_empty()), true)
        .load(object)
}

fn to_array<T: Copy + Default>(given: &[T]) -> [T; MAX_ENTRIES] {
    let mut all = [T::default(); MAX_ENTRIES];
    all.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    all
}
