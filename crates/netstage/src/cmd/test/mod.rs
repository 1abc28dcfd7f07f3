//! `netstage test`: devices under test.

mod router;
mod setup;

use crate::exit::Failure;

/// What to test.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Find what a router carries: IP, PUSH, SWAP and POP, packet size by packet size
    Router(router::Arguments),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Router(arguments) => router::run(arguments),
    }
}
