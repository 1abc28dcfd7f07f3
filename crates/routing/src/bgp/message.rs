//! Framing of messages in a TCP stream: header (RFC 4271 section 4.1), its validation (section 6.1), and
//! short messages.

use super::nlri::BgpFamily;
use super::notification::{Notification, code, subcode};

/// Length of the message header, bytes: marker, length and type.
pub const HEADER: usize = 19;
/// Maximum message length, bytes (RFC 4271 section 4.1).
pub const MAX_LENGTH: usize = 4096;

/// OPEN.
pub(super) const OPEN: u8 = 1;
/// UPDATE.
pub(super) const UPDATE: u8 = 2;
/// NOTIFICATION.
pub(super) const NOTIFICATION: u8 = 3;
/// KEEPALIVE.
pub(super) const KEEPALIVE: u8 = 4;
/// ROUTE-REFRESH (RFC 2918 section 3).
pub(super) const ROUTE_REFRESH: u8 = 5;

/// Message split into type and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageParts<'a> {
    /// Message type.
    pub kind: u8,
    /// Message body.
    pub body: &'a [u8],
}

impl MessageParts<'_> {
    /// Returns the length of the whole message, bytes.
    pub(super) fn length(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// Parses the first message in `bytes`. Returns `None` if it is incomplete.
pub(super) fn first(bytes: &[u8]) -> Result<Option<MessageParts<'_>>, Notification> {
    let marker = &bytes[..bytes.len().min(16)];
    if marker.iter().any(|&byte| byte != 0xff) {
        return Err(Notification::new(code::HEADER, subcode::NOT_SYNCHRONIZED));
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length_field = [header[16], header[17]];
    let (length, kind) = (usize::from(u16::from_be_bytes(length_field)), header[18]);
    let bad_length = || Notification::with(code::HEADER, subcode::BAD_LENGTH, &length_field);
    if !(HEADER..=MAX_LENGTH).contains(&length) {
        return Err(bad_length());
    }
    let fits = match kind {
        OPEN => length >= HEADER + 10,
        UPDATE => length >= HEADER + 4,
        NOTIFICATION => length >= HEADER + 2,
        KEEPALIVE => length == HEADER,
        // RFC 7313 section 5 defines a separate error for a wrong ROUTE-REFRESH length.
        ROUTE_REFRESH => true,
        _ => return Err(Notification::with(code::HEADER, subcode::BAD_TYPE, &[kind])),
    };
    if !fits {
        return Err(bad_length());
    }
    Ok(bytes.get(HEADER..length).map(|body| MessageParts { kind, body }))
}

/// Appends a message.
pub(super) fn write(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    let length = HEADER + body.len();
    debug_assert!(length <= MAX_LENGTH);
    out.extend_from_slice(&[0xff; 16]);
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
}

/// Appends a NOTIFICATION with its data truncated to the maximum message length.
pub(super) fn write_notification(notification: &Notification, out: &mut Vec<u8>) {
    let mut body = vec![notification.code, notification.subcode];
    body.extend(notification.data.iter().take(MAX_LENGTH - HEADER - 2));
    write(NOTIFICATION, &body, out);
}

/// Appends a ROUTE-REFRESH (RFC 2918 section 3).
pub(super) fn write_route_refresh(family: BgpFamily, out: &mut Vec<u8>) {
    let (afi, safi) = family.codes();
    let [high, low] = afi.to_be_bytes();
    write(ROUTE_REFRESH, &[high, low, 0, safi], out);
}

/// Appends the End-of-RIB marker of a family (RFC 4724 section 2).
pub(super) fn write_end_of_rib(family: BgpFamily, out: &mut Vec<u8>) {
    match family {
        BgpFamily::Ipv4Unicast => write(UPDATE, &[0; 4], out),
        _ => {
            let (afi, safi) = family.codes();
            let [high, low] = afi.to_be_bytes();
            write(UPDATE, &[0, 0, 0, 6, 0x80, 15, 3, high, low, safi], out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_parsed_once_complete() {
        let mut bytes = Vec::new();
        write_route_refresh(BgpFamily::Vpnv4, &mut bytes);
        write(KEEPALIVE, &[], &mut bytes);
        for cut in 0..HEADER + 4 {
            assert_eq!(first(&bytes[..cut]), Ok(None));
        }
        let frame = first(&bytes).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body, frame.length()), (ROUTE_REFRESH, &[0, 1, 0, 128][..], 23));
        assert_eq!(first(&bytes[23..]).unwrap().unwrap().kind, KEEPALIVE);
    }

    #[test]
    fn invalid_headers_are_reported_by_code_and_data() {
        // RFC 4271 section 6.1.
        let header = |length: u16, kind: u8| {
            let mut bytes = vec![0xff; 16];
            bytes.extend(length.to_be_bytes());
            bytes.push(kind);
            bytes
        };
        let bad_length = |length: u16| Err(Notification::with(1, 2, &length.to_be_bytes()));
        assert_eq!(first(&[0xff, 0]), Err(Notification::new(1, 1)));
        assert_eq!(first(&header(18, KEEPALIVE)), bad_length(18));
        assert_eq!(first(&header(4097, UPDATE)), bad_length(4097));
        assert_eq!(first(&header(20, KEEPALIVE)), bad_length(20));
        assert_eq!(first(&header(28, OPEN)), bad_length(28));
        assert_eq!(first(&header(22, UPDATE)), bad_length(22));
        assert_eq!(first(&header(20, NOTIFICATION)), bad_length(20));
        assert_eq!(first(&header(19, 9)), Err(Notification::with(1, 3, &[9])));
        assert_eq!(first(&header(4096, UPDATE)), Ok(None));
    }
}
