//! Decodes the output of BPF programs: numbers in native byte order, and addresses.

use std::net::{IpAddr, Ipv6Addr};

/// Reads values from the front of a byte slice.
pub(super) struct BpfReader<'a> {
    bytes: &'a [u8],
}

impl<'a> BpfReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BpfReader<'a> {
        BpfReader { bytes }
    }

    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    pub fn words<const N: usize>(&mut self) -> Option<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u32()?;
        }
        Some(words)
    }

    /// Reads an address of sock_diag: four words, of which IPv4 uses the first.
    pub fn diag_address(&mut self, is_v4: bool) -> Option<IpAddr> {
        let octets = self.take::<16>()?;
        Some(match is_v4 {
            true => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
            false => Ipv6Addr::from(octets).to_canonical(),
        })
    }

    pub fn address(&mut self) -> Option<IpAddr> {
        self.take::<16>().map(|octets| Ipv6Addr::from(octets).to_canonical())
    }
}
