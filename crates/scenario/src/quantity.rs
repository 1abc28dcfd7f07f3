//! Parser of quantities: text of a number and its unit, converted to an exact integer.
//!
//! `"0.1 s"` is 100,000,000 ns and `"1.5 Gbit/s"` is 1,500,000,000 bit/s: the decimal is scaled as an
//! integer, never as a float.

/// Dimension of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dimension {
    Rate,
    Time,
    Size,
    Packets,
    Share,
}

use Dimension::{Packets, Rate, Share, Size, Time};

pub(crate) struct Unit {
    pub name: &'static str,
    dimension: Dimension,
    /// Factor to the base unit: bit/s, nanoseconds, bytes, packets or percent.
    factor: u64,
}

const fn unit(name: &'static str, dimension: Dimension, factor: u64) -> Unit {
    Unit { name, dimension, factor }
}

#[rustfmt::skip]
pub(crate) const UNITS: &[Unit] = &[
    unit("bit/s", Rate, 1), unit("kbit/s", Rate, 1_000), unit("Mbit/s", Rate, 1_000_000),
    unit("Gbit/s", Rate, 1_000_000_000), unit("Tbit/s", Rate, 1_000_000_000_000),
    unit("ns", Time, 1), unit("us", Time, 1_000), unit("µs", Time, 1_000), unit("ms", Time, 1_000_000),
    unit("s", Time, 1_000_000_000), unit("min", Time, 60_000_000_000), unit("h", Time, 3_600_000_000_000),
    unit("B", Size, 1), unit("kB", Size, 1_000), unit("MB", Size, 1_000_000), unit("GB", Size, 1_000_000_000),
    unit("KiB", Size, 1 << 10), unit("MiB", Size, 1 << 20), unit("GiB", Size, 1 << 30),
    unit("packets", Packets, 1), unit("packet", Packets, 1),
    unit("%", Share, 1),
];

impl Dimension {
    /// Returns the name with article and an example.
    pub fn describe(self) -> &'static str {
        match self {
            Rate => "a rate such as \"50 Mbit/s\"",
            Time => "a time such as \"25 ms\"",
            Size => "a size such as \"64 KiB\"",
            Packets => "a number of packets such as \"50 packets\"",
            Share => "a percentage such as \"1 %\"",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Rate => "a rate",
            Time => "a time",
            Size => "a size",
            Packets => "a number of packets",
            Share => "a percentage",
        }
    }

    pub fn units(self) -> impl Iterator<Item = &'static str> {
        UNITS.iter().filter(move |u| u.dimension == self).map(|u| u.name)
    }

    /// Returns the unit suggested for a number without one. A rate from 10,000 is unlikely to be in Mbit/s.
    pub fn usual_unit(self, number: &str) -> &'static str {
        match self {
            Rate if number.parse::<f64>().is_ok_and(|number| number >= 10_000.0) => "bit/s",
            Rate => "Mbit/s",
            Time => "ms",
            Size => "B",
            Packets => "packets",
            Share => "%",
        }
    }
}

/// Fault of a text that is not the expected quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuantityError {
    pub message: String,
    pub help: Option<String>,
}

fn refuse<T>(message: impl Into<String>, help: impl Into<Option<String>>) -> Result<T, QuantityError> {
    Err(QuantityError { message: message.into(), help: help.into() })
}

