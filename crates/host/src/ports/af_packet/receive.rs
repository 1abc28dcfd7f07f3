//! Frames in: the ring the kernel fills, and super-packets, which are cut into the frames that a wire
//! would have carried.
//!
//! Places of the ring hold what the interface's MTU allows. A super-packet is longer: the kernel marks
//! its place and keeps it whole for the socket to read.

use super::super::bare_header;
use super::super::kernel::{self, Mapping};
use netstage_wire::ethernet;
use netstage_wire::segmentation::{self, Offload, Segments};
use socket2::SockRef;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Room before a frame in the ring: header, socket address, alignment, and what is left to be done.
const RING_HEADER: usize = 96 + segmentation::HEADER;
/// Where a place has the sender's address: behind its header.
const ADDRESS: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);
/// Smallest piece of ring memory.
const BLOCK: usize = 1 << 16;
/// Bytes of super-packets that may wait, where the system's limits allow it.
const SUPER_PACKETS: usize = 4 << 20;
/// Longest super-packet: one IP packet's length, with its link's header.
const LONGEST: usize = (1 << 16) + 64;
/// The tag's place in a frame: behind both addresses.
const ADDRESSES: usize = 12;

/// A tag as it stands in a frame.
type Tag = [u8; ethernet::TAG];

/// Frames that have come and wait.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    /// A super-packet, and a packet cut from it.
    whole: Vec<u8>,
    segment: Vec<u8>,
}

/// What came.
pub(super) enum Came {
    /// Nothing.
    Nothing,
    /// Frames, that many.
    Frames(usize),
    /// One that cannot be had.
    Lost,
}

impl Receiver {
    /// Prepares `socket`, to which nothing may have come yet. `frame_len` is the longest frame of
    /// the interface, and `frames` may wait.
    /// `is_bare`: packets come without a header.
    pub fn new(
        socket: BorrowedFd<'_>,
        frame_len: usize,
        frames: usize,
        is_bare: bool,
    ) -> io::Result<Receiver> {
        let set = |option, value: libc::c_int| kernel::set_option(socket, libc::SOL_PACKET, option, &value);
        // What is left to be done is told in front of each frame, here and when sending.
        set(libc::PACKET_VNET_HDR, 1)?;
        set(libc::PACKET_COPY_THRESH, 1)?;
        // More than the system's limit is for root only.
        let force =
            |option| kernel::set_option(socket, libc::SOL_SOCKET, option, &(SUPER_PACKETS as libc::c_int));
        force(libc::SO_RCVBUFFORCE).or_else(|_| force(libc::SO_RCVBUF))?;
        let ring = Ring::new(socket, frame_len, frames, is_bare)?;
        Ok(Receiver { ring, whole: Vec::new(), segment: Vec::new() })
    }

    /// Takes the oldest of what came, and gives each frame of it with the wall clock's nanoseconds to `each`.
    pub fn take(&mut self, socket: BorrowedFd<'_>, each: &mut dyn FnMut(&[u8], u64)) -> io::Result<Came> {
        let Receiver { ring, whole, segment } = self;
        let Some(entry) = ring.next() else { return Ok(Came::Nothing) };
        let came = match entry {
            Entry::Frame { frame, moved, offload, at_ns } => {
                deliver(frame, moved, offload, segment, &mut |frame| each(frame, at_ns))
            }
            Entry::Apart { tag, at_ns } => match read(socket, whole, tag)? {
                Some((length, offload)) => {
                    let moved = tag.map_or(0, |tag| tag.len());
                    deliver(&mut whole[..length], moved, offload, segment, &mut |frame| each(frame, at_ns))
                }
                None => None,
            },
            Entry::Cut => None,
        };
        ring.release();
        Ok(came.map_or(Came::Lost, Came::Frames))
    }
}

/// Does what is left to be done for a frame, and gives the frames that makes; how many. `moved` tells
/// how far back a tag has moved what follows it.
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
        segment.resize(segments.longest(), 0);
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

