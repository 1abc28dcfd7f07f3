//! STAMP TLVs (RFC 8972 section 4): flags, type, length and value. The reflector reports in the flags how it
//! processed a TLV.

use super::{Timestamp, u16_at, u32_at, u64_at};

/// Length of flags, type and length, bytes.
pub const HEADER: usize = 4;

/// U flag: set by the sender in every TLV, and cleared by a reflector that knows the type.
pub const UNRECOGNIZED: u8 = 0x80;
/// M flag: set by the reflector if the length is invalid.
pub const MALFORMED: u8 = 0x40;
/// I flag: set by the reflector if the digest over the TLVs is invalid.
pub const INTEGRITY_FAILED: u8 = 0x20;

/// TLV types.
pub mod kind {
    /// Padding.
    pub const EXTRA_PADDING: u8 = 1;
    /// Addresses and ports as received by the reflector.
    pub const LOCATION: u8 = 2;
    /// Sources of clock synchronization and of timestamps.
    pub const TIMESTAMP_INFORMATION: u8 = 3;
    /// DSCP and ECN in both directions.
    pub const CLASS_OF_SERVICE: u8 = 4;
    /// Packet counters.
    pub const DIRECT_MEASUREMENT: u8 = 5;
    /// Actual send time of the reflector's previous packet.
    pub const FOLLOW_UP_TELEMETRY: u8 = 7;
    /// Digest over the preceding TLVs; always last.
    pub const HMAC: u8 = 8;
}

/// Sub-TLV types of a Location TLV. The sender requests with the first type of each group of three; the
/// reflector answers with one of the other two (section 4.2.1).
pub mod location {
    /// Request for the source MAC address; 8 bytes.
    pub const SOURCE_MAC: u8 = 1;
    /// Source EUI-48 and two zero bytes.
    pub const SOURCE_EUI_48: u8 = 2;
    /// Source EUI-64.
    pub const SOURCE_EUI_64: u8 = 3;
    /// Request for the destination address; 16 bytes.
    pub const DESTINATION_IP: u8 = 4;
    /// Destination IPv4 address and 12 zero bytes.
    pub const DESTINATION_IPV4: u8 = 5;
    /// Destination IPv6 address.
    pub const DESTINATION_IPV6: u8 = 6;
    /// Request for the source address; 16 bytes.
    pub const SOURCE_IP: u8 = 7;
    /// Source IPv4 address and 12 zero bytes.
    pub const SOURCE_IPV4: u8 = 8;
    /// Source IPv6 address.
    pub const SOURCE_IPV6: u8 = 9;

    /// Returns the required value length of a sub-TLV, or `None` for an unknown type.
    pub const fn value_length(kind: u8) -> Option<usize> {
        match kind {
            SOURCE_MAC..=SOURCE_EUI_64 => Some(8),
            DESTINATION_IP..=SOURCE_IPV6 => Some(16),
            _ => None,
        }
    }
}

/// TLV and its position in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampTlv {
    /// Offset of the flags.
    pub start: usize,
    /// Offset after the value.
    pub end: usize,
    /// Flags.
    pub flags: u8,
    /// Type, one of [`kind`].
    pub kind: u8,
}

impl StampTlv {
    /// Returns the range of the value.
    pub const fn value(&self) -> core::ops::Range<usize> {
        self.start + HEADER..self.end
    }
}

/// Error for a truncated TLV: its header or value reaches past the end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncatedStampTlv {
    /// Offset of the truncated TLV.
    pub start: usize,
}

/// Returns the TLV at an offset, or `None` at the end of the bytes.
pub fn at(bytes: &[u8], start: usize) -> Option<Result<StampTlv, TruncatedStampTlv>> {
    let rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
    let &[flags, kind, high, low, ..] = rest else {
        return Some(Err(TruncatedStampTlv { start }));
    };
    let end = start + HEADER + usize::from(u16::from_be_bytes([high, low]));
    if end > bytes.len() {
        return Some(Err(TruncatedStampTlv { start }));
    }
    Some(Ok(StampTlv { start, end, flags, kind }))
}

/// Iterates over the TLVs from an offset on; ends after a truncated one.
pub fn tlvs(bytes: &[u8], start: usize) -> impl Iterator<Item = Result<StampTlv, TruncatedStampTlv>> + '_ {
    let mut next = Some(start);
    core::iter::from_fn(move || {
        let found = at(bytes, next?)?;
        next = found.ok().map(|place| place.end);
        Some(found)
    })
}

/// Error for a value length that does not match the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLength;

/// Sources of clock synchronization and timestamps at ingress and egress (section 4.3): values of
/// [`sync_source`] and [`timestamp_method`], zero in the sender's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimestampInformation {
    /// Synchronization source at the ingress.
    pub sync_in: u8,
    /// Timestamp method at the ingress.
    pub method_in: u8,
    /// Synchronization source at the egress.
    pub sync_out: u8,
    /// Timestamp method at the egress.
    pub method_out: u8,
}

