//! Routes and labels from a text file with lines similar to iproute2:
//!
//! ```text
//! # prefix or label, and its destination
//! 10.0.0.0/8      via 192.0.2.1 dev eth1
//! 10.1.0.0/16     via 192.0.2.1 dev eth1 push 100/200
//! 10.2.0.0/16     via 192.0.2.1 dev eth1 or via 192.0.2.5 dev eth2 push 17
//! 2001:db8::/32   discard
//! 192.0.2.7/32    local
//! 172.16.0.0/12   table red via 192.0.2.1 dev eth1
//! label 300       swap 301 via 192.0.2.1 dev eth1
//! label 301       via 192.0.2.1 dev eth1
//! label 302       pop
//! label 303       pop table red
//! ```
//!
//! A label without `swap` is popped before forwarding (penultimate hop popping). `pop` forwards the packet
//! by its inner header or next label.

use crate::source::path::{Destination, LabelAction, RoutePath, SourceChange};
use netstage_wire::mpls::LabelValue;
use std::fmt;
use std::net::IpAddr;
use std::str::SplitWhitespace;

/// Syntax error with its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteFileError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

impl fmt::Display for RouteFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for RouteFileError {}

/// Names in the file and the indexes they stand for.
#[derive(Clone, Copy, Debug)]
pub struct RouteFileNames<'a> {
    /// Interfaces of the router, by index.
    pub interfaces: &'a [String],
    /// Routing tables, by index; table 0 is used for routes without a table name.
    pub tables: &'a [String],
}

/// Parses all lines. Fails at the first invalid line.
pub fn read(text: &str, names: RouteFileNames<'_>) -> Result<Vec<SourceChange>, RouteFileError> {
    let mut changes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let read = self::line(first, &mut words, names);
        changes.push(read.map_err(|message| RouteFileError { line: number + 1, message })?);
    }
    Ok(changes)
}

fn line(
    first: &str,
    words: &mut SplitWhitespace<'_>,
    names: RouteFileNames<'_>,
) -> Result<SourceChange, String> {
    if first == "label" {
        let label = label(words.next().unwrap_or_default())?;
        return Ok(SourceChange::Label(label, Some(meaning(words, names)?)));
    }
    let prefix = prefix(first)?;
    let mut next = words.next();
    let mut table = 0;
    if next == Some("table") {
        table = self::table(words, names)?;
        next = words.next();
    }
    let to = destination(next, words, &[], names)?;
    Ok(SourceChange::Route((table, prefix), Some(to)))
}

fn meaning(words: &mut SplitWhitespace<'_>, names: RouteFileNames<'_>) -> Result<LabelAction, String> {
    let mut next = words.next();
    if next == Some("pop") {
        return match words.next() {
            None => Ok(LabelAction::Pop { table: 0 }),
            Some("table") => Ok(LabelAction::Pop { table: table(words, names)? }),
            Some(word) => {
                Err(format!("unexpected `{word}` after `pop`; expected `table` and its name, or nothing"))
            }
        };
    }
    let mut swapped = Vec::new();
    if next == Some("swap") {
        swapped = labels(words.next().unwrap_or_default())?;
        next = words.next();
    }
    Ok(LabelAction::Forward(destination(next, words, &swapped, names)?))
}

fn destination<'a>(
    first: Option<&'a str>,
    words: &mut SplitWhitespace<'a>,
    swapped: &[LabelValue],
    names: RouteFileNames<'_>,
) -> Result<Destination, String> {
    let destination = match first {
        Some("local") => Destination::Local,
        Some("discard") => Destination::Discard,
        _ => return paths(first, words, swapped, names).map(Destination::Paths),
    };
    match words.next() {
        None => Ok(destination),
        Some(word) => Err(format!("unexpected `{word}`; expected the end of the line")),
    }
}

fn paths<'a>(
    mut next: Option<&'a str>,
    words: &mut SplitWhitespace<'a>,
    swapped: &[LabelValue],
    names: RouteFileNames<'_>,
) -> Result<Vec<RoutePath>, String> {
    let mut paths = Vec::new();
    loop {
        let mut via = None;
        if next == Some("via") {
            let word = words.next().unwrap_or_default();
            via = Some(word.parse().map_err(|_| format!("`{word}` is not an IP address"))?);
            next = words.next();
        }
        if next != Some("dev") {
            let found = next.map_or("end of line".into(), |word| format!("`{word}`"));
            return Err(format!(
                "unexpected {found}; expected `via` and an address, `dev` and an interface, `local` or `discard`"
            ));
        }
        let name = words.next().unwrap_or_default();
        let interface = names.interfaces.iter().position(|known| known == name);
        let interface = interface.ok_or_else(|| format!("the router has no interface `{name}`"))? as u32;
        let mut own = swapped.to_vec();
        next = words.next();
        if next == Some("push") {
            let mut pushed = labels(words.next().unwrap_or_default())?;
            pushed.append(&mut own);
            own = pushed;
            next = words.next();
        }
        paths.push(RoutePath { interface, via, labels: own });
        match next {
            None => return Ok(paths),
            Some("or") => next = words.next(),
            Some(word) => {
                return Err(format!("unexpected `{word}`; expected `push`, `or` or the end of the line"));
            }
        }
    }
}

fn table(words: &mut SplitWhitespace<'_>, names: RouteFileNames<'_>) -> Result<u32, String> {
    let name = words.next().unwrap_or_default();
    let table = names.tables.iter().position(|known| known == name);
    table.map(|table| table as u32).ok_or_else(|| format!("the router has no table `{name}`"))
}

