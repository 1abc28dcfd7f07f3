//! Measures: what samples say (fairness, convergence, confidence, distributions), and the searches that
//! find what a network carries. Sans-IO: a search proposes the next trial and learns from
//! its result; what is sent, and when, is the driver's.

mod confidence;
mod convergence;
mod fairness;
pub mod histogram;
pub mod mlrsearch;
pub mod rfc2544;
pub mod sequence;
pub mod trial;

pub use confidence::{Summary, student_t_975};
pub use convergence::{Bound, converged_from};
pub use fairness::{jain, weighted_fairness};
pub use histogram::Histogram;
