//! Record of the inputs and decisions of a router's VPN flows, for replay.
//!
//! A trace is a file of JSON lines: a [`TraceHeader`] with the configuration, then [`EdgeEvent`]s in
//! chronological order. [`TraceReplay`](crate::replay::TraceReplay) feeds the same inputs to VPN flows in
//! virtual time and compares their decisions. Decisions depend only on [`netstage_core`], so both must agree
//! to the packet and to the last bit of a window.

mod file;

pub use file::{FORMAT, TraceFileError, TraceHead, TraceReader, TraceWriter, VERSION};
pub use netstage_core::edge::{EdgeEvent, SentPacket};
