//! A port whose interface has no other end: what the kernel sends there is received here,
//! and the other way round (Documentation/networking/tuntap.rst). The interface goes with
//! the port. One frame per system call, so not for high rates.

use super::kernel::{self, about};
use super::{Port, Received};
use crate::clock;
use crate::netns::{Namespace, Netlink};
use netstage_wire::ethernet::HEADER;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// What the kernel puts before each packet of a TUN interface (`struct tun_pi`): flags, and its ethertype.
const INFORMATION: usize = 4;
/// Most frames taken before a flush.
const BATCH: usize = 64;

/// What passes the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// TAP: Ethernet frames.
    Ethernet,
    /// TUN: packets of IP, or labelled ones. The port adds an Ethernet header ([`super::NO_STATION`]) to what is
    /// received, and takes it off what is sent.
    Ip,
}

/// A TUN or TAP interface and its far side.
#[derive(Debug)]
pub struct Tun {
    link: String,
    layer: Layer,
    file: File,
    netlink: Netlink,
    buffer: Vec<u8>,
    taken: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Tun {
    /// Creates the interface `link`, down and without addresses. No offloads: what is seen
    /// is what a wire would carry.
    pub fn create(namespace: &Namespace, link: &str, layer: Layer) -> io::Result<Tun> {
        let failed = |error| about(link, "create a TUN/TAP interface", error);
        let open = || {
            let mut request = kernel::interface_request(link)?;
            // Only what is before them tells labelled packets from IP.
            let kind = match layer {
                Layer::Ethernet => libc::IFF_TAP | libc::IFF_NO_PI,
                Layer::Ip => libc::IFF_TUN,
            };
            request.ifr_ifru.ifru_flags = kind as libc::c_short;
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
            // SAFETY: the kernel reads and writes within `request`.
            let answer =
                unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &mut request) };
            kernel::done(answer).map(|()| file)
        };
        // The interface lies in the namespace the device is opened in.
        let file = namespace.run(open)?.map_err(failed)?;
        Ok(Tun {
            link: link.into(),
            layer,
            file,
            netlink: Netlink::open(namespace)?,
            buffer: vec![0; HEADER + (1 << 16)],
            taken: Vec::new(),
            spare: Vec::new(),
        })
    }

    fn lost(&self, action: &str, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::EBADFD) => {
                io::Error::new(ErrorKind::NotFound, format!("{}: the interface is gone", self.link))
            }
            Some(libc::EIO) => {
                io::Error::new(ErrorKind::NetworkDown, format!("{}: the interface is down", self.link))
            }
            _ => about(&self.link, action, error),
        }
    }
}

/// Bytes of a frame that an interface has not: the ethertype of a packet stands where its Ethernet header has it.
fn before(layer: Layer) -> usize {
    match layer {
        Layer::Ethernet => 0,
        Layer::Ip => HEADER - INFORMATION,
    }
}

impl Port for Tun {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        for count in 0..limit {
            let start = before(self.layer);
            let length = match (&self.file).read(&mut self.buffer[start..]) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(self.lost("receive", error)),
            };
            let end = start + length;
            if self.layer == Layer::Ip {
                // Where flags stood is the end of an address.
                self.buffer[start..HEADER - 2].fill(0);
            }
            let now = clock::monotonic_ns();
            let at_ns = now;
            each(Received { frame: &self.buffer[..end], at_ns });
        }
        Ok(limit)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if self.taken.len() == BATCH {
            return Ok(false);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.get(before(self.layer)..).unwrap_or_default());
        if self.layer == Layer::Ip
            && let Some(flags) = bytes.get_mut(..INFORMATION - 2)
        {
            flags.fill(0);
        }
        self.taken.push(bytes);
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        let mut refused = 0;
        for bytes in std::mem::take(&mut self.taken) {
            match (&self.file).write(&bytes) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EIO)) => {
                    return Err(self.lost("send", error));
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
