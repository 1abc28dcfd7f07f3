//! Tests of a controller whose folder is an old backup.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::within;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const AGENTS: [&str; 2] = ["left", "right"];

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Returns the changes of the controller's folder that an agent knows.
fn known_changes(fleet: &Fleet, agent: &str) -> u64 {
    let text = fs::read(fleet.folder.join(agent).join("controller-start.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["changes"].as_u64().unwrap()
}

fn an_old_backup_is_refused_although_the_controller_was_not_restarted() {
    let stage = Fleet::new("backup-old", &AGENTS);
    let _router = stage.join_by_router();
    stage.write_policy("");
    let mut hub = stage.serve();
    let _agents = stage.join_all(&AGENTS);
    let (fleet, backup) = (stage.folder.join("fleet"), stage.folder.join("backup"));
    copy(&fleet, &backup);
    let restore = || {
        fs::remove_dir_all(&fleet).unwrap();
        copy(&backup, &fleet);
    };
    let before = known_changes(&stage, "left");
    stage.succeed(&["fleet", "remove", "right"]);
    assert!(within(LIMIT, || known_changes(&stage, "left") > before), "{}", stage.logs());
    hub.signal("-KILL");
    drop(hub);
    restore();
    let hub = stage.serve_again();
    for part in
        ["this controller uses an old backup of the fleet's folder", "run `netstage fleet restore` there"]
    {
        stage.wait_for_log("hub.log", part);
    }
    assert!(
        stage.states().iter().all(|(name, state)| name != "left" || state != "idle"),
        "{:?}",
        stage.states()
    );
    drop(hub);
    assert!(stage.succeed(&["fleet", "restore"]).starts_with("2 agents"));
    let hub = stage.serve_again();
    stage.wait_for(&[("left", "idle")]);

    // The folder is replaced while the controller runs.
    restore();
    stage.wait_for_log("hub.log", "run `netstage fleet restore` there");
    drop(hub);
    stage.succeed(&["fleet", "restore"]);
    let _hub = stage.serve_again();
    stage.wait_for(&[("left", "idle")]);
}

netstage_harness::tests![an_old_backup_is_refused_although_the_controller_was_not_restarted];