/// Synchronization sources of a clock.
pub mod sync_source {
    /// NTP.
    pub const NTP: u8 = 1;
    /// PTP.
    pub const PTP: u8 = 2;
    /// Not synchronized (free-running local clock).
    pub const FREE_RUNNING: u8 = 5;
}

/// Timestamp methods.
pub mod timestamp_method {
    /// Software timestamps near the interface.
    pub const SOFTWARE: u8 = 2;
}

/// Class of service in both directions (section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassOfService {
    /// DSCP requested for the reflector's packet.
    pub requested_dscp: u8,
    /// DSCP of the packet on arrival at the reflector.
    pub received_dscp: u8,
    /// ECN of the packet on arrival at the reflector.
    pub received_ecn: u8,
    /// 1 if the reflector may not use the requested DSCP, otherwise 0.
    pub reverse_path: u8,
}

/// Packet counters (section 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectMeasurement {
    /// Packets sent by the sender.
    pub sender_sent: u32,
    /// Packets received by the reflector.
    pub reflector_received: u32,
    /// Packets sent by the reflector.
    pub reflector_sent: u32,
}

/// Actual send time of the reflector's previous packet (section 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowUpTelemetry {
    /// Sequence number of that packet.
    pub sequence: u32,
    /// Send time of that packet.
    pub timestamp: Timestamp,
    /// Source of the timestamp, one of [`timestamp_method`].
    pub method: u8,
}

/// TLV value of fixed length.
pub trait FixedTlv: Sized {
    /// TLV type.
    const KIND: u8;
    /// Length of the value, bytes.
    const LENGTH: usize;

    /// Parses a value of exactly [`FixedTlv::LENGTH`] bytes.
    fn read(value: &[u8]) -> Result<Self, WrongLength>;

    /// Writes a value of exactly [`FixedTlv::LENGTH`] bytes.
    fn write(&self, value: &mut [u8]) -> Result<(), WrongLength>;
}

fn exact<const N: usize>(value: &[u8]) -> Result<&[u8; N], WrongLength> {
    value.try_into().map_err(|_| WrongLength)
}

fn fill<const N: usize>(value: &mut [u8], from: [u8; N]) -> Result<(), WrongLength> {
    *<&mut [u8; N]>::try_from(value).map_err(|_| WrongLength)? = from;
    Ok(())
}

impl FixedTlv for TimestampInformation {
    const KIND: u8 = kind::TIMESTAMP_INFORMATION;
    const LENGTH: usize = 4;

    fn read(value: &[u8]) -> Result<Self, WrongLength> {
        let &[sync_in, method_in, sync_out, method_out] = exact::<4>(value)?;
        Ok(TimestampInformation { sync_in, method_in, sync_out, method_out })
    }

    fn write(&self, value: &mut [u8]) -> Result<(), WrongLength> {
        fill(value, [self.sync_in, self.method_in, self.sync_out, self.method_out])
    }
}

impl FixedTlv for ClassOfService {
    const KIND: u8 = kind::CLASS_OF_SERVICE;
    const LENGTH: usize = 4;

    fn read(value: &[u8]) -> Result<Self, WrongLength> {
        let bits = u16_at(exact::<4>(value)?, 0);
        Ok(ClassOfService {
            requested_dscp: (bits >> 10) as u8,
            received_dscp: (bits >> 4 & 0x3f) as u8,
            received_ecn: (bits >> 2 & 3) as u8,
            reverse_path: (bits & 3) as u8,
        })
    }

    fn write(&self, value: &mut [u8]) -> Result<(), WrongLength> {
        let field = |bits: u8, mask: u8| u16::from(bits & mask);
        let bits = field(self.requested_dscp, 0x3f) << 10
            | field(self.received_dscp, 0x3f) << 4
            | field(self.received_ecn, 3) << 2
            | field(self.reverse_path, 3);
        let [high, low] = bits.to_be_bytes();
        fill(value, [high, low, 0, 0])
    }
}

impl FixedTlv for DirectMeasurement {
    const KIND: u8 = kind::DIRECT_MEASUREMENT;
    const LENGTH: usize = 12;

    fn read(value: &[u8]) -> Result<Self, WrongLength> {
        let value = exact::<12>(value)?;
        Ok(DirectMeasurement {
            sender_sent: u32_at(value, 0),
            reflector_received: u32_at(value, 4),
            reflector_sent: u32_at(value, 8),
        })
    }

    fn write(&self, value: &mut [u8]) -> Result<(), WrongLength> {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.sender_sent.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.reflector_received.to_be_bytes());
        bytes[8..].copy_from_slice(&self.reflector_sent.to_be_bytes());
        fill(value, bytes)
    }
}

impl FixedTlv for FollowUpTelemetry {
    const KIND: u8 = kind::FOLLOW_UP_TELEMETRY;
    const LENGTH: usize = 16;

