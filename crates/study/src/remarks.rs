//! Text remarks of runs (warnings, reasons, differences), without repetition.

use netstage_scenario::record::CellEntry;
use std::collections::BTreeMap;

/// Collector of remarks.
#[derive(Default)]
pub struct Remarks {
    /// Remarks in order of first occurrence.
    remarks: Vec<Remark>,
}

struct Remark {
    text: String,
    /// Number of runs with the remark, by cell.
    runs: BTreeMap<usize, usize>,
}

impl Remarks {
    /// Adds the remarks of one run.
    pub fn add(&mut self, cell: usize, texts: &[String]) {
        for (index, text) in texts.iter().enumerate() {
            // A repeated remark counts once per run.
            if texts[..index].contains(text) {
                continue;
            }
            let index = self.remarks.iter().position(|r| r.text == *text);
            let index = index.unwrap_or_else(|| {
                self.remarks.push(Remark { text: text.clone(), runs: BTreeMap::new() });
                self.remarks.len() - 1
            });
            *self.remarks[index].runs.entry(cell).or_default() += 1;
        }
    }

    /// Returns each remark once. A remark that does not apply to all runs names its cells or the number of its runs.
    /// Every cell has `repeat` runs.
    pub fn finish(self, cells: &[CellEntry], repeat: u32) -> Vec<String> {
        let repeat = repeat as usize;
        let formatted = |remark: Remark| {
            let (affected, runs) = (remark.runs.len(), remark.runs.values().sum::<usize>());
            let labels =
                || remark.runs.keys().map(|&cell| cells[cell].label()).collect::<Vec<_>>().join("; ");
            let scope = match (runs == affected * repeat, affected) {
                (true, all) if all == cells.len() => return remark.text,
                (true, 1..=3) => labels(),
                (true, _) => format!("{affected} of {} cells", cells.len()),
                (false, 1) if cells.len() > 1 => format!("{runs} of {repeat} runs of {}", labels()),
                (false, _) => format!("{runs} of {} runs", cells.len() * repeat),
            };
            format!("{} (in {scope})", remark.text)
        };
        self.remarks.into_iter().map(formatted).collect()
    }
}
