//! Measures computed from samples: fairness, convergence, confidence. Pure functions over
//! slices; what is measured, and when, is the driver's.

mod confidence;
mod convergence;
mod fairness;

pub use confidence::{Summary, student_t_975};
pub use convergence::{Bound, converged_from};
pub use fairness::{jain, weighted_fairness};
