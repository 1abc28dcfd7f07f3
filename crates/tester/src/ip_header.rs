//! IP header of a test packet, with uniform access to the fields common to IPv4 and IPv6.

use netstage_wire::checksum::checksum;
use netstage_wire::ethernet::ethertype;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UDP: u8 = 17;

/// IPv4 or IPv6 header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpHeader {
    bytes: Vec<u8>,
}

/// Length of the header and of an address, and offsets of the fields.
struct IpHeaderLayout {
    header: usize,
    length: usize,
    protocol: usize,
    ttl: usize,
    source: usize,
    address: usize,
}

const IPV4: IpHeaderLayout =
    IpHeaderLayout { header: 20, length: 2, protocol: 9, ttl: 8, source: 12, address: 4 };
const IPV6: IpHeaderLayout =
    IpHeaderLayout { header: 40, length: 4, protocol: 6, ttl: 7, source: 8, address: 16 };
/// Offset of the checksum of IPv4.
const CHECKSUM: usize = 10;

impl IpHeader {
    /// Creates the header of UDP packets from a source. Length, checksum and destination are zero.
    pub fn new(source: IpAddr, ttl: u8) -> IpHeader {
        let (layout, first) = if source.is_ipv4() { (IPV4, 0x45) } else { (IPV6, 0x60) };
        let mut header = IpHeader { bytes: vec![0; layout.header] };
        header.bytes[0] = first;
        header.bytes[layout.protocol] = UDP;
        header.bytes[layout.ttl] = ttl;
        header.set_source(source);
        header
    }

    /// Reads the header at the beginning of a packet, and returns it with the remaining bytes.
    pub fn read(bytes: &[u8]) -> Option<(IpHeader, &[u8])> {
        let layout = if bytes.first()? >> 4 == 6 { IPV6 } else { IPV4 };
        let (header, rest) = bytes.split_at_checked(layout.header)?;
        Some((IpHeader { bytes: header.to_vec() }, rest))
    }

    fn layout(&self) -> IpHeaderLayout {
        if self.is_ipv6() { IPV6 } else { IPV4 }
    }

    /// Returns whether this is an IPv6 header.
    pub fn is_ipv6(&self) -> bool {
        self.bytes[0] >> 4 == 6
    }

    /// Returns the EtherType of the packet.
    pub fn ethertype(&self) -> u16 {
        if self.is_ipv6() { ethertype::IPV6 } else { ethertype::IPV4 }
    }

    /// Returns the bytes of the header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the TTL or hop limit.
    pub fn ttl(&self) -> u8 {
        self.bytes[self.layout().ttl]
    }

    /// Returns the type of service or traffic class.
    pub fn class(&self) -> u8 {
        match self.is_ipv6() {
            true => self.bytes[0] << 4 | self.bytes[1] >> 4,
            false => self.bytes[1],
        }
    }

    /// Returns the length of the packet with its header, in bytes.
    pub fn length(&self) -> u16 {
        let IpHeaderLayout { header, length, .. } = self.layout();
        let value = u16::from_be_bytes([self.bytes[length], self.bytes[length + 1]]);
        value + if self.is_ipv6() { header as u16 } else { 0 }
    }

    /// Returns the source address.
    pub fn source(&self) -> IpAddr {
        self.address(self.layout().source)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> IpAddr {
        self.address(self.layout().source + self.layout().address)
    }

    fn address(&self, at: usize) -> IpAddr {
        let bytes = &self.bytes[at..at + self.layout().address];
        match bytes.first_chunk::<16>() {
            Some(bytes) => Ipv6Addr::from(*bytes).into(),
            None => Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        }
    }

    /// Sets the source address.
    pub fn set_source(&mut self, source: IpAddr) {
        self.set_address(self.layout().source, source);
    }

    fn set_address(&mut self, at: usize, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.bytes[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => self.bytes[at..at + 16].copy_from_slice(&address.octets()),
        }
    }

    /// Sets the length, destination and checksum.
    ///
    /// # Panics
    ///
    /// Panics if the destination is of the other IP version.
    pub fn complete(&mut self, length: u16, destination: IpAddr) {
        let IpHeaderLayout { header, length: at, source, address, .. } = self.layout();
        assert_eq!(destination.is_ipv6(), self.is_ipv6());
        let value = if self.is_ipv6() { length - header as u16 } else { length };
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        self.set_address(source + address, destination);
        if !self.is_ipv6() {
            let sum = checksum(&self.bytes);
            self.bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Returns the checksum of a UDP packet whose checksum field is zero, or zero for IPv4, which needs none.
    pub fn udp_checksum(&self, packet: &[u8]) -> u16 {
        if !self.is_ipv6() {
            return 0;
        }
        // RFC 8200 section 8.1.
        let mut all = self.bytes[IPV6.source..].to_vec();
        all.extend((packet.len() as u32).to_be_bytes());
        all.extend([0, 0, 0, UDP]);
        all.extend(packet);
        match checksum(&all) {
            0 => u16::MAX,
            sum => sum,
        }
    }

    /// Returns whether the checksum is correct; always for IPv6, which has none.
    pub fn is_intact(&self) -> bool {
        self.is_ipv6() || checksum(&self.bytes) == 0
    }

    /// Returns whether all fields without an accessor are equal to those of another header.
    pub fn has_equal_rest(&self, other: &IpHeader) -> bool {
        let rest = |header: &IpHeader| {
            let mut bytes = header.bytes.clone();
            match header.is_ipv6() {
                true => (bytes[0], bytes[1]) = (0x60, bytes[1] & 0xf),
                false => {
                    (bytes[1], bytes[2], bytes[3], bytes[CHECKSUM], bytes[CHECKSUM + 1]) = (0, 0, 0, 0, 0)
                }
            }
            let layout = header.layout();
            bytes[layout.ttl] = 0;
            bytes[layout.length..layout.length + 2].fill(0);
            bytes.truncate(layout.source);
            bytes
        };
        rest(self) == rest(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        for (source, destination) in [("192.0.2.1", "11.0.0.2"), ("2001:db8::1", "2001:db8:7::2")] {
            let mut header = IpHeader::new(source.parse().unwrap(), 64);
            header.complete(100, destination.parse().unwrap());
            let bytes = header.bytes().to_vec();
            let (read, rest) = IpHeader::read(&bytes).unwrap();
            assert_eq!((read.length(), read.ttl(), read.class()), (100, 64, 0));
            assert_eq!(
                (read.source().to_string(), read.destination().to_string()),
                (source.into(), destination.into())
            );
            assert!(read.is_intact() && rest.is_empty() && read.has_equal_rest(&header));
        }
    }
}
