//! Router tester: sends traffic through one router that is attached to interfaces of this machine.
//!
//! A trial of a search is a plan with one flow, as on any stage. Its packets go through a real router, and
//! each is checked when it returns.
//!
//! - [`bench`]: stage with its ports and sessions, which runs the trials.
//! - [`calibration`]: delay and maximum rate of the tester without a router.
//! - [`generator_choice`]: choice of the generator.
//! - `convergence`: withdrawal and announcement of routes during a trial; `label_events`: events of LDP.
//! - [`template`]: frames before and after the router; [`ip_header`]: their IP header.
//! - [`generator`]: senders; [`program`]: the kernel programs that send and check frames.
//! - [`fault`]: faults of packets by kind and network; [`fault_kind`]: their kinds.
//! - [`lsps`]: labels, as configured or distributed by LDP.
//! - [`routes`]: routes announced by BGP; `background`: background routes of a file.
//! - `readiness`: wait until the router forwards as configured.
//! - [`trial`]: one trial; `outcome`: its outcome for reports; [`port`]: an interface and the router behind it.
//!
//! ```
//! use netstage_tester::template::udp_ports;
//!
//! assert_eq!(udp_ports().len(), 4, "a source and a destination port");
//! ```
//!
//! Invariant: a frame that the tester did not send is never counted as lost by the router.

mod background;
pub mod bench;
pub mod calibration;
mod convergence;
pub mod fault;
pub mod fault_kind;
pub mod generator;
pub mod generator_choice;
pub mod ip_header;
mod label_events;
pub mod lsps;
mod outcome;
pub mod port;
pub mod program;
mod readiness;
pub mod routes;
pub mod template;
pub mod trial;
