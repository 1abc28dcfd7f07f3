//! Label distribution over sockets, in namespaces joined by a link: two of our speakers, a peer in a process
//! of its own, and FRR's.

mod frr;
#[path = "../../../../tests/support/pair.rs"]
mod pair;
mod process;
mod running;
mod sessions;

netstage_harness::main![frr, process, sessions];
