//! Control of a link's offloads by the features interface of ethtool(7), and the statistics of its driver. Uses
//! ioctl, which needs no family lookup.
//!
//! With offloads enabled, a link carries frames that no wire does: 64 KB segments, unfinished checksums, VLAN
//! tags outside the frame.

use super::Namespace;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
// Commands and sizes of linux/ethtool.h.
const GET_STRINGS: u32 = 0x1b;
const GET_STRING_SET_INFO: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const GET_STATISTICS: u32 = 0x1d;
const STATISTIC_NAMES: u32 = 1;
const FEATURE_NAMES: u32 = 4;
const NAME_LEN: usize = 32;

/// Disables every offload that changes the observed frames: segmentation and coalescing, checksums,
/// scatter-gather, VLAN tags. The error names the offloads that stayed on.
pub fn disable_offloads(namespace: &Namespace, link: &str) -> io::Result<()> {
    let device = EthtoolDevice::open(namespace, link)?;
    let names = device.feature_names()?;
    let wanted: Vec<usize> = (0..names.len()).filter(|&bit| is_offload(&names[bit])).collect();
    device.set(&wanted, names.len(), false)?;
    let on = device.active(names.len())?;
    let still_on: Vec<&str> = wanted.iter().filter(|&&bit| on[bit]).map(|&bit| names[bit].as_str()).collect();
    if still_on.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("{link}: cannot disable offloads {}", still_on.join(", "))))
}

/// Enables the features named by [`enabled_offloads`].
pub fn enable_features(namespace: &Namespace, link: &str, features: &[String]) -> io::Result<()> {
    let device = EthtoolDevice::open(namespace, link)?;
    let names = device.feature_names()?;
    let wanted: Vec<usize> = (0..names.len()).filter(|&bit| features.contains(&names[bit])).collect();
    device.set(&wanted, names.len(), true)
}

/// Returns the names of enabled offloads.
pub fn enabled_offloads(namespace: &Namespace, link: &str) -> io::Result<Vec<String>> {
    let device = EthtoolDevice::open(namespace, link)?;
    let names = device.feature_names()?;
    let on = device.active(names.len())?;
    Ok(names.into_iter().zip(on).filter(|(name, on)| *on && is_offload(name)).map(|(name, _)| name).collect())
}

/// Room for statistics added between two requests.
const SPARE: usize = 1024;

/// Returns the statistics of the link's driver by its own names (`ethtool -S`).
pub fn statistics(namespace: &Namespace, link: &str) -> io::Result<Vec<(String, u64)>> {
    let device = EthtoolDevice::open(namespace, link)?;
    let names = device.names(STATISTIC_NAMES)?;
    // struct ethtool_stats: cmd, count, 64-bit values.
    let mut values = vec![0; 2 + 2 * (names.len() + SPARE)];
    values[..2].copy_from_slice(&[GET_STATISTICS, names.len() as u32]);
    device.ioctl(&mut values)?;
    let (values, _) = values[2..].as_chunks();
    let value = |[first, second]: &[u32; 2]| {
        let [a, b, c, d] = first.to_ne_bytes();
        let [e, f, g, h] = second.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    Ok(names.into_iter().zip(values.iter().map(value)).collect())
}

/// Returns whether a feature is an offload, by the kernel's names (net/ethtool/common.c), as `ethtool -k` shows
/// them.
fn is_offload(name: &str) -> bool {
    let segmentation = name.ends_with("-segmentation") || name.starts_with("tx-udp-");
    let coalescing = name.starts_with("rx-gro") || name == "rx-lro" || name == "rx-udp-gro-forwarding";
    let checksum = name.contains("checksum") && name != "rx-all";
    let gather = name.starts_with("tx-scatter-gather") || name == "tx-gso-list" || name == "tx-gso-partial";
    let vlan = name.contains("vlan") && (name.ends_with("-insert") || name.ends_with("-parse"));
    segmentation || coalescing || checksum || gather || vlan
}

/// Link that is accessed by ioctl.
struct EthtoolDevice {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl EthtoolDevice {
    fn open(namespace: &Namespace, link: &str) -> io::Result<EthtoolDevice> {
        if link.is_empty() || link.len() >= libc::IFNAMSIZ {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("invalid interface name: {link:?}"),
            ));
        }
        let mut name = [0; libc::IFNAMSIZ];
        name.iter_mut().zip(link.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
        let open = || socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
        Ok(EthtoolDevice { socket: namespace.run(open)??, name })
    }

    /// Returns the names of all features, indexed by feature number.
    fn feature_names(&self) -> io::Result<Vec<String>> {
        self.names(FEATURE_NAMES)
    }

    /// Returns the strings of a set in order.
    fn names(&self, set: u32) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, a 64-bit mask of sets, a count.
        let mut info = [GET_STRING_SET_INFO, 0, 1 << set, 0, 0];
        self.ioctl(&mut info)?;
        let count = info[4] as usize;
        // struct ethtool_gstrings: cmd, set, count, names.
        let mut strings = vec![0; 3 + count * NAME_LEN / 4];
        strings[..3].copy_from_slice(&[GET_STRINGS, set, count as u32]);
        self.ioctl(&mut strings)?;
        let bytes: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
        };
        Ok(bytes.chunks(NAME_LEN).map(name).collect())
    }

    /// Returns the state of each feature, indexed by feature number.
    fn active(&self, count: usize) -> io::Result<Vec<bool>> {
        let blocks = count.div_ceil(32);
        // struct ethtool_gfeatures: cmd, size, blocks of available, requested, active, never changed.
        let mut features = vec![0; 2 + 4 * blocks];
        features[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
        self.ioctl(&mut features)?;
        let active = |bit: usize| features[2 + 4 * (bit / 32) + 2] >> (bit % 32) & 1 == 1;
        Ok((0..count).map(active).collect())
    }

    /// Requests that features be enabled or disabled; the kernel skips those it cannot change.
    fn set(&self, bits: &[usize], count: usize, on: bool) -> io::Result<()> {
        let blocks = count.div_ceil(32);
        // struct ethtool_sfeatures: cmd, size, blocks of valid, requested.
        let mut features = vec![0; 2 + 2 * blocks];
        features[..2].copy_from_slice(&[SET_FEATURES, blocks as u32]);
        for bit in bits {
            let [valid, requested] = [0, 1].map(|word| 2 + 2 * (bit / 32) + word);
            features[valid] |= 1 << (bit % 32);
            features[requested] |= u32::from(on) << (bit % 32);
        }
        self.ioctl(&mut features)
    }

    /// Sends a request, which starts with a command and is large enough for the response.
    fn ioctl(&self, request: &mut [u32]) -> io::Result<()> {
        // SAFETY: a zeroed ifreq is a valid one.
        let mut interface_request: libc::ifreq = unsafe { std::mem::zeroed() };
        interface_request.ifr_name = self.name;
        interface_request.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: the kernel accesses memory at `request`, whose size its header states, while it is borrowed.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &mut interface_request) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
