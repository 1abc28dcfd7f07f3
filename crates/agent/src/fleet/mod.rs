//! Fleet: agents on other hosts under one controller.
//!
//! Agents dial the controller, which listens at one address. They listen nowhere, and therefore work behind
//! NAT. A connection uses mutual TLS 1.3 under the controller's own certificate [`authority`]; over it the
//! agent is the *server* of the agent protocol.
//!
//! - [`token`]: single-use secret with which a host joins; [`enrollment`]: joining, and renewal of
//!   certificates.
//! - [`folder`]: the controller's files about its fleet; [`runs`]: its files about runs.
//! - [`hub`]: the controller's process, which accepts agents and forwards requests to them.
//! - [`member`]: the agent's process; [`policy`]: enforcement of its policy.
//! - `known_controller`: what an agent knows of its controller; `starts`: starts of the controller and changes since.
//! - `budget`: account of the bytes sent per day.
//! - [`consent`]: a receiver's signed consent, which the sender verifies.
//! - [`trust`]: trusted certificate authorities, before, during and after a rotation.
//! - [`stun`]: addresses of agents behind NAT; `path`: search for the paths of flows between them.
//! - [`status`]: status of the agents; `metrics`: metrics for Prometheus.

pub mod authority;
mod budget;
pub mod confirmation;
mod consent;
pub mod enrollment;
pub mod folder;
pub mod hub;
mod interfaces;
mod known_controller;
pub mod member;
mod metrics;
mod path;
pub mod policy;
mod private;
pub mod runs;
mod sending;
mod starts;
pub mod status;
pub mod stun;
mod tls;
pub mod token;
pub mod trust;

pub use folder::FleetFolder;
pub use netstage_host::startup_error::StartupError;
pub use status::{AgentAvailability, AgentStatus};
