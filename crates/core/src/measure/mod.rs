//! Statistics over samples (fairness, convergence, confidence, distributions) and searches for the capacity
//! of a network. Sans-IO: a search proposes the next trial and is given its result; sending the packets, and
//! their timing, is up to the driver.

mod answer_limit;
mod arrivals;
mod binomial;
pub mod bit_error;
mod clock_offset;
mod clock_tree;
mod confidence;
mod convergence;
mod correlation;
pub mod emodel;
mod fairness;
pub mod histogram;
pub mod lateness;
pub mod mlrsearch;
pub mod plateau;
pub mod rfc2544;
pub mod sequence;
pub mod stamp;
pub mod steady;
pub mod tcp_throughput;
pub mod trial;
pub mod tune;
pub mod verdict;
mod void_reason;
pub mod y1564;

pub use answer_limit::{AnswerLimitDetector, LoweredRate, ProbeBackoff};
pub use arrivals::{ArrivalWindow, Arrivals};
pub use binomial::{Interval, chi_square_tail, clopper_pearson, incomplete_beta};
pub use clock_offset::{ClockOffset, Exchange, OffsetEstimator};
pub use clock_tree::{ClockTree, KnownOffset};
pub use confidence::{Summary, student_t_975};
pub use convergence::{Bound, converged_from};
pub use correlation::{Correlation, correlation, correlation_in_time};
pub use fairness::{jain, weighted_fairness};
pub use histogram::{Histogram, QuantileEstimate, values_needed};
pub use void_reason::{FaultTime, VoidReason};
