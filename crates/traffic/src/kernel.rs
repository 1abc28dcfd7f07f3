//! System calls that no safe wrapper offers: batches of datagrams with their control
//! messages, TCP_INFO with its newer fields. All unsafe code of the
//! traffic engine is here.
#![allow(unsafe_code)]

use netstage_agent_api::results::TcpSample;
use netstage_agent_api::task::FlowTask;
use socket2::{SockAddr, SockAddrStorage};
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams handed to the kernel by one call.
pub const SEND_BATCH: usize = 32;
/// Datagrams taken from the kernel by one call.
pub const RECEIVE_BATCH: usize = 64;

/// Room for the two control messages of a datagram: timestamp (32) and drops (24).
const CONTROL_WORDS: usize = 8;
/// Largest control message asked for: the error queue's, with an IPv6 address and timestamp.
const ERROR_CONTROL_WORDS: usize = 32;

/// Sets an integer option of a socket.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to an i32 that lives through the call, and the length is its own.
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

/// Sets the octet of DSCP and ECN a flow's sender asks for (RFC 2474); the kernel keeps
/// TCP's own ECN bits.
pub fn set_traffic_class(socket: BorrowedFd<'_>, task: &FlowTask) -> io::Result<()> {
    let (level, name) = match task.source {
        _ if task.traffic_class == 0 => return Ok(()),
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    set_option(socket, level, name, task.traffic_class.into())
}

/// Joins a group for one source only (RFC 3678 section 5.1.1), on one interface.
pub fn join_source(socket: BorrowedFd<'_>, interface: u32, group: IpAddr, source: IpAddr) -> io::Result<()> {
    /// struct group_source_req
    #[repr(C)]
    struct Request {
        interface: u32,
        group: SockAddrStorage,
        source: SockAddrStorage,
    }
    let storage = |ip| SockAddr::from(SocketAddr::new(ip, 0)).as_storage();
    let request = Request { interface, group: storage(group), source: storage(source) };
    let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    // SAFETY: the pointer is to a request that lives through the call, and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            libc::MCAST_JOIN_SOURCE_GROUP,
            (&raw const request).cast(),
            mem::size_of::<Request>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes up to `limit` bytes from a TCP socket and throws them away without copying them.
pub fn discard(socket: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC TCP writes nothing to the buffer, so null is allowed (tcp(7)).
    let taken = unsafe {
        libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), limit, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
    };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// What the kernel tells of a TCP socket (struct tcp_info). Fields an older kernel does not know are zero.
pub struct TcpInfo([u8; 240]);

/// Of this one, at this moment.
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

/// A sender's TCP at this moment.
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

    /// Payload of a full segment that is sent.
    pub fn segment(&self) -> u32 {
        self.u32_at(16)
    }

    /// Bytes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.u64_at(120)
    }

    /// How the sender stands.
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

/// Datagrams to be sent by one call on a connected socket.
pub struct SendBatch {
    bytes: Vec<u8>,
    stride: usize,
    lengths: Vec<usize>,
    sent: usize,
}

impl SendBatch {
    /// Room for datagrams of up to `largest` bytes.
    pub fn new(largest: usize) -> SendBatch {
        SendBatch {
            bytes: vec![0; largest * SEND_BATCH],
            stride: largest,
            lengths: Vec::with_capacity(SEND_BATCH),
            sent: 0,
        }
    }

    /// Whether another datagram fits.
    pub fn has_room(&self) -> bool {
        self.lengths.len() < SEND_BATCH
    }

    /// Whether all taken have been sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.lengths.len()
    }

    /// Takes a datagram of `length` bytes, to be written where this returns. Panics without
    /// room, or where it is longer than the largest.
    pub fn push(&mut self, length: usize) -> &mut [u8] {
        assert!(self.has_room() && length <= self.stride);
        let start = self.lengths.len() * self.stride;
        self.lengths.push(length);
        &mut self.bytes[start..start + length]
    }

    /// Sends what has not been sent; returns how many datagrams went. Those refused with an
    /// error stay first.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: both are plain integers and pointers, for which zero is a value.
        let (mut pieces, mut headers) =
            unsafe { mem::zeroed::<([libc::iovec; SEND_BATCH], [libc::mmsghdr; SEND_BATCH])>() };
        let waiting = self.lengths.len() - self.sent;
        for place in 0..waiting {
            let message = self.sent + place;
            let bytes = &mut self.bytes[message * self.stride..][..self.lengths[message]];
            pieces[place] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            headers[place].msg_hdr.msg_iov = &raw mut pieces[place];
            headers[place].msg_hdr.msg_iovlen = 1;
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

    /// Leaves the first of those not sent out.
    pub fn skip(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.lengths.len());
        if self.is_empty() {
            self.lengths.clear();
            self.sent = 0;
        }
    }
}

