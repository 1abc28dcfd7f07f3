//! Who tells of flows: programs in the kernel, where it takes none its tracing, or else its list of sockets.

use super::filter::{Filter, Process};
use super::flows::Told;
use super::polling::{EVERY, Polling};
use super::programs::Programs;
use super::record::Record;
use super::traced::Traced;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;

/// Who is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The first of these that can.
    Any,
    /// Programs in the kernel.
    Programs,
    /// The kernel's tracing.
    Tracing,
    /// The kernel's list of sockets.
    Polling,
}

/// Who tells.
pub enum Source {
    /// Programs in the kernel.
    Programs(Box<Programs>),
    /// The kernel's tracing.
    Tracing {
        /// The tracing.
        traced: Box<Traced>,
        /// What it does not tell, and why it is asked at all.
        missing: Vec<String>,
    },
    /// The kernel's list of sockets.
    Polling {
        /// The list.
        polling: Box<Polling>,
        /// What it does not tell, and why it is asked at all.
        missing: Vec<String>,
    },
}

impl Source {
    /// Begins to listen. `namespaces` are those whose sockets are listed, if it comes to that.
    pub fn open(by: By, filter: Filter, namespaces: &[Namespace]) -> Result<Source, Obstacle> {
        let mut missing = Vec::new();
        // Where any will do, what one lacks leads to the next.
        let mut lacks = |obstacle: Obstacle| match by == By::Any && obstacle.is_missing {
            true => {
                missing.push(obstacle.to_string());
                Ok(())
            }
            false => Err(obstacle),
        };
        if matches!(by, By::Any | By::Programs) {
            match Programs::load(filter.clone()) {
                Ok(programs) => return Ok(Source::Programs(programs.into())),
                Err(obstacle) => lacks(obstacle)?,
            }
        }
        if matches!(by, By::Any | By::Tracing) {
            match Traced::open(filter.clone(), namespaces) {
                Ok(traced) => {
                    missing.extend(traced.missing().iter().cloned());
                    return Ok(Source::Tracing { traced: traced.into(), missing });
                }
                Err(obstacle) => lacks(obstacle)?,
            }
        }
        let polling = Polling::new(filter, namespaces)?.into();
        let looks = std::time::Duration::from_secs(1).as_millis() / EVERY.as_millis();
        missing.push(format!(
            "what comes and goes between {looks} looks a second: causes are what these suggest"
        ));
        Ok(Source::Polling { polling, missing })
    }

    /// What cannot be told here, and why.
    pub fn missing(&self) -> &[String] {
        match self {
            Source::Programs(programs) => programs.missing(),
            Source::Tracing { missing, .. } | Source::Polling { missing, .. } => missing,
        }
    }

    /// Looks which sockets processes have now; yields the processes of which there is none.
    pub fn refresh(&mut self) -> Vec<Process> {
        match self {
            Source::Programs(programs) => programs.refresh(),
            Source::Tracing { traced, .. } => traced.refresh(),
            Source::Polling { polling, .. } => polling.refresh(),
        }
    }

    /// Takes what has come.
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

    /// Records for which the kernel had no room.
    pub fn lost(&self) -> u64 {
        match self {
            Source::Programs(programs) => programs.lost(),
            Source::Tracing { traced, .. } => traced.lost(),
            Source::Polling { .. } => 0,
        }
    }
}
