//! Tests of scenario files: list, read, check and write.

use super::*;
use netstage_harness::needs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn scenarios_are_listed_read_checked_and_written() {
    let server = TestServer::start("serve-scenarios", &[]);
    assert_eq!(server.get("/api/scenarios").json()[0]["title"], "Two VPNs");
    assert_eq!(server.get("/api/scenario?name=sub/two.toml").json()["text"], SCENARIO);

    // The problems and positions are those of the command line.
    let wrong = SCENARIO.replace("duration", "durration").replace("10 ms", "10 parsecs");
    fs::write(server.folder.join("scenarios/wrong.toml"), &wrong).unwrap();
    let output = Command::new(PROGRAM)
        .args(["check", "wrong.toml", "--json"])
        .current_dir(server.folder.join("scenarios"))
        .output()
        .unwrap();
    let expected: Value = serde_json::from_slice(&output.stderr).unwrap();
    let checked = server.check("wrong.toml", &wrong, "sim");
    assert_eq!(checked["sound"], false);
    let problems = checked["problems"].as_array().unwrap();
    assert!(problems.len() >= 2, "{checked}");
    for (problem, expected) in problems.iter().zip(expected["error"]["problems"].as_array().unwrap()) {
        for field in ["file", "line", "column", "message"] {
            assert_eq!(problem[field], expected[field], "{field}");
        }
        assert_eq!(problem.get("help").unwrap_or(&Value::Null), &expected["help"]);
    }
    let valid = server.check("two.toml", SCENARIO, "sim");
    assert_eq!((&valid["sound"], &valid["runs"]), (&json!(true), &json!(2)));
    assert_eq!(valid["topology"]["links"].as_array().unwrap().len(), 5);

    let write = |name: &str, text: &str, before: Value| {
        server.send_json(
            "PUT",
            &format!("/api/scenario?name={name}"),
            &json!({ "text": text, "before": before }),
        )
    };
    assert_eq!(write("new/three.toml", "# three", Value::Null).status, 204);
    assert_eq!(fs::read_to_string(server.folder.join("scenarios/new/three.toml")).unwrap(), "# three");
    assert_eq!(write("new/three.toml", "# four", json!("# three")).status, 204);
    let outdated = write("new/three.toml", "# five", json!("# three"));
    assert_eq!(outdated.status, 409, "the changes of another user are not overwritten");
    assert!(outdated.message().contains("was changed since editing started"));
    let existing = write("new/three.toml", "# five", Value::Null);
    assert_eq!((existing.status, existing.message()), (409, "new/three.toml already exists".into()));
    let path = server.folder.join("scenarios/new/three.toml");
    assert_eq!(fs::read_to_string(&path).unwrap(), "# four");
    // A request with the current text may overwrite the file; a repeated request succeeds.
    assert_eq!(write("new/three.toml", "# five", json!("# four")).status, 204);
    assert_eq!(write("new/three.toml", "# five", json!("# three")).status, 204);
    fs::remove_file(&path).unwrap();
    let removed = write("new/three.toml", "# six", json!("# five"));
    let message = "new/three.toml was removed since editing started";
    assert_eq!((removed.status, removed.message(), path.exists()), (409, message.into(), false));
}

fn only_regular_files_are_scenarios() {
    let server = TestServer::start("serve-odd-files", &[]);
    let at = |name: &str| server.folder.join("scenarios").join(name);
    nix::unistd::mkfifo(&at("waits.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.toml")).unwrap();
    fs::create_dir(at("folder.toml")).unwrap();
    let listed = server.get("/api/scenarios").json();
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["sub/two.toml"]);
    for name in ["waits.toml", "socket.toml", "folder.toml"] {
        let read = server.get(&format!("/api/scenario?name={name}"));
        assert_eq!((read.status, read.message()), (400, format!("cannot read {name}: not a regular file")));
        let body = json!({ "text": "# mine", "before": null });
        assert_eq!(
            server.send_json("PUT", &format!("/api/scenario?name={name}"), &body).status,
            400,
            "{name}"
        );
    }
}