fn prefix(word: &str) -> Result<(IpAddr, u8), String> {
    let not_a_prefix =
        || format!("`{word}` is neither a prefix such as 10.0.0.0/8 or 2001:db8::/32 nor `label`");
    let (address, length) = word.split_once('/').ok_or_else(not_a_prefix)?;
    let (address, length): (IpAddr, u8) =
        (address.parse().map_err(|_| not_a_prefix())?, length.parse().map_err(|_| not_a_prefix())?);
    let (bits, free) = match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32_u32.checked_sub(length.into())),
        IpAddr::V6(address) => (address.into(), 128_u32.checked_sub(length.into())),
    };
    let free = free.ok_or_else(not_a_prefix)?;
    if free > 0 && bits & (u128::MAX >> (128 - free)) != 0 {
        return Err(format!("`{word}` has bits set beyond its length"));
    }
    Ok((address, length))
}

fn labels(word: &str) -> Result<Vec<LabelValue>, String> {
    word.split('/').map(label).collect()
}

fn label(word: &str) -> Result<LabelValue, String> {
    let number = word.parse().ok().and_then(LabelValue::new);
    number.ok_or_else(|| format!("`{word}` is not a label; give a number from 0 to 1048575"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<SourceChange>, RouteFileError> {
        let interfaces = ["eth1", "eth2"].map(String::from);
        let tables = ["main", "red"].map(String::from);
        super::read(text, RouteFileNames { interfaces: &interfaces, tables: &tables })
    }

    fn path(interface: u32, last: u8, labels: &[u32]) -> RoutePath {
        let labels = labels.iter().map(|number| LabelValue::new(*number).unwrap()).collect();
        RoutePath { interface, via: Some([192, 0, 2, last].into()), labels }
    }

    #[test]
    fn each_line_becomes_a_change() {
        let text = "# a comment\n\n10.1.0.0/16 via 192.0.2.1 dev eth1 push 100/200 # another\n\
            10.2.0.0/16 via 192.0.2.1 dev eth1 or via 192.0.2.5 dev eth2 push 17\n\
            2001:db8::/32 discard\n0.0.0.0/0 table red local\n10.9.0.0/24 dev eth2\n\
            label 300 swap 301 via 192.0.2.1 dev eth1 push 400\nlabel 301 via 192.0.2.1 dev eth1\n\
            label 302 pop\nlabel 303 pop table red\n";
        let route = |text: &str, table, to| {
            let (address, length) = text.split_once('/').unwrap();
            SourceChange::Route((table, (address.parse().unwrap(), length.parse().unwrap())), Some(to))
        };
        let label = |number, meaning| SourceChange::Label(LabelValue::new(number).unwrap(), Some(meaning));
        let forward = |path| LabelAction::Forward(Destination::Paths(vec![path]));
        let expected = vec![
            route("10.1.0.0/16", 0, Destination::Paths(vec![path(0, 1, &[100, 200])])),
            route("10.2.0.0/16", 0, Destination::Paths(vec![path(0, 1, &[]), path(1, 5, &[17])])),
            route("2001:db8::/32", 0, Destination::Discard),
            route("0.0.0.0/0", 1, Destination::Local),
            route(
                "10.9.0.0/24",
                0,
                Destination::Paths(vec![RoutePath { interface: 1, via: None, labels: vec![] }]),
            ),
            label(300, forward(path(0, 1, &[400, 301]))),
            label(301, forward(path(0, 1, &[]))),
            label(302, LabelAction::Pop { table: 0 }),
            label(303, LabelAction::Pop { table: 1 }),
        ];
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn errors_carry_their_line_number() {
        for (line, message) in [
            (
                "10.0.0.0 via 192.0.2.1 dev eth1",
                "`10.0.0.0` is neither a prefix such as 10.0.0.0/8 or 2001:db8::/32 nor `label`",
            ),
            ("10.0.0.1/8 local", "`10.0.0.1/8` has bits set beyond its length"),
            (
                "10.0.0.0/33 local",
                "`10.0.0.0/33` is neither a prefix such as 10.0.0.0/8 or 2001:db8::/32 nor `label`",
            ),
            ("10.0.0.0/8 via eth1", "`eth1` is not an IP address"),
            ("10.0.0.0/8 dev eth9", "the router has no interface `eth9`"),
            ("10.0.0.0/8 dev eth1 push 1048576", "`1048576` is not a label; give a number from 0 to 1048575"),
            (
                "10.0.0.0/8 dev eth1 and more",
                "unexpected `and`; expected `push`, `or` or the end of the line",
            ),
            ("10.0.0.0/8 table blue local", "the router has no table `blue`"),
            ("10.0.0.0/8 discard now", "unexpected `now`; expected the end of the line"),
            (
                "10.0.0.0/8",
                "unexpected end of line; expected `via` and an address, `dev` and an interface, `local` or `discard`",
            ),
            ("label x pop", "`x` is not a label; give a number from 0 to 1048575"),
            ("label 20 pop red", "unexpected `red` after `pop`; expected `table` and its name, or nothing"),
        ] {
            let error = read(&format!("0.0.0.0/0 local\n{line}\n")).unwrap_err();
            assert_eq!(error, RouteFileError { line: 2, message: message.into() });
        }
    }
}
