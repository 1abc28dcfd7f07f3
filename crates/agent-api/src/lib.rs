//! What travels between a controller and its agents.
//!
//! - [`protocol`]: `proto/agent.proto` as Rust, what both sides must agree on beside it, and the checks on what comes in.
//! - [`task`]: what an agent is asked to do; [`results`]: what it found. Both travel as JSON inside the protocol's messages.
//! - [`service`], [`watch`]: the services and the watched TCP flows that tasks and results name.
//!
//! ```
//! use netstage_agent_api::results::Counts;
//!
//! let mut counts = Counts { sent: 3, ..Counts::default() };
//! counts.add(&Counts { sent: u64::MAX, ..Counts::default() });
//! assert_eq!(counts.sent, u64::MAX, "another host may report anything, and sums stop at the largest number");
//! ```
//!
//! Invariant: whatever the bytes, reading them gives a message or a reason, never a panic. No transport, no state.

pub mod protocol;
pub mod results;
pub mod service;
pub mod task;
pub mod watch;