fn a_written_file_keeps_its_mode_and_owner() {
    let server = TestServer::start("serve-mode", &[]);
    let path = server.folder.join("scenarios/sub/two.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    if needs::are_namespaces_allowed() {
        std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    }
    let before = fs::metadata(&path).unwrap();
    let body = json!({ "text": "# changed", "before": SCENARIO });
    assert_eq!(server.send_json("PUT", "/api/scenario?name=sub/two.toml", &body).status, 204);
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "# changed");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid()),
        "mode, user and group"
    );
}

fn names_that_are_too_long_or_too_deep_are_rejected() {
    let server = TestServer::start("serve-names", &[]);
    let write = |name: &str| {
        let body = json!({ "text": "# mine", "before": null });
        server.send_json("PUT", &format!("/api/scenario?name={name}"), &body)
    };
    let deep = write("a/b/c/d/e.toml");
    assert_eq!((deep.status, deep.message().contains("too many folders")), (400, true), "{deep:?}");
    let long = write(&format!("{}.toml", "a".repeat(300)));
    assert_eq!((long.status, long.message().contains("too long")), (400, true), "{long:?}");
    let under_a_file = write("sub/two.toml/a.toml");
    assert_eq!(under_a_file.status, 400, "{under_a_file:?}");
    // A written file is listed.
    assert_eq!(write("a/b/c/d.toml").status, 204);
    assert!(server.get("/api/scenarios").text().contains("a/b/c/d.toml"));
}

fn a_check_reports_features_that_the_stage_does_not_support() {
    let server = TestServer::start("serve-stage", &[]);
    let multicast = SCENARIO.replace(
        "[flow.silver]\nvpn = \"silver\"\nfrom = \"b\"\nto = \"d\"\ncount = 2",
        "[flow.silver]\nfrom = \"b\"\nto = [\"d\"]\ntransport = \"multicast\"\n\
         traffic = { model = \"cbr\", rate = \"1 Mbit/s\", packet = \"1000 B\" }",
    );
    let simulated = server.check("multicast.toml", &multicast, "sim");
    assert_eq!((&simulated["sound"], &simulated["problems"]), (&json!(false), &json!([])), "{simulated}");
    let refusal = simulated["refusal"].as_str().unwrap();
    assert!(refusal.contains("flow.silver: transport \"multicast\" is not simulated"), "{simulated}");
    // A start is rejected with the same message and leaves no record.
    let rejected = server.send_json("POST", "/api/runs", &order("multicast.toml", &multicast, "sim"));
    assert_eq!((rejected.status, rejected.message().as_str()), (422, refusal));
    assert_eq!(server.get("/api/records").json(), json!([]));
    let emulated = server.check("multicast.toml", &multicast, "emu");
    assert_eq!(emulated["sound"], false);
    assert!(emulated["refusal"].as_str().unwrap().contains("passes the PE left"), "{emulated}");
    let exchange = include_str!("../../../../../scenarios/papers/mpls-ix/exchange.toml");
    let placed = server.check("exchange.toml", exchange, "live");
    assert!(
        placed["refusal"].as_str().unwrap().contains("routing daemons do not run on hosts of a fleet"),
        "{placed}"
    );
    assert_eq!(server.check("two.toml", SCENARIO, "sim")["refusal"], "");
}

fn weights_that_differ_between_cells_are_listed_by_cell() {
    let server = TestServer::start("serve-weights", &[]);
    let swept =
        format!("{SCENARIO}\n[sweep]\n\"vpn.gold.weight\" = [2, 5]\n").replace("repeat = 2", "repeat = 1");
    let vpns = |network: &Value| network["topology"]["vpns"].as_array().unwrap().clone();
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
    scenarios_are_listed_read_checked_and_written,
    only_regular_files_are_scenarios,
    a_written_file_keeps_its_mode_and_owner,
    names_that_are_too_long_or_too_deep_are_rejected,
    a_check_reports_features_that_the_stage_does_not_support,
    weights_that_differ_between_cells_are_listed_by_cell,
];
