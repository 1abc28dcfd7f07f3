//! `netstage check`: validates a scenario and lists its runs.

use super::ScenarioOptions;
use crate::exit::{self, Failure, OK};
use crate::summary;
use netstage_core::time::Duration;
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, Scenario};
use netstage_study::table::{ReportTable, TableColumn};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const EXAMPLES: &str = "Examples:
  netstage check scenarios/examples/two-hosts.toml
  netstage check fair.toml --vary flow.bulk.count=2,10 --json
  netstage check hosts.toml --live";

/// Options of `check`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    chosen: ScenarioOptions,
    /// Write the configuration of each routing daemon to DIR/ROUTER
    #[cfg(feature = "full")]
    #[arg(long, value_name = "DIR")]
    routers: Option<std::path::PathBuf>,
    /// Check also whether the agents of the fleet can run it, as far as the controller knows
    #[cfg(feature = "full")]
    #[arg(long)]
    live: bool,
    #[cfg(feature = "full")]
    #[command(flatten)]
    fleet: crate::state_folders::FleetOption,
    /// Print the result, or the errors, as JSON
    #[arg(long)]
    json: bool,
}

/// Cell without its plan.
struct CellSummary {
    variant: String,
    settings: Vec<(String, String)>,
    duration: Duration,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let mut first: Option<Plan> = None;
    let mut refusals = Vec::new();
    let scenario = arguments.chosen.load_with(|Cell { variant, settings, plan }| {
        let duration = plan.duration;
        refusals.push(live_refusals(arguments, &plan));
        first.get_or_insert(plan);
        CellSummary { variant, settings, duration }
    })?;
    let refusals = refusals.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    // Cells of a sweep are refused for the same reasons.
    let refusals: BTreeSet<String> = refusals.into_iter().flatten().collect();
    if !refusals.is_empty() {
        return Err(Failure::usage(refusals.into_iter().collect::<Vec<_>>().join("\n")));
    }
    #[cfg(feature = "full")]
    if let Some(folder) = &arguments.routers {
        write_routers(first.as_ref(), folder)?;
    }
    let text = if arguments.json { format!("{:#}\n", as_json(&scenario)) } else { as_text(&scenario) };
    exit::print(text.as_bytes())?;
    Ok(OK)
}

/// Returns why the agents of the fleet cannot run a plan, if that is requested.
#[cfg(feature = "full")]
fn live_refusals(arguments: &Arguments, plan: &Plan) -> Result<Vec<String>, Failure> {
    match arguments.live {
        true => {
            let fleet = arguments.fleet.open()?;
            netstage_stage::hosts::refusals(plan, &fleet).map_err(crate::state_folders::failure)
        }
        false => Ok(Vec::new()),
    }
}

/// Returns nothing, because this program has no stage with agents.
#[cfg(not(feature = "full"))]
fn live_refusals(_: &Arguments, _: &Plan) -> Result<Vec<String>, Failure> {
    Ok(Vec::new())
}

/// Writes the configuration files of each router of a plan.
#[cfg(feature = "full")]
fn write_routers(plan: Option<&Plan>, folder: &std::path::Path) -> Result<(), Failure> {
    let Some(plan) = plan.filter(|plan| plan.routing.is_some()) else {
        let help = "add routers with [service.NAME] program = \"frr\"";
        return Err(Failure::usage("--routers: the scenario has no routers with routing daemons").help(help));
    };
    let configurations = netstage_stage::topology::services::frr::configurations(plan);
    let routers = configurations.map_err(|error| Failure::usage(error.to_string()))?;
    for (name, files) in routers {
        let folder = folder.join(name);
        let failed = |error| Failure::write(&folder, &error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for (file, text) in files {
            std::fs::write(folder.join(file), text).map_err(failed)?;
        }
    }
    Ok(())
}

fn as_json(scenario: &Scenario<CellSummary>) -> Value {
    let cell = |cell: &CellSummary| {
        let settings: serde_json::Map<String, Value> =
            cell.settings.iter().map(|(path, value)| (path.clone(), value.as_str().into())).collect();
        json!({ "variant": cell.variant, "settings": settings, "duration_s": cell.duration.as_secs_f64() })
    };
    json!({
        "title": scenario.title,
        "seed": scenario.seed,
        "repeat": scenario.repeat,
        "cells": scenario.cells.iter().map(cell).collect::<Vec<_>>(),
        "expectations": scenario.expectations.iter().map(|e| &e.name).collect::<Vec<_>>(),
        "plots": scenario.plots.iter().map(|p| &p.name).collect::<Vec<_>>(),
        "warnings": scenario.warnings,
    })
}

fn as_text(scenario: &Scenario<CellSummary>) -> String {
    let (cells, repeat) = (scenario.cells.len(), scenario.repeat as usize);
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    let last = scenario.seed.wrapping_add(u64::from(scenario.repeat.max(1)) - 1);
    let seeds = if repeat > 1 {
        format!("seeds {}–{last}", scenario.seed)
    } else {
        format!("seed {}", scenario.seed)
    };
    let mut text = format!(
        "{}: OK: {} ({}, {seeds}), {}, {}\n",
        scenario.title,
        count(cells * repeat, "run"),
        count(cells, "cell"),
        count(scenario.expectations.len(), "expectation"),
        count(scenario.plots.len(), "figure"),
    );
    if cells > 1 {
        let mut table = ReportTable {
            columns: vec![TableColumn::right("cell"), TableColumn::left("variant")],
            ..ReportTable::default()
        };
        let variants = scenario.cells.iter().any(|c| !c.variant.is_empty());
        table.columns.truncate(if variants { 2 } else { 1 });
        table.columns.push(TableColumn::left("settings"));
        for (index, cell) in scenario.cells.iter().enumerate() {
            let mut row = vec![(index + 1).to_string()];
            row.extend(variants.then(|| cell.variant.clone()));
            let settings: Vec<String> =
                cell.settings.iter().map(|(path, value)| format!("{path} = {value}")).collect();
            row.push(settings.join(", "));
            table.rows.push(row);
        }
        text.push('\n');
        text.push_str(&summary::table(&table));
    }
    for warning in &scenario.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}
