//! Tables for the terminal, with columns as wide as their cells and numbers aligned right.

/// Table of text cells.
pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these column heads. A head that begins with `>` is aligned right.
    pub fn new(heads: &[&'static str]) -> Table {
        Table { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heads.len());
        self.rows.push(cells.into());
    }

    /// Formats the table; empty without rows.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let heads = self.heads.iter().map(|head| head.trim_start_matches('>'));
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = heads
            .clone()
            .enumerate()
            .map(|(column, head)| {
                self.rows.iter().map(|row| width(&row[column])).fold(width(head), usize::max)
            })
            .collect();
        let line = |cells: Vec<&str>| {
            let cells = cells.iter().zip(&widths).zip(&self.heads).map(|((cell, width), head)| {
                if head.starts_with('>') { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let mut text = line(heads.collect());
        self.rows.iter().for_each(|row| text.push_str(&line(row.iter().map(String::as_str).collect())));
        text
    }
}

/// Formats a count with its noun: `1 peer`, `2 peers`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats bits per second with three digits.
pub fn rate(bits: f64) -> String {
    let (scaled, unit) = match bits {
        bits if bits >= 1e9 => (bits / 1e9, "Gbit/s"),
        bits if bits >= 1e6 => (bits / 1e6, "Mbit/s"),
        bits if bits >= 1e3 => (bits / 1e3, "kbit/s"),
        bits => (bits, "bit/s"),
    };
    let digits = if scaled >= 100.0 || unit == "bit/s" {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {unit}")
}

/// Formats a duration.
pub fn time(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    match (seconds, nanoseconds) {
        (86_400.., _) => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
        (3_600.., _) => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        (60.., _) => format!("{} min {} s", seconds / 60, seconds % 60),
        (1.., _) => format!("{:.1} s", nanoseconds as f64 / 1e9),
        (_, 1_000_000..) => format!("{:.2} ms", nanoseconds as f64 / 1e6),
        (_, 0) => "-".into(),
        _ => format!("{:.0} us", nanoseconds as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["name", ">packets", "note"]);
        assert_eq!(table.text(), "");
        table.row(["west".into(), "7".into(), String::new()]);
        table.row(["north-west".into(), "123456789".into(), "µ".into()]);
        let expected = "name          packets  note\nwest                7\nnorth-west  123456789  µ\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn amounts_have_units() {
        let rates = [0.0, 950.0, 1_500.0, 99_500_000.0, 123_456_789.0, 2e9].map(rate);
        let expected = ["0 bit/s", "950 bit/s", "1.50 kbit/s", "99.5 Mbit/s", "123 Mbit/s", "2.00 Gbit/s"];
        assert_eq!(rates, expected);
        let times = [0, 900, 2_500_000, 1_500_000_000, 61_000_000_000, 90_061_000_000_000].map(time);
        assert_eq!(times, ["-", "1 us", "2.50 ms", "1.5 s", "1 min 1 s", "1 d 1 h"]);
        assert_eq!((counted(1, "peer"), counted(0, "peer")), ("1 peer".into(), "0 peers".into()));
    }
}
