//! System calls without a safe wrapper: batches of datagrams with control messages, and TCP_INFO with its newer
//! fields. Owns the unsafe code of the traffic engine, except for adjtimex(2) in [`crate::stamp`].
#![allow(unsafe_code)]

use netstage_agent_api::results::TcpSample;
use netstage_agent_api::task::FlowTask;
use socket2::{SockAddr, SockAddrStorage};
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of datagrams sent by one call.
pub const SEND_BATCH: usize = 32;
/// Maximum number of datagrams received by one call.
pub const RECEIVE_BATCH: usize = 64;

/// Space for the two control messages of a datagram: timestamp (32 bytes) and drops (24 bytes).
const CONTROL_WORDS: usize = 8;
/// Space for the largest control messages: those of the error queue, with an IPv6 address and a timestamp.
const ERROR_CONTROL_WORDS: usize = 32;

/// Sets an integer option of a socket.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to an i32 that lives through the call, and the length is that of an i32.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the DSCP and ECN octet of a flow (RFC 2474). The kernel keeps TCP's own ECN bits.
pub fn set_traffic_class(socket: BorrowedFd<'_>, task: &FlowTask) -> io::Result<()> {
    let (level, name) = match task.source {
        _ if task.traffic_class == 0 => return Ok(()),
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    set_option(socket, level, name, task.traffic_class.into())
}

/// Joins a source-specific group on one interface (RFC 3678 section 5.1.1).
pub fn join_source(socket: BorrowedFd<'_>, interface: u32, group: IpAddr, source: IpAddr) -> io::Result<()> {
    /// struct group_source_req
    #[repr(C)]
    struct SourceGroupRequest {
        interface: u32,
        group: SockAddrStorage,
        source: SockAddrStorage,
    }
    let storage = |ip| SockAddr::from(SocketAddr::new(ip, 0)).as_storage();
    let request = SourceGroupRequest { interface, group: storage(group), source: storage(source) };
    let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    // SAFETY: the pointer is to a request that lives through the call, and the length is that of the request.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            libc::MCAST_JOIN_SOURCE_GROUP,
            (&raw const request).cast(),
            mem::size_of::<SourceGroupRequest>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads up to `limit` bytes from a TCP socket and discards them without copying. Returns their number.
pub fn discard(socket: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC TCP writes nothing to the buffer, so null is allowed (tcp(7)).
    let count = unsafe {
        libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), limit, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// TCP state of a socket (struct tcp_info). Fields that an older kernel lacks are zero.
pub struct TcpInfo([u8; 240]);

/// Reads the TCP state of a socket.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = [0_u8; 240];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(TcpInfo(info)) } else { Err(io::Error::last_os_error()) }
}

/// Reads the TCP state of a sender.
pub fn tcp_sample(socket: BorrowedFd<'_>) -> io::Result<TcpSample> {
    tcp_info(socket).map(|info| info.sample())
}

// Offsets in struct tcp_info of include/uapi/linux/tcp.h, which only ever grows.
impl TcpInfo {
    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(*self.0[at..].first_chunk().expect("inside the structure"))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(*self.0[at..].first_chunk().expect("inside the structure"))
    }

    /// Returns the payload bytes of a full segment.
    pub fn segment(&self) -> u32 {
        self.u32_at(16)
    }

    /// Returns the number of acknowledged bytes.
    pub fn acknowledged(&self) -> u64 {
        self.u64_at(120)
    }

    /// Returns the state of the sender.
    pub fn sample(&self) -> TcpSample {
        let nanoseconds = |at: usize| self.u64_at(at).saturating_mul(1000);
        TcpSample {
            window: self.u32_at(80),
            slow_start_threshold: self.u32_at(76),
            round_trip_ns: u64::from(self.u32_at(68)) * 1000,
            min_round_trip_ns: u64::from(self.u32_at(148)) * 1000,
            retransmissions: self.u32_at(100).into(),
            peer_window: self.u32_at(228).into(),
            delivery_rate_bps: self.u64_at(160).saturating_mul(8),
            peer_window_limited_ns: nanoseconds(176),
            send_buffer_limited_ns: nanoseconds(184),
            busy_ns: nanoseconds(168),
        }
    }
}

/// Datagrams to be sent on a connected socket by one call.
pub struct SendBatch {
    bytes: Vec<u8>,
    stride: usize,
    lengths: Vec<usize>,
    sent: usize,
}

impl SendBatch {
    /// Allocates space for datagrams of up to `largest` bytes.
    pub fn new(largest: usize) -> SendBatch {
        SendBatch {
            bytes: vec![0; largest * SEND_BATCH],
            stride: largest,
            lengths: Vec::with_capacity(SEND_BATCH),
            sent: 0,
        }
    }

    /// Returns whether another datagram fits.
    pub fn has_room(&self) -> bool {
        self.lengths.len() < SEND_BATCH
    }

    /// Returns whether all datagrams have been sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.lengths.len()
    }

    /// Adds a datagram and returns its buffer.
    ///
    /// # Panics
    ///
    /// Panics if the batch is full, or the datagram exceeds the largest size.
    pub fn push(&mut self, length: usize) -> &mut [u8] {
        assert!(self.has_room() && length <= self.stride);
        let start = self.lengths.len() * self.stride;
        self.lengths.push(length);
        &mut self.bytes[start..start + length]
    }

    /// Sends the remaining datagrams and returns the number sent. After an error, the first remaining datagram is
    /// the one that caused it.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: both are plain integers and pointers, for which zero is a value.
        let (mut pieces, mut headers) =
            unsafe { mem::zeroed::<([libc::iovec; SEND_BATCH], [libc::mmsghdr; SEND_BATCH])>() };
        let waiting = self.lengths.len() - self.sent;
        for index in 0..waiting {
            let message = self.sent + index;
            let bytes = &mut self.bytes[message * self.stride..][..self.lengths[message]];
            pieces[index] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            headers[index].msg_hdr.msg_iov = &raw mut pieces[index];
            headers[index].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: `waiting` headers point to pieces and bytes that live through the call.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                waiting as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        self.skip(sent);
        Ok(sent)
    }

    /// Skips the first `count` remaining datagrams.
    pub fn skip(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.lengths.len());
        if self.is_empty() {
            self.lengths.clear();
            self.sent = 0;
        }
    }
}

