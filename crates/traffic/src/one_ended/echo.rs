//! ICMP echo (RFC 792, RFC 4443 section 4).

use super::super::error::FlowProblem;
use super::super::udp;
use super::ProbeFormat;
use netstage_agent_api::task::FlowTask;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;

/// Length in bytes of the header of an echo message.
pub const HEADER: usize = 8;

/// Opens a socket for echo requests: an unprivileged echo socket if the system permits it, otherwise a raw socket.
pub fn open(task: &FlowTask) -> Result<(Socket, ProbeFormat), FlowProblem> {
    let ipv6 = task.source.is_ipv6();
    let protocol = if ipv6 { Protocol::ICMPV6 } else { Protocol::ICMPV4 };
    let domain = Domain::for_address(task.source);
    // The kernel assigns the identifier of an echo socket. A raw socket uses the flow's number.
    let identifier = (task.id & 0xffff) as u16;
    let (socket, raw) = match Socket::new(domain, Type::DGRAM, Some(protocol)) {
        Ok(socket) => (socket, None),
        Err(_) => match Socket::new(domain, Type::RAW, Some(protocol)) {
            Ok(socket) => (socket, Some(identifier)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(FlowProblem::Permission {
                    what: "ICMP echo",
                    remedy: "grant CAP_NET_RAW, or list the group in net.ipv4.ping_group_range",
                });
            }
            Err(error) => return Err(FlowProblem::System { what: "opening an ICMP socket", error }),
        },
    };
    socket.set_nonblocking(true).map_err(FlowProblem::system("configuring the socket"))?;
    udp::enlarge(&socket).map_err(FlowProblem::system("enlarging the socket's buffers"))?;
    let mut source = task.source;
    source.set_port(0);
    socket.bind(&SockAddr::from(source)).map_err(|error| FlowProblem::binding(source, error))?;
    Ok((socket, ProbeFormat::Echo { ipv6, raw }))
}

/// Writes the header of a request before its data. The kernel computes the checksums of IPv6 and of echo sockets.
pub fn write_request(message: &mut [u8], ipv6: bool, raw: Option<u16>, number: u64) {
    message[0] = if ipv6 { 128 } else { 8 };
    message[1..4].fill(0);
    message[4..6].copy_from_slice(&raw.unwrap_or(0).to_be_bytes());
    message[6..8].copy_from_slice(&(number as u16).to_be_bytes());
    if !ipv6 && raw.is_some() {
        let checksum = checksum(message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns the data of a reply to a request of this socket. The reply must be complete.
pub fn reply_data(bytes: &[u8], ipv6: bool, raw: Option<u16>) -> Option<&[u8]> {
    let message = match raw {
        Some(_) if !ipv6 => bytes.get(usize::from(bytes.first()? & 0x0f) * 4..)?,
        _ => bytes,
    };
    // A raw socket also receives damaged messages; the kernel checks those of other sockets.
    if raw.is_some() && !ipv6 && checksum(message) != 0 {
        return None;
    }
    let (header, data) = message.split_at_checked(HEADER)?;
    let is_reply = header[0] == if ipv6 { 129 } else { 0 };
    let is_ours = raw.is_none_or(|identifier| header[4..6] == identifier.to_be_bytes());
    (is_reply && is_ours).then_some(data)
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_its_checksum_sums_to_zero() {
        let mut message = [7_u8; 19];
        write_request(&mut message, false, Some(0x1234), 0x5_6789);
        assert_eq!(checksum(&message), 0, "RFC 1071: the sum over a message with its checksum is all ones");
        assert_eq!(message[4..8], [0x12, 0x34, 0x67, 0x89]);
    }

    #[test]
    fn foreign_damaged_and_truncated_messages_are_ignored() {
        let mut bytes = [0_u8; 20 + 8 + 4];
        bytes[0] = 0x45;
        bytes[24..26].copy_from_slice(&5_u16.to_be_bytes());
        bytes[28..].copy_from_slice(b"data");
        let sum = checksum(&bytes[20..]);
        bytes[22..24].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(reply_data(&bytes, false, Some(5)), Some(&b"data"[..]));
        assert_eq!(reply_data(&bytes, false, Some(6)), None);
        bytes[29] ^= 4;
        assert_eq!(reply_data(&bytes, false, Some(5)), None, "damaged");
        bytes[29] ^= 4;
        bytes[20] = 8;
        bytes[22..24].fill(0);
        let sum = checksum(&bytes[20..]);
        bytes[22..24].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(reply_data(&bytes, false, Some(5)), None);
        assert_eq!(reply_data(&bytes[..25], false, Some(5)), None);
        assert_eq!(reply_data(&[], false, Some(5)), None);
    }
}
