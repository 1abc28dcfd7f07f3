//! One measurement between this host and another, without a scenario: two agents, one here
//! and one there, under a controller in this process. A sender without a receiver
//! (one-ended) has the agent here only.
//!
//! [`Session::open`] connects and prepares, [`Session::run`] measures.

mod order;
mod outcome;
mod session;
mod timeline;

pub use order::{Method, Order, Ways};
pub use outcome::{FlowOutcome, Outcome};
pub use session::{OpenError, Session};
pub use timeline::{Cell, Interval, Timeline};
