//! The link emulator: links of a scenario between pairs of ports, with real packets in real
//! time. What a link does is `netstage_core::link`'s, the same code the simulator runs, with
//! the same random streams.
//!
//! - [`config`]: what is asked; [`report`]: what was found.
//! - [`driver`]: the thread that reads, waits and sends.
//! - [`links`]: all links as one machine without a clock; [`direction`] is one of them.
//! - [`frame`], [`headers`], [`classify`], [`pool`]: a packet, and to whom it belongs.
//! - [`netem`]: the same link by the kernel, where the kernel can.
//! - [`timing`], [`verdict`]: how well it went, and whether the result may be trusted.
//!
//! ```
//! use netstage_emulator::{Config, Report};
//!
//! let report: Report = Report::default();
//! assert_eq!(report, Report::default());
//! ```
//!
//! Invariant: a frame is sent, counted as dropped, or still waiting; none vanishes.

mod bit_errors;
pub mod classify;
pub mod config;
mod counts;
mod direction;
mod driver;
mod frame;
mod headers;
mod links;
pub mod netem;
mod pool;
pub mod report;
mod timing;
mod verdict;

pub use classify::{Entry, Label};
pub use config::{Config, LinkConfig, Tolerance};
pub use driver::{Emulator, Error};
pub use report::Report;
