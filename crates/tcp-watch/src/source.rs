//! Source of flow records: BPF programs in the kernel, or else its tracing, or else polling of its sockets.

use super::filter::{Filter, Process};
use super::flows::Told;
use super::polling::{EVERY, Polling};
use super::programs::Programs;
use super::record::Record;
use super::traced::Traced;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;

/// Requested kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
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
pub enum Source {
    /// BPF programs in the kernel.
    Programs(Box<Programs>),
    /// Tracing in the kernel.
    Tracing {
        /// Tracing source.
        traced: Box<Traced>,
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

impl Source {
    /// Opens a source. `namespaces` are those to poll, if it comes to that.
    pub fn open(by: By, filter: Filter, namespaces: &[Namespace]) -> Result<Source, Obstacle> {
        let mut missing = Vec::new();
        // With `Any`, a missing feature selects the next kind.
        let mut fall_back = |obstacle: Obstacle| match by == By::Any && obstacle.is_missing {
            true => {
                missing.push(obstacle.to_string());
                Ok(())
            }
            false => Err(obstacle),
        };
        if matches!(by, By::Any | By::Programs) {
            match Programs::load(filter.clone()) {
                Ok(programs) => return Ok(Source::Programs(programs.into())),
                Err(obstacle) => fall_back(obstacle)?,
            }
        }
        if matches!(by, By::Any | By::Tracing) {
            match Traced::open(filter.clone(), namespaces) {
                Ok(traced) => {
                    missing.extend(traced.missing().iter().cloned());
                    return Ok(Source::Tracing { traced: traced.into(), missing });
                }
                Err(obstacle) => fall_back(obstacle)?,
            }
        }
        let polling = Polling::new(filter, namespaces)?.into();
        let polls = std::time::Duration::from_secs(1).as_millis() / EVERY.as_millis();
        missing.push(format!("changes between {polls} polls a second, so that causes are inferred"));
        Ok(Source::Polling { polling, missing })
    }

    /// Returns the information that is not available, with the reason.
    pub fn missing(&self) -> &[String] {
        match self {
            Source::Programs(programs) => programs.missing(),
            Source::Tracing { missing, .. } | Source::Polling { missing, .. } => missing,
        }
    }

    /// Updates the sockets that the filter selects; returns the processes that do not exist.
    pub fn refresh(&mut self) -> Vec<Process> {
        match self {
            Source::Programs(programs) => programs.refresh(),
            Source::Tracing { traced, .. } => traced.refresh(),
            Source::Polling { polling, .. } => polling.refresh(),
        }
    }

    /// Reads the available records.
    pub fn poll(&mut self, take: impl FnMut(&Record, Told)) -> Result<(), Obstacle> {
        match self {
            Source::Programs(programs) => {
                programs.poll(take);
                Ok(())
            }
            Source::Tracing { traced, .. } => traced.poll(take),
            Source::Polling { polling, .. } => polling.poll(take),
        }
    }

    /// Returns the number of records lost in the kernel.
    pub fn lost(&self) -> u64 {
        match self {
            Source::Programs(programs) => programs.lost(),
            Source::Tracing { traced, .. } => traced.lost(),
            Source::Polling { .. } => 0,
        }
    }
}
