//! The netstage program: one command per file in `cmd/`. This crate has the options, messages and exit codes;
//! the crates below it do the work.
#![forbid(unsafe_code)]

mod cmd;
mod exit;
#[cfg(feature = "full")]
mod serve;
#[cfg(feature = "full")]
mod service_manager;
#[cfg(feature = "full")]
mod sparkline;
mod stages;
#[cfg(feature = "full")]
mod state_folders;
mod summary;

use clap::{CommandFactory as _, Parser, Subcommand};
use exit::Failure;
#[cfg(feature = "full")]
use netstage_host::netns::{
    process_namespace::{self, HeldOptions},
    supervision,
};
use std::process::ExitCode;

/// Stage networks, measure how they perform, and share them fairly among VPNs
#[derive(Parser)]
#[command(name = "netstage", version, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const COMPLETIONS_EXAMPLES: &str = "Examples:
  netstage completions bash > /etc/bash_completion.d/netstage";

#[derive(Subcommand)]
enum Command {
    /// Run a scenario: each cell of its sweep with each seed
    Run(cmd::run::Arguments),
    /// Check a scenario and list its runs
    Check(cmd::check::Arguments),
    /// Show a record, or compare several records
    Report(cmd::report::Arguments),
    #[cfg(feature = "full")]
    #[command(flatten)]
    Real(Real),
    /// Print the JSON Schema of scenario files
    #[command(after_help = cmd::schema::EXAMPLES)]
    Schema,
    /// Print a shell completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// Shell to complete in
        shell: clap_complete::Shell,
    },
    /// Write a man page for every command
    Man(cmd::man::Arguments),
}

/// Commands that work with real packets, and the page.
#[cfg(feature = "full")]
#[derive(Subcommand)]
enum Real {
    /// Serve the web page with scenarios, live runs and records
    Serve(cmd::serve::Arguments),
    /// Check what this host supports and how to install what is missing
    Doctor(cmd::doctor::Arguments),
    /// Run an agent, which executes this host's part of runs for a controller
    Agent(cmd::agent::Arguments),
    /// Manage a fleet: one controller and its agents on other hosts
    #[command(subcommand)]
    Fleet(cmd::fleet::Command),
    /// Measure to another host, or run the server
    #[command(subcommand)]
    Measure(cmd::measure::Command),
    /// Run or query a provider edge router, which shares a core fairly among VPNs
    #[command(subcommand)]
    Pe(cmd::pe::Command),
    /// Run or query an MPLS and IP router
    #[command(subcommand)]
    Router(cmd::router::Command),
    /// Test a device
    #[command(subcommand)]
    Test(cmd::test::Command),
    /// Trace, diagnose, limit or tune TCP connections of this host
    #[command(subcommand)]
    Tcp(cmd::tcp::Command),
    /// Restore what a killed router, agent, `tcp limit` or `tcp watch` left behind
    Clean(cmd::clean::Arguments),
    /// Hold an emulated network for `netstage run --on emu`
    #[command(hide = true)]
    Fabric,
    /// Run an external program and kill its whole process tree at the end; used by `fabric`
    #[command(name = process_namespace::COMMAND, hide = true)]
    Held {
        /// Folder mounted over /run
        #[arg(long)]
        run: Option<std::path::PathBuf>,
        /// Priority over ordinary programs
        #[arg(long)]
        realtime: bool,
        /// Run without a PID namespace and stop when standard input closes; for hosts of a fleet. Folder for the program alone
        #[arg(long = supervision::UNPRIVILEGED_OPTION, value_name = "FOLDER", conflicts_with_all = ["run", "realtime"])]
        here: Option<std::path::PathBuf>,
        /// Program to run
        program: std::ffi::OsString,
        /// Arguments of the program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Build traffic models
    #[command(subcommand)]
    Traffic(cmd::traffic::Command),
}

fn main() -> ExitCode {
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && wants_json => {
            return Failure::usage(error.render().to_string().trim().to_owned()).exit(true);
        }
        Err(error) => error.exit(),
    };
    let result = match arguments.command {
        Command::Run(arguments) => cmd::run::run(&arguments),
        Command::Check(arguments) => cmd::check::run(&arguments),
        Command::Report(arguments) => cmd::report::run(&arguments),
        #[cfg(feature = "full")]
        Command::Real(command) => real(command),
        Command::Schema => cmd::schema::run(),
        Command::Man(arguments) => cmd::man::run(&arguments, Arguments::command()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "netstage", &mut script);
            exit::print(&script).map(|()| exit::OK)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.exit(wants_json),
    }
}

#[cfg(feature = "full")]
fn real(command: Real) -> Result<u8, Failure> {
    match command {
        Real::Serve(arguments) => cmd::serve::run(&arguments),
        Real::Doctor(arguments) => cmd::doctor::run(&arguments),
        Real::Agent(arguments) => cmd::agent::run(&arguments),
        Real::Fleet(command) => cmd::fleet::run(&command),
        Real::Fabric => {
            netstage_stage::topology::server::serve();
            Ok(exit::OK)
        }
        Real::Held { run, realtime, here, program, arguments } => match here {
            Some(folder) => supervision::supervise(&program, &arguments, &folder),
            None => {
                let options = HeldOptions { run: run.as_deref(), is_realtime: realtime };
                process_namespace::run_in_process_namespace(&program, &arguments, options)
            }
        }
        .map_err(|e| Failure::run(format!("cannot run {}: {e}", program.display()))),
        Real::Measure(command) => cmd::measure::run(&command),
        Real::Pe(command) => cmd::pe::run(&command),
        Real::Router(command) => cmd::router::run(&command),
        Real::Test(command) => cmd::test::run(&command),
        Real::Tcp(command) => cmd::tcp::run(&command),
        Real::Clean(arguments) => cmd::clean::run(&arguments),
        Real::Traffic(command) => cmd::traffic::run(&command),
    }
}
