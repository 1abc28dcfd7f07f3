//! Progress reports to a Python callable, and interruption by Python's signals.

use netstage_study::{Observer, StudyProgress};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Observer that reports progress to a callable and stops the study if the callable or a signal handler raises an
/// exception.
pub struct CallbackObserver<'a> {
    callback: Option<Py<PyAny>>,
    interrupted: &'a AtomicBool,
    raised: Option<PyErr>,
}

impl<'a> CallbackObserver<'a> {
    pub fn new(callback: Option<Py<PyAny>>, interrupted: &'a AtomicBool) -> CallbackObserver<'a> {
        CallbackObserver { callback, interrupted, raised: None }
    }

    /// Returns the first exception, with a note, or `None`.
    pub fn raised(self, py: Python<'_>, note: &str) -> Option<PyErr> {
        let error = self.raised?;
        // The exception remains valid without the note.
        let _ = error.value(py).call_method1("add_note", (note,));
        Some(error)
    }
}

impl Observer for CallbackObserver<'_> {
    fn progress(&mut self, progress: StudyProgress) {
        if self.raised.is_some() {
            return;
        }
        let result = Python::attach(|py| {
            py.check_signals()?;
            let Some(callback) = &self.callback else { return Ok(()) };
            let left = progress.remaining.map(|left| left.as_secs_f64());
            let StudyProgress { done, total, in_progress, activity: doing, .. } = progress;
            callback.call1(py, (done, total, in_progress, left, doing)).map(drop)
        });
        if let Err(error) = result {
            self.raised = Some(error);
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }
}
