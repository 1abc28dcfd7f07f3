//! RSVP-TE over links between namespaces: three speakers in a row, the middle one on a host that forwards IP packets.

mod chain;
#[path = "../../../../tests/support/reports.rs"]
mod reports;
mod row;

netstage_harness::main![chain];
