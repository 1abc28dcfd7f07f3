//! Link emulator: applies the links of a scenario to real packets between pairs of ports, in real time. The link
//! model is `netstage_core::link`, the code of the simulator, with the same random streams.
//!
//! - [`config`]: configuration; [`report`]: results.
//! - [`driver`]: the thread that reads, waits and sends.
//! - [`links`]: all links as one state machine without a clock; [`direction`]: one direction of a link.
//! - [`frame`], [`headers`], [`classify`], [`pool`]: frames, their headers, labels and buffers.
//! - [`netem`]: links emulated by the kernel, where netem gives the same result.
//! - [`timing`], [`verdict`]: accuracy of the send times, and the validity of the result.
//!
//! ```
//! use netstage_emulator::{EmulatorConfig, EmulatorReport};
//!
//! let report: EmulatorReport = EmulatorReport::default();
//! assert_eq!(report, EmulatorReport::default());
//! ```
//!
//! Invariant: each frame is sent, counted as dropped, or still queued.

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
mod phase;
mod pool;
pub mod report;
mod timing;
mod verdict;

pub use classify::{ClassifierEntry, PacketLabel};
pub use config::{EmulatorConfig, LinkConfig, Tolerance};
pub use driver::{Emulator, EmulatorError};
pub use report::EmulatorReport;
