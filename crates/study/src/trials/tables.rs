//! Report tables of tests: findings, verdicts and trials.

use crate::format;
use crate::overview::cell_name;
use crate::table::{ReportTable, TableColumn};
use netstage_scenario::outcome::finding::{Finding, PacketFault, TestOutcome, TrialEntry};
use netstage_scenario::record::{CellEntry, StudyRecord as Data};

/// Maximum number of trials in a table; the record contains all.
const MAX_TRIALS: usize = 200;

/// Returns the tables of all tests.
pub fn tables(data: &Data) -> Vec<ReportTable> {
    let mut names: Vec<&str> = Vec::new();
    for test in data.cells.iter().flat_map(|cell| &cell.tests) {
        if !names.contains(&test.outcome.name.as_str()) {
            names.push(&test.outcome.name);
        }
    }
    let trials = names.iter().filter_map(|name| trials(data, name));
    [findings(data), faults(data), remarks(data)].into_iter().flatten().chain(trials).collect()
}

/// Creates a table with a column for the cell if there are several.
fn table(data: &Data, title: impl Into<String>) -> ReportTable {
    let columns = (data.cells.len() > 1).then(|| TableColumn::left("cell")).into_iter().collect();
    ReportTable { title: title.into(), columns, ..ReportTable::default() }
}

fn row(data: &Data, cell: &CellEntry) -> Vec<String> {
    (data.cells.len() > 1).then(|| cell_name(data, cell)).into_iter().collect()
}

