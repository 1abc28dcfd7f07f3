//! Protocol, tasks and results exchanged between a controller and its agents.
//!
//! - [`protocol`]: Rust generated from `proto/agent.proto`, the constants both sides share, and the
//!   validation of received messages.
//! - [`task`]: assignments for agents; [`results`]: their reports. Both are sent as JSON inside the
//!   protocol's messages.
//! - [`path`]: search for the paths of flows through NATs.
//! - `memory`: upper bound of the memory of an assignment.
//! - [`service`], [`watch`]: services and watched TCP flows, to which tasks and results refer.
//!
//! ```
//! use netstage_agent_api::results::BinCounts;
//!
//! let mut counts = BinCounts { sent: 3, ..BinCounts::default() };
//! counts.add(&BinCounts { sent: u64::MAX, ..BinCounts::default() });
//! assert_eq!(counts.sent, u64::MAX, "sums saturate, because a remote host may report any number");
//! ```
//!
//! Invariant: decoding any bytes yields a message or an error, never a panic. No transport, no state.

mod memory;
pub mod path;
pub mod protocol;
pub mod results;
pub mod service;
pub mod task;
pub mod watch;
