//! `netstage tcp`: traces, diagnoses, limits and tunes TCP connections.

mod diagnoses;
mod filter;
pub mod limit;
mod record;
mod sentence;
mod tune;
mod view;
mod watch;
mod why;

use crate::exit::Failure;
use netstage_host::startup_error::StartupError;

/// Subcommands of `tcp`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Trace the window of TCP senders and the cause of each change
    Watch(watch::Arguments),
    /// Name the bottleneck of each connection, with a remedy
    Why(why::Arguments),
    /// Limit the windows of connections while this command runs
    Limit(limit::Arguments),
    /// Find the TCP window and congestion control with the highest throughput to a host
    Tune(tune::Arguments),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Watch(arguments) => watch::run(arguments),
        Command::Why(arguments) => why::run(arguments),
        Command::Limit(arguments) => limit::run(arguments),
        Command::Tune(arguments) => tune::run(arguments),
    }
}

/// Converts an error of the host.
fn refused(obstacle: StartupError) -> Failure {
    let failure = if obstacle.is_missing { Failure::missing } else { Failure::run };
    failure(obstacle.message).help(obstacle.remedy)
}
