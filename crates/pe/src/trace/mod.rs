//! All that a router's VPN flows were told and what they decided, to be decided once more.
//!
//! A trace is a file of JSON lines: first a [`Head`] with the configuration, then [`Event`]s in
//! the order in which they happened. [`Replay`](crate::replay::Replay) tells the same to VPN flows in virtual time and
//! compares what they decide: the decisions are [`netstage_core`]'s alone, so they must be alike
//! to the packet and to the last bit of a window.

mod file;

pub use file::{Error, FORMAT, Head, Reader, VERSION, Writer};
pub use netstage_core::edge::{Event, Sent};
