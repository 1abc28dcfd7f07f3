//! Options that name the state folders of a fleet and of an agent.

use crate::exit::Failure;
use netstage_agent::fleet::{self, FleetFolder};
use netstage_host::startup_error::StartupError;
use std::path::PathBuf;

/// Option that names the folder of a fleet.
#[derive(clap::Args)]
pub struct FleetOption {
    /// Folder of the fleet [default: ~/.local/state/netstage/fleet, as root /var/lib/netstage/fleet]
    #[arg(long = "fleet", value_name = "DIR", env = "NETSTAGE_FLEET")]
    folder: Option<PathBuf>,
}

impl FleetOption {
    /// Returns the folder, which may not exist.
    pub fn path(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(fleet::folder::default_fleet_folder)
    }

    /// Opens the fleet.
    pub fn open(&self) -> Result<FleetFolder, Failure> {
        FleetFolder::open(&self.path()).map_err(failure)
    }
}

/// Option that names the folder of an agent.
#[derive(clap::Args)]
pub struct AgentOption {
    /// Folder of the agent [default: ~/.local/state/netstage/agent, as root /var/lib/netstage/agent]
    #[arg(long = "state", value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl AgentOption {
    /// Returns the folder, which may not exist.
    pub fn path(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| fleet::folder::user_state_folder("agent"))
    }
}

/// Converts an error of a fleet.
pub fn failure(error: StartupError) -> Failure {
    Failure::usage(error.message).help(error.remedy)
}
