//! Transmission of frames in batches.

use netstage_wire::{ethernet, segmentation};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of frames per system call.
const BATCH: usize = 64;

/// Frames accepted and not yet sent.
#[derive(Debug)]
pub(super) struct SendBatch {
    /// Maximum frame length.
    frame_len: usize,
    /// Slots of frames, each with an empty [`segmentation`] header.
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    /// Destination on an interface without link-layer headers, where packets are sent bare; the address holds
    /// the ethertype.
    bare: Option<libc::sockaddr_ll>,
}

impl SendBatch {
    pub fn new(frame_len: usize, bare: Option<libc::sockaddr_ll>) -> SendBatch {
        SendBatch {
            frame_len,
            bare,
            bytes: vec![0; BATCH * (segmentation::HEADER + frame_len)],
            lengths: Vec::with_capacity(BATCH),
        }
    }

    /// Accepts a frame. One that exceeds the interface's MTU is accepted too, and refused by `flush`.
    pub fn take(&mut self, frame: &[u8]) -> bool {
        if self.lengths.len() == BATCH {
            return false;
        }
        let start = self.slot(self.lengths.len()) + segmentation::HEADER;
        let length = frame.len().min(self.frame_len);
        self.bytes[start..start + length].copy_from_slice(&frame[..length]);
        self.lengths.push(frame.len());
        true
    }

    fn slot(&self, number: usize) -> usize {
        number * (segmentation::HEADER + self.frame_len)
    }

    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut refused = 0;
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: zeros are valid message headers.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut addresses = [self.bare; BATCH];
        let mut count = 0;
        for (number, &length) in self.lengths.iter().enumerate() {
            if length > self.frame_len {
                refused += 1;
                continue;
            }
            let mut start = self.slot(number);
            let mut length = segmentation::HEADER + length;
            if let Some(address) = &mut addresses[count] {
                // The empty offload header directly precedes the packet.
                let header = &mut self.bytes[start + segmentation::HEADER..][..ethernet::HEADER];
                address.sll_protocol = u16::from_ne_bytes([header[12], header[13]]);
                header.fill(0);
                (start, length) = (start + ethernet::HEADER, length.saturating_sub(ethernet::HEADER));
                messages[count].msg_hdr.msg_name = (&raw mut *address).cast();
                messages[count].msg_hdr.msg_namelen = size_of_val(address) as libc::socklen_t;
            }
            vectors[count].iov_base = self.bytes[start..].as_mut_ptr().cast();
            vectors[count].iov_len = length;
            messages[count].msg_hdr.msg_iov = &mut vectors[count];
            messages[count].msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        self.lengths.clear();
        let mut next = 0;
        while next < count {
            let left = &mut messages[next..count];
            // SAFETY: each message points to one vector, which points into `bytes`, and to an address; none of
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
                // The frame is at fault, not the port, or there is no buffer space.
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
