//! `netstage test`: tests devices.

mod router;
mod setup;

use crate::exit::Failure;

/// Subcommands of `test`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Test the throughput of a router: IP, PUSH, SWAP and POP per packet size
    Router(router::Arguments),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Router(arguments) => router::run(arguments),
    }
}
