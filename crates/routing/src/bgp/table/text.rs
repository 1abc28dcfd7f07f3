//! Routes from text, one per line: prefix, next hop and, for families with labels, a label. `#` starts a
//! comment.

use super::{BgpTable, BgpTableError};
use crate::bgp::nlri::Nlri;
use crate::bgp::path::{AsPath, PathAttributes};
use std::fmt;
use std::net::IpAddr;

/// Syntax error with its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Description of the error.
    pub expected: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.expected)
    }
}

impl std::error::Error for TextError {}

/// Appends the routes listed in a text, with this AS path.
pub fn read_text(text: &str, as_path: &AsPath, table: &mut BgpTable) -> Result<(), TextError> {
    for (number, line) in text.lines().enumerate() {
        let error = |expected: &str| TextError { line: number + 1, expected: expected.to_string() };
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(prefix) = words.next() else { continue };
        let prefix = prefix.parse().map_err(|_| error("expected a prefix such as 192.0.2.0/24"))?;
        let next_hop: IpAddr = words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| error("expected the address of a next hop after the prefix"))?;
        let label = words
            .next()
            .map(|word| word.parse().ok().filter(|label| *label < 1 << 20))
            .map(|label| label.ok_or_else(|| error("expected a label from 0 to 1048575")))
            .transpose()?;
        if words.next().is_some() {
            return Err(error("expected the end of the line after prefix, next hop and label"));
        }
        let nlri = label.map_or(Nlri::unicast(prefix), |label| Nlri::labeled(prefix, label));
        let group = table.group(nlri.family, PathAttributes::new(next_hop, as_path.clone()));
        let group = group.map_err(|refused: BgpTableError| error(&refused.to_string()))?;
        table.push(group, &nlri);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_routes_in_order() {
        let text =
            "# routes\n10.0.0.0/8 192.0.2.1\n\n2001:db8::/32 2001:db8::1 # six\n10.1.0.0/16\t192.0.2.1 77\n";
        let mut table = BgpTable::new();
        read_text(text, &AsPath::sequence(&[65_001]), &mut table).unwrap();
        let found: Vec<String> = table
            .iter()
            .map(|(nlri, path)| format!("{} {} {} {:?}", nlri.family, nlri.prefix, path.next_hop, nlri.label))
            .collect();
        assert_eq!(
            found,
            [
                "IPv4 unicast 10.0.0.0/8 192.0.2.1 None",
                "IPv6 unicast 2001:db8::/32 2001:db8::1 None",
                "labeled IPv4 10.1.0.0/16 192.0.2.1 Some(77)",
            ]
        );
    }

    #[test]
    fn errors_carry_their_line_number() {
        for (text, message) in [
            ("\n10.0.0.0/40 192.0.2.1", "line 2: expected a prefix such as 192.0.2.0/24"),
            ("10.0.0.0/8", "line 1: expected the address of a next hop after the prefix"),
            ("10.0.0.0/8 192.0.2.1 1048576", "line 1: expected a label from 0 to 1048575"),
            (
                "10.0.0.0/8 192.0.2.1 1 2",
                "line 1: expected the end of the line after prefix, next hop and label",
            ),
            ("10.0.0.0/8 ::1", "line 1: ::1 is not a valid next hop for IPv4 unicast"),
        ] {
            let error = read_text(text, &AsPath::default(), &mut BgpTable::new()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
