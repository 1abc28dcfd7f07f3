//! LDP over sockets in namespaces joined by a link: two netstage speakers, a peer in its own process, and
//! FRR.

mod frr;
#[path = "../../../../tests/support/pair.rs"]
mod pair;
mod process;
#[path = "../../../../tests/support/reports.rs"]
mod reports;
mod running;
mod sessions;

netstage_harness::main![frr, process, sessions];
