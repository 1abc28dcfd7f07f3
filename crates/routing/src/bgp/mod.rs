//! BGP-4 for testing routers: sessions, routes to announce by the million, and what came back.
//!
//! - [`machine`]: one session (RFC 4271), without sockets.
//! - [`speaker`]: drives it over TCP.
//! - [`table`]: routes to announce; [`inject`]: their UPDATE messages.
//! - [`receive`]: what a peer announces.
//! - [`open`], [`update`], [`notification`], [`nlri`], [`path`]: messages and what they consist of.
//!
//! OPEN messages and capabilities are read and written by `netgauze-bgp-pkt`. UPDATE messages are
//! our own: errors in them are handled attribute by attribute (RFC 7606), and a million routes
//! pass without an allocation each. Tests compare them with netgauze's.

mod attributes;
pub mod inject;
pub mod machine;
mod message;
pub mod nlri;
pub mod notification;
pub mod open;
pub mod path;
pub mod receive;
pub mod speaker;
pub mod table;
#[cfg(test)]
mod tests;
pub mod update;

pub use message::{HEADER, LONGEST};