/// A datagram as it came.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Its first bytes, as many as the batch has room for.
    pub bytes: &'a [u8],
    /// Its length.
    pub length: usize,
    /// When the kernel received it, nanoseconds of the wall clock.
    pub realtime_ns: Option<u64>,
    /// Datagrams the socket has dropped so far (modulo 2³²), where the kernel says.
    pub drops: Option<u32>,
}

/// Datagrams received by one call.
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    stride: usize,
    control: Vec<[u64; CONTROL_WORDS]>,
    /// Per datagram its length and its control messages' length.
    received: Vec<(usize, usize)>,
}

impl ReceiveBatch {
    /// Keeps the first `stride` bytes of each datagram.
    pub fn new(stride: usize) -> ReceiveBatch {
        ReceiveBatch {
            bytes: vec![0; stride * RECEIVE_BATCH],
            stride,
            control: vec![[0; CONTROL_WORDS]; RECEIVE_BATCH],
            received: Vec::with_capacity(RECEIVE_BATCH),
        }
    }

    /// Receives what is there; returns how many datagrams, zero where there is none.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.received.clear();
        // SAFETY: both are plain integers and pointers, for which zero is a value.
        let (mut pieces, mut headers) =
            unsafe { mem::zeroed::<([libc::iovec; RECEIVE_BATCH], [libc::mmsghdr; RECEIVE_BATCH])>() };
        let places = self.bytes.chunks_exact_mut(self.stride).zip(&mut self.control);
        for ((piece, header), (bytes, control)) in pieces.iter_mut().zip(&mut headers).zip(places) {
            *piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = mem::size_of_val(control);
        }
        // SAFETY: the headers point to pieces, bytes and control room that live through the call.
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

    /// The datagrams received last, in their order.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.received.iter().enumerate().map(|(place, &(length, control_length))| {
            let kept = length.min(self.stride);
            let mut datagram = Datagram {
                bytes: &self.bytes[place * self.stride..][..kept],
                length,
                realtime_ns: None,
                drops: None,
            };
            for (level, kind, data) in control_messages(&self.control[place], control_length) {
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

/// An ICMP error about a datagram this socket has sent.
#[derive(Debug)]
pub struct Refusal {
    /// Bytes of the datagram the error quotes that fitted the buffer.
    pub length: usize,
    /// When the kernel received the error, nanoseconds of the wall clock.
    pub realtime_ns: Option<u64>,
    /// Whether a host said that nobody listens on the port.
    pub port_unreachable: bool,
}

/// Takes an error from the socket's queue (IP_RECVERR, IPV6_RECVERR) and the quoted payload
/// into `payload`; `None` where there is none.
pub fn receive_refusal(socket: BorrowedFd<'_>, payload: &mut [u8]) -> io::Result<Option<Refusal>> {
    let mut control = [0_u64; ERROR_CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: msghdr is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control);
    // SAFETY: the header points to payload and control room that live through the call.
    let length = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
    };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    let mut refusal = Refusal { length, realtime_ns: None, port_unreachable: false };
    for (level, kind, data) in control_messages(&control, header.msg_controllen) {
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => refusal.realtime_ns = timestamp(data),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                // struct sock_extended_err: errno (4 bytes), origin, type, code.
                refusal.port_unreachable = matches!(
                    data.get(4..7),
                    Some([libc::SO_EE_ORIGIN_ICMP, 3, 3] | [libc::SO_EE_ORIGIN_ICMP6, 1, 4])
                );
            }
            _ => {}
        }
    }
    Ok(Some(refusal))
}

/// Level, kind and data of each control message: a header of length (a word), level and
/// kind, then the data, padded to a word (cmsg(3)).
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