/// Parses a quantity of one of these dimensions into its base unit. A percentage is returned in units of 1e-12,
/// so that it stays an integer.
pub(crate) fn parse(text: &str, allowed: &[Dimension]) -> Result<(Dimension, u64), QuantityError> {
    let text = text.trim();
    let (number, unit) = split(text);
    if let Some(value) = whole(number, unit, allowed) {
        return Ok(value);
    }
    let expected = || alternatives(allowed.iter().map(|d| d.describe().to_owned()).collect());
    let Some(decimal) = Decimal::parse(number) else {
        return refuse(format!("expected {}, found \"{}\"", expected(), text.escape_debug()), None);
    };
    if unit.is_empty() {
        let help =
            allowed.first().map(|d| format!("add the unit, such as \"{number} {}\"", d.usual_unit(number)));
        return refuse(format!("\"{number}\" has no unit: expected {}", expected()), help);
    }
    let Some(known) = UNITS.iter().find(|u| u.name == unit) else {
        return refuse(
            format!("unknown unit `{}`", unit.escape_debug()),
            suggest(number, &decimal, unit, allowed),
        );
    };
    if !allowed.contains(&known.dimension) {
        return refuse(
            format!("expected {}, found {} (\"{text}\")", expected(), known.dimension.name()),
            None,
        );
    }
    if decimal.negative {
        return refuse(format!("{} must not be negative, found \"{text}\"", known.dimension.name()), None);
    }
    let factor = if known.dimension == Share { 10_000_000_000 } else { known.factor };
    match decimal.scale(factor) {
        Ok(value) => Ok((known.dimension, value)),
        Err(ScaleError::Fraction) => {
            let whole = match known.dimension {
                Rate => "bits per second",
                Time => "nanoseconds",
                Size => "bytes",
                Packets => "packets",
                Share => "parts in 1,000,000,000,000",
            };
            refuse(format!("\"{text}\" is not a whole number of {whole}"), None)
        }
        Err(ScaleError::Overflow) => refuse(format!("\"{text}\" is too large"), None),
    }
}

/// Parses a usual quantity: a small whole number of an allowed unit.
fn whole(number: &str, unit: &str, allowed: &[Dimension]) -> Option<(Dimension, u64)> {
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    let known = UNITS.iter().find(|known| known.name == unit).filter(|_| is_plain)?;
    let usual = allowed.contains(&known.dimension) && known.dimension != Share;
    let value = number.parse::<u64>().ok().filter(|_| usual)?.checked_mul(known.factor)?;
    Some((known.dimension, value))
}

/// Splits "50 Mbit/s" after its number; the exponent of "1e3" belongs to the number.
fn split(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent = matches!(bytes[end], b'e' | b'E')
            && end > 0
            && bytes.get(end + 1).is_some_and(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-'));
        let sign = matches!(bytes[end], b'+' | b'-') && (end == 0 || matches!(bytes[end - 1], b'e' | b'E'));
        if !(bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b'_') || exponent || sign) {
            break;
        }
        end += 1;
    }
    (&text[..end], text[end..].trim_start())
}

fn suggest(number: &str, decimal: &Decimal, unit: &str, allowed: &[Dimension]) -> Option<String> {
    let lower = unit.to_lowercase();
    let mut meant = None;
    for dimension in allowed {
        meant = meant.or(match dimension {
            Rate => {
                if let Some(prefix) =
                    unit.strip_suffix("B/s").filter(|p| matches!(*p, "" | "k" | "K" | "M" | "G" | "T"))
                {
                    let bits = decimal.times(8)?;
                    let prefix = prefix.replace('K', "k");
                    return Some(format!("rates are in bit/s: write \"{bits} {prefix}bit/s\""));
                }
                let (prefix, rest) = match lower.chars().next() {
                    Some(c @ ('k' | 'm' | 'g' | 't')) => (c, &lower[1..]),
                    _ => (' ', &lower[..]),
                };
                matches!(
                    rest,
                    "" | "b" | "bps" | "bit" | "bits" | "b/s" | "bit/s" | "bits/s" | "bitps" | "bit/sec"
                )
                .then_some(match prefix {
                    'k' => "kbit/s",
                    'm' => "Mbit/s",
                    'g' => "Gbit/s",
                    't' => "Tbit/s",
                    _ => "bit/s",
                })
            }
            Time => match lower.as_str() {
                "sec" | "secs" | "second" | "seconds" => Some("s"),
                "msec" | "msecs" | "millisecond" | "milliseconds" => Some("ms"),
                "usec" | "usecs" | "microsecond" | "microseconds" => Some("us"),
                "m" | "minute" | "minutes" | "mins" => Some("min"),
                "hour" | "hours" | "hr" => Some("h"),
                _ => None,
            },
            Size => match unit {
                "KB" | "K" | "k" | "kb" | "Kb" => {
                    return Some(format!(
                        "did you mean \"{number} kB\" (1000 bytes) or \"{number} KiB\" (1024)?"
                    ));
                }
                "b" | "byte" | "bytes" | "Byte" | "Bytes" | "octets" => Some("B"),
                "M" | "mb" | "Mb" => Some("MB"),
                "G" | "gb" | "Gb" => Some("GB"),
                _ => None,
            },
            Packets => matches!(lower.as_str(), "pkt" | "pkts" | "p" | "pk").then_some("packets"),
            Share => matches!(lower.as_str(), "percent" | "pct").then_some("%"),
        });
    }
    let candidates: Vec<&str> = allowed.iter().flat_map(|d| d.units()).collect();
    let meant = meant.or_else(|| misspelled(unit, &candidates));
    Some(match meant {
        Some(unit) => format!("did you mean \"{number} {unit}\"?"),
        None => format!("known units: {}", candidates.join(", ")),
    })
}

