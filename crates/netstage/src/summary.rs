//! Reports as text for the terminal.

use netstage_study::kept_trials;
use netstage_study::report::ReportData;
use netstage_study::table::{Align, ReportTable};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Maximum rows of a table in a brief text.
const MOST_ROWS: usize = 60;

/// Maximum failed verdicts per expectation in a brief text.
const MOST_FAILED: usize = 8;

/// Tables of a brief text, by the beginning of their titles.
const WANTED: [&str; 6] =
    ["Results", "Tests", "Incorrect packets", "Test verdicts", "Correlation with throughput", "Comparison"];

/// Formats title, results, verdicts, warnings and the path of the HTML page. `brief` is the folders of the records if the text
/// may leave out tables and rows, which its last line then counts; `None` prints all.
pub fn text(data: &ReportData, page: Option<&Path>, brief: Option<&[PathBuf]>) -> String {
    let mut out = format!("{}\n", data.title);
    let (mut tables, mut rows) = (0, 0);
    for shown in &data.tables {
        if brief.is_some() && !WANTED.iter().any(|title| shown.title.starts_with(title)) {
            tables += 1;
            continue;
        }
        out.push('\n');
        if shown.title != "Results" {
            let _ = writeln!(out, "{}", shown.title);
        }
        let mut short = shown.clone();
        if brief.is_some() {
            short.rows.truncate(MOST_ROWS);
        }
        let omitted = shown.rows.len() - short.rows.len();
        out.push_str(&table(&short));
        if omitted > 0 {
            let _ = writeln!(out, "… and {omitted} more rows");
        }
        rows += omitted;
        if !shown.note.is_empty() {
            let _ = writeln!(out, "{}", shown.note);
        }
    }
    let cells = verdicts(&mut out, data, brief.is_some());
    if !data.warnings.is_empty() {
        out.push('\n');
    }
    for warning in &data.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if let Some(page) = page {
        let _ = writeln!(out, "\nreport: {}", page.display());
    }
    let omitted = [(tables, "table"), (rows, "row"), (cells, "failed verdict")];
    let omitted = omitted.into_iter().filter(|(count, _)| *count > 0);
    let omitted: Vec<String> = omitted
        .map(|(count, what)| format!("{count} more {what}{}", if count > 1 { "s" } else { "" }))
        .collect();
    if let Some(records) = brief.filter(|_| !omitted.is_empty()) {
        let records: Vec<String> = records.iter().map(|record| record.display().to_string()).collect();
        let _ = writeln!(out, "… {}: netstage report --all {}", omitted.join(", "), records.join(" "));
    }
    out
}

/// Appends a line per expectation: the number of cells that meet it, those that do not, and its claim. Returns the number
/// of failed verdicts that a brief text omits.
fn verdicts(out: &mut String, data: &ReportData, is_brief: bool) -> usize {
    let mut omitted = 0;
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
                let most = if is_brief { MOST_FAILED } else { failed.len() };
                for verdict in failed.iter().take(most) {
                    let cell = [verdict.cell.as_str(), ": "].concat();
                    let cell = if verdict.cell.is_empty() { "" } else { &cell };
                    let _ = writeln!(out, "    {cell}{}", verdict.achieved);
                }
                if failed.len() > most {
                    let _ = writeln!(out, "    … and {} more", failed.len() - most);
                    omitted += failed.len() - most;
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
    omitted
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
    use netstage_core::rng::RandomStream;
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
        verdicts(&mut out, &ReportData { expectations, ..ReportData::default() }, true);
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

    /// Returns the count before a word in the last line of a text, or zero.
    fn counted(text: &str, word: &str) -> usize {
        let last = text.lines().last().unwrap_or_default();
        let Some(list) =
            last.strip_prefix("… ").and_then(|rest| rest.split_once(": netstage report --all a b"))
        else {
            return 0;
        };
        let part =
            list.0.split(", ").find(|part| part.trim_end_matches('s').ends_with(&format!(" more {word}")));
        part.map_or(0, |part| part.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn nothing_is_left_out_in_silence() {
        let seed = netstage_harness::seed("terminal report");
        let titles =
            ["Results", "Tests of udp", "Comparison of flows", "Flow groups", "Distributions", "VPNs"];
        let (mut omitted, mut complete) = (0, 0);
        for case in 0..300 {
            let mut random = RandomStream::new(seed, &format!("case.{case}"));
            let mut cells = 0;
            let mut name = |kind: &str| {
                cells += 1;
                format!("<{kind}{cells}>")
            };
            let tables: Vec<ReportTable> = (0..random.below(6))
                .map(|_| {
                    let many = random.chance(0.3);
                    let rows =
                        (0..random.below(if many { 200 } else { 5 })).map(|_| vec![name("row")]).collect();
                    let title = format!("{} {}", titles[random.below(6) as usize], name("table"));
                    ReportTable {
                        title,
                        columns: vec![TableColumn::left("x")],
                        rows,
                        ..ReportTable::default()
                    }
                })
                .collect();
            // The only cell of an expectation needs no name.
            let verdicts = Some(random.below(24)).filter(|count| *count != 1).unwrap_or(0);
            let expectations: Vec<ExpectationVerdict> =
                (0..verdicts).map(|_| verdict(&name("cell"), "1", false)).collect();
            let data = ReportData { tables, expectations, ..ReportData::default() };
            let records = [PathBuf::from("a"), PathBuf::from("b")];
            let (brief, all) = (text(&data, None, Some(&records)), text(&data, None, None));
            let is_omitted = |part: &&String| !brief.contains(part.as_str());
            let printed = || data.tables.iter().filter(|table| brief.contains(&table.title));
            let tables = data.tables.len() - printed().count();
            let rows = printed().flat_map(|table| table.rows.iter().flatten()).filter(is_omitted).count();
            let failed = data.expectations.iter().map(|verdict| &verdict.cell).filter(is_omitted).count();
            let counts = ["table", "row", "failed verdict"].map(|word| counted(&brief, word));
            assert_eq!(counts, [tables, rows, failed], "case {case}: {brief}");
            for table in &data.tables {
                let parts = table.rows.iter().flatten().chain([&table.title]);
                assert!(parts.clone().all(|part| all.contains(part.as_str())), "case {case}: {all}");
            }
            assert!(
                data.expectations.iter().all(|verdict| all.contains(&verdict.cell)),
                "case {case}: {all}"
            );
            omitted += usize::from(tables + rows + failed > 0);
            complete += usize::from(tables + rows + failed == 0);
        }
        assert!(omitted > 30 && complete > 10, "{omitted} texts with omissions, {complete} without");
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
