//! Watches the windows of the kernel's TCP senders and the causes of their changes, and limits these windows.
//!
//! [`filter`] selects connections; [`source`] obtains records by [`programs`], [`tracing_source`] or [`polling`];
//! [`flows`] converts them to events (`netstage_core::tcp::event`); [`watch`] aggregates the events of a run's
//! flows per bin. Only [`limit`], [`route`] and [`gateway`] change the behavior of connections; [`limit_file`]
//! records their changes on disk, and [`clean`] undoes them after a kill.
//!
//! ```
//! use netstage_tcp_watch::filter::Filter;
//!
//! assert!(Filter::default().check().is_ok());
//! ```
//!
//! Invariant: watching changes no connection; a limit is undone at its end.

pub mod clean;
pub mod filter;
pub mod flows;
pub mod gateway;
pub mod limit;
pub mod limit_file;
pub mod polling;
pub mod programs;
mod reader;
pub mod record;
pub mod route;
mod selection;
pub mod source;
pub mod symbols;
mod trace_parser;
pub mod tracefs;
pub mod tracing_source;
pub mod watch;
