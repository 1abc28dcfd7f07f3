//! One measurement between this host and another, without a scenario: two agents, one here
//! and one there, under a controller in this process. A sender without a receiver
//! (one-ended) has the agent here only.
//!
//! [`Session::open`] connects and prepares, [`Session::run`] measures. An [`Upload`] needs no agent: its
//! server is anybody's.

mod order;
mod outcome;
mod session;
mod timeline;
mod upload;

pub use order::{Method, Order, Ways};
pub use outcome::{FlowOutcome, Outcome};
pub use session::{OpenError, Session};
pub use timeline::{Cell, Interval, Timeline};
pub use upload::{Sink, Upload, UploadError, Uploaded};
