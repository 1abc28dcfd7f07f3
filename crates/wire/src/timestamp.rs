//! 64-bit timestamps of STAMP (RFC 8762, RFC 8972) and MPLS loss and delay measurement (RFC 6374 section
//! 3.4).

/// Interpretation of a timestamp: 32 bits of seconds, then a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampFormat {
    /// Seconds since 1900 and units of 2⁻³² seconds (RFC 5905 section 6).
    Ntp,
    /// Seconds since the clock's epoch and nanoseconds (truncated PTP, RFC 8186).
    Ptp,
}

/// Seconds from 1900 to 1970.
const NTP_TO_UNIX: u64 = 2_208_988_800;
pub(crate) const NANOSECONDS: u64 = 1_000_000_000;

/// 64-bit timestamp as carried in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Converts nanoseconds since 1970. The fraction of NTP is rounded up.
    pub const fn from_unix(nanoseconds: u64, format: TimestampFormat) -> Timestamp {
        let (seconds, rest) = (nanoseconds / NANOSECONDS, nanoseconds % NANOSECONDS);
        Timestamp(match format {
            TimestampFormat::Ntp => {
                // Rounded up, so that a nanosecond survives the conversion in both directions.
                let fraction = (rest << 32).div_ceil(NANOSECONDS);
                (seconds + NTP_TO_UNIX) << 32 | fraction
            }
            TimestampFormat::Ptp => seconds << 32 | rest,
        })
    }

    /// Returns the nanoseconds from `earlier` to this timestamp of the same format; negative if `earlier` is
    /// in fact later. The result is valid for differences below 68 years, also across a wraparound of the
    /// seconds (in 2036 for NTP).
    pub const fn since(self, earlier: Timestamp, format: TimestampFormat) -> i64 {
        match format {
            TimestampFormat::Ntp => {
                let difference = self.0.wrapping_sub(earlier.0) as i64;
                ((difference as i128 * NANOSECONDS as i128) >> 32) as i64
            }
            TimestampFormat::Ptp => {
                let seconds = ((self.0 >> 32) as u32).wrapping_sub((earlier.0 >> 32) as u32) as i32;
                let nanoseconds = (self.0 as u32 as i64) - (earlier.0 as u32 as i64);
                seconds as i64 * NANOSECONDS as i64 + nanoseconds
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_keep_their_nanoseconds() {
        let now = 1_795_255_703_123_456_789;
        for format in [TimestampFormat::Ntp, TimestampFormat::Ptp] {
            let stamp = Timestamp::from_unix(now, format);
            for difference in [0, 1, 999, 1_000_000_000, 123_456_789_012] {
                let later = Timestamp::from_unix(now + difference, format);
                assert!((later.since(stamp, format) - difference as i64).abs() <= 1, "{format:?}");
                assert!((stamp.since(later, format) + difference as i64).abs() <= 1, "{format:?}");
            }
        }
        // RFC 5905 figure 4: 1 January 1970 is 2,208,988,800.
        assert_eq!(Timestamp::from_unix(0, TimestampFormat::Ntp).0 >> 32, 2_208_988_800);
        // The NTP seconds wrap around in February 2036.
        let before = Timestamp(0xffff_ffff << 32);
        assert_eq!(Timestamp(1 << 32).since(before, TimestampFormat::Ntp), 2_000_000_000);
    }
}
