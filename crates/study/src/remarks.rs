//! What runs say in words (warnings, reasons, differences), each said once.

use netstage_scenario::record::CellEntry;
use std::collections::BTreeMap;

/// Collects the remarks of runs.
#[derive(Default)]
pub struct Remarks {
    /// In the order in which they were first made.
    remarks: Vec<Remark>,
}

struct Remark {
    text: String,
    /// Runs that made it, by cell.
    runs: BTreeMap<usize, usize>,
}

impl Remarks {
    /// Adds those of one run.
    pub fn add(&mut self, cell: usize, texts: &[String]) {
        for (index, text) in texts.iter().enumerate() {
            // A run that says a thing twice still is one run.
            if texts[..index].contains(text) {
                continue;
            }
            let known = self.remarks.iter().position(|r| r.text == *text);
            let known = known.unwrap_or_else(|| {
                self.remarks.push(Remark { text: text.clone(), runs: BTreeMap::new() });
                self.remarks.len() - 1
            });
            *self.remarks[known].runs.entry(cell).or_default() += 1;
        }
    }

    /// Each remark once, with the cells or the number of runs it holds for where it does not
    /// for all; every cell has `repeat` runs.
    pub fn finish(self, cells: &[CellEntry], repeat: u32) -> Vec<String> {
        let repeat = repeat as usize;
        let said = |remark: Remark| {
            let (some, runs) = (remark.runs.len(), remark.runs.values().sum::<usize>());
            let labels =
                || remark.runs.keys().map(|&cell| cells[cell].label()).collect::<Vec<_>>().join("; ");
            let place = match (runs == some * repeat, some) {
                (true, all) if all == cells.len() => return remark.text,
                (true, 1..=3) => labels(),
                (true, _) => format!("{some} of {} cells", cells.len()),
                (false, 1) if cells.len() > 1 => format!("{runs} of {repeat} runs of {}", labels()),
                (false, _) => format!("{runs} of {} runs", cells.len() * repeat),
            };
            format!("{} (in {place})", remark.text)
        };
        self.remarks.into_iter().map(said).collect()
    }
}