    fn read(value: &[u8]) -> Result<Self, WrongLength> {
        let value = exact::<16>(value)?;
        Ok(FollowUpTelemetry {
            sequence: u32_at(value, 0),
            timestamp: Timestamp(u64_at(value, 4)),
            method: value[12],
        })
    }

    fn write(&self, value: &mut [u8]) -> Result<(), WrongLength> {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.timestamp.0.to_be_bytes());
        bytes[12] = self.method;
        fill(value, bytes)
    }
}

/// Ports as received by the reflector: the first four bytes of a Location TLV's value, before its sub-TLVs
/// (section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocationPorts {
    /// Destination port on arrival.
    pub destination: u16,
    /// Source port on arrival.
    pub source: u16,
}

impl LocationPorts {
    /// Length of both ports, bytes.
    pub const LENGTH: usize = 4;

    /// Parses the first bytes of a Location TLV's value.
    pub fn read(value: &[u8]) -> Result<LocationPorts, WrongLength> {
        let value = value.get(..Self::LENGTH).ok_or(WrongLength)?;
        Ok(LocationPorts { destination: u16_at(value, 0), source: u16_at(value, 2) })
    }

    /// Writes the first bytes of a Location TLV's value.
    pub fn write(&self, value: &mut [u8]) -> Result<(), WrongLength> {
        let value = value.get_mut(..Self::LENGTH).ok_or(WrongLength)?;
        value[..2].copy_from_slice(&self.destination.to_be_bytes());
        value[2..].copy_from_slice(&self.source.to_be_bytes());
        Ok(())
    }
}

/// Writes a TLV header.
pub fn write_header(bytes: &mut [u8], flags: u8, kind: u8, length: u16) -> Result<(), WrongLength> {
    let [high, low] = length.to_be_bytes();
    fill(bytes.get_mut(..HEADER).ok_or(WrongLength)?, [flags, kind, high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tlvs_are_found_in_order() {
        let bytes = [0x80, 1, 0, 2, 0xaa, 0xbb, 0x80, 9, 0, 0, 0x80, 4, 0, 9, 1];
        let found: [_; 3] = {
            let mut places = tlvs(&bytes, 0);
            [places.next(), places.next(), places.next()]
        };
        assert_eq!(found[0], Some(Ok(StampTlv { start: 0, end: 6, flags: 0x80, kind: 1 })));
        assert_eq!(found[1], Some(Ok(StampTlv { start: 6, end: 10, flags: 0x80, kind: 9 })));
        assert_eq!(found[2], Some(Err(TruncatedStampTlv { start: 10 })));
        assert_eq!(tlvs(&bytes, 0).count(), 3);
        assert_eq!(tlvs(&bytes[..10], 0).count(), 2);
        assert_eq!(tlvs(&[0x80, 1], 0).next(), Some(Err(TruncatedStampTlv { start: 0 })));
        assert_eq!((tlvs(&bytes, 15).next(), tlvs(&bytes, 99).next()), (None, None));
    }

    fn assert_round_trip<T: FixedTlv + PartialEq + core::fmt::Debug>(value: T, expected: &[u8]) {
        let mut bytes = [0xff; 16];
        value.write(&mut bytes[..T::LENGTH]).unwrap();
        assert_eq!(&bytes[..T::LENGTH], expected);
        assert_eq!(T::read(&bytes[..T::LENGTH]), Ok(value));
        assert_eq!(T::read(&bytes[..T::LENGTH - 1]), Err(WrongLength));
        assert!(T::read(&bytes[..0]).is_err());
    }

    #[test]
    fn values_have_the_layout_of_the_rfc() {
        assert_round_trip(
            TimestampInformation { sync_in: 1, method_in: 2, sync_out: 5, method_out: 3 },
            &[1, 2, 5, 3],
        );
        let class =
            ClassOfService { requested_dscp: 46, received_dscp: 10, received_ecn: 3, reverse_path: 1 };
        assert_round_trip(class, &[0b1011_1000, 0b1010_1101, 0, 0]);
        let counters =
            DirectMeasurement { sender_sent: 1, reflector_received: 2, reflector_sent: 0x0304_0506 };
        assert_round_trip(counters, &[0, 0, 0, 1, 0, 0, 0, 2, 3, 4, 5, 6]);
        let follow_up =
            FollowUpTelemetry { sequence: 7, timestamp: Timestamp(0x0102_0304_0506_0708), method: 2 };
        assert_round_trip(follow_up, &[0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0]);
        let mut value = [0; 8];
        let ports = LocationPorts { destination: 862, source: 0x1234 };
        ports.write(&mut value).unwrap();
        assert_eq!((value, LocationPorts::read(&value)), ([3, 0x5e, 0x12, 0x34, 0, 0, 0, 0], Ok(ports)));
    }
}
