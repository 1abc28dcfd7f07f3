//! Reception: the ring filled by the kernel, and segmentation of super-packets into the frames a wire would
//! have carried.
//!
//! Slots of the ring hold frames up to the interface's MTU. A super-packet is longer: the kernel marks its slot
//! and queues the packet on the socket.

use super::super::kernel::{self, Mapping};
use super::super::synthetic_header;
use netstage_wire::ethernet;
use netstage_wire::segmentation::{self, Offload, Segments};
use socket2::SockRef;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Space before a frame in its slot: header, socket address, alignment, and the offload header.
const RING_HEADER: usize = 96 + segmentation::HEADER;
/// Offset in a slot of the sender's address, which follows the header.
const ADDRESS: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);
/// Minimum block of ring memory in bytes.
const BLOCK: usize = 1 << 16;
/// Buffer in bytes for super-packets, within the system's limits.
const SUPER_PACKETS: usize = 4 << 20;
/// Maximum length of a super-packet: one IP packet with its link-layer header.
const MAX_SUPER_PACKET: usize = (1 << 16) + 64;
/// Offset of a VLAN tag in a frame, after both addresses.
const ADDRESSES: usize = 12;

/// VLAN tag as encoded in a frame.
type Tag = [u8; ethernet::TAG];

/// Receive side of a port.
#[derive(Debug)]
pub(super) struct RingReceiver {
    ring: Ring,
    /// Buffers of a super-packet and of one segment of it.
    whole: Vec<u8>,
    segment: Vec<u8>,
}

/// Result of [`RingReceiver::take`].
pub(super) enum RingResult {
    /// The ring is empty.
    Empty,
    /// Number of delivered frames.
    Frames(usize),
    /// Frame that could not be read.
    Unreadable,
}

impl RingReceiver {
    /// Prepares `socket`, which must not have received anything yet. `frame_len` is the interface's maximum
    /// frame length, `frames` the capacity. `is_bare`: packets have no link-layer header.
    pub fn new(
        socket: BorrowedFd<'_>,
        frame_len: usize,
        frames: usize,
        is_bare: bool,
    ) -> io::Result<RingReceiver> {
        let set = |option, value: libc::c_int| kernel::set_option(socket, libc::SOL_PACKET, option, &value);
        // An offload header precedes each received and sent frame.
        set(libc::PACKET_VNET_HDR, 1)?;
        set(libc::PACKET_COPY_THRESH, 1)?;
        // Only root may exceed the system's limit.
        let force =
            |option| kernel::set_option(socket, libc::SOL_SOCKET, option, &(SUPER_PACKETS as libc::c_int));
        force(libc::SO_RCVBUFFORCE).or_else(|_| force(libc::SO_RCVBUF))?;
        let ring = Ring::new(socket, frame_len, frames, is_bare)?;
        Ok(RingReceiver { ring, whole: Vec::new(), segment: Vec::new() })
    }

    /// Takes the oldest ring entry, and passes its frames with wall-clock nanoseconds to `each`.
    pub fn take(
        &mut self,
        socket: BorrowedFd<'_>,
        each: &mut dyn FnMut(&[u8], u64),
    ) -> io::Result<RingResult> {
        let RingReceiver { ring, whole, segment } = self;
        let Some(entry) = ring.next() else { return Ok(RingResult::Empty) };
        let frames = match entry {
            RingEntry::Frame { frame, moved, offload, at_ns } => {
                deliver(frame, moved, offload, segment, &mut |frame| each(frame, at_ns))
            }
            RingEntry::OnSocket { tag, at_ns } => match read(socket, whole, tag)? {
                Some((length, offload)) => {
                    let moved = tag.map_or(0, |tag| tag.len());
                    deliver(&mut whole[..length], moved, offload, segment, &mut |frame| each(frame, at_ns))
                }
                None => None,
            },
            RingEntry::Discarded => None,
        };
        ring.release();
        Ok(frames.map_or(RingResult::Unreadable, RingResult::Frames))
    }
}

/// Completes checksums or segments a super-packet, and passes on the resulting frames; returns their number.
/// `moved` is the length of an inserted tag.
#[inline]
fn deliver(
    frame: &mut [u8],
    moved: usize,
    offload: [u8; segmentation::HEADER],
    segment: &mut Vec<u8>,
    each: &mut dyn FnMut(&[u8]),
) -> Option<usize> {
    let offload = Offload::from_bytes(offload).ok()?;
    if let Some(size) = offload.segment {
        let mut segments = Segments::new(frame, size).ok()?;
        segment.resize(segments.max_frame_length(), 0);
        let mut count = 0;
        while let Some(length) = segments.write(segment) {
            each(&segment[..length]);
            count += 1;
        }
        return Some(count);
    }
    if let Some(checksum) = offload.checksum {
        checksum.finish(frame, moved).ok()?;
    }
    each(frame);
    Some(1)
}

