//! An MPLS and IP router on interfaces of this machine.
//!
//! What it does with a packet is [`netstage_core::forward`]'s. A program in the kernel decides the same for
//! nearly all packets as they arrive, by the same tables; whatever else there is goes up to the slow path.
//!
//! - [`daemon`]: all of it, on this machine.
//! - [`fib`]: the routes of all sources (`netstage_routing::source`: the kernel, a file, FPM), as hops and targets.
//! - [`tables`]: routes, labels and hops, which both read while they change.
//! - [`fast_path`]: the program in the kernel; [`fast_path::attachment`]: it on an interface; [`layout`]: how the tables lie in its maps.
//! - [`slow_path`]: frames from ports, one at a time; [`errors`]: what senders are told; [`shaper`]:
//!   frames that wait for a slower line; [`counter`]: what is counted.
//!
//! ```
//! use netstage_router::counter::Counter;
//!
//! assert!(Counter::ALL.iter().all(|counter| !counter.meaning().is_empty()));
//! ```
//!
//! Invariant: the program in the kernel and the slow path decide the same, byte for byte; every frame that does not leave is counted.

pub mod counter;
pub mod daemon;
mod errors;
pub mod fast_path;
pub mod fib;
mod layout;
pub mod shaper;
pub mod slow_path;
pub mod tables;
