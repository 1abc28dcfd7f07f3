//! Measures computed from samples: fairness, convergence, confidence.
