//! Reports as text for the terminal.

use netstage_study::kept_trials;
use netstage_study::report::ReportData;
use netstage_study::table::{Align, ReportTable};
use std::fmt::Write as _;
use std::path::Path;

/// Maximum rows of a table; the HTML page has all of them.
const MOST_ROWS: usize = 60;

/// Tables to print, by the beginning of their titles.
const WANTED: [&str; 5] = ["Results", "Tests", "Test verdicts", "Correlation with throughput", "Comparison"];

/// Formats title, results, verdicts, warnings and the path of the HTML page.
pub fn text(data: &ReportData, page: Option<&Path>) -> String {
    let mut out = format!("{}\n", data.title);
    let wanted = |t: &&ReportTable| WANTED.iter().any(|title| t.title.starts_with(title));
    let shown = data.tables.iter().filter(wanted);
    for shown in shown {
        out.push('\n');
        if shown.title != "Results" {
            let _ = writeln!(out, "{}", shown.title);
        }
        let mut short = shown.clone();
        short.rows.truncate(MOST_ROWS);
        out.push_str(&table(&short));
        if shown.rows.len() > MOST_ROWS {
            let _ = writeln!(out, "… and {} more rows", shown.rows.len() - MOST_ROWS);
        }
        if !shown.note.is_empty() {
            let _ = writeln!(out, "{}", shown.note);
        }
    }
    verdicts(&mut out, data);
    if !data.warnings.is_empty() {
        out.push('\n');
    }
    for warning in &data.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if let Some(page) = page {
        let _ = writeln!(out, "\nreport: {}", page.display());
    }
    out
}

/// Appends a line per expectation: the number of cells that meet it, up to eight that do not, and its claim.
fn verdicts(out: &mut String, data: &ReportData) {
    let mut names: Vec<&str> = Vec::new();
    for verdict in &data.expectations {
        if !names.contains(&verdict.name.as_str()) {
            names.push(&verdict.name);
        }
    }
    if !names.is_empty() {
        out.push('\n');
    }
    for name in names {
        let all: Vec<_> = data.expectations.iter().filter(|v| v.name == name).collect();
        let failed: Vec<_> = all.iter().filter(|v| !v.pass).collect();
        let mark = if failed.is_empty() { '✓' } else { '✗' };
        let _ = write!(out, "{mark} {name}: {} {}", all[0].metric, all[0].condition);
        match (all.as_slice(), failed.as_slice()) {
            ([one], _) => {
                let _ = writeln!(out, " — {}", one.achieved);
            }
            (_, []) => {
                let _ = writeln!(out, " — in all {} cells", all.len());
            }
            _ => {
                // A verdict without a cell is about the expectation as a whole, or about the only cell.
                let cells = all.iter().filter(|v| !v.cell.is_empty()).count();
                let failed_cells = failed.iter().filter(|v| !v.cell.is_empty()).count();
                let _ = match cells {
                    0 => writeln!(out),
                    _ => writeln!(out, " — in {} of {cells} cells; not met:", cells - failed_cells),
                };
                for verdict in failed.iter().take(8) {
                    let cell = [verdict.cell.as_str(), ": "].concat();
                    let cell = if verdict.cell.is_empty() { "" } else { &cell };
                    let _ = writeln!(out, "    {cell}{}", verdict.achieved);
                }
                if failed.len() > 8 {
                    let _ = writeln!(out, "    … and {} more", failed.len() - 8);
                }
            }
        }
        if !all[0].claim.is_empty() {
            let _ = writeln!(out, "    claimed: {}", all[0].claim);
        }
        if !all[0].missed.is_empty() {
            let _ = writeln!(out, "    missed: {}", all[0].missed);
        }
    }
}

/// Prints the finished trials of an unfinished study to stderr, if there are any.
pub fn print_kept_trials(folder: &Path) {
    if let Some(trials) = kept_trials(folder) {
        eprintln!("{}", table(&trials));
    }
}

/// Formats a table with aligned columns.
pub fn table(table: &ReportTable) -> String {
    let width = |column: usize| {
        let cells = table.rows.iter().map(|row| row[column].chars().count());
        cells.chain([table.columns[column].name.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (index, cell) in cells.enumerate() {
            let pad = " ".repeat(widths[index].saturating_sub(cell.chars().count()));
            let (left, right) = if table.columns[index].align == Align::Right {
                (pad.as_str(), "")
            } else {
                ("", pad.as_str())
            };
            let gap = if index > 0 { "  " } else { "" };
            let _ = write!(text, "{gap}{left}{cell}{right}");
        }
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(&mut table.columns.iter().map(|c| c.name.as_str()));
    for row in &table.rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_study::report::ExpectationVerdict;
    use netstage_study::table::TableColumn;

    fn verdict(cell: &str, achieved: &str, pass: bool) -> ExpectationVerdict {
        ExpectationVerdict {
            name: "fast".into(),
            metric: "flow.throughput".into(),
            condition: "≥ 1 Mbit/s".into(),
            achieved: achieved.into(),
            claim: String::new(),
            missed: String::new(),
            pass,
            cell: cell.into(),
        }
    }

    fn verdict_lines(expectations: Vec<ExpectationVerdict>) -> String {
        let mut out = String::new();
        verdicts(&mut out, &ReportData { expectations, ..ReportData::default() });
        out
    }

    #[test]
    fn a_verdict_without_a_cell_is_not_counted_as_a_cell() {
        let problem = || verdict("", "no such flow", false);
        assert_eq!(
            verdict_lines(vec![problem(), verdict("", "0.5 Mbit/s", false)]),
            "\n✗ fast: flow.throughput ≥ 1 Mbit/s\n    no such flow\n    0.5 Mbit/s\n"
        );
        assert_eq!(
            verdict_lines(vec![problem(), verdict("a", "2 Mbit/s", true), verdict("b", "0.5 Mbit/s", false)]),
            "\n✗ fast: flow.throughput ≥ 1 Mbit/s — in 1 of 2 cells; not met:\n    no such flow\n    b: 0.5 Mbit/s\n"
        );
    }

    #[test]
    fn columns_are_aligned() {
        let shown = ReportTable {
            columns: vec![TableColumn::left("variant"), TableColumn::right("F")],
            rows: vec![vec!["with".into(), "0.95 ± 0.01 ✓".into()], vec!["no".into(), "–".into()]],
            ..ReportTable::default()
        };
        assert_eq!(table(&shown), "variant              F\nwith     0.95 ± 0.01 ✓\nno                   –\n");
    }
}
