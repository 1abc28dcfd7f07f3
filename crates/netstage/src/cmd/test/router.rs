//! `netstage test router`: tests a router between interfaces of this host and writes a record.

use super::setup::{self, Kind};
use crate::cmd::run::to_record;
use crate::exit::{Failure, OK, print};
use netstage_scenario::record::ROUTER_STAGE;
use netstage_study::{StudyOptions, TOOL, stage};
use netstage_tester::bench::TestBench;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  netstage test router router.toml --check
  netstage test router router.toml --setup linux > routes.batch
  netstage test router router.toml --out out/router";

/// Options of `test router`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Configuration file
    configuration: PathBuf,
    /// Print the configuration for a router of this kind, without a test
    #[arg(long, value_name = "KIND")]
    setup: Option<Kind>,
    /// Check the configuration, without a test
    #[arg(long, conflicts_with = "setup")]
    check: bool,
    /// Folder of the record [default: out/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Repeat a void trial up to N but at least 2 times
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
            "{}: {operations} operations, {sizes} packet sizes, {} ports\n",
            arguments.configuration.display(),
            tester.ports.len()
        );
        return print(text.as_bytes()).map(|()| OK);
    }
    let bench = TestBench::open(&tester).map_err(|obstacle| {
        let failure = if obstacle.is_missing {
            Failure::missing(obstacle.message)
        } else {
            Failure::run(obstacle.message)
        };
        failure.help(obstacle.remedy)
    })?;
    let name = arguments.configuration.file_stem().map_or("router".into(), PathBuf::from);
    let options = StudyOptions {
        out: arguments.out.clone().unwrap_or_else(|| PathBuf::from("out").join(name)),
        // There is only one router to test.
        jobs: 1,
        retries: arguments.retries,
        stage: ROUTER_STAGE.into(),
        tool: TOOL.into(),
    };
    let sentences = [Some(bench.calibration()), bench.background_summary()].into_iter().flatten();
    tester.scenario.description =
        sentences.fold(tester.scenario.description, |text, sentence| format!("{text} {sentence}"));
    tester.scenario.warnings.extend(bench.slower_reasons().iter().cloned());
    to_record(&tester.scenario, &stage::router(&bench), &options, arguments.json)
}
