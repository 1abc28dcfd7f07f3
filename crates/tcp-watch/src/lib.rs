//! Watches the kernel's TCP senders, each change of their windows and its cause, and limits their windows.
//!
//! [`filter`] says whom; [`source`] has the kernel tell, by [`programs`], [`traced`] or [`polling`]; [`flows`] makes events of what it tells
//! (`netstage_core::tcp::event`); [`watch`] keeps those of a run's flows, per bin. Only [`limit`], [`route`] and [`gateway`]
//! change what a connection does; [`note`] says on disk what they changed, and [`clean`] undoes it after a kill.
//!
//! ```
//! use netstage_tcp_watch::filter::Filter;
//!
//! assert!(Filter::default().check().is_ok());
//! ```
//!
//! Invariant: watching changes no connection; what limits a window is undone at its end.

pub mod clean;
pub mod filter;
pub mod flows;
pub mod gateway;
pub mod limit;
pub mod note;
pub mod polling;
pub mod programs;
mod reader;
pub mod record;
pub mod route;
mod selection;
pub mod source;
pub mod symbols;
mod trace;
pub mod traced;
pub mod tracefs;
pub mod watch;
