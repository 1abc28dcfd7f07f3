//! The provider edge router: customers' circuits on one side, a best-effort core on the other,
//! and a window per VPN flow in between. docs/pe.md describes it.
//!
//! - [`daemon`]: the router on this machine's interfaces.
//! - [`engine`]: what happens to a frame, over any kind of port and without a clock of its own.
//! - [`trace`]: what it decided, recorded and decided once more.

pub mod daemon;
pub mod engine;
pub mod trace;
