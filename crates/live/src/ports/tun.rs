//! A port whose interface has no other end: what the kernel sends there is received here,
//! and the other way round (Documentation/networking/tuntap.rst). The interface goes with
//! the port. One frame per system call, so not for high rates.

use super::kernel::{self, about};
use super::{Port, Received};
use crate::clock;
use crate::netns::{Namespace, Netlink};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Ethernet header, put before packets of an interface that has none.
const ETHERNET: usize = 14;
/// Most frames taken before a flush.
const BATCH: usize = 64;

/// What passes the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// TAP: Ethernet frames.
    Ethernet,
    /// TUN: IP packets. The port adds an Ethernet header with addresses of zeros to what is
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
            let kind = if layer == Layer::Ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
            request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as libc::c_short;
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
            buffer: vec![0; ETHERNET + (1 << 16)],
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

impl Port for Tun {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        for count in 0..limit {
            // Packets are read behind the place of the header they lack.
            let length = match (&self.file).read(&mut self.buffer[ETHERNET..]) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(self.lost("receive", error)),
            };
            let end = ETHERNET + length;
            let start = match self.layer {
                Layer::Ethernet => ETHERNET,
                Layer::Ip => {
                    let protocol: u16 = if self.buffer[ETHERNET] >> 4 == 6 { 0x86dd } else { 0x0800 };
                    self.buffer[12..14].copy_from_slice(&protocol.to_be_bytes());
                    0
                }
            };
            let now = clock::monotonic_ns();
            let at_ns = now;
            each(Received { frame: &self.buffer[start..end], at_ns });
        }
        Ok(limit)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if self.taken.len() == BATCH {
            return Ok(false);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        let start = if self.layer == Layer::Ip { ETHERNET } else { 0 };
        bytes.extend_from_slice(frame.get(start..).unwrap_or_default());
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
