//! Label distribution over sockets, in namespaces joined by a link: two of our speakers, a peer in a process
//! of its own, and FRR's.

mod frr;
mod process;
mod running;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
