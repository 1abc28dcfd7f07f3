//! Conversion of errors to the Python exceptions declared in `package/netstage/errors.py`.

use netstage_host::startup_error::StartupError;
use netstage_scenario::Errors;
use netstage_study::{OpenError, StudyError};
use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, import_exception};
use std::io;
use std::path::Path;

import_exception!(netstage.errors, ArgumentError);
import_exception!(netstage.errors, CaptureError);
import_exception!(netstage.errors, FolderError);
import_exception!(netstage.errors, InterruptedStudy);
import_exception!(netstage.errors, MissingError);
import_exception!(netstage.errors, RecordError);
import_exception!(netstage.errors, RunError);
import_exception!(netstage.errors, ScenarioError);

pub fn scenario(errors: &Errors) -> PyErr {
    let problem = |p: &netstage_scenario::FileProblem| {
        (errors.source_of(p).name.clone(), p.line, p.column, p.message.clone(), p.help.clone())
    };
    let problems: Vec<_> = errors.problems.iter().map(problem).collect();
    ScenarioError::new_err((errors.to_string().trim_end().to_owned(), problems))
}

pub fn study(error: StudyError) -> PyErr {
    let message = error.to_string();
    match error {
        StudyError::Occupied { .. } => {
            FolderError::new_err(format!("{message}; give another folder with out="))
        }
        StudyError::InUse { .. } => FolderError::new_err(message),
        StudyError::Missing { remedy, .. } => MissingError::new_err((message, remedy)),
        StudyError::Unsupported(_) => ScenarioError::new_err((message, Vec::<()>::new())),
        StudyError::Interrupted { .. } => InterruptedStudy::new_err(message),
        StudyError::Run { .. } => RunError::new_err(message),
        StudyError::Io { .. } => {
            RunError::new_err(format!("{message}; finished runs are kept; repeat the call to resume"))
        }
    }
}

/// Converts the error of a missing or unreadable fleet. The option in the remedy becomes an argument.
pub fn fleet(error: StartupError) -> PyErr {
    MissingError::new_err((error.message, error.remedy.replace("--fleet", "fleet=")))
}

pub fn open(error: OpenError) -> PyErr {
    RecordError::new_err(error.to_string())
}

/// Converts the error of a read or write to Python's own exception.
pub fn file(path: &Path) -> impl FnOnce(io::Error) -> PyErr {
    let name = path.as_os_str().to_owned();
    move |error| {
        let text = error.to_string();
        let message = text.split(" (os error").next().unwrap_or_default().to_owned();
        PyOSError::new_err((error.raw_os_error(), message, name))
    }
}
