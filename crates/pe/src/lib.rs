//! The provider edge router: customers' circuits on one side, a best-effort core on the other,
//! and a window per VPN flow in between. docs/pe.md describes it.
//!
//! - [`daemon`]: the router on this machine's interfaces.
//! - [`engine`]: what happens to a frame, over any kind of port and without a clock of its own.
//! - [`trace`]: what it decided, recorded; [`replay`]: the same decided once more.
//!
//! ```
//! use netstage_pe::engine::Counter;
//!
//! assert!(Counter::ALL.iter().all(|counter| !counter.meaning().is_empty()));
//! ```
//!
//! Invariant: no frame crosses VPNs; every frame that does not leave is counted; the engine reads no clock.

pub mod daemon;
pub mod engine;
pub mod replay;
pub mod trace;
