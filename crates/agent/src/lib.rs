//! Agents and their controller. An agent carries out one node's part of each run, for one controller at a
//! time. The program that starts the agent decides whether it runs in a namespace or on a host.
//!
//! [`Session`](netstage_core::fleet::Session) is the state machine of an agent, `service` implements the gRPC
//! service, `run` is the thread of a run, `clocks` compares the clocks of hosts, `spool` stores reports on
//! disk, and [`Worker`] is the interface to the traffic engine. [`LocalAgent`] serves one controller of this
//! machine. [`NetworkAgent`] serves controllers of other hosts that have its key, one at a time, within
//! [`Limits`]. [`SequentialAgent`] is the core of a fleet's agent, which may also run third-party programs
//! ([`ServiceWorker`]).
//!
//! - [`controller`]: coordination of several agents; [`fleet`]: agents on other hosts under one controller.
//! - [`measure`]: a measurement between two hosts.
//! - [`services`]: third-party programs run by an agent.
//!
//! ```
//! use netstage_agent::{LocalAgent, EndReason, AssignmentEngine};
//!
//! let (agent, _connection) = LocalAgent::pair().unwrap();
//! agent.shutdown_handle().request();
//! assert_eq!(agent.serve(AssignmentEngine).unwrap().reason, EndReason::Interrupted);
//! ```
//!
//! Invariant: no result is lost or counted twice; the agent's spool keeps each report until a controller has
//! it.

mod agent;
mod clocks;
pub mod controller;
mod edge;
mod end_reason;
mod engine;
mod exclusive;
pub mod fleet;
mod guard;
mod host;
mod limits;
pub mod measure;
mod run;
mod scratch;
mod service;
mod service_engine;
pub mod services;
mod spool;
mod work;

pub use agent::{AgentEnd, LocalAgent, StartError};
pub use end_reason::EndReason;
pub use engine::AssignmentEngine;
pub use exclusive::{AgentSnapshot, ExclusiveAgent};
pub use guard::RunGuard;
pub use host::{HostAgent, HostEvent, HostEventHandler};
pub(crate) use limits::FIRST_PORT;
pub use limits::Limits;
pub use scratch::Scratch;
pub use service_engine::ServiceEngine;
pub use spool::Spool;
pub use work::{PreparedWork, RunningTotals, TimeDistributions, Worker};