/// Received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// First bytes, up to the capacity of the batch.
    pub bytes: &'a [u8],
    /// Length in bytes.
    pub length: usize,
    /// Time of reception by the kernel, in nanoseconds of the wall clock.
    pub realtime_ns: Option<u64>,
    /// Datagrams dropped by the socket (modulo 2³²), if the kernel reports them.
    pub drops: Option<u32>,
}

/// Datagrams received by one call.
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    stride: usize,
    control: Vec<[u64; CONTROL_WORDS]>,
    /// Length of each datagram and of its control messages.
    received: Vec<(usize, usize)>,
}

impl ReceiveBatch {
    /// Allocates space for the first `stride` bytes of each datagram.
    pub fn new(stride: usize) -> ReceiveBatch {
        ReceiveBatch {
            bytes: vec![0; stride * RECEIVE_BATCH],
            stride,
            control: vec![[0; CONTROL_WORDS]; RECEIVE_BATCH],
            received: Vec::with_capacity(RECEIVE_BATCH),
        }
    }

    /// Receives the available datagrams and returns their number.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.received.clear();
        // SAFETY: both are plain integers and pointers, for which zero is a value.
        let (mut pieces, mut headers) =
            unsafe { mem::zeroed::<([libc::iovec; RECEIVE_BATCH], [libc::mmsghdr; RECEIVE_BATCH])>() };
        let buffers = self.bytes.chunks_exact_mut(self.stride).zip(&mut self.control);
        for ((piece, header), (bytes, control)) in pieces.iter_mut().zip(&mut headers).zip(buffers) {
            *piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = mem::size_of_val(control);
        }
        // SAFETY: the headers point to pieces, bytes and control buffers that live through the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                RECEIVE_BATCH as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                std::ptr::null_mut(),
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => 0,
                error => return Err(error),
            },
        };
        let lengths = headers[..count].iter();
        self.received.extend(lengths.map(|header| (header.msg_len as usize, header.msg_hdr.msg_controllen)));
        Ok(count)
    }

    /// Returns the datagrams of the last call of [`ReceiveBatch::receive`], in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.received.iter().enumerate().map(|(index, &(length, control_length))| {
            let stored = length.min(self.stride);
            let mut datagram = Datagram {
                bytes: &self.bytes[index * self.stride..][..stored],
                length,
                realtime_ns: None,
                drops: None,
            };
            for (level, kind, data) in control_messages(&self.control[index], control_length) {
                match (level, kind) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => datagram.realtime_ns = timestamp(data),
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        datagram.drops = data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
                    }
                    _ => {}
                }
            }
            datagram
        })
    }
}

