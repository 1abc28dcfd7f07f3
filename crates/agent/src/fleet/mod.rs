//! A fleet: agents on other hosts under one controller.
//!
//! Agents dial, so that they work behind NAT and listen nowhere; the controller listens at
//! one address. A connection is mutual TLS 1.3 under the controller's own certificate
//! [`authority`]; over it the agent is the *server* of the agents' protocol.
//!
//! - [`token`]: what lets a host join, once; [`enrolment`]: how it does, and renews its
//!   certificate.
//! - [`folder`]: what the controller knows of its fleet, on disk; [`runs`], of its runs.
//! - [`hub`]: the controller's process, to which agents dial and through which commands reach
//!   them.
//! - [`member`]: the agent's process; [`policy`]: what it may be asked.
//! - [`consent`]: a receiver's word, which the sender looks at.
//! - [`status`]: how the fleet is, for those who look; `metrics`, for Prometheus.

pub mod authority;
pub mod consent;
pub mod enrolment;
pub mod folder;
pub mod hub;
pub mod member;
mod metrics;
pub mod policy;
mod private;
pub mod runs;
pub mod status;
mod strangers;
mod tls;
pub mod token;

pub use folder::Fleet;
pub use netstage_host::obstacle::Obstacle;
pub use status::{AgentStatus, State};
