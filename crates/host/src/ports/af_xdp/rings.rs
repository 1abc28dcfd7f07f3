//! The four rings between an AF_XDP socket and the kernel (Documentation/networking/af_xdp.rst): one side
//! produces, the other consumes, and each writes only its own index.

use crate::ports::kernel::{self, Mapping};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Kind of a ring: its socket option and its mapping.
pub(super) struct RingKind {
    option: libc::c_int,
    offset: i64,
    offsets: fn(&libc::xdp_mmap_offsets) -> libc::xdp_ring_offset,
}

pub(super) const FILL: RingKind = RingKind {
    option: libc::XDP_UMEM_FILL_RING,
    offset: libc::XDP_UMEM_PGOFF_FILL_RING as i64,
    offsets: |all| all.fr,
};
pub(super) const COMPLETION: RingKind = RingKind {
    option: libc::XDP_UMEM_COMPLETION_RING,
    offset: libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
    offsets: |all| all.cr,
};
pub(super) const RECEIVE: RingKind =
    RingKind { option: libc::XDP_RX_RING, offset: libc::XDP_PGOFF_RX_RING, offsets: |all| all.rx };
pub(super) const SEND: RingKind =
    RingKind { option: libc::XDP_TX_RING, offset: libc::XDP_PGOFF_TX_RING, offsets: |all| all.tx };

/// State of both sides. `T` is an address in the frame memory or a descriptor.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// Index of this side, and the last observed index of the other side.
    own: u32,
    other: u32,
    entry: PhantomData<fn() -> T>,
}

impl<T: Copy> Ring<T> {
    /// Creates a ring. `size` is a power of two.
    fn new(socket: BorrowedFd<'_>, kind: &RingKind, size: u32) -> io::Result<Ring<T>> {
        kernel::set_option(socket, libc::SOL_XDP, kind.option, &(size as libc::c_int))?;
        let all: libc::xdp_mmap_offsets = kernel::option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let offsets = (kind.offsets)(&all);
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        Ok(Ring {
            memory: Mapping::from_socket(socket, length, kind.offset)?,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags as usize,
            entries: offsets.desc as usize,
            size,
            own: 0,
            other: 0,
            entry: PhantomData,
        })
    }

    fn entry(&self, index: u32) -> std::ptr::NonNull<T> {
        self.memory.at(self.entries + (index & (self.size - 1)) as usize * size_of::<T>())
    }
}

/// Ring filled by this process and drained by the kernel.
#[derive(Debug)]
pub(super) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    pub(super) fn new(socket: BorrowedFd<'_>, kind: &RingKind, size: u32) -> io::Result<Producer<T>> {
        Ring::new(socket, kind, size).map(Producer)
    }

    /// Adds an entry, which the kernel sees once published; returns false if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        let ring = &mut self.0;
        if ring.own.wrapping_sub(ring.other) == ring.size {
            ring.other = ring.memory.word(ring.consumer).load(Ordering::Acquire);
            if ring.own.wrapping_sub(ring.other) == ring.size {
                return false;
            }
        }
        // SAFETY: the entry is ours until it is published.
        unsafe { ring.entry(ring.own).write(value) };
        ring.own = ring.own.wrapping_add(1);
        true
    }

    pub(super) fn publish(&self) {
        self.0.memory.word(self.0.producer).store(self.0.own, Ordering::Release);
    }

    /// Returns the number of entries the kernel has not consumed.
    pub(super) fn pending(&self) -> u32 {
        self.0.own.wrapping_sub(self.0.memory.word(self.0.consumer).load(Ordering::Acquire))
    }

    /// Returns whether the kernel continues only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.0.memory.word(self.0.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Ring filled by the kernel and drained by this process.
#[derive(Debug)]
pub(super) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    pub(super) fn new(socket: BorrowedFd<'_>, kind: &RingKind, size: u32) -> io::Result<Consumer<T>> {
        Ring::new(socket, kind, size).map(Consumer)
    }

    /// Returns the oldest entry, whose slot becomes the kernel's on release.
    pub(super) fn pop(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.own == ring.other {
            ring.other = ring.memory.word(ring.producer).load(Ordering::Acquire);
            if ring.own == ring.other {
                return None;
            }
        }
        // SAFETY: the kernel has published the entry and leaves it alone until it is released.
        let value = unsafe { ring.entry(ring.own).read() };
        ring.own = ring.own.wrapping_add(1);
        Some(value)
    }

    pub(super) fn release(&self) {
        self.0.memory.word(self.0.consumer).store(self.0.own, Ordering::Release);
    }
}
