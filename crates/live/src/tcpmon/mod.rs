//! Watches the kernel's TCP senders, each change of their windows and its cause, and limits their windows.
//!
//! [`filter`] says whom; [`programs`] has the kernel tell; [`flows`] makes events of what it tells
//! (`netstage_core::tcp::event`). Only [`limit`] changes what a connection does.

pub mod filter;
pub mod flows;
pub mod limit;
pub mod programs;
mod reader;
pub mod record;
mod selection;
pub mod symbols;
