//! Scenario files, listed, read, checked and kept.

use super::*;
use netstage_harness::needs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn scenarios_are_listed_read_checked_and_kept() {
    let server = Server::start("serve-scenarios", &[]);
    assert_eq!(server.get("/api/scenarios").json()[0]["title"], "Two VPNs");
    assert_eq!(server.get("/api/scenario?name=sub/two.toml").json()["text"], SCENARIO);

    // The same problems as the command line's, at the same places.
    let wrong = SCENARIO.replace("duration", "durration").replace("10 ms", "10 parsecs");
    fs::write(server.folder.join("scenarios/wrong.toml"), &wrong).unwrap();
    let told = Command::new(PROGRAM)
        .args(["check", "wrong.toml", "--json"])
        .current_dir(server.folder.join("scenarios"))
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&told.stderr).unwrap();
    let checked = server.check("wrong.toml", &wrong, "sim");
    assert_eq!(checked["sound"], false);
    let problems = checked["problems"].as_array().unwrap();
    assert!(problems.len() >= 2, "{checked}");
    for (here, there) in problems.iter().zip(told["error"]["problems"].as_array().unwrap()) {
        for field in ["file", "line", "column", "message"] {
            assert_eq!(here[field], there[field], "{field}");
        }
        assert_eq!(here.get("help").unwrap_or(&Value::Null), &there["help"]);
    }
    let sound = server.check("two.toml", SCENARIO, "sim");
    assert_eq!((&sound["sound"], &sound["runs"]), (&json!(true), &json!(2)));
    assert_eq!(sound["topology"]["links"].as_array().unwrap().len(), 5);

    let keep = |name: &str, text: &str, before: Value| {
        server.ask("PUT", &format!("/api/scenario?name={name}"), &json!({ "text": text, "before": before }))
    };
    assert_eq!(keep("new/three.toml", "# three", Value::Null).status, 204);
    assert_eq!(fs::read_to_string(server.folder.join("scenarios/new/three.toml")).unwrap(), "# three");
    assert_eq!(keep("new/three.toml", "# four", json!("# three")).status, 204);
    let lost = keep("new/three.toml", "# five", json!("# three"));
    assert_eq!(lost.status, 409, "another's work is not written over");
    assert!(lost.message().contains("is not what it was"));
    let there = keep("new/three.toml", "# five", Value::Null);
    assert_eq!((there.status, there.message()), (409, "there is a new/three.toml already".into()));
    let path = server.folder.join("scenarios/new/three.toml");
    assert_eq!(fs::read_to_string(&path).unwrap(), "# four");
    // Who has seen it may write over it; what is there already is kept whatever it was before.
    assert_eq!(keep("new/three.toml", "# five", json!("# four")).status, 204);
    assert_eq!(keep("new/three.toml", "# five", json!("# three")).status, 204);
    fs::remove_file(&path).unwrap();
    let gone = keep("new/three.toml", "# six", json!("# five"));
    let said = "new/three.toml was removed since its editing began";
    assert_eq!((gone.status, gone.message(), path.exists()), (409, said.into(), false));
}

fn only_regular_files_are_scenarios() {
    let server = Server::start("serve-odd-files", &[]);
    let at = |name: &str| server.folder.join("scenarios").join(name);
    nix::unistd::mkfifo(&at("waits.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.toml")).unwrap();
    fs::create_dir(at("folder.toml")).unwrap();
    let listed = server.get("/api/scenarios").json();
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["sub/two.toml"]);
    for name in ["waits.toml", "socket.toml", "folder.toml"] {
        let read = server.get(&format!("/api/scenario?name={name}"));
        assert_eq!(
            (read.status, read.message()),
            (400, format!("cannot read {name}: it is no regular file"))
        );
        let body = json!({ "text": "# mine", "before": null });
        assert_eq!(server.ask("PUT", &format!("/api/scenario?name={name}"), &body).status, 400, "{name}");
    }
}

fn what_is_kept_keeps_its_mode_and_owner() {
    let server = Server::start("serve-mode", &[]);
    let path = server.folder.join("scenarios/sub/two.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    if needs::are_namespaces_allowed() {
        std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    }
    let before = fs::metadata(&path).unwrap();
    let body = json!({ "text": "# changed", "before": SCENARIO });
    assert_eq!(server.ask("PUT", "/api/scenario?name=sub/two.toml", &body).status, 204);
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "# changed");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid()),
        "mode, user and group"
    );
}

