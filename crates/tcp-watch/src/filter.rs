//! Filter of watched connections. A connection matches if, for every kind of criterion given, one entry
//! matches.

use netstage_host::startup_error::StartupError;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum number of entries per kind, except processes.
pub const MAX_ENTRIES: usize = 16;
/// Mount points of the cgroup v2 hierarchy.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Filter of connections; matches all if empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Processes.
    pub processes: Vec<ProcessFilter>,
    /// Local or remote ports.
    pub ports: Vec<u16>,
    /// Networks of the local or remote address.
    pub addresses: Vec<AddressPrefix>,
    /// Inodes of network namespaces.
    pub namespaces: Vec<u32>,
    /// Folders of cgroups, including their descendants.
    pub cgroups: Vec<PathBuf>,
}

/// Process number, or name of any number of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessFilter {
    /// Process number.
    Number(u32),
    /// Name in the kernel: the first 15 characters of the program name.
    Name(String),
}

impl FromStr for ProcessFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<ProcessFilter, String> {
        match text.parse() {
            Ok(0) => Err("process numbers start at 1".into()),
            Ok(number) => Ok(ProcessFilter::Number(number)),
            Err(_) if text.is_empty() => Err("expected the number or name of a process".into()),
            Err(_) => Ok(ProcessFilter::Name(text.chars().take(15).collect())),
        }
    }
}

/// Address prefix, in IPv6 (IPv4 is mapped).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    address: u128,
    mask: u128,
}

impl FromStr for AddressPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressPrefix, String> {
        let invalid =
            || format!("{text:?} is not an address: expected 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let (mapped, max) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), 32),
            IpAddr::V6(address) => (address, 128),
        };
        let length = length.unwrap_or(max);
        if length > max {
            return Err(format!("{text:?}: the prefix is longer than {max} bits"));
        }
        let mask = u128::MAX.checked_shl(max - length).unwrap_or(0);
        Ok(AddressPrefix { address: u128::from(mapped) & mask, mask })
    }
}

impl AddressPrefix {
    /// Returns whether an address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let mapped = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        u128::from(mapped) & self.mask == self.address
    }

    /// Returns address and mask, each as two words in network byte order.
    pub(super) fn words(&self) -> ([u64; 2], [u64; 2]) {
        let words = |value: u128| {
            let octets = Ipv6Addr::from(value).octets();
            let (halves, _) = octets.as_chunks::<8>();
            [u64::from_ne_bytes(halves[0]), u64::from_ne_bytes(halves[1])]
        };
        (words(self.address), words(self.mask))
    }
}

/// Returns the path of a network namespace, given by a name of `ip netns`, a process number or a path.
pub fn namespace_path(text: &str) -> PathBuf {
    match text.parse::<u32>() {
        Ok(process) => PathBuf::from(format!("/proc/{process}/ns/net")),
        Err(_) if text.contains('/') => PathBuf::from(text),
        Err(_) => Path::new("/run/netns").join(text),
    }
}

/// Returns the inode of this network namespace.
pub fn namespace(text: &str) -> Result<u32, String> {
    let path = namespace_path(text);
    let found =
        fs::metadata(&path).map_err(|error| format!("no namespace at {}: {error}", path.display()))?;
    u32::try_from(found.ino()).map_err(|_| format!("{} is not a namespace", path.display()))
}

/// Returns the folder of a cgroup path, relative to the root of the hierarchy or of the file system.
pub fn cgroup(text: &str) -> Result<PathBuf, String> {
    let relative = text.trim_start_matches('/');
    let roots = CGROUPS.iter().rev().map(|root| Path::new(root).join(relative));
    let mut candidates = std::iter::once(PathBuf::from(text)).chain(roots);
    let is_cgroup = |path: &PathBuf| path.join("cgroup.procs").exists();
    candidates.find(is_cgroup).ok_or_else(|| format!("no cgroup {text:?} below {}", CGROUPS.join(" or ")))
}

/// Returns the cgroup of a container, identified by the start of its ID in the folder name.
pub fn container(id: &str) -> Result<PathBuf, String> {
    if id.len() < 4 || !id.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(format!("{id:?} is not a container ID: expected four or more hexadecimal digits"));
    }
    let mut matching: Vec<PathBuf> = Vec::new();
    for root in CGROUPS.iter().rev() {
        let is_of_container = |folder: &PathBuf| {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // Names: docker-ID.scope, cri-containerd-ID.scope, libpod-ID.scope, or the plain ID. A container's
            // monitor has libpod-conmon-ID.scope.
            let mut parts = name.split(['-', '.']);
            !name.contains("conmon") && parts.any(|part| part.starts_with(id) && part.len() >= 12)
        };
        matching.extend(folders(Path::new(root)).into_iter().filter(is_of_container));
        if !matching.is_empty() {
            break;
        }
    }
    matching.retain(|folder| folder.join("cgroup.procs").exists());
    match matching.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("no container ID starts with {id:?}")),
        several => Err(format!("{} container IDs start with {id:?}; give more digits", several.len())),
    }
}