/// Returns a table with a row per finding.
fn findings(data: &Data) -> Option<ReportTable> {
    let mut table = table(data, "Tests");
    let columns = ["value", "bounds"].map(TableColumn::right);
    table.columns.extend([TableColumn::left("test"), TableColumn::left("metric")]);
    table.columns.extend(columns);
    for cell in &data.cells {
        for entry in cell.summary.iter().filter(|entry| entry.metric.starts_with("test.")) {
            let unit = data.metric(&entry.metric).map_or("", |m| m.unit.as_str());
            let found = cell.tests.iter().flat_map(|test| &test.outcome.findings);
            let mut found = found.filter(|f| f.metric == entry.metric && f.subject == entry.subject);
            let mut row = row(data, cell);
            let name = entry.metric.trim_start_matches("test.").replace('_', " ");
            let mut found_bounds = found.clone();
            let is_lower = found_bounds.any(|finding| finding.low.is_some() && finding.high.is_none());
            let mut value = format::estimate(&entry.value, unit);
            if is_lower {
                let of_subject = |why: &String| why.starts_with(&format!("{}:", entry.subject));
                let mut shortfalls = cell.tests.iter().flat_map(|test| &test.outcome.shortfalls);
                let by = if shortfalls.any(of_subject) { " (tester's limit)" } else { "" };
                value = format!("≥ {value}{by}");
            }
            // Only a single run has bounds; the estimate over several has an interval.
            let bounds = match entry.value.runs {
                1 => found.next().map_or("".into(), |f| bounds(f, unit)),
                _ if found.any(|f| f.low.is_some() && f.high.is_none()) => "a lower bound".into(),
                _ => "".into(),
            };
            row.extend([entry.subject.clone(), name, value, bounds]);
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn bounds(finding: &Finding, unit: &str) -> String {
    let end = |bound: f64| format::quantity(bound, unit);
    match (finding.low, finding.high) {
        (None, None) => String::new(),
        (Some(low), None) => format!("at least {}", end(low)),
        (None, Some(high)) => format!("at most {}", end(high)),
        (Some(low), Some(high)) => format!("{} – {}", end(low), end(high)),
    }
}

/// Sums of a kind of fault over the trials of a test, and its first fault.
struct FaultSum<'a> {
    fault: &'a PacketFault,
    packets: u64,
    trials: usize,
}

/// Returns a table of the faults of packets, with a row for each test and kind.
fn faults(data: &Data) -> Option<ReportTable> {
    let mut table = table(data, "Incorrect packets");
    table.note = "A packet with several faults is in several rows. The networks and the example are those of the first \
                  trial with the fault; incorrect.pcapng has the frames."
        .into();
    table.columns.extend(["test", "fault"].map(TableColumn::left));
    table.columns.extend(["packets", "trials", "networks"].map(TableColumn::right));
    table.columns.extend(["most affected", "example"].map(TableColumn::left));
    for cell in &data.cells {
        let mut sums: Vec<(&str, FaultSum)> = Vec::new();
        for trial in cell.tests.iter().flat_map(|test| &test.outcome.trials) {
            for fault in &trial.faults {
                let mut known = sums.iter_mut().map(|(subject, sum)| (*subject, sum));
                let is_same = |fault: &PacketFault, other: &PacketFault| {
                    (&fault.kind, fault.is_before) == (&other.kind, other.is_before)
                };
                match known.find(|(subject, sum)| *subject == trial.subject && is_same(sum.fault, fault)) {
                    Some((_, sum)) => {
                        (sum.packets, sum.trials) = (sum.packets + fault.packets, sum.trials + 1)
                    }
                    None => {
                        sums.push((&trial.subject, FaultSum { fault, packets: fault.packets, trials: 1 }))
                    }
                }
            }
        }
        for (subject, FaultSum { fault, packets, trials }) in sums {
            let mut row = row(data, cell);
            let when = if fault.is_before { " (before the trials)" } else { "" };
            let most = fault.most.iter().map(|(network, packets)| format!("{network}: {packets}"));
            let mut most = most.collect::<Vec<_>>().join(", ");
            if fault.networks > fault.most.len() as u64 {
                most.push_str(", …");
            }
            row.extend([subject.to_owned(), format!("{}{when}", fault.kind), packets.to_string()]);
            row.extend([trials.to_string(), fault.networks.to_string(), most, fault.example.clone()]);
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns a table of verdicts, reasons for void tests, and deviations from the rules of a method.
fn remarks(data: &Data) -> Option<ReportTable> {
    let mut table = table(data, "Test verdicts");
    table.columns.extend([TableColumn::left("test"), TableColumn::left("")]);
    for cell in &data.cells {
        let mut remarks: Vec<(&str, String)> = Vec::new();
        for TestOutcome { name, verdicts, deviations, void, .. } in cell.tests.iter().map(|t| &t.outcome) {
            let departures = deviations.iter().map(|how| format!("deviation from the procedure: {how}"));
            let reasons = void.iter().map(|why| format!("void: {why}"));
            for text in reasons.chain(verdicts.iter().cloned()).chain(departures) {
                if !remarks.contains(&(name.as_str(), text.clone())) {
                    remarks.push((name, text));
                }
            }
        }
        for (name, text) in remarks {
            let mut row = row(data, cell);
            row.extend([name.to_owned(), text]);
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Columns of a trial.
const TRIAL_COLUMNS: [&str; 7] = ["requested", "offered", "duration", "sent", "lost", "loss", "mean delay"];

/// Returns a table of trials, without their cells and seeds.
pub fn entry_table(title: String, entries: &[TrialEntry]) -> ReportTable {
    let mut table = ReportTable { title, ..ReportTable::default() };
    table.columns.push(TableColumn::left("test"));
    table.columns.extend(TRIAL_COLUMNS.map(TableColumn::right));
    table.columns.push(TableColumn::left("remark"));
    let row = |entry: &TrialEntry| trial_row(entry).into_iter().chain([entry.void.clone()]).collect();
    table.rows = entries.iter().map(row).collect();
    table
}

/// Returns a table of a test's trials.
fn trials(data: &Data, name: &str) -> Option<ReportTable> {
    let mut table = table(data, format!("Trials of {name}"));
    table.note = "Rates are those of the IP layer. Trials with a remark are not counted.".into();
    table.columns.extend((data.repeat > 1).then(|| TableColumn::right("seed")));
    table.columns.push(TableColumn::left("test"));
    table.columns.extend(TRIAL_COLUMNS.map(TableColumn::right));
    let mut all = data.cells.iter().flat_map(|cell| &cell.tests).flat_map(|test| &test.outcome.trials);
    let has_bursts = all.any(|trial| trial.burst > 0);
    table.columns.extend(has_bursts.then(|| TableColumn::right("burst")));
    table.columns.push(TableColumn::left("remark"));
    let mut omitted = 0;
    for cell in &data.cells {
        for test in cell.tests.iter().filter(|test| test.outcome.name == name) {
            for trial in &test.outcome.trials {
                if table.rows.len() == MAX_TRIALS {
                    omitted += 1;
                    continue;
                }
                let mut row = row(data, cell);
                row.extend((data.repeat > 1).then(|| test.seed.to_string()));
                row.extend(trial_row(trial));
                row.extend(has_bursts.then(|| trial.burst.to_string()));
                row.push(trial.void.clone());
                table.rows.push(row);
            }
        }
    }
    if omitted > 0 {
        table.note.push_str(&format!(" {omitted} more trials are in record.json."));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn trial_row(trial: &TrialEntry) -> [String; 8] {
    let none = || "–".to_owned();
    // A TCP transfer has no fixed frame size.
    if trial.frame == 0 {
        let rate = trial.transferred as f64 * 8e9 / trial.sending_ns as f64;
        let sent = format!("{} B", trial.transferred);
        let retransmits = format!("{} retransmits", trial.retransmissions);
        let rate = format!("{} (payload)", format::quantity(rate, "bit/s"));
        let time = format::duration(trial.sending_ns);
        return [trial.subject.clone(), none(), rate, time, sent, retransmits, none(), none()];
    }
    let loss = trial.lost as f64 / trial.sent as f64;
    [
        trial.subject.clone(),
        format::quantity(trial.requested_bps, "bit/s"),
        format::quantity(trial.offered_bps, "bit/s"),
        format::duration(trial.sending_ns),
        trial.sent.to_string(),
        trial.lost.to_string(),
        format::number(loss),
        trial.delay_ns.map_or("–".into(), format::duration),
    ]
}
