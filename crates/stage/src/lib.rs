//! Runs of a plan with real packets.
//!
//! - [`topology`]: the network of a plan: namespaces, links, addresses, routes, and the programs in its nodes.
//! - `conductor`: follows a run and derives its outcome from the results of agents and network.
//! - [`emulated`]: runs in namespaces of this machine; [`hosts`]: runs on agents of other hosts.
//!
//! ```
//! use netstage_scenario::{LoadOptions, parse};
//!
//! let text = "[scenario]\ntitle = \"t\"\nduration = \"1 s\"\n\
//!             [node.a]\n[node.b]\n[link.l]\nends = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\n\
//!             [flow.f]\nfrom = \"a\"\nto = \"b\"\n";
//! let scenario = parse("two.toml", text, None, &LoadOptions::default()).unwrap();
//! assert_eq!(netstage_stage::hosts::refusal(&scenario.cells[0].plan), None);
//! ```
//!
//! Invariant: an agent in a namespace of this machine and one on another host look the same to the controller; the
//! whole network is removed with the process that holds it.

mod attempt;
mod conductor;
pub mod emulated;
pub mod hosts;
pub mod topology;

use netstage_host::startup_error::StartupError;
use netstage_scenario::outcome::RunFailure;

/// Converts an obstacle on this machine into the end of a run.
fn to_stopped(obstacle: StartupError) -> RunFailure {
    match obstacle.is_missing {
        true => RunFailure::Missing { message: obstacle.message, remedy: obstacle.remedy },
        false => RunFailure::Failed(obstacle.to_string()),
    }
}
