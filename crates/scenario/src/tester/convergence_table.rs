//! Checks of the table of convergence tests: each event needs a source of routes or labels.

use super::build::min_size;
use super::convergence::{Convergence, ConvergenceEvent};
use super::{LabelSource, Operation, RouteSource, file};
use crate::error::{Problems, SourceRange};
use crate::table::{List, Located};
use netstage_core::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Returns the convergence trials. Problems are reported.
pub(super) fn convergence(
    file: &file::TesterFile,
    table: &Located<file::Convergence>,
    problems: &mut Problems,
) -> Option<Convergence> {
    let file::Convergence { events, rate, size, before, after, operation, .. } = &table.value;
    let fails = table.value.fail_command.is_some();
    let listed = events.as_ref().map(|events| events.value.0.clone());
    let events = listed.unwrap_or_else(|| match fails {
        true => vec![ConvergenceEvent::Failure],
        false => vec![ConvergenceEvent::Withdraw, ConvergenceEvent::Announce],
    });
    let place = table.value.events.as_ref().map_or(table.place, |events| events.place);
    if events.contains(&ConvergenceEvent::Failure) != fails {
        let help = "give both the event \"failure\" and `fail_command`, or none of them";
        problems.push_help(place, "a failure needs a command that causes it", help);
    }
    if let Some(event) = events.iter().enumerate().find(|(at, event)| events[..*at].contains(event)) {
        problems.push(place, format!("the event \"{}\" is listed twice", event.1.name()));
    }
    let by_bgp = file.routes.by.value == RouteSource::Bgp;
    if !by_bgp && events.iter().any(|event| event.is_of_bgp()) {
        let help = "set by = \"bgp\" in [routes], and add a table [bgp]";
        problems.push_help(place, "[convergence] needs routes advertised by BGP", help);
    }
    if let Some(operation) = operation
        && operation.value != Operation::Ip
        && file.labels.is_none()
    {
        problems.push_help(operation.place, "this operation needs labels", "add a table [labels]");
    }
    let first_of_ldp = events.iter().find(|event| event.is_of_ldp());
    let default = if first_of_ldp.is_some() { Operation::Swap } else { Operation::Ip };
    let operation_place = operation.as_ref().map_or(place, |operation| operation.place);
    let operation = operation.as_ref().map_or(default, |operation| operation.value);
    if let Some(event) = first_of_ldp {
        check_ldp(file, (table, *event, place), (operation, operation_place), problems);
    }
    if file.tester.bidirectional {
        problems.push_help(table.place, "[convergence] tests one direction only", "remove `bidirectional`");
    }
    let command =
        |list: &Option<List<String, 1, 64>>| list.as_ref().map_or(Vec::new(), |list| list.0.clone());
    Some(Convergence {
        events,
        operation,
        fail_command: command(&table.value.fail_command),
        repair_command: command(&table.value.repair_command),
        restart_after: table.value.restart_after.0,
        reconnect_time: table.value.reconnect_time.value.0,
        rate: *rate,
        size: size.as_ref().map_or(min_size(file.routes.first.value.0).into(), |size| size.0 as u32),
        before: before.0,
        after: after.0,
    })
}

/// Checks that an event of LDP has labels by LDP, and packets whose forwarding depends on them.
fn check_ldp(
    file: &file::TesterFile,
    (table, event, place): (&Located<file::Convergence>, ConvergenceEvent, SourceRange),
    (operation, operation_place): (Operation, SourceRange),
    problems: &mut Problems,
) {
    let name = event.name();
    if file.labels.as_ref().is_none_or(|labels| labels.value.by != LabelSource::Ldp) {
        let help = "set by = \"ldp\" in a table [labels]";
        problems.push_help(place, format!("the event \"{name}\" needs labels set up by LDP"), help);
    }
    if matches!(operation, Operation::Ip | Operation::Pop) {
        let message = format!(
            "with the operation \"{}\", packets leave by routes, and the event \"{name}\" has no effect on them",
            operation.name()
        );
        let help = "set operation = \"swap\", \"push\", \"php\" or \"unlabeled\" in [convergence]";
        problems.push_help(operation_place, message, help);
    }
    if file.tester.operations.is_some() && file.tester.to.0.len() > 1 {
        let message = format!(
            "the event \"{name}\" needs LSPs that end at every receiving port, but those of `operations` end at one"
        );
        problems.push_help(place, message, "remove `operations`, or all ports but one from `to`");
    }
    let reconnect_time = &table.value.reconnect_time;
    let milliseconds = reconnect_time.value.0.0 / MILLISECOND.0;
    if milliseconds * MILLISECOND.0 != reconnect_time.value.0.0 || u32::try_from(milliseconds).is_err() {
        let help = "at most 4,294,967 s";
        problems.push_help(reconnect_time.place, "expected a time in whole milliseconds", help);
    }
}
