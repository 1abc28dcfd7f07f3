//! Port by AF_XDP: frames are exchanged between the driver and memory shared with this process, bypassing the
//! rest of the kernel. Needs root (CAP_BPF and CAP_NET_ADMIN outside any user namespace). Takes over queue 0 of
//! its interface, whose frames the kernel no longer sees.
//!
//! - `program`: the XDP program that redirects frames and timestamps them.
//! - `rings`: the rings shared with the kernel.

mod program;
mod rings;

use super::kernel::{self, Mapping, with_context};
use super::{Arrivals, FramePort, ReceivedFrame};
use crate::clock;
use crate::netns::{Namespace, Netlink, netlink::NetworkLink};
use program::{STAMP, XdpRedirect};
use rings::{Consumer, Producer};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Space that the kernel reserves before a frame (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Ethernet header with two VLAN tags.
const LINK_HEADER: usize = 22;
/// Maximum time the kernel takes to release the queue of a closed socket, which it does in a work item.
const RELEASE: Duration = Duration::from_secs(2);

/// Memory size of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfXdpOptions {
    /// Capacity in frames of the receive ring; further frames are missed. Rounded up to a power of two.
    pub receive_frames: u32,
    /// Capacity in frames of the send ring. Rounded up to a power of two.
    pub send_frames: u32,
    /// Whether the port receives arriving frames. If not, the kernel handles them as before.
    pub receives: bool,
}

impl Default for AfXdpOptions {
    fn default() -> AfXdpOptions {
        AfXdpOptions { receive_frames: 2048, send_frames: 2048, receives: true }
    }
}

/// Port on an interface whose queue 0 it has taken over.
#[derive(Debug)]
pub struct AfXdp {
    link: String,
    // Declared first, so that it is detached before the socket closes.
    _program: Option<XdpRedirect>,
    socket: OwnedFd,
    frames: Mapping,
    chunk_len: usize,
    frame_len: usize,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    receiving: Consumer<libc::xdp_desc>,
    sending: Producer<libc::xdp_desc>,
    /// Free chunks for frames to send.
    free: Vec<u64>,
    too_long: usize,
    arrivals: Arrivals,
    idle: u32,
}

impl AfXdp {
    /// Takes over queue 0 of `link`. The interface should have no other queue, because frames arriving on it
    /// are not seen.
    pub fn open(namespace: &Namespace, link: &str, options: AfXdpOptions) -> io::Result<AfXdp> {
        let interface = Netlink::open(namespace)?.link(link)?;
        // The program is attached inside the namespace too: interface indices are per namespace.
        namespace.run(|| AfXdp::open_here(&interface, options))?.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => {
                let needs = "AF_XDP needs root, outside any user namespace (CAP_BPF, CAP_NET_ADMIN)";
                with_context(link, needs, error)
            }
            _ => with_context(link, "open AF_XDP", error),
        })
    }

    fn open_here(link: &NetworkLink, options: AfXdpOptions) -> io::Result<AfXdp> {
        // SAFETY: creates a descriptor and has no other effect.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        kernel::check_result(fd)?;
        // SAFETY: the descriptor was just opened and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let fd = socket.as_fd();
        let (index, frame_len) = (link.index, link.mtu as usize + LINK_HEADER);
        // The kernel accepts powers of two from 2048 to the page size.
        let chunk_len = (HEADROOM + frame_len).next_power_of_two().max(2048);
        if chunk_len > 4096 {
            let message = "the MTU is too large for AF_XDP, which limits a frame to one page";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let receive_frames = options.receive_frames.next_power_of_two();
        let send_frames = options.send_frames.next_power_of_two();
        let frames = Mapping::anonymous((receive_frames + send_frames) as usize * chunk_len)?;
        let registration = libc::xdp_umem_reg {
            addr: frames.at::<u8>(0).as_ptr() as u64,
            len: frames.len() as u64,
            chunk_size: chunk_len as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        kernel::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)?;
        // Twice the chunks: the kernel delivers frames before it reports that it has taken their chunks from
        // this ring.
        let mut fill = Producer::new(fd, &rings::FILL, 2 * receive_frames)?;
        let completion = Consumer::new(fd, &rings::COMPLETION, send_frames)?;
        let receiving = Consumer::new(fd, &rings::RECEIVE, receive_frames)?;
        let sending = Producer::new(fd, &rings::SEND, send_frames)?;
        let chunk = |number: u32| u64::from(number) * chunk_len as u64;
        (0..receive_frames)
            .for_each(|number| assert!(fill.push(chunk(number)), "the fill ring has room for all chunks"));
        fill.publish();
        let free = (receive_frames..receive_frames + send_frames).map(chunk).collect();
        bind(fd, index)?;
        Ok(AfXdp {
            link: link.name.clone(),
            _program: options.receives.then(|| XdpRedirect::attach(index, fd)).transpose()?,
            socket,
            frames,
            chunk_len,
            frame_len,
            fill,
            completion,
            receiving,
            sending,
            free,
            too_long: 0,
            arrivals: Arrivals::default(),
            idle: 0,
        })
    }

    fn interface_gone(&self) -> io::Error {
        io::Error::new(ErrorKind::NotFound, format!("{}: the interface is gone", self.link))
    }

    /// Returns an error if the kernel has unbound the socket because its interface was removed.
    fn check(&self) -> io::Result<()> {
        match kernel::option::<libc::c_int>(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(()),
            libc::ENETDOWN => Err(self.interface_gone()),
            errno => Err(with_context(&self.link, "receive", io::Error::from_raw_os_error(errno))),
        }
    }

    /// Makes the kernel process the send ring. Returns false if it refused a frame.
    fn kick(&self) -> io::Result<bool> {
        let (fd, none) = (self.socket.as_raw_fd(), std::ptr::null());
        // SAFETY: the call itself passes no bytes.
        let answer = unsafe { libc::sendto(fd, none, 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if answer >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(true),
            Some(libc::EBUSY | libc::ENOBUFS) => Ok(false),
            Some(libc::ENXIO) => Err(self.interface_gone()),
            _ => Err(with_context(&self.link, "send", error)),
        }
    }

    /// Reclaims the chunks of sent frames.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.free.push(address - address % self.chunk_len as u64);
        }
        self.completion.release();
    }
}

fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // Zero copy if the driver supports it, as the kernel determines.
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    let start = Instant::now();
    loop {
        // SAFETY: the kernel reads `length` bytes of `address`.
        let bound = kernel::check_result(unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
        });
        match bound {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < RELEASE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

impl FramePort for AfXdp {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let mut count = 0;
        let mut now = None;
        while count < limit {
            let Some(descriptor) = self.receiving.pop() else { break };
            let now = *now.get_or_insert_with(clock::monotonic_ns);
            let (start, length) = (descriptor.addr as usize, descriptor.len as usize);
            // SAFETY: the kernel has handed over the chunk, and gets it back below.
            let bytes = unsafe { self.frames.bytes(start - STAMP, STAMP + length) };
            let (stamp, frame) = bytes.split_at_mut(STAMP);
            // Zero if the driver left no room for the timestamp.
            let stamped = u64::from_ne_bytes(stamp.try_into().expect("the slice has STAMP bytes"));
            stamp.fill(0);
            let at_ns = self.arrivals.at(if stamped == 0 { now } else { stamped.min(now) });
            each(ReceivedFrame { frame, at_ns });
            let chunk = descriptor.addr - descriptor.addr % self.chunk_len as u64;
            assert!(self.fill.push(chunk), "the fill ring has room for all chunks");
            count += 1;
        }
        if count == 0 {
            // As for AF_PACKET, this system call is not made at each poll of an idle port.
            if self.idle.is_multiple_of(16) {
                self.check()?;
            }
            self.idle = self.idle.wrapping_add(1);
            return Ok(0);
        }
        self.idle = 0;
        self.receiving.release();
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // SAFETY: the call transfers no bytes; it only makes the kernel refill the ring.
            unsafe {
                let (fd, none) = (self.socket.as_raw_fd(), std::ptr::null_mut());
                libc::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, std::ptr::null_mut(), std::ptr::null_mut());
            }
        }
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if frame.len() > self.frame_len {
            self.too_long += 1;
            return Ok(true);
        }
        let Some(address) = self.free.pop() else { return Ok(false) };
        // SAFETY: a free chunk is ours.
        unsafe { self.frames.bytes(address as usize, frame.len()) }.copy_from_slice(frame);
        let descriptor = libc::xdp_desc { addr: address, len: frame.len() as u32, options: 0 };
        assert!(self.sending.push(descriptor), "the send ring has room for all chunks");
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        let mut refused = std::mem::take(&mut self.too_long);
        self.sending.publish();
        // Without zero copy, the kernel sends only some frames per call.
        let mut left = self.sending.pending();
        while left > 0 && self.sending.needs_wakeup() {
            refused += usize::from(!self.kick()?);
            let now_left = self.sending.pending();
            if now_left == left {
                // No progress: the driver is busy, or completions must free room first.
                break;
            }
            left = now_left;
        }
        self.reclaim();
        Ok(refused)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn missed(&mut self) -> u64 {
        let statistics = kernel::option(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS);
        statistics
            .map_or(0, |statistics: libc::xdp_statistics| statistics.rx_dropped + statistics.rx_ring_full)
    }
}