/// Returns a folder and all its descendants.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    let mut next = 0;
    while let Some(folder) = all.get(next) {
        let below = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let below: Vec<PathBuf> = below.filter(is_folder).map(|entry| entry.path()).collect();
        all.extend(below);
        next += 1;
    }
    all
}

impl Filter {
    /// Rejects a filter with too many entries.
    pub fn check(&self) -> Result<(), StartupError> {
        let kinds = [
            ("ports", self.ports.len()),
            ("addresses", self.addresses.len()),
            ("namespaces", self.namespaces.len()),
        ];
        match kinds.into_iter().find(|(_, count)| *count > MAX_ENTRIES) {
            Some((kind, count)) => Err(StartupError::new(
                format!("{count} {kind} in the filter; the limit is {MAX_ENTRIES}"),
                "use a wider filter, or none, and filter the output",
            )),
            None => Ok(()),
        }
    }

    /// Returns the inodes of all watched cgroups, by which the kernel numbers them.
    pub(super) fn cgroup_numbers(&self) -> BTreeSet<u64> {
        let all = self.cgroups.iter().flat_map(|cgroup| folders(cgroup));
        all.filter_map(|folder| fs::metadata(folder).ok()).map(|found| found.ino()).collect()
    }

    /// Returns the numbers of all watched processes, including those in cgroups.
    pub fn process_numbers(&self) -> Vec<u32> {
        let folders = self.cgroups.iter().flat_map(|cgroup| folders(cgroup));
        let lists = folders.filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        let listed =
            lists.flat_map(|list| list.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>());
        self.processes.iter().flat_map(ProcessFilter::numbers).chain(listed).collect()
    }

    /// Returns the inodes of all sockets of watched processes, and the processes that do not exist.
    pub(super) fn sockets(&self) -> (BTreeSet<u64>, Vec<ProcessFilter>) {
        let mut sockets = BTreeSet::new();
        let mut missing = Vec::new();
        for process in &self.processes {
            let found: Vec<_> =
                process.numbers().into_iter().filter_map(|number| sockets_of(number).ok()).collect();
            if found.is_empty() {
                missing.push(process.clone());
            }
            sockets.extend(found.into_iter().flatten());
        }
        (sockets, missing)
    }
}

impl ProcessFilter {
    fn numbers(&self) -> Vec<u32> {
        match self {
            ProcessFilter::Number(number) => vec![*number],
            ProcessFilter::Name(name) => numbers_of(name),
        }
    }
}

impl std::fmt::Display for ProcessFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProcessFilter::Number(number) => write!(f, "process {number}"),
            ProcessFilter::Name(name) => write!(f, "process {name:?}"),
        }
    }
}

/// Returns all processes of a name.
fn numbers_of(name: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_named = |number: &u32| {
        fs::read_to_string(format!("/proc/{number}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    numbers.filter(is_named).collect()
}

/// Returns the inodes of a process's sockets.
fn sockets_of(process: u32) -> io::Result<Vec<u64>> {
    let entries = fs::read_dir(format!("/proc/{process}/fd"))?;
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(entries.flatten().filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn networks_contain_both_ip_versions() {
        let network: AddressPrefix = "192.0.2.0/24".parse().unwrap();
        assert!(network.contains("192.0.2.255".parse().unwrap()));
        assert!(network.contains("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!network.contains("192.0.3.1".parse().unwrap()));
        let all: AddressPrefix = "::/0".parse().unwrap();
        assert!(all.contains("10.0.0.1".parse().unwrap()) && all.words() == ([0; 2], [0; 2]));
        let one: AddressPrefix = "2001:db8::1".parse().unwrap();
        assert!(!one.contains("2001:db8::2".parse().unwrap()));
        for invalid in ["", "10.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/", "host"] {
            assert!(invalid.parse::<AddressPrefix>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn sockets_are_found_by_process_number_and_name() {
        let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = std::process::id();
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        for process in [ProcessFilter::Number(number), name.trim_end().parse().unwrap()] {
            let filter = Filter { processes: vec![process], ..Filter::default() };
            let (sockets, missing) = filter.sockets();
            assert!(!sockets.is_empty() && missing.is_empty());
        }
        let nobody = Filter { processes: vec![ProcessFilter::Number(u32::MAX)], ..Filter::default() };
        assert_eq!(nobody.sockets(), (BTreeSet::new(), nobody.processes.clone()));
        assert!("0".parse::<ProcessFilter>().is_err() && "".parse::<ProcessFilter>().is_err());
    }

    #[test]
    fn a_namespace_is_found_by_process_or_path() {
        let own = namespace(&std::process::id().to_string()).unwrap();
        assert_eq!(namespace("/proc/self/ns/net"), Ok(own));
        assert!(namespace("no-such-namespace").unwrap_err().contains("/run/netns/no-such-namespace"));
        assert!(container("zz").is_err() && container("0123456789abcdef").is_err());
        assert!(cgroup("no/such/cgroup").is_err());
    }
}