/// Reads what the kernel kept for the socket: its length, and what is left to be done for it. None
/// where it is no frame.
fn read(
    socket: BorrowedFd<'_>,
    whole: &mut Vec<u8>,
    tag: Option<Tag>,
) -> io::Result<Option<(usize, [u8; segmentation::HEADER])>> {
    whole.resize(LONGEST, 0);
    let mut offload = [0; segmentation::HEADER];
    let (addresses, behind) = whole.split_at_mut(ADDRESSES);
    let (place, rest) = behind.split_at_mut(tag.map_or(0, |tag| tag.len()));
    place.copy_from_slice(tag.as_ref().map_or(&[], |tag| &tag[..]));
    let parts = &mut [&mut offload[..], addresses, rest].map(IoSliceMut::new);
    let length = loop {
        match (&*SockRef::from(&socket)).read_vectored(parts) {
            Ok(length) => break length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    let length = length.checked_sub(segmentation::HEADER);
    Ok(length.filter(|length| *length > ADDRESSES).map(|length| (length + place.len(), offload)))
}

/// What is at the head of the ring.
enum Entry<'a> {
    /// A frame, as far moved back as a tag was put in.
    Frame { frame: &'a mut [u8], moved: usize, offload: [u8; segmentation::HEADER], at_ns: u64 },
    /// Longer than a place, so it is to be read from the socket, and to have this tag.
    Apart { tag: Option<Tag>, at_ns: u64 },
    /// The same, but there was no room to keep it.
    Cut,
}

/// The ring of TPACKET_V2 (Documentation/networking/packet_mmap.rst): places of one size,
/// filled by the kernel in turn, each with a word that says whose it is.
#[derive(Debug)]
struct Ring {
    memory: Mapping,
    place_len: usize,
    places: usize,
    head: usize,
    is_bare: bool,
}

impl Ring {
    fn new(socket: BorrowedFd<'_>, frame_len: usize, frames: usize, is_bare: bool) -> io::Result<Ring> {
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
        Ok(Ring { memory, place_len, places, head: 0, is_bare })
    }

    /// The oldest frame, where there is one; to be released before the next is asked for.
    fn next(&mut self) -> Option<Entry<'_>> {
        let start = self.head * self.place_len;
        if self.memory.word(start).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the place is ours until it is released, and the kernel has filled the header.
        let header = unsafe { self.memory.at::<libc::tpacket2_hdr>(start).read() };
        let at_ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        let tag = tag(&header);
        if header.tp_snaplen < header.tp_len {
            // Of an interface without a header nothing comes in super-packets.
            let is_kept = header.tp_status & libc::TP_STATUS_COPY != 0 && !self.is_bare;
            return Some(if is_kept { Entry::Apart { tag, at_ns } } else { Entry::Cut });
        }
        let (offset, length) = (start + usize::from(header.tp_mac), header.tp_snaplen as usize);
        if self.is_bare {
            // SAFETY: the place is ours until it is released, and the kernel has filled the address.
            let address = unsafe { self.memory.at::<libc::sockaddr_ll>(start + ADDRESS).read() };
            // SAFETY: the place is ours until it is released; the kernel leaves room for a longer header.
            let frame = unsafe { self.memory.bytes(offset - ethernet::HEADER, ethernet::HEADER + length) };
            let left = &frame[ethernet::HEADER - segmentation::HEADER..];
            let offload = *left.first_chunk().expect("a header is longer");
            frame[..ethernet::HEADER].copy_from_slice(&bare_header(u16::from_be(address.sll_protocol)));
            return Some(Entry::Frame { frame, moved: ethernet::HEADER, offload, at_ns });
        }
        let before = offset - segmentation::HEADER;
        // SAFETY: the place is ours until it is released; its beginning is longer than that header.
        let bytes = unsafe { self.memory.bytes(before, segmentation::HEADER + length) };
        let offload = *bytes.first_chunk().expect("it is longer");
        let tag = tag.filter(|_| length > ADDRESSES);
        let moved = tag.map_or(0, |tag| tag.len());
        let frame = &mut bytes[segmentation::HEADER - moved..];
        if let Some(tag) = tag {
            // What is left to be done is known now, so the tag has room in front.
            frame.copy_within(moved..moved + ADDRESSES, 0);
            frame[ADDRESSES..ADDRESSES + moved].copy_from_slice(&tag);
        }
        Some(Entry::Frame { frame, moved, offload, at_ns })
    }

    /// Gives the head's place back to the kernel.
    fn release(&mut self) {
        self.memory.word(self.head * self.place_len).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) % self.places;
    }
}

/// The tag the kernel took out of a frame (IEEE 802.1Q), if it did.
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
