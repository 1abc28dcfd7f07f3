//! The netstage program: one command per file in `cmd/`. What it does is in the crates
//! below; here are its options, its messages and its exit codes.
#![forbid(unsafe_code)]

mod cmd;
mod exit;
mod means;
mod serve;
mod sparkline;
mod summary;

use clap::{CommandFactory as _, Parser, Subcommand};
use exit::Failure;
use netstage_host::netns::{custody, hold};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Stages a network, proves how it performs, and keeps it fair.
#[derive(Parser)]
#[command(name = "netstage", version, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a scenario: every cell of its sweep, under every seed
    Run(cmd::run::Arguments),
    /// Check a scenario, and say what it would run
    Check(cmd::check::Arguments),
    /// Show a record, or compare several
    Report(cmd::report::Arguments),
    /// Serve the web page: scenarios, runs as they happen, records
    Serve(cmd::serve::Arguments),
    /// Tell what this host can do, what is missing and how to get it
    Doctor(cmd::doctor::Arguments),
    /// Carry out one node's part of runs, for a controller
    Agent(cmd::agent::Arguments),
    /// Agents on other hosts, under one controller
    #[command(subcommand)]
    Fleet(cmd::fleet::Command),
    /// Measure towards another host, or agree to be measured with
    #[command(subcommand)]
    Measure(cmd::measure::Command),
    /// Be a provider edge router, which shares a core fairly among VPNs, or ask one that runs
    #[command(subcommand)]
    Pe(cmd::pe::Command),
    /// Be a router of MPLS and IP, or ask one that runs
    #[command(subcommand)]
    Router(cmd::router::Command),
    /// Test a device
    #[command(subcommand)]
    Test(cmd::test::Command),
    /// Watch the TCP connections of this machine, and limit their windows
    #[command(subcommand)]
    Tcp(cmd::tcp::Command),
    /// Put back what a killed router, agent, `tcp limit` or `tcp watch` left: settings, programs, limits, files
    Clean(cmd::clean::Arguments),
    /// Hold an emulated network, for `netstage run --on emu`
    #[command(hide = true)]
    Fabric,
    /// Run another project's program so that nothing it starts outlives us, for `fabric`
    #[command(name = hold::COMMAND, hide = true)]
    Held {
        /// A folder to have in place of /run
        #[arg(long)]
        run: Option<PathBuf>,
        /// On a host that is not ours: by standard input's end, not in a process namespace
        #[arg(long = custody::HERE, conflicts_with = "run")]
        here: bool,
        /// The program
        program: OsString,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Traffic models
    #[command(subcommand)]
    Traffic(cmd::traffic::Command),
    /// Print the JSON Schema of scenario files
    Schema,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for every command
    Man(cmd::man::Arguments),
}

fn main() -> ExitCode {
    let asked_for_json = std::env::args_os().any(|argument| argument == "--json");
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && asked_for_json => {
            return Failure::usage(error.render().to_string().trim().to_owned()).exit(true);
        }
        Err(error) => error.exit(),
    };
    let result = match arguments.command {
        Command::Run(arguments) => cmd::run::run(&arguments),
        Command::Check(arguments) => cmd::check::run(&arguments),
        Command::Report(arguments) => cmd::report::run(&arguments),
        Command::Serve(arguments) => cmd::serve::run(&arguments),
        Command::Doctor(arguments) => cmd::doctor::run(&arguments),
        Command::Agent(arguments) => cmd::agent::run(&arguments),
        Command::Fleet(command) => cmd::fleet::run(&command),
        Command::Fabric => {
            netstage_stage::topology::server::serve();
            Ok(exit::OK)
        }
        Command::Held { run, here, program, arguments } => match here {
            true => custody::keep(&program, &arguments),
            false => hold::hold(&program, &arguments, run.as_deref()),
        }
        .map_err(|e| Failure::run(format!("cannot hold {}: {e}", program.display()))),
        Command::Measure(command) => cmd::measure::run(&command),
        Command::Pe(command) => cmd::pe::run(&command),
        Command::Router(command) => cmd::router::run(&command),
        Command::Test(command) => cmd::test::run(&command),
        Command::Tcp(command) => cmd::tcp::run(&command),
        Command::Clean(arguments) => cmd::clean::run(&arguments),
        Command::Traffic(command) => cmd::traffic::run(&command),
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
        Err(failure) => failure.exit(asked_for_json),
    }
}
