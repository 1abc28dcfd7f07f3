//! The router tester: everything around one router, on interfaces of this machine.
//!
//! A trial of a search is a plan with one flow, as on any stage; here its packets go through a real router,
//! and each is looked at when it comes back.
//!
//! - [`apart`]: a thread for sessions with the router.
//! - [`bench`]: the stage: ports, what the router is told, one trial after another.
//! - [`calibration`]: the tester without a router.
//! - [`choice`]: which generator, where that is left open.
//! - `convergence`: routes that go and come while packets flow.
//! - [`form`]: how frames look before and behind the router.
//! - [`header`]: their IP header, of either version.
//! - [`generator`]: who sends them; [`program`], the programs in the kernel that make and check them.
//! - [`lsps`]: labels, as configured or told by LDP.
//! - [`routes`]: what the router is told by BGP; `beside`: of a file, for nothing but the table's size.
//! - `readiness`: what the router does before anything is measured.
//! - [`trial`]: one trial; `outcome`: what a stage tells of it; [`port`]: an interface and the router behind it.
//!
//! ```
//! use netstage_tester::form::ports;
//!
//! assert_eq!(ports().len(), 4, "a source and a destination port");
//! ```
//!
//! Invariant: what the tester fell short of is never the router's loss.

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
