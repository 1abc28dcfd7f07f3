//! Measurement between this host and another, without a scenario. It uses two agents, a local and a remote
//! one, under a controller in this process. A sender without a receiver (one-ended) has only the local agent.
//!
//! [`MeasurementSession::open`] connects and prepares, [`MeasurementSession::run`] measures. An [`Upload`]
//! needs no agent, since its server is a third-party program.

mod order;
mod outcome;
mod session;
mod timeline;
mod upload;

pub use order::{MeasurementDirection, MeasurementParameters, Method};
pub use outcome::{FlowOutcome, MeasurementOutcome};
pub use session::{LOCAL, OpenError, PreparedMeasurement, REMOTE, connect_pair, source_address};
pub use timeline::{FlowInterval, MeasurementInterval, Timeline};
pub use upload::{Upload, UploadError, UploadResult, UploadServer};
