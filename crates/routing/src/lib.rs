//! BGP, LDP, RSVP-TE and BFD over sockets, and the route sources of the MPLS router.
//!
//! - [`bgp`]: BGP-4 for router tests; [`ldp`] and [`rsvp`]: label distribution; [`bfd`]: failure detection.
//! - [`lfa`]: loop-free alternates from the databases of FRR's daemons.
//! - [`source`]: routes and labels from a file, from the kernel, or from a routing daemon's forwarding plane
//!   manager.
//! - `peering`: TCP connections between routers; [`session_thread`]: thread for sessions in a namespace.
//!
//! ```
//! use netstage_routing::bgp::nlri::NlriPrefix;
//!
//! let prefix: NlriPrefix = "10.0.0.0/8".parse().unwrap();
//! assert_eq!(prefix.to_string(), "10.0.0.0/8");
//! ```
//!
//! Invariant: whatever a peer sends, its session continues or ends with a reason; the process never ends.

pub mod bfd;
pub mod bgp;
mod epoch;
pub mod ldp;
pub mod lfa;
mod peering;
pub mod rsvp;
pub mod session_thread;
pub mod source;
