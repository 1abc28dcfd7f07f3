//! Payload of the traffic engine's packets: a header with sequence number and send time, then padding or a
//! pseudorandom bit sequence that the receiver can check.
//!
//! ```text
//!  0        1                 4                              10                       18
//! +--------+-----------------+------------------------------+------------------------+----
//! | kind   | flow            | number                       | time                   | fill …
//! +--------+-----------------+------------------------------+------------------------+----
//! ```
//!
//! Fields are big endian. `kind` is 0xA0 plus the version. `number` counts the packets of the flow from
//! zero; at a million packets per second 48 bits last nine years. `time` is in nanoseconds of the sender's
//! clock since the start of the run, which both ends know. The header has 18 bytes because that is the UDP
//! payload of the smallest Ethernet frame over IPv4, as required by RFC 2544.

/// Version of the header layout.
pub const VERSION: u8 = 1;
/// Length of the header, bytes.
pub const HEADER: usize = 18;
/// Limit on flow numbers (exclusive).
pub const FLOW_LIMIT: u32 = 1 << 24;

const KIND: u8 = 0xa0 + VERSION;
const NUMBER_LIMIT: u64 = 1 << 48;

/// Fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Flow number, below [`FLOW_LIMIT`].
    pub flow: u32,
    /// Sequence number within the flow, below 2⁴⁸.
    pub number: u64,
    /// Send time, nanoseconds since the start of the run.
    pub time_ns: u64,
}

impl Header {
    /// Writes the header. Excess bits of the fields are dropped. Panics if `payload` is shorter than
    /// [`HEADER`].
    #[inline]
    pub fn write(&self, payload: &mut [u8]) {
        let head = (u32::from(KIND) << 24) | (self.flow & (FLOW_LIMIT - 1));
        payload[..4].copy_from_slice(&head.to_be_bytes());
        payload[4..10].copy_from_slice(&self.number.to_be_bytes()[2..]);
        payload[10..18].copy_from_slice(&self.time_ns.to_be_bytes());
    }

    /// Parses a header. Returns `None` if the payload is too short or of another kind or version.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Header> {
        let header = payload.first_chunk::<HEADER>()?;
        (header[0] == KIND).then(|| Header::fields(header))
    }

    fn fields(header: &[u8; HEADER]) -> Header {
        let field = |from: usize, to: usize| {
            header[from..to].iter().fold(0_u64, |value, &byte| (value << 8) | u64::from(byte))
        };
        Header { flow: field(1, 4) as u32, number: field(4, 10), time_ns: field(10, 18) }
    }
}

/// Writes the bit sequence of a packet behind the header: SplitMix64 (Steele, Lea, Flood 2014), seeded with
/// flow and number, so that each packet can be checked on its own.
pub fn fill(payload: &mut [u8], flow: u32, number: u64) {
    let Some(body) = payload.get_mut(HEADER..) else { return };
    let mut words = Words::new(flow, number);
    for chunk in body.chunks_mut(8) {
        chunk.copy_from_slice(&words.next().to_be_bytes()[..chunk.len()]);
    }
}

/// Result of comparing a received packet with the sent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Number of the packet, from its header or recovered from its fill.
    pub number: u64,
    /// Number of wrong bits, without those of the time field, whose sent value is unknown.
    pub bit_errors: u64,
}

/// Compares a received packet of `flow` with the sent one, including the header. `expected` is a number the
/// packet is likely to have. Returns `None` if it is not a packet of this flow.
///
/// The candidates for the packet's number are the header's number, `expected`, and the header's number with
/// one bit flipped. The first candidate whose fill differs in less than a quarter of the bits is chosen.
/// Without a fill of at least eight bytes the header's number is used.
pub fn compare(payload: &[u8], flow: u32, expected: u64) -> Option<Comparison> {
    let header = payload.first_chunk::<HEADER>()?;
    let claimed = Header::fields(header);
    let head_errors = (header[0] ^ KIND).count_ones() + (claimed.flow ^ flow).count_ones();
    let body = &payload[HEADER..];
    if body.len() < 8 {
        let plausible = head_errors == 0;
        return plausible.then(|| Comparison {
            number: claimed.number,
            bit_errors: fill_errors(body, flow, claimed.number),
        });
    }
    let candidates = [claimed.number, expected % NUMBER_LIMIT].into_iter();
    let flipped = (0..48).map(|bit| claimed.number ^ (1 << bit));
    let number = candidates.chain(flipped).find(|&number| {
        let sample = &body[..body.len().min(64)];
        fill_errors(sample, flow, number) < sample.len() as u64 * 8 / 4
    })?;
    let number_errors = (number ^ claimed.number).count_ones();
    let bit_errors = u64::from(head_errors + number_errors) + fill_errors(body, flow, number);
    Some(Comparison { number, bit_errors })
}

fn fill_errors(body: &[u8], flow: u32, number: u64) -> u64 {
    let mut words = Words::new(flow, number);
    let mut errors = 0;
    for chunk in body.chunks(8) {
        let mut received = [0; 8];
        received[..chunk.len()].copy_from_slice(chunk);
        let difference = u64::from_be_bytes(received) ^ words.next();
        let unused = 64 - 8 * chunk.len() as u32;
        errors += u64::from((difference >> unused).count_ones());
    }
    errors
}

struct Words(u64);

impl Words {
    fn new(flow: u32, number: u64) -> Words {
        Words((u64::from(flow) << 48) ^ number.wrapping_mul(0xd134_2543_de82_ef95))
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Header = Header { flow: 0x01_0203, number: 0x0405_0607_0809, time_ns: 0x1122_3344_5566_7788 };

    fn packet<const SIZE: usize>() -> [u8; SIZE] {
        let mut packet = [0; SIZE];
        SENT.write(&mut packet);
        fill(&mut packet, SENT.flow, SENT.number);
        packet
    }

    #[test]
    fn the_header_has_the_documented_layout() {
        let golden = [0xa1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(packet::<HEADER>(), golden);
        assert_eq!(Header::read(&golden), Some(SENT));
        assert_eq!(Header::read(&golden[..17]), None);
        assert_eq!(Header::read(&[0; 18]), None);
    }

    #[test]
    fn flipped_bits_are_counted_except_in_the_time_field() {
        let sent = packet::<61>();
        let clean = Comparison { number: SENT.number, bit_errors: 0 };
        assert_eq!(compare(&sent, SENT.flow, SENT.number), Some(clean));
        for bit in 0..sent.len() * 8 {
            let mut received = sent;
            received[bit / 8] ^= 1 << (bit % 8);
            let bit_errors = u64::from(!(80..144).contains(&bit));
            let found = compare(&received, SENT.flow, 7);
            assert_eq!(found, Some(Comparison { bit_errors, ..clean }), "bit {bit}");
        }
    }

    #[test]
    fn a_corrupted_number_is_replaced_by_the_expected_one() {
        let mut received = packet::<100>();
        received[4..10].fill(0xff);
        let found = compare(&received, SENT.flow, SENT.number).unwrap();
        let flipped = 48 - u64::from(SENT.number.count_ones());
        assert_eq!(found, Comparison { number: SENT.number, bit_errors: flipped });
    }

    #[test]
    fn foreign_packets_are_rejected() {
        assert_eq!(compare(&[0; 100], 1, 0), None);
        assert_eq!(compare(&packet::<100>(), SENT.flow + 1, SENT.number), None);
        assert_eq!(compare(&[0; 17], 1, 0), None);
    }
}
