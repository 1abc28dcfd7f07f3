//! Port that is the far end of its interface: the port receives frames that the kernel sends, and vice versa
//! (Documentation/networking/tuntap.rst). The interface is deleted with the port. One system call per frame, so
//! not for high rates.

use super::kernel::{self, with_context};
use super::{FramePort, ReceivedFrame};
use crate::clock;
use crate::netns::{Namespace, Netlink};
use netstage_wire::ethernet::HEADER;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Header of flags and ethertype before each packet of a TUN interface (`struct tun_pi`).
const INFORMATION: usize = 4;
/// Maximum number of frames queued before a flush.
const BATCH: usize = 64;

/// Layer of the packets on the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunLayer {
    /// TAP: Ethernet frames.
    Ethernet,
    /// TUN: IP or MPLS packets. The port adds an Ethernet header ([`super::NO_STATION`]) to received packets,
    /// and removes it from sent ones.
    Ip,
}

/// TUN or TAP interface and its far end.
#[derive(Debug)]
pub struct Tun {
    link: String,
    layer: TunLayer,
    file: File,
    netlink: Netlink,
    buffer: Vec<u8>,
    queued: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Tun {
    /// Creates the interface `link`, which is down and has no addresses. No offloads: the observed frames are
    /// those a wire would carry.
    pub fn create(namespace: &Namespace, link: &str, layer: TunLayer) -> io::Result<Tun> {
        let failed = |error| with_context(link, "create a TUN/TAP interface", error);
        let open = || {
            let mut request = kernel::interface_request(link)?;
            // Only the packet information header distinguishes MPLS from IP packets.
            let kind = match layer {
                TunLayer::Ethernet => libc::IFF_TAP | libc::IFF_NO_PI,
                TunLayer::Ip => libc::IFF_TUN,
            };
            request.ifr_ifru.ifru_flags = kind as libc::c_short;
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
            // SAFETY: the kernel reads and writes within `request`.
            let result =
                unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &mut request) };
            kernel::check_result(result).map(|()| file)
        };
        // The interface is created in the namespace in which the device is opened.
        let file = namespace.run(open)?.map_err(failed)?;
        Ok(Tun {
            link: link.into(),
            layer,
            file,
            netlink: Netlink::open(namespace)?,
            buffer: vec![0; HEADER + (1 << 16)],
            queued: Vec::new(),
            spare: Vec::new(),
        })
    }

    fn interface_error(&self, action: &str, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::EBADFD) => {
                io::Error::new(ErrorKind::NotFound, format!("{}: the interface is gone", self.link))
            }
            Some(libc::EIO) => {
                io::Error::new(ErrorKind::NetworkDown, format!("{}: the interface is down", self.link))
            }
            _ => with_context(&self.link, action, error),
        }
    }
}

/// Returns the length of the frame prefix that the interface lacks: the ethertype in the packet information
/// header is aligned with that of an Ethernet header.
fn missing_prefix(layer: TunLayer) -> usize {
    match layer {
        TunLayer::Ethernet => 0,
        TunLayer::Ip => HEADER - INFORMATION,
    }
}

impl FramePort for Tun {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        for count in 0..limit {
            let start = missing_prefix(self.layer);
            let length = match (&self.file).read(&mut self.buffer[start..]) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(self.interface_error("receive", error)),
            };
            let end = start + length;
            if self.layer == TunLayer::Ip {
                // Clear the flags, which are the end of an address in the Ethernet header.
                self.buffer[start..HEADER - 2].fill(0);
            }
            let now = clock::monotonic_ns();
            let at_ns = now;
            each(ReceivedFrame { frame: &self.buffer[..end], at_ns });
        }
        Ok(limit)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if self.queued.len() == BATCH {
            return Ok(false);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.get(missing_prefix(self.layer)..).unwrap_or_default());
        if self.layer == TunLayer::Ip
            && let Some(flags) = bytes.get_mut(..INFORMATION - 2)
        {
            flags.fill(0);
        }
        self.queued.push(bytes);
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        let mut refused = 0;
        for bytes in std::mem::take(&mut self.queued) {
            match (&self.file).write(&bytes) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EIO)) => {
                    return Err(self.interface_error("send", error));
                }
                Err(_) => refused += 1,
            }
            self.spare.push(bytes);
        }
        Ok(refused)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn missed(&mut self) -> u64 {
        self.netlink.link(&self.link).map_or(0, |link| link.statistics.sent_dropped)
    }
}