/// Returns the unit that differs from `unit` in case only, or by a typo after the first letter if it has at least four.
/// The first letter may be an unknown prefix, such as P, which a suggestion must not replace.
fn misspelled<'a>(unit: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let lower = unit.to_lowercase();
    let first = lower.chars().next();
    let near = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let is_typo = (4..16).contains(&lower.chars().count())
            && candidate.chars().next() == first
            && strsim::damerau_levenshtein(&lower, &candidate) == 1;
        candidate == lower || is_typo
    };
    candidates.iter().copied().find(|candidate| near(candidate))
}

/// Joins alternatives: "a", "a or b", "a, b or c", "a and b, or c".
pub(crate) fn alternatives(mut words: Vec<String>) -> String {
    let last = words.pop().unwrap_or_default();
    let or = if words.iter().any(|word| word.contains(" and ")) { ", or" } else { " or" };
    if words.is_empty() { last } else { format!("{}{or} {last}", words.join(", ")) }
}

/// A decimal number: `mantissa * 10^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

enum ScaleError {
    Fraction,
    Overflow,
}

impl Decimal {
    fn parse(text: &str) -> Option<Decimal> {
        let (negative, text) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) || digits.ends_with(['.', '_']) {
            return None;
        }
        if !whole.starts_with(|c: char| c.is_ascii_digit()) || exponent.abs() > 100 {
            return None;
        }
        let mut decimal = Decimal { negative, mantissa: 0, exponent };
        // Trailing zeros are not multiplied in, so that "1.000…0" overflows no earlier than "1".
        let mut zeros = 0;
        for (digit, is_fraction) in whole
            .bytes()
            .map(|b| (b, false))
            .chain(fraction.bytes().map(|b| (b, true)))
            .filter(|(b, _)| *b != b'_')
        {
            decimal.exponent -= i32::from(is_fraction);
            zeros += 1;
            if digit != b'0' {
                let shift = 10u128.checked_pow(zeros)?;
                decimal.mantissa =
                    decimal.mantissa.checked_mul(shift)?.checked_add(u128::from(digit - b'0'))?;
                zeros = 0;
            }
        }
        decimal.exponent = decimal.exponent.checked_add(i32::try_from(zeros).ok()?)?;
        if decimal.mantissa == 0 {
            decimal.exponent = 0;
        }
        Some(decimal)
    }

    fn scale(self, factor: u64) -> Result<u64, ScaleError> {
        let value = self.mantissa.checked_mul(u128::from(factor)).ok_or(ScaleError::Overflow)?;
        let power = 10u128.checked_pow(self.exponent.unsigned_abs());
        let value = if self.exponent >= 0 {
            power.and_then(|p| value.checked_mul(p)).ok_or(ScaleError::Overflow)?
        } else {
            let power = power.ok_or(ScaleError::Fraction)?;
            if value % power != 0 {
                return Err(ScaleError::Fraction);
            }
            value / power
        };
        // The upper half of the range is excluded, so that the sum of two quantities never overflows.
        u64::try_from(value).ok().filter(|v| *v <= u64::MAX / 2).ok_or(ScaleError::Overflow)
    }

    fn times(self, factor: u128) -> Option<String> {
        let value = self.mantissa.checked_mul(factor)? as f64 * 10f64.powi(self.exponent);
        Some(value.to_string())
    }
}

