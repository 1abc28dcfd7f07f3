//! Measures: what samples say (fairness, convergence, confidence, distributions), and the searches that
//! find what a network carries. Sans-IO: a search proposes the next trial and learns from
//! its result; what is sent, and when, is the driver's.

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
pub mod y1564;

pub use binomial::{Interval, chi_square_tail, clopper_pearson, incomplete_beta};
pub use clock_offset::{ClockOffset, Exchange, OffsetEstimator};
pub use clock_tree::{ClockTree, Known};
pub use confidence::{Summary, student_t_975};
pub use convergence::{Bound, converged_from};
pub use correlation::{Correlation, correlation, correlation_in_time};
pub use fairness::{jain, weighted_fairness};
pub use histogram::Histogram;
