//! Watches the kernel's TCP senders: each change of their windows and its cause.
//!
//! [`filter`] says whom; [`programs`] has the kernel tell; [`flows`] makes events of what it tells
//! (`netstage_core::tcp::event`). Nothing here changes what a connection does.

pub mod filter;
pub mod flows;
pub mod programs;
pub mod record;
pub mod symbols;
