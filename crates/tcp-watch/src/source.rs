//! Source of flow records: BPF programs in the kernel, or else its tracing, or else polling of its sockets.

use super::filter::{Filter, ProcessFilter};
use super::flows::ChangeOrigin;
use super::polling::{POLL_INTERVAL, Polling};
use super::programs::Programs;
use super::record::TcpRecord;
use super::tracing_source::TracingSource;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;

/// Requested kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// First kind that works.
    Any,
    /// BPF programs in the kernel.
    Programs,
    /// Tracing in the kernel.
    Tracing,
    /// Polling of the kernel's sockets.
    Polling,
}

/// Open source.
pub enum RecordSource {
    /// BPF programs in the kernel.
    Programs(Box<Programs>),
    /// Tracing in the kernel.
    Tracing {
        /// Tracing source.
        traced: Box<TracingSource>,
        /// Unavailable information, and errors of the preferred sources.
        missing: Vec<String>,
    },
    /// Polling of the kernel's sockets.
    Polling {
        /// Polling source.
        polling: Box<Polling>,
        /// Unavailable information, and errors of the preferred sources.
        missing: Vec<String>,
    },
}

impl RecordSource {
    /// Opens a source. `namespaces` are those to poll, if it comes to that.
    pub fn open(
        by: SourceKind,
        filter: Filter,
        namespaces: &[Namespace],
    ) -> Result<RecordSource, StartupError> {
        let mut missing = Vec::new();
        // With `Any`, a missing feature selects the next kind.
        let mut fall_back = |obstacle: StartupError| match by == SourceKind::Any && obstacle.is_missing {
            true => {
                missing.push(obstacle.to_string());
                Ok(())
            }
            false => Err(obstacle),
        };
        if matches!(by, SourceKind::Any | SourceKind::Programs) {
            match Programs::load(filter.clone()) {
                Ok(programs) => return Ok(RecordSource::Programs(programs.into())),
                Err(obstacle) => fall_back(obstacle)?,
            }
        }
        if matches!(by, SourceKind::Any | SourceKind::Tracing) {
            match TracingSource::open(filter.clone(), namespaces) {
                Ok(traced) => {
                    missing.extend(traced.missing().iter().cloned());
                    return Ok(RecordSource::Tracing { traced: traced.into(), missing });
                }
                Err(obstacle) => fall_back(obstacle)?,
            }
        }
        let polling = Polling::new(filter, namespaces)?.into();
        let polls = std::time::Duration::from_secs(1).as_millis() / POLL_INTERVAL.as_millis();
        missing.push(format!("changes between {polls} polls a second, so that causes are inferred"));
        Ok(RecordSource::Polling { polling, missing })
    }

    /// Returns the information that is not available, with the reason.
    pub fn missing(&self) -> &[String] {
        match self {
            RecordSource::Programs(programs) => programs.missing(),
            RecordSource::Tracing { missing, .. } | RecordSource::Polling { missing, .. } => missing,
        }
    }

    /// Updates the sockets that the filter selects; returns the processes that do not exist.
    pub fn refresh(&mut self) -> Vec<ProcessFilter> {
        match self {
            RecordSource::Programs(programs) => programs.refresh(),
            RecordSource::Tracing { traced, .. } => traced.refresh(),
            RecordSource::Polling { polling, .. } => polling.refresh(),
        }
    }

    /// Reads the available records.
    pub fn poll(&mut self, take: impl FnMut(&TcpRecord, ChangeOrigin)) -> Result<(), StartupError> {
        match self {
            RecordSource::Programs(programs) => {
                programs.poll(take);
                Ok(())
            }
            RecordSource::Tracing { traced, .. } => traced.poll(take),
            RecordSource::Polling { polling, .. } => polling.poll(take),
        }
    }

    /// Returns the number of records lost in the kernel.
    pub fn lost(&self) -> u64 {
        match self {
            RecordSource::Programs(programs) => programs.lost(),
            RecordSource::Tracing { traced, .. } => traced.lost(),
            RecordSource::Polling { .. } => 0,
        }
    }
}
