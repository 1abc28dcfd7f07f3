//! A port on any interface by AF_PACKET (packet(7)): needs CAP_NET_RAW, which a user
//! namespace gives.
//!
//! Frames come in by a memory-mapped ring (TPACKET_V2): one copy made by the kernel when
//! the frame arrives, no system call while there are frames, a kernel timestamp for each,
//! and a capacity that no limit on socket buffers cuts short. Version 3 would hold frames
//! back until a block is full. They go out in batches of sendmmsg, past the interface's
//! queueing discipline.

use super::kernel::{self, Mapping, about};
use super::{Arrivals, Port, Received};
use crate::clock::ArrivalClock;
use crate::netns::{Namespace, Netlink};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Frames handed to the kernel by one system call.
const BATCH: usize = 64;
/// Ethernet header with two VLAN tags.
const LINK_HEADER: usize = 22;
/// Room before a frame in the ring: header, socket address, alignment.
const RING_HEADER: usize = 96;
/// Smallest piece of ring memory.
const BLOCK: usize = 1 << 16;

/// How large the port's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Frames that may wait to be received; more are missed.
    pub receive_frames: usize,
}

impl Default for Options {
    /// At 1 Gbit/s of 1500 B frames, 25 ms.
    fn default() -> Options {
        Options { receive_frames: 2048 }
    }
}

/// A port on an interface.
#[derive(Debug)]
pub struct AfPacket {
    link: String,
    socket: OwnedFd,
    receiving: ReceiveRing,
    sending: SendBatch,
    clock: ArrivalClock,
    arrivals: Arrivals,
    missed: u64,
    idle: u32,
}

impl AfPacket {
    /// Opens a port on `link`. Frames that arrive from now on wait to be received.
    pub fn open(namespace: &Namespace, link: &str, options: Options) -> io::Result<AfPacket> {
        let socket = namespace.run(open_socket)?.map_err(|error| about(link, "open AF_PACKET", error))?;
        let fd = socket.as_fd();
        let interface = Netlink::open(namespace)?.link(link)?;
        let (index, frame_len) = (interface.index as libc::c_int, interface.mtu as usize + LINK_HEADER);
        let configure = || -> io::Result<ReceiveRing> {
            let set = |option, value: libc::c_int| kernel::set_option(fd, libc::SOL_PACKET, option, &value);
            set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
            set(libc::PACKET_IGNORE_OUTGOING, 1)?;
            set(libc::PACKET_QDISC_BYPASS, 1)?;
            let ring = ReceiveRing::new(fd, frame_len, options.receive_frames)?;
            // Only now do frames arrive: none of other interfaces, all of this one.
            bind(fd, index)?;
            add_membership(fd, index)?;
            Ok(ring)
        };
        let receiving = configure().map_err(|error| about(link, "set up AF_PACKET", error))?;
        Ok(AfPacket {
            link: link.into(),
            sending: SendBatch::new(frame_len),
            socket,
            receiving,
            clock: ArrivalClock::new(),
            arrivals: Arrivals::default(),
            missed: 0,
            idle: 0,
        })
    }

    /// From now on only frames this classic BPF program accepts arrive (packet(7)).
    pub fn keep_only(&self, program: &[socket2::SockFilter]) -> io::Result<()> {
        socket2::SockRef::from(&self.socket).attach_filter(program)
    }

    /// From now on all frames arrive again.
    pub fn keep_all(&self) -> io::Result<()> {
        let detached = socket2::SockRef::from(&self.socket).detach_filter();
        // Where there was none, there is none to take away.
        detached.or_else(|error| if error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) })
    }

    /// Why nothing arrives any more, where it is known.
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
            errno => Err(about(&self.link, "receive", io::Error::from_raw_os_error(errno))),
        }
    }

    /// The kernel unbinds a socket whose interface is removed.
    fn is_bound(&self) -> io::Result<bool> {
        let mut address = link_address(0);
        let mut length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `address`.
        let answer =
            unsafe { libc::getsockname(self.socket.as_raw_fd(), (&raw mut address).cast(), &mut length) };
        kernel::done(answer)?;
        Ok(address.sll_ifindex > 0)
    }
}

