//! Kernel access shared by all ports: socket options with layouts of `libc`, bpf(2), and memory shared with a socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

/// Types that the kernel reads or writes as bytes.
///
/// # Safety
/// Every bit pattern must be a value, and the type must have no padding.
pub(super) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($layout:ty),*) => {
        $(
            // SAFETY: integers, or a C structure of integers without padding between them.
            unsafe impl Plain for $layout {}
        )*
    };
}

plain!(libc::c_int, libc::tpacket_req, libc::tpacket_stats, libc::packet_mreq);
plain!([u8; super::tcp_protection::SIGNATURE]);
plain!(libc::xdp_umem_reg, libc::xdp_mmap_offsets, libc::xdp_options, libc::xdp_statistics);

pub(super) fn set_option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads the bytes of `value`, which has no padding.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check_result(result)
}

pub(super) fn option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut length)
    };
    check_result(result)?;
    // SAFETY: it was zeroed, and of a `Plain` type every bit pattern is a value.
    Ok(unsafe { value.assume_init() })
}

/// Converts the result of a system call.
pub(super) fn check_result(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Calls bpf(2).
///
/// # Safety
/// Pointers in `request` must be valid.
pub(crate) unsafe fn bpf_call<T>(command: libc::c_long, request: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes `request` within its size.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *request, size_of::<T>()) };
    check_result(answer as libc::c_int)?;
    Ok(answer as libc::c_int)
}

/// Adds the interface and the failed action to an error, keeping its kind.
pub(super) fn with_context(link: &str, action: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{link}: {action}: {error}"))
}

/// Memory shared with the kernel, unmapped on drop. The kernel writes to it at any time, so it is accessed only
/// by pointers, and ownership words as atomics.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

// SAFETY: sharing gives access by pointers and atomic words only; byte slices need exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a socket, starting at `offset`.
    pub fn from_socket(socket: BorrowedFd<'_>, length: usize, offset: i64) -> io::Result<Mapping> {
        Mapping::new(socket.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE, length, offset)
    }

    /// Maps zeroed anonymous memory, to be shared with the kernel.
    pub(super) fn anonymous(length: usize) -> io::Result<Mapping> {
        Mapping::new(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, length, 0)
    }

    fn new(fd: libc::c_int, flags: libc::c_int, length: usize, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd, offset) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Mapping { start, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns a pointer to the `T` at `offset`.
    ///
    /// Panics if it is out of bounds or misaligned.
    pub(super) fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length));
        // SAFETY: `offset` lies within the mapping.
        let pointer = unsafe { self.start.add(offset) }.cast::<T>();
        assert!(pointer.is_aligned());
        pointer
    }

    /// Returns the word at `offset`, by which kernel and process hand over ownership.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: it lies within the mapping and is aligned; both sides use it atomically.
        unsafe { AtomicU32::from_ptr(self.at::<u32>(offset).as_ptr()) }
    }

    /// Returns all memory as words that others may read and write at any time.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: a mapping starts at a page, so it is aligned; all sharers use it as atomic words.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length / size_of::<AtomicU32>())
        }
    }

    /// Returns bytes owned by the process.
    ///
    /// Panics if they are out of bounds.
    ///
    /// # Safety
    /// Neither the kernel nor another borrower may access the bytes while they are borrowed.
    pub(super) unsafe fn bytes(&mut self, offset: usize, length: usize) -> &mut [u8] {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the mapping, and exclusively ours by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset).as_ptr(), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no borrow outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Returns a request with the name of an interface.
pub(super) fn interface_request(link: &str) -> io::Result<libc::ifreq> {
    if link.is_empty() || link.len() >= libc::IFNAMSIZ || link.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid interface name: {link:?}")));
    }
    // SAFETY: zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name.iter_mut().zip(link.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    Ok(request)
}
