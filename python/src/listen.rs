//! Progress to a Python callable, and Python's signals to a study.

use netstage_study::{Observer, Progress};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a callable how far a study is, and stops it where a signal's handler or the callable raises.
pub struct Listener<'a> {
    callback: Option<Py<PyAny>>,
    interrupted: &'a AtomicBool,
    raised: Option<PyErr>,
}

impl<'a> Listener<'a> {
    pub fn new(callback: Option<Py<PyAny>>, interrupted: &'a AtomicBool) -> Listener<'a> {
        Listener { callback, interrupted, raised: None }
    }

    /// What was raised first; `kept` is told with it.
    pub fn raised(self, py: Python<'_>, kept: &str) -> Option<PyErr> {
        let error = self.raised?;
        // A note is a courtesy: the error stands without it.
        let _ = error.value(py).call_method1("add_note", (kept,));
        Some(error)
    }
}

impl Observer for Listener<'_> {
    fn progress(&mut self, progress: Progress) {
        if self.raised.is_some() {
            return;
        }
        let told = Python::attach(|py| {
            py.check_signals()?;
            let Some(callback) = &self.callback else { return Ok(()) };
            let left = progress.left.map(|left| left.as_secs_f64());
            let Progress { done, total, under_way, doing, .. } = progress;
            callback.call1(py, (done, total, under_way, left, doing)).map(drop)
        });
        if let Err(error) = told {
            self.raised = Some(error);
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }
}