/// Parses a number of seconds, as in traces, to the nearest nanosecond.
pub(crate) fn seconds(text: &str) -> Option<netstage_core::time::Duration> {
    let decimal = Decimal::parse(text).filter(|d| !d.negative)?;
    match decimal.scale(1_000_000_000) {
        Ok(nanoseconds) => Some(netstage_core::time::Duration(nanoseconds)),
        Err(ScaleError::Fraction) => text.parse().ok().map(netstage_core::time::Duration::from_secs_f64),
        Err(ScaleError::Overflow) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str, dimension: Dimension) -> Option<u64> {
        parse(text, &[dimension]).ok().map(|(_, value)| value)
    }

    #[test]
    fn only_near_units_are_suggested() {
        let help = |text: &str, dimension| parse(text, &[dimension]).unwrap_err().help.unwrap();
        for (text, dimension, unit) in [
            ("10 Mbti/s", Rate, "Mbit/s"),
            ("10 gbit/s", Rate, "Gbit/s"),
            ("10 mbps", Rate, "Mbit/s"),
            ("10 mS", Time, "ms"),
            ("10 kib", Size, "KiB"),
            ("10 packtes", Packets, "packets"),
        ] {
            assert_eq!(help(text, dimension), format!("did you mean \"10 {unit}\"?"), "{text}");
        }
        for (text, dimension) in [
            ("10 Pbit/s", Rate),
            ("10 Ebit/s", Rate),
            ("10 PB/s", Rate),
            ("10 ps", Time),
            ("10 d", Time),
            ("10 TB", Size),
            ("10 TiB", Size),
            ("10 ‰", Share),
        ] {
            let units: Vec<&str> = dimension.units().collect();
            assert_eq!(help(text, dimension), format!("known units: {}", units.join(", ")), "{text}");
        }
        assert_eq!(help("10 TB/s", Rate), "rates are in bit/s: write \"80 Tbit/s\"");
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(read("0.1 s", Time), Some(100_000_000));
        assert_eq!(read("0.3us", Time), Some(300));
        assert_eq!(read("1.5 Gbit/s", Rate), Some(1_500_000_000));
        assert_eq!(read("33.333333 Mbit/s", Rate), Some(33_333_333));
        assert_eq!(read("64 KiB", Size), Some(65_536));
        assert_eq!(read("1.5KiB", Size), Some(1_536));
        assert_eq!(read("1_000 packets", Packets), Some(1_000));
        assert_eq!(read("1e3 B", Size), Some(1_000));
        assert_eq!(read("2.5E-3 s", Time), Some(2_500_000));
        assert_eq!(read("1 %", Share), Some(10_000_000_000));
        assert_eq!(read("1.00000000000000000000000000000000000000 ns", Time), Some(1));
        for wrong in
            ["0.5 ns", "1 / 3 s", "1.2.3 s", ". s", "1. s", "s", "", "1__e s", "--1 s", "1e999 s", "1e30 h"]
        {
            assert_eq!(read(wrong, Time), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn formatted_times_are_parsed_exactly(nanoseconds in 0..u64::MAX / 4) {
            let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
            prop_assert_eq!(read(&format!("{seconds}.{rest:09} s"), Time), Some(nanoseconds));
            prop_assert_eq!(read(&format!("{nanoseconds} ns"), Time), Some(nanoseconds));
            prop_assert_eq!(read(&format!("{nanoseconds}e-3 us"), Time), Some(nanoseconds));
        }

        #[test]
        fn units_scale(value in 0..1_000_000u64) {
            prop_assert_eq!(read(&format!("{value} Mbit/s"), Rate), Some(value * 1_000_000));
            prop_assert_eq!(read(&format!("{value} kbit/s"), Rate), read(&format!("{value}000 bit/s"), Rate));
            prop_assert_eq!(read(&format!("{value} MiB"), Size), Some(value << 20));
            prop_assert_eq!(read(&format!("{value} min"), Time), read(&format!("{} s", value * 60), Time));
        }

        #[test]
        fn arbitrary_text_is_parsed_or_refused(text in "\\PC{0,24}", number in "[-+0-9._eE]{0,12}", unit in "[a-zA-Z/%µ ]{0,8}") {
            let all = [Rate, Time, Size, Packets, Share];
            let _ = parse(&text, &all);
            let _ = parse(&format!("{number}{unit}"), &all);
            let _ = seconds(&number);
        }
    }
}
