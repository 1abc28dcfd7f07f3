//! BGP-4 for router tests: sessions, announcement of millions of routes, and the routes received from the
//! peer.
//!
//! - [`session`]: state machine of a session (RFC 4271), without sockets.
//! - [`speaker`]: session over TCP.
//! - [`table`]: routes to announce; [`inject`]: UPDATE messages for them.
//! - [`receive`]: routes received from a peer.
//! - [`open`], [`update`], [`notification`], [`nlri`], [`path`]: messages and their parts.
//!
//! OPEN messages and capabilities are parsed and written by `netgauze-bgp-pkt`. UPDATE messages have their
//! own implementation, which handles errors per attribute (RFC 7606) and does not allocate memory per route.
//! Tests compare both implementations.

mod attributes;
pub mod inject;
mod message;
pub mod nlri;
pub mod notification;
pub mod open;
pub mod path;
pub mod receive;
pub mod session;
pub mod speaker;
pub mod table;
#[cfg(test)]
mod tests;
pub mod update;

pub use message::{HEADER, MAX_LENGTH};
