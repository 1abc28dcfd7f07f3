//! Provider edge (PE) router: customer circuits on one side, a best-effort core on the other, and one window
//! per VPN flow in between. See docs/pe.md.
//!
//! - [`daemon`]: the router on the interfaces of this host.
//! - [`engine`]: frame processing over any kind of port, driven by the caller's clock.
//! - [`private_key`]: key of a router for encrypted tunnels.
//! - [`trace`]: record of a router's decisions; [`replay`]: replay of a trace.
//!
//! ```
//! use netstage_pe::engine::Counter;
//!
//! assert!(Counter::ALL.iter().all(|counter| !counter.meaning().is_empty()));
//! ```
//!
//! Invariant: no frame crosses VPNs; every dropped frame is counted; the engine reads no clock.

pub mod daemon;
pub mod engine;
pub mod private_key;
pub mod replay;
pub mod trace;
