//! Routes from MRT files (RFC 6396): tables of TABLE_DUMP_V2, and announcements in BGP4MP messages, in the
//! order of the file. Files may be compressed with gzip.
//!
//! Withdrawals in a file are counted, but do not remove routes from the table.

use super::{BgpTable, BgpTableError};
use crate::bgp::attributes::{AttributeContext, Attributes};
use crate::bgp::message;
use crate::bgp::nlri::{BgpFamily, Destinations, Nlri, count, encoded_length};
use crate::bgp::path::PathAttributes;
use crate::bgp::update::Update;
use flate2::read::MultiGzDecoder;
use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;

/// Length of the record header, bytes: timestamp, type, subtype and length.
const HEADER: usize = 12;
/// Maximum record length, bytes. The longest valid record has a route of every peer.
const LONGEST_RECORD: usize = 64 << 20;

const TABLE_DUMP_V2: u16 = 13;
const BGP4MP: u16 = 16;
const BGP4MP_ET: u16 = 17;

/// Statistics about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrtStatistics {
    /// Number of records.
    pub records: usize,
    /// Records without usable routes.
    pub ignored: usize,
    /// Routes with malformed attributes, or rejected by the table.
    pub refused: usize,
    /// Number of withdrawn destinations.
    pub withdrawn: usize,
}

/// Reason why a file cannot be read to its end.
#[derive(Debug)]
pub enum MrtError {
    /// Error while reading or decompressing.
    Io(io::Error),
    /// File compressed with bzip2.
    Bzip2,
    /// Malformed record at this offset after decompression, bytes.
    Malformed(u64),
}

impl fmt::Display for MrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MrtError::Io(error) => error.fmt(f),
            MrtError::Bzip2 => f.write_str("compressed with bzip2; decompress it with bunzip2 first"),
            MrtError::Malformed(offset) => write!(f, "truncated or malformed MRT record at byte {offset}"),
        }
    }
}

impl std::error::Error for MrtError {}

impl From<io::Error> for MrtError {
    fn from(error: io::Error) -> MrtError {
        MrtError::Io(error)
    }
}

/// Appends at most `limit` routes of a file. From a table dump, only the route of the first peer is used for
/// each destination.
pub fn read_mrt(mut file: impl Read, limit: usize, table: &mut BgpTable) -> Result<MrtStatistics, MrtError> {
    let mut start = [0; 3];
    let length = fill(&mut file, &mut start)?;
    let file = start[..length].chain(file);
    match start {
        [0x1f, 0x8b, _] => records(MultiGzDecoder::new(file), limit, table),
        [b'B', b'Z', b'h'] => Err(MrtError::Bzip2),
        _ => records(file, limit, table),
    }
}

fn records(mut file: impl Read, limit: usize, table: &mut BgpTable) -> Result<MrtStatistics, MrtError> {
    let max_routes = table.len().saturating_add(limit);
    let (mut dump, mut offset, mut body) = (MrtStatistics::default(), 0, Vec::new());
    while table.len() < max_routes {
        let mut header = [0; HEADER];
        match fill(&mut file, &mut header)? {
            0 => break,
            HEADER => {}
            _ => return Err(MrtError::Malformed(offset)),
        }
        let [_, _, _, _, a, b, c, d, length @ ..] = header;
        let (kind, subtype) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let length = u32::from_be_bytes(length) as usize;
        body.clear();
        if length > LONGEST_RECORD || file.by_ref().take(length as u64).read_to_end(&mut body)? < length {
            return Err(MrtError::Malformed(offset));
        }
        dump.records += 1;
        let read = match kind {
            TABLE_DUMP_V2 => table_dump(subtype, &body, table, &mut dump),
            BGP4MP => bgp4mp(subtype, &body, max_routes, table, &mut dump),
            // Microseconds precede the message (RFC 6396 section 3).
            BGP4MP_ET => body.get(4..).and_then(|body| bgp4mp(subtype, body, max_routes, table, &mut dump)),
            _ => {
                dump.ignored += 1;
                Some(())
            }
        };
        read.ok_or(MrtError::Malformed(offset))?;
        offset += (HEADER + length) as u64;
    }
    Ok(dump)
}

/// Reads a record of RFC 6396 section 4.3, or of RFC 8050 section 4 with path identifiers.
fn table_dump(subtype: u16, body: &[u8], table: &mut BgpTable, dump: &mut MrtStatistics) -> Option<()> {
    let (family, has_path_id) = match subtype {
        2 => (BgpFamily::Ipv4Unicast, false),
        4 => (BgpFamily::Ipv6Unicast, false),
        8 => (BgpFamily::Ipv4Unicast, true),
        10 => (BgpFamily::Ipv6Unicast, true),
        _ => {
            dump.ignored += 1;
            return Some(());
        }
    };
    let rest = body.get(4..)?;
    let (nlri, rest) = rest.split_at_checked(rest.first().map(|_| encoded_length(rest))?)?;
    count(family, nlri)?;
    let nlri = Destinations::new(family, nlri).next()?;
    let (entries, rest) = rest.split_first_chunk::<2>()?;
    if u16::from_be_bytes(*entries) == 0 {
        return Some(());
    }
    let rest = rest.get(if has_path_id { 10 } else { 6 }..)?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let attributes = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let source = AttributeContext { four_octet_as: true, is_internal: true, dump: Some(family) };
    let found = Attributes::read(attributes, source).ok().filter(|found| found.malformed.is_none());
    let hop = found.as_ref().and_then(|found| {
        let reach = found.reach.map(|reach| reach.next_hop);
        if family.is_ipv4() { found.next_hop.map(IpAddr::V4).or(reach) } else { reach }
    });
    match found.zip(hop) {
        Some((found, hop)) => push(nlri, PathAttributes::read(&found, hop), table, dump),
        None => dump.refused += 1,
    }
    Some(())
}

