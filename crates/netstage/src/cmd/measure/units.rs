//! Quantities on the command line, in the syntax of iperf3: rates with powers of 1000, sizes with powers of 1024,
//! times in seconds. Units may be spelled out.

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// Parses bits per second, with powers of 1000: `10M`, `1.5g`, `250 kbit/s`.
pub fn rate(text: &str) -> Result<BitRate, String> {
    let (number, unit) = split(text)?;
    let unit = unit.to_ascii_lowercase();
    let prefix = unit.strip_suffix("bit/s").or_else(|| unit.strip_suffix("bps")).unwrap_or(&unit);
    let factor =
        factor(prefix, 1e3).ok_or_else(|| format!("{text}: expected a rate such as 10M or 10Mbit/s"))?;
    Ok(BitRate(whole(text, number * factor)?))
}

/// Parses bytes: `64K`, `1M` and `1MiB` are powers of 1024, `1kB` and `1MB` powers of 1000.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) => (prefix, 1024.0),
        None => unit.strip_suffix('b').map_or((&*unit, 1024.0), |prefix| (prefix, 1e3)),
    };
    let factor =
        factor(prefix, base).ok_or_else(|| format!("{text}: expected a size such as 64K, 64KiB or 64kB"))?;
    whole(text, number * factor)
}

/// Parses a time, by default in seconds: `10`, `0.5`, `200ms`.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "us" | "µs" => number / 1e6,
        "min" | "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("{text}: expected seconds, or a time such as 200ms or 5min")),
    };
    Ok(Duration(whole(text, seconds * 1e9)?))
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| format!("{text}: expected a number"))?;
    Ok((number, text[end..].trim()))
}

fn factor(prefix: &str, base: f64) -> Option<f64> {
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == prefix)?;
    Some(base.powi(power as i32))
}

fn whole(text: &str, value: f64) -> Result<u64, String> {
    if value >= 1e19 {
        return Err(format!("{text}: too large"));
    }
    Ok(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_and_sizes_binary_as_in_iperf() {
        assert_eq!(rate("10M"), Ok(BitRate(10_000_000)));
        assert_eq!(rate("1.5g"), Ok(BitRate(1_500_000_000)));
        assert_eq!(rate("250 kbit/s"), Ok(BitRate(250_000)));
        assert_eq!(rate("64000"), Ok(BitRate(64_000)));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("1MB"), Ok(1_000_000));
        assert_eq!(size("1448"), Ok(1448));
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(time("200ms"), Ok(Duration::from_millis(200)));
    }

    #[test]
    fn errors_name_the_invalid_value() {
        for bad in ["", "M", "-1", "10X", "10 Mbyte/s", "1e400"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert!(size("9999999T").is_err() && time("5 fortnights").unwrap_err().contains("fortnights"));
    }
}
