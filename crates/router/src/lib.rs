//! MPLS and IP router on interfaces of this host.
//!
//! Forwarding decisions are made by [`netstage_core::forward`]. An XDP program in the kernel makes the same
//! decisions from the same tables for nearly all packets; the rest goes to the slow path.
//!
//! - [`daemon`]: the complete router on this host.
//! - [`fib`]: routes of all sources (`netstage_routing::source`: kernel, file, FPM) as hops and targets.
//! - [`tables`]: routes, labels and hops, which both paths read while they change.
//! - [`fast_path`]: the XDP program; [`fast_path::attachment`]: its attachment to an interface; [`layout`]:
//!   layout of its maps.
//! - [`slow_path`]: forwarding of single frames from ports; [`errors`]: ICMP errors; [`shaper`]: egress
//!   queues of shaped interfaces; [`counter`]: counters.
//!
//! ```
//! use netstage_router::counter::Counter;
//!
//! assert!(Counter::ALL.iter().all(|counter| !counter.meaning().is_empty()));
//! ```
//!
//! Invariant: the XDP program and the slow path make identical decisions, byte for byte; every dropped frame
//! is counted.

pub mod counter;
pub mod daemon;
mod errors;
pub mod fast_path;
pub mod fib;
mod layout;
pub mod shaper;
pub mod slow_path;
pub mod tables;
