//! Emulated network: a namespace for each node of a plan, joined by emulated links.
//!
//! - [`layout`], [`distribution`], [`pe`], [`assignments`], [`labels`], [`spec`]: derivation of the network from a
//!   plan, without side effects.
//! - [`lan`]: stations of shared LANs and their addresses.
//! - [`routing`]: links and prefixes of routers with routing daemons.
//! - [`process`]: the fabric process, as seen by the controller; [`server`]: the fabric itself.
//! - [`network`]: namespaces, interfaces, addresses and routes.
//! - [`links`]: the back-ends of the links: the emulator, the kernel, or both.
//! - [`services`]: third-party programs in the nodes.
//! - [`differences`]: differences between the kernel and the plan.

pub mod address;
pub mod assignments;
pub mod differences;
pub mod distribution;
pub mod labels;
pub mod lan;
pub mod layout;
pub mod links;
pub mod network;
pub mod pe;
pub mod process;
pub mod routing;
pub mod server;
pub mod services;
pub mod spec;

/// Returns the plan of the first cell of a scenario.
#[cfg(test)]
pub(crate) fn plan_of(text: &str) -> netstage_scenario::plan::Plan {
    let scenario = netstage_scenario::parse("test.toml", text, None, &Default::default());
    scenario.unwrap_or_else(|errors| panic!("{errors}")).cells.remove(0).plan
}
