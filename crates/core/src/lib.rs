//! The sans-I/O core of netstage: queues, congestion windows, traffic patterns, estimators and protocol
//! state machines.
//!
//! The code reads no clock, socket or file. A driver passes in packets and the time; the code returns the
//! packets to send and the time of the next call. The simulator drives it in virtual time, the tools in
//! real time.
//!
//! ```
//! use netstage_core::time::{Duration, Instant};
//!
//! let now = Instant::ZERO + Duration::from_millis(5);
//! assert_eq!(now.since(Instant::ZERO), Duration::from_micros(5_000));
//! ```
//!
//! Invariant: no clock, no I/O, no std; the same inputs give the same decisions, to the last bit, on any
//! machine.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bfd;
pub mod edge;
pub mod fair;
pub mod fleet;
pub mod forward;
pub mod ldp;
pub mod lfa;
pub mod link;
pub mod measure;
pub mod neighbor;
pub mod packet;
pub mod path_mtu;
pub mod quantity;
pub mod queue;
pub mod rng;
pub mod rsvp;
mod secret;
pub mod tcp;
pub mod time;
pub mod tournament;
pub mod traffic;
pub mod wheel;
