//! Port on any interface by AF_PACKET (packet(7)). Needs CAP_NET_RAW, which a user namespace grants.
//!
//! Frames are received from a memory-mapped ring (TPACKET_V2): one copy by the kernel on arrival, no system
//! call while frames wait, a kernel timestamp per frame, and a capacity independent of socket buffer limits.
//! TPACKET_V3 would delay frames until a block is full. Frames are sent in batches by sendmmsg, bypassing the
//! interface's queueing discipline.
//!
//! The port does the work that local senders leave to their interface: it segments super-packets into frames
//! and completes checksums.
//!
//! On an interface without a link-layer header (ARPHRD_NONE: TUN), the port adds a header with
//! [`super::NO_STATION`] to frames; its ethertype is exchanged with the kernel beside the packet.
//!
//! - [`receive`]: received frames. [`send`]: sent frames.

mod receive;
mod send;

use super::kernel::{self, with_context};
use super::{Arrivals, FramePort, ReceivedFrame};
use crate::clock::ArrivalClock;
use crate::netns::{Namespace, Netlink};
use receive::{RingReceiver, RingResult};
use send::SendBatch;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Ethernet header with two VLAN tags.
const LINK_HEADER: usize = 22;

/// Memory size of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfPacketOptions {
    /// Capacity in frames of the receive ring; further frames are missed.
    pub receive_frames: usize,
}

impl Default for AfPacketOptions {
    /// 25 ms of 1500 B frames at 1 Gbit/s.
    fn default() -> AfPacketOptions {
        AfPacketOptions { receive_frames: 2048 }
    }
}

/// Port on an interface.
#[derive(Debug)]
pub struct AfPacket {
    link: String,
    socket: OwnedFd,
    receiving: RingReceiver,
    sending: SendBatch,
    clock: ArrivalClock,
    arrivals: Arrivals,
    missed: u64,
    idle: u32,
}

impl AfPacket {
    /// Opens a port on `link`. Frames that arrive from now on are queued.
    pub fn open(namespace: &Namespace, link: &str, options: AfPacketOptions) -> io::Result<AfPacket> {
        let socket =
            namespace.run(open_socket)?.map_err(|error| with_context(link, "open AF_PACKET", error))?;
        let fd = socket.as_fd();
        let interface = Netlink::open(namespace)?.link(link)?;
        let (index, frame_len) = (interface.index as libc::c_int, interface.mtu as usize + LINK_HEADER);
        let configure = || -> io::Result<RingReceiver> {
            let set = |option, value: libc::c_int| kernel::set_option(fd, libc::SOL_PACKET, option, &value);
            set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
            set(libc::PACKET_IGNORE_OUTGOING, 1)?;
            set(libc::PACKET_QDISC_BYPASS, 1)?;
            let receiver =
                RingReceiver::new(fd, frame_len, options.receive_frames, interface.has_no_link_header)?;
            // From here on, exactly the frames of this interface arrive.
            bind(fd, index)?;
            add_membership(fd, index)?;
            Ok(receiver)
        };
        let receiving = configure().map_err(|error| with_context(link, "set up AF_PACKET", error))?;
        Ok(AfPacket {
            link: link.into(),
            sending: SendBatch::new(frame_len, interface.has_no_link_header.then(|| link_address(index))),
            socket,
            receiving,
            clock: ArrivalClock::new(),
            arrivals: Arrivals::default(),
            missed: 0,
            idle: 0,
        })
    }

    /// Attaches a classic BPF program; only frames it accepts arrive from now on (packet(7)).
    pub fn attach_filter(&self, program: &[socket2::SockFilter]) -> io::Result<()> {
        socket2::SockRef::from(&self.socket).attach_filter(program)
    }

    /// Detaches the BPF program; all frames arrive again.
    pub fn detach_filter(&self) -> io::Result<()> {
        let detached = socket2::SockRef::from(&self.socket).detach_filter();
        // ENOENT: no program was attached.
        detached.or_else(|error| if error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) })
    }

    /// Returns the error that stopped reception, if known.
    fn check(&self) -> io::Result<()> {
        let pending = kernel::option::<libc::c_int>(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
        if !self.is_bound()? {
            let message = format!("{}: the interface is gone", self.link);
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        match pending {
            0 => Ok(()),
            libc::ENETDOWN => {
                let message = format!("{}: the interface is down", self.link);
                Err(io::Error::new(io::ErrorKind::NetworkDown, message))
            }
            errno => Err(with_context(&self.link, "receive", io::Error::from_raw_os_error(errno))),
        }
    }

    /// Returns whether the socket is bound. The kernel unbinds it when its interface is removed.
    fn is_bound(&self) -> io::Result<bool> {
        let mut address = link_address(0);
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `address`.
        let result =
            unsafe { libc::getsockname(self.socket.as_raw_fd(), (&raw mut address).cast(), &mut length) };
        kernel::check_result(result)?;
        Ok(address.sll_ifindex > 0)
    }
}

impl FramePort for AfPacket {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let AfPacket { link, socket, receiving, clock, arrivals, .. } = self;
        let mut has_begun = false;
        let mut count = 0;
        while count < limit {
            let taken = receiving.take(socket.as_fd(), &mut |frame, realtime_ns| {
                if !std::mem::replace(&mut has_begun, true) {
                    clock.begin_batch();
                }
                each(ReceivedFrame { frame, at_ns: arrivals.at(clock.at_ns(Some(realtime_ns))) });
            });
            match taken.map_err(|error| with_context(link, "receive", error))? {
                RingResult::Empty => break,
                RingResult::Frames(frames) => count += frames,
                RingResult::Unreadable => self.missed += 1,
            }
        }
        if count > 0 {
            self.idle = 0;
            return Ok(count);
        }
        // This is a system call, so it is not made at each poll of an idle port, but soon enough for a caller
        // that the error wakes repeatedly.
        if self.idle.is_multiple_of(16) {
            self.check()?;
        }
        self.idle = self.idle.wrapping_add(1);
        Ok(0)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        Ok(self.sending.take(frame))
    }

    fn flush(&mut self) -> io::Result<usize> {
        self.sending.flush(self.socket.as_fd()).map_err(|error| with_context(&self.link, "send", error))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn missed(&mut self) -> u64 {
        let statistics = kernel::option(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // The kernel resets its counters at each reading.
        self.missed += statistics.map_or(0, |statistics: libc::tpacket_stats| u64::from(statistics.tp_drops));
        self.missed
    }
}

/// Opens a socket for all protocols that receives nothing until it is bound to an interface.
fn open_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: creates a descriptor and has no other effect.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    kernel::check_result(socket)?;
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn link_address(index: libc::c_int) -> libc::sockaddr_ll {
    // SAFETY: zeros are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    address
}

fn bind(socket: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    let address = link_address(index);
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `address`.
    kernel::check_result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Enables promiscuous mode, which ends with the socket.
fn add_membership(socket: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    kernel::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}