/// ICMP error about a datagram sent by this socket.
#[derive(Debug)]
pub struct QueuedIcmpError {
    /// Bytes of the quoted datagram that fit the buffer.
    pub length: usize,
    /// Time of reception by the kernel, in nanoseconds of the wall clock.
    pub realtime_ns: Option<u64>,
    /// Set for the error "port unreachable".
    pub port_unreachable: bool,
}

/// Takes an error from the socket's error queue (IP_RECVERR, IPV6_RECVERR) and writes the quoted payload to
/// `payload`. Returns `None` if the queue is empty.
pub fn receive_icmp_error(socket: BorrowedFd<'_>, payload: &mut [u8]) -> io::Result<Option<QueuedIcmpError>> {
    let mut control = [0_u64; ERROR_CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: msghdr is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control);
    // SAFETY: the header points to a payload and a control buffer that live through the call.
    let length = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
    };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    let mut icmp_error = QueuedIcmpError { length, realtime_ns: None, port_unreachable: false };
    for (level, kind, data) in control_messages(&control, header.msg_controllen) {
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => icmp_error.realtime_ns = timestamp(data),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                // struct sock_extended_err: errno (4 bytes), origin, type, code.
                icmp_error.port_unreachable = matches!(
                    data.get(4..7),
                    Some([libc::SO_EE_ORIGIN_ICMP, 3, 3] | [libc::SO_EE_ORIGIN_ICMP6, 1, 4])
                );
            }
            _ => {}
        }
    }
    Ok(Some(icmp_error))
}

/// Iterates over the level, kind and data of control messages. Each has a header of length (a word), level and
/// kind, and data padded to a word (cmsg(3)).
fn control_messages(words: &[u64], length: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
    const HEADER: usize = mem::size_of::<libc::cmsghdr>();
    // SAFETY: any bytes are valid as u8, and the slice covers exactly the words.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), mem::size_of_val(words)) };
    let mut rest = &bytes[..length.min(bytes.len())];
    std::iter::from_fn(move || {
        let (header, _) = rest.split_at_checked(HEADER)?;
        let size = usize::from_ne_bytes(*header.first_chunk()?);
        let level = i32::from_ne_bytes(*header[HEADER - 8..].first_chunk()?);
        let kind = i32::from_ne_bytes(*header[HEADER - 4..].first_chunk()?);
        let data = rest.get(HEADER..size)?;
        rest = rest.get(size.next_multiple_of(mem::size_of::<usize>())..).unwrap_or(&[]);
        Some((level, kind, data))
    })
}

fn timestamp(data: &[u8]) -> Option<u64> {
    let seconds = i64::from_ne_bytes(*data.first_chunk()?);
    let nanoseconds = i64::from_ne_bytes(*data.get(8..)?.first_chunk()?);
    Some(seconds as u64 * 1_000_000_000 + nanoseconds as u64)
}
