//! Router tester: sends traffic through one router that is attached to interfaces of this machine.
//!
//! A trial of a search is a plan with one flow, as on any stage. Its packets go through a real router, and
//! each is checked when it returns.
//!
//! - [`apart`]: thread for the sessions with the router.
//! - [`bench`]: stage with its ports and sessions, which runs the trials.
//! - [`calibration`]: delay and maximum rate of the tester without a router.
//! - [`choice`]: choice of the generator.
//! - `convergence`: withdrawal and announcement of routes during a trial.
//! - [`form`]: frames before and after the router; [`header`]: their IP header.
//! - [`generator`]: senders; [`program`]: the kernel programs that send and check frames.
//! - [`lsps`]: labels, as configured or distributed by LDP.
//! - [`routes`]: routes announced by BGP; `beside`: background routes of a file.
//! - `readiness`: wait until the router forwards as configured.
//! - [`trial`]: one trial; `outcome`: its outcome for reports; [`port`]: an interface and the router behind it.
//!
//! ```
//! use netstage_tester::form::ports;
//!
//! assert_eq!(ports().len(), 4, "a source and a destination port");
//! ```
//!
//! Invariant: a frame that the tester did not send is never counted as lost by the router.

mod apart;
pub mod bench;
mod beside;
pub mod calibration;
pub mod choice;
mod convergence;
pub mod form;
pub mod generator;
pub mod header;
pub mod lsps;
mod outcome;
pub mod port;
pub mod program;
mod readiness;
pub mod routes;
pub mod trial;
