//! `netstage tcp`: traces, limits and tunes the windows of TCP connections.

mod filter;
pub mod limit;
mod record;
mod tune;
mod view;
mod watch;

use crate::exit::Failure;
use netstage_host::startup_error::StartupError;

/// Subcommands of `tcp`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Trace the window of TCP senders and the cause of each change
    Watch(watch::Arguments),
    /// Limit the windows of connections while this command runs
    Limit(limit::Arguments),
    /// Find the TCP window and congestion control with the highest throughput to a host
    Tune(tune::Arguments),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Watch(arguments) => watch::run(arguments),
        Command::Limit(arguments) => limit::run(arguments),
        Command::Tune(arguments) => tune::run(arguments),
    }
}

/// Converts an error of the host.
fn refused(obstacle: StartupError) -> Failure {
    let failure = if obstacle.is_missing { Failure::missing } else { Failure::run };
    failure(obstacle.message).help(obstacle.remedy)
}
