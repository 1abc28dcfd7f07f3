//! Execution of studies on this host, or run by run for a distributed engine.

use crate::error::{self, ArgumentError, RunError};
use crate::listen::CallbackObserver;
use crate::scenario::Checked;
use netstage_agent::fleet::{FleetFolder, folder};
use netstage_scenario::Scenario;
use netstage_stage::hosts;
use netstage_study::stage::{self, Backend, EmulationSettings};
use netstage_study::{Performer, PlanRunner, StoredRecord, StudyError, StudyOptions, TOOL, page, report};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs a study on threads of this process and writes the record to `out`. `progress` is called with the progress.
#[pyfunction]
#[pyo3(signature = (checked, out, stage="sim", program=None, fleet=None, jobs=None, retries=0, progress=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub fn run(
    py: Python<'_>,
    checked: &Checked,
    out: PathBuf,
    stage: &str,
    program: Option<PathBuf>,
    fleet: Option<PathBuf>,
    jobs: Option<usize>,
    retries: u32,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Runs in real time would compete for the CPU, so they run one at a time.
    let (default_jobs, runner): (_, Box<PlanRunner>) = match (stage, program) {
        ("sim", _) => (cores, Box::new(stage::sim)),
        ("emu", Some(program)) => {
            let means = EmulationSettings { program, logs: out.join("logs"), backend: Backend::Own };
            (1, Box::new(stage::emu(means)))
        }
        ("emu", None) => {
            return Err(ArgumentError::new_err(
                "the emulator needs the program netstage; set $NETSTAGE to its path",
            ));
        }
        ("live", _) => {
            let fleet = FleetFolder::open(&fleet.unwrap_or_else(folder::default_fleet_folder))
                .map_err(error::fleet)?;
            (1, Box::new(stage::live(hosts::FleetContext::new(fleet, &out))))
        }
        _ => {
            return Err(ArgumentError::new_err(format!(
                "unknown stage `{stage}`; expected sim, emu or live"
            )));
        }
    };
    let options = options(out, stage, jobs.unwrap_or(default_jobs), retries);
    let interrupted = AtomicBool::new(false);
    let mut listener = CallbackObserver::new(progress, &interrupted);
    let scenario = &*checked.0;
    let result = py.detach(|| {
        let record = netstage_study::run(scenario, &*runner, &options, &mut listener, &interrupted)?;
        write_page(&record)
    });
    let Err(error) = result else { return Ok(()) };
    let raised = listener.raised(py, &error.to_string());
    Err(raised.unwrap_or_else(|| error::study(error)))
}

fn options(out: PathBuf, stage: &str, jobs: usize, retries: u32) -> StudyOptions {
    StudyOptions { out, jobs, retries, stage: stage.into(), tool: TOOL.into() }
}

fn write_page(record: &StoredRecord) -> Result<(), StudyError> {
    let path = record.folder.join(page::NAME);
    page::write(&path, &report::report(record)).map_err(|source| StudyError::Io {
        operation: "write",
        path,
        source,
    })
}

/// Performs one simulated run and returns the bytes of its file for `Study.keep`.
#[pyfunction]
#[pyo3(signature = (checked, cell, seed, retries=0))]
pub fn perform<'py>(
    py: Python<'py>,
    checked: &Checked,
    cell: usize,
    seed: u64,
    retries: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let scenario = &*checked.0;
    if cell >= scenario.cells.len() {
        return Err(ArgumentError::new_err(format!("the study has no cell {cell}")));
    }
    let (file, raised) = py.detach(|| {
        let signals = SignalCheck::default();
        let runner: &PlanRunner = &stage::sim;
        let stop = || signals.raised();
        let performer = Performer {
            runner,
            retries,
            stop: &stop,
            on_activity: &|_| (),
            on_trial: &|_| (),
            on_progress: &|_, _| (),
            on_outcome: None,
        };
        let file = performer.perform(scenario, (cell, seed));
        (file, signals.error.into_inner())
    });
    match file.map_err(error::study)? {
        Some(file) => Ok(PyBytes::new(py, &file)),
        None => Err(raised.unwrap_or_else(|| RunError::new_err("the run was stopped"))),
    }
}

/// Check for Python's signals at intervals of 200 ms.
struct SignalCheck {
    checked: Cell<Instant>,
    error: RefCell<Option<PyErr>>,
}

impl Default for SignalCheck {
    fn default() -> SignalCheck {
        SignalCheck { checked: Cell::new(Instant::now()), error: RefCell::default() }
    }
}

impl SignalCheck {
    fn raised(&self) -> bool {
        let mut error = self.error.borrow_mut();
        if error.is_none() && self.checked.get().elapsed() > Duration::from_millis(200) {
            self.checked.set(Instant::now());
            *error = Python::attach(|py| py.check_signals()).err();
        }
        error.is_some()
    }
}

/// Study whose runs are performed by other processes.
#[pyclass(frozen, module = "netstage._netstage")]
pub struct Study(Mutex<Option<netstage_study::Study<Arc<Scenario>>>>);

impl Study {
    fn with<T>(&self, query: impl FnOnce(&netstage_study::Study<Arc<Scenario>>) -> T) -> PyResult<T> {
        let study = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        study.as_ref().map(query).ok_or_else(closed)
    }
}

fn closed() -> PyErr {
    ArgumentError::new_err("the study is closed")
}

#[pymethods]
impl Study {
    /// Opens and locks the folder `out`.
    #[new]
    #[pyo3(signature = (checked, out, stage="sim"))]
    fn new(py: Python<'_>, checked: &Checked, out: PathBuf, stage: &str) -> PyResult<Study> {
        let options = options(out, stage, 1, 0);
        let scenario = Arc::clone(&checked.0);
        let study = py.detach(|| netstage_study::Study::open(scenario, &options)).map_err(error::study)?;
        Ok(Study(Mutex::new(Some(study))))
    }

    /// Cell and seed of each pending run.
    #[getter]
    fn pending(&self) -> PyResult<Vec<(usize, u64)>> {
        self.with(|study| study.pending().to_vec())
    }

    /// Total number of runs.
    #[getter]
    fn total(&self) -> PyResult<usize> {
        self.with(netstage_study::Study::total)
    }

    /// Identity of the study, equal to `Checked.identity` of the same scenario and tool.
    #[getter]
    fn identity(&self) -> PyResult<String> {
        self.with(|study| study.identity().to_owned())
    }

    /// Saves the file of a run after verifying that it belongs to the run.
    fn keep(&self, py: Python<'_>, cell: usize, seed: u64, file: &[u8]) -> PyResult<()> {
        let file = file.to_vec();
        py.detach(|| self.with(|study| study.save_remote_run((cell, seed), file)))?.map_err(error::study)
    }

    /// Returns the message of an interruption after `kept` runs were saved.
    fn interrupted(&self, kept: usize) -> PyResult<String> {
        self.with(|study| study.interrupted(kept).to_string())
    }

    /// Unlocks the folder.
    fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Joins all runs and writes the record and its page. `jobs` is the number of parallel runs.
    fn finish(&self, py: Python<'_>, jobs: usize) -> PyResult<()> {
        let study = self.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(closed)?;
        py.detach(|| write_page(&study.finish(jobs)?)).map_err(error::study)
    }
}