/// Reads a record of RFC 6396 section 4.4.
fn bgp4mp(
    subtype: u16,
    body: &[u8],
    max_routes: usize,
    table: &mut BgpTable,
    dump: &mut MrtStatistics,
) -> Option<()> {
    let four_octet_as = match subtype {
        1 | 6 => false,
        4 | 7 => true,
        _ => {
            dump.ignored += 1;
            return Some(());
        }
    };
    let rest = body.get(if four_octet_as { 8 } else { 4 }..)?;
    // Interface index, then two addresses.
    let addresses = match rest.get(2..4)? {
        [0, 1] => 8,
        [0, 2] => 32,
        _ => return None,
    };
    let bytes = rest.get(4 + addresses..)?;
    let source = AttributeContext { four_octet_as, is_internal: true, dump: None };
    let Ok(Some(frame)) = message::first(bytes) else {
        dump.refused += 1;
        return Some(());
    };
    if frame.kind != message::UPDATE {
        dump.ignored += 1;
        return Some(());
    }
    let Ok(update) = Update::read(frame.body, source, |_| true) else {
        dump.refused += 1;
        return Some(());
    };
    if update.malformed().is_some() {
        dump.refused += 1;
        return Some(());
    }
    dump.withdrawn += update.unreachable().map(Iterator::count).sum::<usize>();
    for (next_hop, destinations) in update.reachable() {
        let path = update.path(next_hop);
        let group = table.group(destinations.family(), path).ok();
        for nlri in destinations.take(max_routes - table.len()) {
            match group {
                Some(group) => table.push(group, &nlri),
                None => dump.refused += 1,
            }
        }
    }
    Some(())
}

fn push(nlri: Nlri, path: PathAttributes, table: &mut BgpTable, dump: &mut MrtStatistics) {
    match table.group(nlri.family, path) {
        Ok(group) => table.push(group, &nlri),
        Err(BgpTableError::NextHop(..) | BgpTableError::TooLong) => dump.refused += 1,
    }
}

/// Reads until `bytes` is full or the file ends, and returns the number of bytes read.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;

    fn record(kind: u16, subtype: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_be_bytes());
        bytes.extend(subtype.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// ORIGIN, the AS path 70000, and a next hop: in abbreviated MP_REACH_NLRI for IPv6.
    fn attributes(is_ipv4: bool) -> Vec<u8> {
        let mut bytes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 1, 0x11, 0x70];
        if is_ipv4 {
            bytes.extend([0x40, 3, 4, 192, 0, 2, 1]);
        } else {
            bytes.extend([0x80, 14, 17, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
        bytes
    }

    fn rib(subtype: u16, nlri: &[u8], attributes: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(nlri);
        body.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
        record(13, subtype, &body)
    }

    fn file() -> Vec<u8> {
        let peers = record(13, 1, &[192, 0, 2, 9, 0, 0, 0, 0]);
        let mut update = vec![0, 2, 8, 11, 0, 20];
        update.extend(attributes(true));
        update.extend([16, 172, 16]);
        let mut message = Vec::new();
        message::write(message::UPDATE, &update, &mut message);
        let mut body = vec![0, 1, 0x11, 0x70, 0, 1, 0x11, 0x71, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
        body.extend(message);
        let ipv4 = rib(2, &[24, 10, 1, 2], &attributes(true));
        let ipv6 = rib(4, &[32, 0x20, 1, 0xd, 0xb8], &attributes(false));
        [peers, ipv4, ipv6, record(16, 4, &body), rib(2, &[8, 9], &[0x40, 1, 1, 9])].concat()
    }

    fn routes(file: &[u8], limit: usize) -> (Vec<String>, MrtStatistics) {
        let mut table = BgpTable::new();
        let dump = read_mrt(file, limit, &mut table).unwrap();
        let line = |(nlri, path): (Nlri, &PathAttributes)| {
            format!("{} {} {}", nlri.prefix, path.next_hop, path.as_path)
        };
        (table.iter().map(line).collect(), dump)
    }

    #[test]
    fn table_dumps_and_messages_become_routes() {
        let all = [
            "10.1.2.0/24 192.0.2.1 70000",
            "2001:db8::/32 2001:db8::1 70000",
            "172.16.0.0/16 192.0.2.1 70000",
        ];
        let expected = MrtStatistics { records: 5, ignored: 1, refused: 1, withdrawn: 1 };
        assert_eq!(routes(&file(), 10), (all.map(str::to_string).to_vec(), expected));
        assert_eq!(routes(&file(), 2).0, all[..2]);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&file()).unwrap();
        assert_eq!(routes(&gzip.finish().unwrap(), 10), (all.map(str::to_string).to_vec(), expected));
    }

    #[test]
    fn a_truncated_file_is_reported_with_its_offset() {
        let first = record(13, 1, &[192, 0, 2, 9, 0, 0, 0, 0]).len();
        for cut in 1..first {
            let error = read_mrt(&file()[..cut], 10, &mut BgpTable::new()).unwrap_err();
            assert_eq!(error.to_string(), "truncated or malformed MRT record at byte 0");
        }
        let error = read_mrt(&file()[..first + 20], 10, &mut BgpTable::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("truncated or malformed MRT record at byte {first}"));
        let error = read_mrt(&b"BZh91AY"[..], 10, &mut BgpTable::new()).unwrap_err();
        assert!(matches!(error, MrtError::Bzip2));
        assert_eq!(routes(&[], 10).0.len(), 0);
    }
}
