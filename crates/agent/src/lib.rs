//! Agents and their controller: one node's part of each run, carried out for one controller at a time. Where an agent runs, in a
//! namespace or on a host, is the business of whoever started it.
//!
//! [`Session`](netstage_core::fleet::Session) decides what may happen when, `service` speaks gRPC, `run` is the
//! thread of a run, `clocks` compares this host's with others', `spool` keeps reports on disk, and [`Worker`] is the traffic engine.
//! [`Agent`] serves one controller of this machine, [`Host`] controllers of other hosts that
//! have its key, one after the other, within [`Limits`]; [`Turns`] is an agent of a fleet, which may start other
//! people's programs, too ([`Serving`]).
//!
//! - [`controller`]: has agents work together; [`fleet`]: agents on other hosts under one controller.
//! - [`measure`]: one measurement between two hosts.
//! - [`services`]: other people's programs at an agent.
//!
//! ```
//! use netstage_agent::{Agent, EndReason, Engine};
//!
//! let (agent, _connection) = Agent::pair().unwrap();
//! agent.ender().end();
//! assert_eq!(agent.serve(Engine).unwrap().reason, EndReason::Interrupted);
//! ```
//!
//! Invariant: no result is lost or counted twice; what an agent measured is in its spool until a controller has it.

mod agent;
mod clocks;
pub mod controller;
mod edge;
mod end;
mod engine;
pub mod fleet;
mod guard;
mod host;
mod limits;
pub mod measure;
mod run;
mod scratch;
mod service;
pub mod services;
mod serving;
mod spool;
mod turns;
mod work;

pub use agent::{Agent, Ended, StartError};
pub use end::EndReason;
pub use engine::Engine;
pub use guard::Guard;
pub use host::{Happening, Host, Watcher};
pub(crate) use limits::FIRST_PORT;
pub use limits::Limits;
pub use scratch::Scratch;
pub use serving::Serving;
pub use spool::Spool;
pub use turns::{Snapshot, Turns};
pub use work::{Totals, Work, Worker};