fn names_too_long_or_too_deep_are_refused_as_such() {
    let server = Server::start("serve-names", &[]);
    let keep = |name: &str| {
        let body = json!({ "text": "# mine", "before": null });
        server.ask("PUT", &format!("/api/scenario?name={name}"), &body)
    };
    let deep = keep("a/b/c/d/e.toml");
    assert_eq!((deep.status, deep.message().contains("lies too deep")), (400, true), "{deep:?}");
    let long = keep(&format!("{}.toml", "a".repeat(300)));
    assert_eq!((long.status, long.message().contains("too long")), (400, true), "{long:?}");
    let under_a_file = keep("sub/two.toml/a.toml");
    assert_eq!(under_a_file.status, 400, "{under_a_file:?}");
    // What can be kept is listed.
    assert_eq!(keep("a/b/c/d.toml").status, 204);
    assert!(server.get("/api/scenarios").text().contains("a/b/c/d.toml"));
}

fn a_check_knows_what_the_stage_does_not_run() {
    let server = Server::start("serve-stage", &[]);
    let multicast = SCENARIO.replace(
        "[flow.silver]\nvpn = \"silver\"\nfrom = \"b\"\nto = \"d\"\ncount = 2",
        "[flow.silver]\nfrom = \"b\"\nto = [\"d\"]\ntransport = \"multicast\"\n\
         traffic = { model = \"cbr\", rate = \"1 Mbit/s\", packet = \"1000 B\" }",
    );
    let simulated = server.check("multicast.toml", &multicast, "sim");
    assert_eq!((&simulated["sound"], &simulated["problems"]), (&json!(false), &json!([])), "{simulated}");
    let refusal = simulated["refusal"].as_str().unwrap();
    assert!(refusal.contains("flow.silver: transport \"multicast\" is not simulated"), "{simulated}");
    // A start says the same, and leaves no record.
    let refused = server.ask("POST", "/api/runs", &order("multicast.toml", &multicast, "sim"));
    assert_eq!((refused.status, refused.message().as_str()), (422, refusal));
    assert_eq!(server.get("/api/records").json(), json!([]));
    let emulated = server.check("multicast.toml", &multicast, "emu");
    assert_eq!(emulated["sound"], false);
    assert!(emulated["refusal"].as_str().unwrap().contains("goes through the PE left"), "{emulated}");
    let exchange = include_str!("../../../../../scenarios/papers/mpls-ix/exchange.toml");
    let placed = server.check("exchange.toml", exchange, "live");
    assert!(
        placed["refusal"].as_str().unwrap().contains("daemons are not run on hosts of a fleet"),
        "{placed}"
    );
    assert_eq!(server.check("two.toml", SCENARIO, "sim")["refusal"], "");
}

fn weights_that_differ_between_cells_are_told_cell_by_cell() {
    let server = Server::start("serve-weights", &[]);
    let swept =
        format!("{SCENARIO}\n[sweep]\n\"vpn.gold.weight\" = [2, 5]\n").replace("repeat = 2", "repeat = 1");
    let vpns = |of: &Value| of["topology"]["vpns"].as_array().unwrap().clone();
    for network in [server.check("swept.toml", &swept, "sim"), {
        let id = server.start_run("swept.toml", &swept, "sim");
        let shown = server.get(&format!("/api/runs/{id}")).json();
        assert_eq!(shown["weights"], json!([{ "gold": 2.0, "silver": 1.0 }, { "gold": 5.0, "silver": 1.0 }]));
        server.end(id);
        shown
    }] {
        let vpns = vpns(&network);
        assert_eq!((&vpns[0]["name"], vpns[0].get("weight")), (&json!("gold"), None), "{network}");
        assert_eq!(vpns[1]["weight"], 1.0);
    }
    let record = server.get("/api/record?name=swept").json();
    assert!(vpns(&record).iter().all(|vpn| vpn.get("weight").is_none()), "{}", record["topology"]);
    assert_eq!(vpns(&server.check("two.toml", SCENARIO, "sim"))[0]["weight"], 2.0);
}

netstage_harness::tests![
    scenarios_are_listed_read_checked_and_kept,
    only_regular_files_are_scenarios,
    what_is_kept_keeps_its_mode_and_owner,
    names_too_long_or_too_deep_are_refused_as_such,
    a_check_knows_what_the_stage_does_not_run,
    weights_that_differ_between_cells_are_told_cell_by_cell,
];
