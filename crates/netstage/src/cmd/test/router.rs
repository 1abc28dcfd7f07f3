//! `netstage test router`: a router between interfaces of this machine, to its record.

use super::setup::{self, Kind};
use crate::cmd::run::to_record;
use crate::exit::{Failure, OK, print};
use netstage_study::{Options, TOOL, stage};
use netstage_tester::bench::Bench;
use std::path::PathBuf;

/// Name of the stage in records.
const STAGE: &str = "router";

/// Options of `test router`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration file
    configuration: PathBuf,
    /// Print what a router of this kind is to be told, and test nothing
    #[arg(long, value_name = "KIND")]
    setup: Option<Kind>,
    /// Check the configuration, and test nothing
    #[arg(long, conflicts_with = "setup")]
    check: bool,
    /// The record's folder [default: out/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Begin a spoiled trial anew, up to N times, and at least twice
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let mut tester = netstage_scenario::tester::load(&arguments.configuration)?;
    if let Some(kind) = arguments.setup {
        return print(setup::lines(kind, &tester)?.as_bytes()).map(|()| OK);
    }
    if arguments.check {
        let (operations, sizes) = (tester.operations.len(), tester.sizes.len());
        let text = format!(
            "{}: {operations} operations, {sizes} sizes of packets, {} ports\n",
            arguments.configuration.display(),
            tester.ports.len()
        );
        return print(text.as_bytes()).map(|()| OK);
    }
    let bench = Bench::open(&tester).map_err(|obstacle| {
        let failure = if obstacle.is_missing {
            Failure::missing(obstacle.message)
        } else {
            Failure::run(obstacle.message)
        };
        failure.help(obstacle.remedy)
    })?;
    let name = arguments.configuration.file_stem().map_or("router".into(), PathBuf::from);
    let options = Options {
        out: arguments.out.clone().unwrap_or_else(|| PathBuf::from("out").join(name)),
        // The router is one.
        jobs: 1,
        retries: arguments.retries,
        stage: STAGE.into(),
        tool: TOOL.into(),
    };
    let told = [Some(bench.calibration()), bench.told_beside()].into_iter().flatten();
    tester.scenario.description = told.fold(tester.scenario.description, |all, told| format!("{all} {told}"));
    tester.scenario.warnings.extend(bench.slower_because().iter().cloned());
    to_record(&tester.scenario, &stage::router(&bench), &options, arguments.json)
}