impl Port for AfPacket {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let mut begun = false;
        let mut count = 0;
        while count < limit {
            let Some(entry) = self.receiving.next() else { break };
            if !std::mem::replace(&mut begun, true) {
                self.clock.begin_batch();
            }
            match entry {
                Entry::Frame { frame, realtime_ns } => {
                    let at_ns = self.arrivals.at(self.clock.at_ns(Some(realtime_ns)));
                    each(Received { frame, at_ns });
                    count += 1;
                }
                Entry::Cut => self.missed += 1,
            }
            self.receiving.release();
        }
        if count > 0 {
            self.idle = 0;
            return Ok(count);
        }
        // A system call, so not each time somebody polls an idle port; soon enough for one
        // who is woken again and again by the error.
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
        self.sending.flush(self.socket.as_fd()).map_err(|error| about(&self.link, "send", error))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn missed(&mut self) -> u64 {
        let statistics = kernel::option(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // The kernel's counters start anew each time they are read.
        self.missed += statistics.map_or(0, |counted: libc::tpacket_stats| u64::from(counted.tp_drops));
        self.missed
    }
}

/// Frames of all protocols, but none before it is bound to an interface.
fn open_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, nothing else.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    kernel::done(socket)?;
    // SAFETY: it was just opened and belongs to nobody else.
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
    kernel::done(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Frames to other Ethernet addresses too. The kernel ends it with the socket.
fn add_membership(socket: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    kernel::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// What is at the head of the ring.
enum Entry<'a> {
    Frame {
        frame: &'a [u8],
        realtime_ns: u64,
    },
    /// Longer than the interface's MTU allows, so the kernel cut it.
    Cut,
}

/// The ring of TPACKET_V2 (Documentation/networking/packet_mmap.rst): places of one size,
/// filled by the kernel in turn, each with a word that says whose it is.
#[derive(Debug)]
struct ReceiveRing {
    memory: Mapping,
    place_len: usize,
    places: usize,
    head: usize,
}

impl ReceiveRing {
    fn new(socket: BorrowedFd<'_>, frame_len: usize, frames: usize) -> io::Result<ReceiveRing> {
        // A power of two divides every block, so that places follow each other without gaps.
        let place_len = (frame_len + RING_HEADER).next_power_of_two();
        let block_len = place_len.max(BLOCK);
        let blocks = (frames.max(1) * place_len).div_ceil(block_len);
        let places = blocks * (block_len / place_len);
        let request = libc::tpacket_req {
            tp_block_size: block_len as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: place_len as u32,
            tp_frame_nr: places as u32,
        };
        kernel::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = Mapping::of(socket, blocks * block_len, 0)?;
        Ok(ReceiveRing { memory, place_len, places, head: 0 })
    }

    /// The oldest frame, where there is one; to be released before the next is asked for.
    fn next(&mut self) -> Option<Entry<'_>> {
        let start = self.head * self.place_len;
        if self.memory.word(start).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the place is ours until it is released, and the kernel has filled the header.
        let header = unsafe { self.memory.at::<libc::tpacket2_hdr>(start).read() };
        if header.tp_snaplen < header.tp_len {
            return Some(Entry::Cut);
        }
        let realtime_ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        let (offset, length) = (start + usize::from(header.tp_mac), header.tp_snaplen as usize);
        if header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 || length < 14 {
            // SAFETY: the place is ours until it is released.
            let frame = unsafe { self.memory.bytes(offset, length) };
            return Some(Entry::Frame { frame, realtime_ns });
        }
        // The kernel took the tag out; four bytes before the frame, where the socket's
        // address was, make room to put it back (IEEE 802.1Q).
        // SAFETY: as above; the place begins well before the frame.
        let frame = unsafe { self.memory.bytes(offset - 4, length + 4) };
        frame.copy_within(4..16, 0);
        let known = header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol = if known { header.tp_vlan_tpid } else { 0x8100 };
        frame[12..14].copy_from_slice(&protocol.to_be_bytes());
        frame[14..16].copy_from_slice(&header.tp_vlan_tci.to_be_bytes());
        Some(Entry::Frame { frame, realtime_ns })
    }

    /// Gives the head's place back to the kernel.
    fn release(&mut self) {
        self.memory.word(self.head * self.place_len).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) % self.places;
    }
}

/// Frames taken and not yet sent.
#[derive(Debug)]
struct SendBatch {
    place_len: usize,
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl SendBatch {
    fn new(frame_len: usize) -> SendBatch {
        SendBatch {
            place_len: frame_len,
            bytes: vec![0; BATCH * frame_len],
            lengths: Vec::with_capacity(BATCH),
        }
    }

    /// What is longer than the interface carries is taken too, for the kernel to refuse.
    fn take(&mut self, frame: &[u8]) -> bool {
        if self.lengths.len() == BATCH {
            return false;
        }
        let start = self.lengths.len() * self.place_len;
        let length = frame.len().min(self.place_len);
        self.bytes[start..start + length].copy_from_slice(&frame[..length]);
        self.lengths.push(frame.len());
        true
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut refused = 0;
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: zeros are valid message headers.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for (place, &length) in self.lengths.iter().enumerate() {
            if length > self.place_len {
                refused += 1;
                continue;
            }
            vectors[count].iov_base = self.bytes[place * self.place_len..].as_mut_ptr().cast();
            vectors[count].iov_len = length;
            messages[count].msg_hdr.msg_iov = &mut vectors[count];
            messages[count].msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        self.lengths.clear();
        let mut next = 0;
        while next < count {
            let left = &mut messages[next..count];
            // SAFETY: each message points to one vector, which points into `bytes`; none of
            // them moves until the call returns.
            let sent = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, libc::MSG_DONTWAIT)
            };
            if sent > 0 {
                next += sent as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // The frame, not the port, is at fault, or there is no room for it.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EMSGSIZE | libc::EINVAL) => {
                    refused += 1;
                    next += 1;
                }
                _ => return Err(error),
            }
        }
        Ok(refused)
    }
}
