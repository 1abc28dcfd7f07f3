//! A plan on real packets.
//!
//! - [`topology`]: the network of a plan: namespaces, links, addresses, routes, and the programs in its nodes.
//! - `conductor`: follows a run, and makes its outcome of what agents and network found.
//! - [`emulated`]: a plan between namespaces of this machine; [`hosts`]: a plan on agents of other hosts.
//!
//! ```
//! use netstage_scenario::{Options, parse};
//!
//! let text = "[scenario]\ntitle = \"t\"\nduration = \"1 s\"\n\
//!             [node.a]\n[node.b]\n[link.l]\nends = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\n\
//!             [flow.f]\nfrom = \"a\"\nto = \"b\"\n";
//! let scenario = parse("two.toml", text, None, &Options::default()).unwrap();
//! assert_eq!(netstage_stage::hosts::refusal(&scenario.cells[0].plan), None);
//! ```
//!
//! Invariant: the controller cannot tell whether an agent runs in a namespace of this machine or on another host; and with
//! the process that holds a network, all of it goes.

mod conductor;
pub mod emulated;
pub mod hosts;
pub mod topology;

use netstage_host::obstacle::Obstacle;
use netstage_scenario::outcome::Stopped;

/// How a run ends that something on this machine is in the way of.
fn stopped(obstacle: Obstacle) -> Stopped {
    match obstacle.is_missing {
        true => Stopped::Missing { message: obstacle.message, remedy: obstacle.remedy },
        false => Stopped::Failed(obstacle.to_string()),
    }
}