/// Reads a super-packet queued on the socket; returns its length and offload header, or `None` if it is not a
/// frame.
fn read(
    socket: BorrowedFd<'_>,
    whole: &mut Vec<u8>,
    tag: Option<Tag>,
) -> io::Result<Option<(usize, [u8; segmentation::HEADER])>> {
    whole.resize(MAX_SUPER_PACKET, 0);
    let mut offload = [0; segmentation::HEADER];
    let (addresses, after_addresses) = whole.split_at_mut(ADDRESSES);
    let (tag_slot, rest) = after_addresses.split_at_mut(tag.map_or(0, |tag| tag.len()));
    tag_slot.copy_from_slice(tag.as_ref().map_or(&[], |tag| &tag[..]));
    let parts = &mut [&mut offload[..], addresses, rest].map(IoSliceMut::new);
    let length = loop {
        match (&*SockRef::from(&socket)).read_vectored(parts) {
            Ok(length) => break length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    let length = length.checked_sub(segmentation::HEADER);
    Ok(length.filter(|length| *length > ADDRESSES).map(|length| (length + tag_slot.len(), offload)))
}

/// Entry at the head of the ring.
enum RingEntry<'a> {
    /// Frame, of which `moved` bytes are an inserted tag.
    Frame { frame: &'a mut [u8], moved: usize, offload: [u8; segmentation::HEADER], at_ns: u64 },
    /// Super-packet to read from the socket, with its VLAN tag.
    OnSocket { tag: Option<Tag>, at_ns: u64 },
    /// Super-packet that the socket had no room for.
    Discarded,
}

/// Ring of TPACKET_V2 (Documentation/networking/packet_mmap.rst): slots of equal size, filled by the kernel in
/// turn, each with a word that states its owner.
#[derive(Debug)]
struct Ring {
    memory: Mapping,
    slot_len: usize,
    slots: usize,
    head: usize,
    is_bare: bool,
}

impl Ring {
    fn new(socket: BorrowedFd<'_>, frame_len: usize, frames: usize, is_bare: bool) -> io::Result<Ring> {
        // A power of two divides every block, so that slots are contiguous.
        let slot_len = (frame_len + RING_HEADER).next_power_of_two();
        let block_len = slot_len.max(BLOCK);
        let blocks = (frames.max(1) * slot_len).div_ceil(block_len);
        let slots = blocks * (block_len / slot_len);
        let request = libc::tpacket_req {
            tp_block_size: block_len as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_len as u32,
            tp_frame_nr: slots as u32,
        };
        kernel::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = Mapping::from_socket(socket, blocks * block_len, 0)?;
        Ok(Ring { memory, slot_len, slots, head: 0, is_bare })
    }

    /// Returns the oldest entry, if any; release it before the next call.
    fn next(&mut self) -> Option<RingEntry<'_>> {
        let start = self.head * self.slot_len;
        if self.memory.word(start).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours until it is released, and the kernel has filled the header.
        let header = unsafe { self.memory.at::<libc::tpacket2_hdr>(start).read() };
        let at_ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        let tag = tag(&header);
        if header.tp_snaplen < header.tp_len {
            // An interface without a link-layer header receives no super-packets.
            let is_queued = header.tp_status & libc::TP_STATUS_COPY != 0 && !self.is_bare;
            return Some(if is_queued { RingEntry::OnSocket { tag, at_ns } } else { RingEntry::Discarded });
        }
        let (offset, length) = (start + usize::from(header.tp_mac), header.tp_snaplen as usize);
        if self.is_bare {
            // SAFETY: the slot is ours until it is released, and the kernel has filled the address.
            let address = unsafe { self.memory.at::<libc::sockaddr_ll>(start + ADDRESS).read() };
            // SAFETY: the slot is ours until it is released; the kernel leaves room for a longer header.
            let frame = unsafe { self.memory.bytes(offset - ethernet::HEADER, ethernet::HEADER + length) };
            let prefix = &frame[ethernet::HEADER - segmentation::HEADER..];
            let offload = *prefix.first_chunk().expect("the Ethernet header is longer");
            frame[..ethernet::HEADER].copy_from_slice(&synthetic_header(u16::from_be(address.sll_protocol)));
            return Some(RingEntry::Frame { frame, moved: ethernet::HEADER, offload, at_ns });
        }
        let before = offset - segmentation::HEADER;
        // SAFETY: the slot is ours until it is released; the space before the frame is longer than the offload
        // header.
        let bytes = unsafe { self.memory.bytes(before, segmentation::HEADER + length) };
        let offload = *bytes.first_chunk().expect("the slice includes the offload header");
        let tag = tag.filter(|_| length > ADDRESSES);
        let moved = tag.map_or(0, |tag| tag.len());
        let frame = &mut bytes[segmentation::HEADER - moved..];
        if let Some(tag) = tag {
            // The offload header has been read, so the tag may overwrite it.
            frame.copy_within(moved..moved + ADDRESSES, 0);
            frame[ADDRESSES..ADDRESSES + moved].copy_from_slice(&tag);
        }
        Some(RingEntry::Frame { frame, moved, offload, at_ns })
    }

    /// Returns the head slot to the kernel.
    fn release(&mut self) {
        self.memory.word(self.head * self.slot_len).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) % self.slots;
    }
}

/// Returns the VLAN tag (IEEE 802.1Q) that the kernel removed from a frame, if any.
#[inline]
fn tag(header: &libc::tpacket2_hdr) -> Option<Tag> {
    if header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let is_known = header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let [p0, p1] = if is_known { header.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
    let [c0, c1] = header.tp_vlan_tci.to_be_bytes();
    Some([p0, p1, c0, c1])
}
