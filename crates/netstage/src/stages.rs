//! The stages a scenario can run on, and the runner of each.

use crate::exit::Failure;
use netstage_study::{PlanRunner, stage};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Simulator, in virtual time
    Sim,
    /// Real packets between network namespaces of this host, in real time
    Emu,
    /// Real packets between hosts of a fleet as placed in `[place]`, in real time
    Live,
}

/// Options of `run` that choose the stage.
#[derive(clap::Args)]
pub struct StageOptions {
    /// sim (simulator), emu (network namespaces of this host) or live (hosts of a fleet)
    #[arg(long, value_name = "STAGE", default_value = "sim", hide_possible_values = true)]
    on: Stage,
    #[cfg(feature = "full")]
    #[command(flatten)]
    real: real::RealStageOptions,
}

/// Name of a stage in records, default number of parallel runs, and runner.
pub type Ready = (&'static str, usize, Box<PlanRunner<'static>>);

/// Returns the simulator's runner, with one run per core.
pub fn sim() -> Ready {
    ("sim", std::thread::available_parallelism().map_or(1, usize::from), Box::new(stage::sim))
}

#[cfg(feature = "full")]
pub use real::{emu, live, pair};

#[cfg(feature = "full")]
impl StageOptions {
    /// Returns the runner for runs that record into `out`.
    pub fn ready(&self, out: &Path) -> Result<Ready, Failure> {
        self.real.ready(self.on, out)
    }
}

#[cfg(not(feature = "full"))]
impl StageOptions {
    /// Returns the simulator's runner; this build has no other.
    pub fn ready(&self, _out: &Path) -> Result<Ready, Failure> {
        match self.on {
            Stage::Sim => Ok(sim()),
            Stage::Emu | Stage::Live => Err(Failure::missing("this program was built without real packets")
                .help("build it with the default features: cargo build --release -p netstage")),
        }
    }
}

#[cfg(feature = "full")]
mod real {
    use super::{Ready, Stage, sim};
    use crate::exit::Failure;
    use netstage_agent::fleet::FleetFolder;
    use netstage_host::shared_key::PresharedKey;
    use netstage_stage::hosts;
    use netstage_study::stage::{self, Backend, EmulationSettings};
    use std::net::SocketAddr;
    use std::path::Path;

    /// Subfolder of the record for the output of failed programs.
    const LOGS: &str = "logs";

    /// Options of the stages with real packets.
    #[derive(clap::Args)]
    pub struct RealStageOptions {
        /// Link emulator for --on emu: own (netstage), netem (kernel), or mixed (netem where it can)
        #[arg(long, value_name = "EMULATOR", default_value = "own", hide_possible_values = true)]
        emulator: Emulator,
        #[command(flatten)]
        fleet: crate::state_folders::FleetOption,
    }

    #[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
    enum Emulator {
        /// Emulator of netstage
        Own,
        /// netem of the kernel, for all links; an error if one cannot be emulated exactly
        Netem,
        /// netem for links it can emulate exactly, netstage for the others
        Mixed,
    }

    impl RealStageOptions {
        /// Returns the runner of a stage.
        pub fn ready(&self, stage: Stage, out: &Path) -> Result<Ready, Failure> {
            match (stage, self.emulator) {
                (Stage::Sim, Emulator::Own) => Ok(sim()),
                (Stage::Live, Emulator::Own) => Ok(live(self.fleet.open()?, out)),
                (Stage::Emu, Emulator::Own) => emu(Backend::Own, out),
                (Stage::Emu, Emulator::Netem) => emu(Backend::Netem, out),
                (Stage::Emu, Emulator::Mixed) => emu(Backend::Mixed, out),
                (Stage::Sim | Stage::Live, _) => {
                    let stage = if stage == Stage::Sim { "in the simulator" } else { "on real hosts" };
                    let message = format!("--emulator has no effect {stage}");
                    Err(Failure::usage(message).help("use --emulator with --on emu"))
                }
            }
        }
    }

    /// Returns the runner of an emulation. Parallel runs in real time would compete for the CPU.
    pub fn emu(backend: Backend, out: &Path) -> Result<Ready, Failure> {
        // Processes of this program hold the emulated network.
        let program = std::env::current_exe()
            .map_err(|e| Failure::usage(format!("cannot find the path of the netstage program: {e}")))?;
        let name = match backend {
            Backend::Own => "emu",
            Backend::Netem => "emu-netem",
            Backend::Mixed => "emu-mixed",
        };
        Ok((name, 1, Box::new(stage::emu(EmulationSettings { program, logs: out.join(LOGS), backend }))))
    }

    /// Returns the runner on the hosts of a fleet.
    pub fn live(fleet: FleetFolder, out: &Path) -> Ready {
        ("live", 1, Box::new(stage::live(hosts::FleetContext::new(fleet, out))))
    }

    /// Returns the runner on this host and a server of measurements that has this key.
    pub fn pair(server: SocketAddr, key: PresharedKey, out: &Path) -> Ready {
        ("live", 1, Box::new(stage::pair(hosts::pair::PairContext::new(server, key, out))))
    }
}
