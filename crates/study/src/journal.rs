//! Journal of the trials of unfinished runs. A run with tests may take hours, so each trial is saved when it ends, and the
//! next process goes on from the last one.

use crate::folder::{StudyFolder, read_checked};
use crate::perform::{PlanRunner, RunId};
use crate::series::{encode_run, read_run};
use crate::table::ReportTable;
use crate::{RunFailure, StudyError, trials};
use netstage_scenario::outcome::finding::TrialEntry;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Journal of one run. The stage performs the flows and the trials of a run in a fixed order, because each search depends
/// only on the seed and on earlier results.
pub struct TrialJournal<'a> {
    folder: &'a StudyFolder,
    run: RunId,
    /// Saved outcomes, by number.
    saved: BTreeMap<usize, PathBuf>,
    /// Number of the next performance of the stage.
    next: AtomicUsize,
    results: Mutex<File>,
}

impl<'a> TrialJournal<'a> {
    /// Opens the journal of a run.
    pub fn open(folder: &'a StudyFolder, run: RunId) -> Result<TrialJournal<'a>, StudyError> {
        let results = Mutex::new(folder.create_trial_results(run)?);
        let saved = folder.trials(run);
        Ok(TrialJournal { folder, run, saved, next: AtomicUsize::new(0), results })
    }

    /// Returns the saved outcome of the next performance of the stage, or performs it and saves its outcome.
    pub fn perform(
        &self,
        runner: &PlanRunner,
        plan: &Plan,
        seed: u64,
        observer: &dyn RunObserver,
    ) -> Result<RunOutcome, RunFailure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let saved = self.saved.get(&number).and_then(|path| read_checked(path).ok());
        if let Some((_, of, outcome)) = saved.and_then(|bytes| read_run(&bytes).ok())
            && of == seed
        {
            return Ok(outcome);
        }
        let outcome = runner(plan, seed, observer)?;
        let failed = |error: String| RunFailure::Failed(error);
        let bytes =
            encode_run(self.run.0 as u32, seed, &outcome).map_err(|error| failed(error.to_string()))?;
        self.folder.save_trial(self.run, number, &bytes).map_err(|error| failed(error.to_string()))?;
        Ok(outcome)
    }

    /// Adds the result of a trial. An error is ignored: the result can be computed again from the outcome.
    pub fn add_result(&self, entry: &TrialEntry) {
        let mut line = serde_json::to_vec(entry).expect("an entry holds only text and numbers");
        line.push(b'\n');
        let _ = self.results.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
    }
}

/// Returns a table of the trials of an unfinished study; `None` if there are none.
pub fn kept_trials(folder: &Path) -> Option<ReportTable> {
    let results = crate::folder::trial_results(folder);
    let entries: Vec<TrialEntry> = results
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let title = "Finished trials of the unfinished study".to_owned();
    (!entries.is_empty()).then(|| trials::entry_table(title, &entries))
}
