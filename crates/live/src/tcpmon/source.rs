//! Who tells of flows: programs in the kernel, or where it takes none its list of sockets.

use super::filter::{Filter, Process};
use super::flows::Told;
use super::polling::{EVERY, Polling};
use super::programs::Programs;
use super::record::Record;
use crate::netns::Namespace;
use crate::obstacle::Obstacle;

/// Who is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Programs in the kernel, or else its list.
    Any,
    /// Programs in the kernel.
    Programs,
    /// The kernel's list of sockets.
    Polling,
}

/// Who tells.
pub enum Source {
    /// Programs in the kernel.
    Programs(Box<Programs>),
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
        let why = match by {
            By::Polling => None,
            _ => match Programs::load(filter.clone()) {
                Ok(programs) => return Ok(Source::Programs(programs.into())),
                Err(obstacle) if by == By::Any && obstacle.is_missing => Some(obstacle),
                Err(obstacle) => return Err(obstacle),
            },
        };
        let polling = Polling::new(filter, namespaces)?.into();
        let looks = std::time::Duration::from_secs(1).as_millis() / EVERY.as_millis();
        let mut missing = vec![format!(
            "what comes and goes between {looks} looks a second: causes are what these suggest"
        )];
        missing.splice(0..0, why.map(|obstacle| obstacle.to_string()));
        Ok(Source::Polling { polling, missing })
    }

    /// What cannot be told here, and why.
    pub fn missing(&self) -> &[String] {
        match self {
            Source::Programs(programs) => programs.missing(),
            Source::Polling { missing, .. } => missing,
        }
    }

    /// Looks which sockets processes have now; yields the processes of which there is none.
    pub fn refresh(&mut self) -> Vec<Process> {
        match self {
            Source::Programs(programs) => programs.refresh(),
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
            Source::Polling { polling, .. } => polling.poll(take),
        }
    }

    /// Records for which the kernel had no room.
    pub fn lost(&self) -> u64 {
        match self {
            Source::Programs(programs) => programs.lost(),
            Source::Polling { .. } => 0,
        }
    }
}
