//! The emulated network: a namespace for every node of a plan, and between them links
//! that the emulator works.
//!
//! - [`layout`], [`distribution`], [`pe`], [`assignments`], [`labels`], [`spec`]: what a plan asks for; pure.
//! - [`lan`]: who is joined to shared LANs, and with which addresses.
//! - [`routing`]: what of a plan is left to routing daemons.
//! - [`process`]: the process that holds it, as the controller sees it; [`server`], its inside.
//! - [`network`]: namespaces, interfaces, addresses and routes.
//! - [`links`]: who works its links: the emulator, the kernel, or each some of them.
//! - [`services`]: other people's programs in its nodes.
//! - [`watch`]: what happens to the windows of its TCP flows.
//! - [`differences`]: in what the kernel differs from the plan.

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
/// The plan of a scenario's first cell.
#[cfg(test)]
pub(crate) fn plan_of(text: &str) -> netstage_scenario::plan::Plan {
    let scenario = netstage_scenario::parse("test.toml", text, None, &Default::default());
    scenario.unwrap_or_else(|errors| panic!("{errors}")).cells.remove(0).plan
}
