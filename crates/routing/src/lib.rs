//! Control-plane sessions over real sockets, and the sources of routes.
//!
//! - [`bgp`]: BGP-4 for testing routers; [`ldp`]: label distribution.
//! - [`source`]: where routes and labels come from: a file, the kernel, a routing daemon's forwarding plane manager.
//! - `peering`: TCP connections between routers, opened, protected and closed.
//!
//! ```
//! use netstage_routing::bgp::nlri::Prefix;
//!
//! let prefix: Prefix = "10.0.0.0/8".parse().unwrap();
//! assert_eq!(prefix.to_string(), "10.0.0.0/8");
//! ```
//!
//! Invariant: whatever a peer sends, a session ends with a reason or goes on; it never ends the process.

pub mod bgp;
pub mod ldp;
mod peering;
pub mod source;
