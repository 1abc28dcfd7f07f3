//! `netstage tcp`: what TCP senders of this machine do, and why; and limits of their windows.

mod filter;
pub mod limit;
mod record;
mod tune;
mod view;
mod watch;

use crate::exit::Failure;
use netstage_host::obstacle::Obstacle;

/// Subcommands of `tcp`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Tell each change of a TCP sender's window, and its cause
    Watch(watch::Arguments),
    /// Limit the windows of connections that run, as long as this command does
    Limit(limit::Arguments),
    /// Find the window, and congestion control, with which TCP carries most to a host that runs `netstage measure serve`
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

/// What stands in the way.
fn refused(obstacle: Obstacle) -> Failure {
    let kind = if obstacle.is_missing { Failure::missing } else { Failure::run };
    kind(obstacle.message).help(obstacle.remedy)
}
