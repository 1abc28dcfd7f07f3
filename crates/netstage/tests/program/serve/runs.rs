//! Tests of studies: start, events, stop.

use super::*;
use netstage_harness::needs;

fn a_run_sends_events_and_writes_the_record_of_the_command_line() {
    let server = TestServer::start("serve-run", &[]);
    let id = server.start_run("sub/two.toml", SCENARIO, "sim");
    let events = server.events(id);
    let status = server.get(&format!("/api/runs/{id}")).json();
    assert_eq!((&status["phase"], &status["exit"]), (&json!("finished"), &json!(0)), "{status}");
    assert_eq!(status["topology"]["nodes"].as_array().unwrap().len(), 6);

    // All bins of both runs, each sent once after the last start of its run.
    let mut runs = std::collections::BTreeMap::new();
    for (_, data) in events.iter().filter(|(name, _)| name == "run") {
        let run = data["run"].as_u64().unwrap();
        match data["kind"].as_str().unwrap() {
            "begin" => drop(runs.insert(run, (data.clone(), 0, false))),
            "bins" => {
                let entry = runs.get_mut(&run).unwrap();
                assert_eq!(data["from"], json!(entry.1));
                let values = data["values"].as_array().unwrap();
                assert_eq!(values.len(), entry.0["series"].as_array().unwrap().len());
                entry.1 += values[0].as_array().unwrap().len();
            }
            _ => runs.get_mut(&run).unwrap().2 = true,
        }
    }
    let complete: Vec<u64> = runs
        .values()
        .filter(|(_, bins, over)| *bins == 16 && *over)
        .map(|(b, ..)| b["seed"].as_u64().unwrap())
        .collect();
    assert_eq!(
        {
            let mut seeds = complete;
            seeds.sort();
            seeds.dedup();
            seeds
        },
        [3, 4],
        "{runs:?}"
    );
    let (begun, ..) = runs.values().next().unwrap();
    for metric in ["vpn.throughput", "vpn.permitted", "fairness.inter_vpn", "link.utilization", "link.queue"]
    {
        assert!(begun["series"].to_string().contains(metric), "{metric}");
    }

    // A client does not change the record.
    let ran = Command::new(PROGRAM)
        .args(["run", "scenarios/sub/two.toml", "--out", "direct"])
        .current_dir(&*server.folder)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    for file in ["series.parquet", "record.json", "figures.json"] {
        let [served, direct] =
            ["records/sub-two", "direct"].map(|folder| server.folder.join(folder).join(file));
        assert!(fs::read(served).unwrap() == fs::read(direct).unwrap(), "{file}");
    }

    // The record is found, reported and downloaded.
    let found = server.get("/api/records?search=TWO+vpns").json();
    assert_eq!((&found[0]["name"], &found[0]["met"]), (&json!("sub-two"), &json!(1)), "{found}");
    assert_eq!(server.get("/api/records?search=absent").json(), json!([]));
    assert_eq!(server.get("/api/record?name=sub-two").json()["title"], "Two VPNs");
    let file = server.get("/api/record/file?name=sub-two&file=series.parquet");
    assert_eq!(file.body, fs::read(server.folder.join("records/sub-two/series.parquet")).unwrap());
    assert!(
        file.head.contains("content-disposition: attachment; filename=\"sub-two-series.parquet\""),
        "{}",
        file.head
    );

    // A second run does not overwrite the record, and both can be compared.
    let again = server.end(server.start_run("sub/two.toml", SCENARIO, "sim"));
    assert_eq!(again["record"], "sub-two-2");
    let compared = server.send_json("POST", "/api/compare", &json!({ "names": ["sub-two", "sub-two-2"] }));
    assert!(compared.json()["title"].as_str().unwrap().starts_with("Comparison of"));
    let file = server
        .send_json("POST", "/api/compare/report.html", &json!({ "names": ["sub-two", "sub-two-2"] }))
        .text();
    assert!(file.starts_with("<!doctype html>") && file.contains("Comparison of"), "{file:.200}");
    for names in [json!(["sub-two"]), json!(["sub-two", "../sub-two"])] {
        let rejected = server.send_json("POST", "/api/compare/report.html", &json!({ "names": names }));
        assert_eq!(rejected.status, 400, "{names}");
    }
}

fn a_stopped_study_is_listed_and_can_be_resumed() {
    let server = TestServer::start("serve-stop", &[]);
    // Long enough not to finish before the stop on any machine.
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let id = server.start_run("long.toml", &long, "sim");
    let rejected = server.send_json("POST", "/api/runs", &order("sub/two.toml", SCENARIO, "sim"));
    assert_eq!((rejected.status, rejected.message()), (409, "\"Two VPNs\" is running".into()));
    assert!(server.get("/metrics").text().contains("\nnetstage_controller_studies_running 1\n"));
    assert_eq!(server.send_json("DELETE", &format!("/api/runs/{id}"), &Value::Null).status, 202);
    let status = server.end(id);
    assert_eq!((&status["phase"], &status["exit"]), (&json!("stopped"), &json!(130)));
    let found = server.get("/api/records").json();
    assert_eq!((&found[0]["state"], &found[0]["total"]), (&json!("unfinished"), &json!(100_000)), "{found}");
    assert_eq!(found[0]["title"], "Two VPNs");
    let read = server.get("/api/record?name=long");
    assert_eq!(read.status, 409);
    assert!(read.message().contains("is unfinished"));
    // The same study resumes in the same folder.
    let id = server.start_run("long.toml", &long, "sim");
    assert_eq!(server.get(&format!("/api/runs/{id}")).json()["record"], "long");
    // The server stops normally while the study runs.
    let TestServer { mut process, folder, .. } = server;
    process.signal("-TERM");
    assert!(process.output().status.success());
    assert!(folder.join("records/long/plan.json").exists());
}

fn an_emulated_run_sends_events() {
    needs::emulation();
    let server = TestServer::start("serve-emu", &[]);
    let short = SCENARIO
        .replace("repeat = 2", "repeat = 1")
        .replace("8 s\"\nseed", "4 s\"\nseed")
        .replace("\"8 s\"]", "\"4 s\"]")
        .replace("[\"4 s\",", "[\"2 s\",");
    // BPF programs need root.
    let has_tcp_events = needs::are_namespaces_allowed();
    let short = match has_tcp_events {
        true => short.replace("interval = ", "flow_detail = true\ntcp = \"events\"\ninterval = "),
        false => short,
    };
    let id = server.start_run("emu.toml", &short, "emu");
    let events = server.events(id);
    let status = &events.iter().rfind(|(name, _)| name == "status").unwrap().1;
    assert_eq!(status["phase"], "finished", "{status}");
    let run_events: Vec<&Value> =
        events.iter().filter(|(name, _)| name == "run").map(|(_, data)| data).collect();
    // Values, including permitted rates and causes of reductions, are sent before the end. A run with values that
    // arrived late is sent again at the end.
    let begun: Vec<&&Value> = run_events.iter().filter(|data| data["kind"] == "begin").collect();
    let pieces = |begin: &&&&Value| {
        run_events.iter().filter(|data| data["kind"] == "bins" && data["run"] == begin["run"]).count()
    };
    let early: Vec<&&&Value> = begun.iter().filter(|begin| pieces(begin) >= 2).collect();
    let early = format!("{early:?}");
    for metric in ["link.utilization", "vpn.throughput", "vpn.permitted", "fairness.inter_vpn"] {
        assert!(early.contains(metric), "{metric}: {early}");
    }
    assert!(!has_tcp_events || early.contains("flow.cause.fast_retransmit"), "{early}");
    // Early values of the link equal those of the record.
    let index = |begin: &Value| {
        let is_core =
            |series: &Value| series["metric"] == "link.throughput" && series["subject"] == "core.forward";
        begin["series"].as_array().unwrap().iter().position(is_core).unwrap()
    };
    let values = |begin: &Value| -> Vec<Value> {
        let own = run_events.iter().filter(|data| data["kind"] == "bins" && data["run"] == begin["run"]);
        own.flat_map(|data| data["values"][index(begin)].as_array().unwrap().clone()).collect()
    };
    let (early, late) = (values(begun[0]), values(begun.last().unwrap()));
    assert_eq!(early[..], late[..early.len()]);
    assert_eq!(late.len(), 8);
}

fn two_servers_can_share_folders() {
    let one = TestServer::start("serve-two", &[]);
    let other = one.second();
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let begun = [&one, &other].map(|server| server.start_run("long.toml", &long, "sim"));
    let records = [(&one, begun[0]), (&other, begun[1])].map(|(server, id)| {
        server.send_json("DELETE", &format!("/api/runs/{id}"), &Value::Null);
        let ended = server.end(id);
        assert_eq!(ended["phase"], "stopped");
        ended["record"].as_str().unwrap().to_owned()
    });
    assert!(records.contains(&"long".into()) && records.contains(&"long-2".into()), "{records:?}");
    // Each server lists both.
    let names = |server: &TestServer| -> Vec<Value> {
        server
            .get("/api/records")
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].clone())
            .collect()
    };
    assert_eq!(names(&one), ["long", "long-2"]);
    assert_eq!(names(&one), names(&other));

    // A file written by one server is not overwritten by the other.
    let write = |server: &TestServer, text: &str| {
        let body = json!({ "text": text, "before": SCENARIO });
        server.send_json("PUT", "/api/scenario?name=sub/two.toml", &body).status
    };
    assert_eq!((write(&one, "# one"), write(&other, "# other")), (204, 409));
    assert_eq!(fs::read_to_string(one.folder.join("scenarios/sub/two.toml")).unwrap(), "# one");
}

fn a_study_on_a_full_disk_fails_and_can_be_resumed() {
    needs::root();
    let folder = TemporaryFolder::new("serve-full");
    fs::create_dir_all(folder.join("scenarios")).unwrap();
    fs::create_dir_all(folder.join("records")).unwrap();
    // A private mount, removed with the server.
    let script = "mount -t tmpfs -o size=128k none records && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", PROGRAM]).args(SERVE);
    let mut server = TestServer::start_command(Rc::new(folder), &mut command);
    let many = SCENARIO.replace("repeat = 2", "repeat = 40").replace("\"8 s\"", "\"2 s\"");
    let many = many.replace("[\"4 s\", \"2 s\"]", "[\"1 s\", \"2 s\"]");
    let ended = server.end(server.start_run("many.toml", &many, "sim"));
    assert_eq!((&ended["phase"], &ended["exit"]), (&json!("failed"), &json!(1)), "{ended}");
    assert!(ended["problem"].as_str().unwrap().contains("No space left"), "{ended}");
    let found = server.get("/api/records").json();
    let kept = found[0]["done"].as_u64().unwrap();
    assert!(found[0]["state"] == "unfinished" && (1..40).contains(&kept), "{found}");

    let process = server.process.child().id().to_string();
    let resized = Command::new("nsenter")
        .args(["--target", &process, "--mount", "mount", "-o", "remount,size=64m"])
        .arg(server.folder.join("records"))
        .status();
    assert!(resized.unwrap().success());
    let ended = server.end(server.start_run("many.toml", &many, "sim"));
    assert_eq!((&ended["phase"], &ended["record"]), (&json!("finished"), &json!("many")), "{ended}");
    let file = server.get("/api/record/file?name=many&file=environment.json").json();
    assert_eq!(file["resumed_runs"], kept);
}

fn records_of_scenarios_in_subfolders_are_not_nested() {
    let server = TestServer::start("serve-flat", &[]);
    let short = SCENARIO.replace("repeat = 2", "repeat = 1");
    let record = |name: &str| server.end(server.start_run(name, &short, "sim"))["record"].clone();
    assert_eq!(
        ["sub.toml", "sub/two.toml", "sub-two.toml", "a/b/c/d.toml"].map(record),
        ["sub", "sub-two", "sub-two-2", "a-b-c-d"]
    );
    let found = server.get("/api/records").json();
    assert_eq!(found.as_array().unwrap().len(), 4, "no record is inside another: {found}");
    let deep = server.send_json("POST", "/api/runs", &order("a/b/c/d/e.toml", &short, "sim"));
    assert_eq!((deep.status, deep.message().contains("too many folders")), (400, true), "{deep:?}");
}

fn study_numbers_are_unique_across_servers() {
    let server = TestServer::start("serve-numbers", &[]);
    let short = SCENARIO.replace("repeat = 2", "repeat = 1");
    let run = |server: &TestServer| {
        let id = server.start_run("short.toml", &short, "sim");
        server.end(id);
        id
    };
    let first = run(&server);
    let second = run(&server);
    assert!(server.get("/metrics").text().contains("\nnetstage_controller_studies_total 2\n"));
    let other = server.second();
    let third = run(&other);
    assert!(first < second && second < third && third < 1 << 53, "{first} {second} {third}");
    let unknown = other.get(&format!("/api/runs/{first}"));
    assert_eq!((unknown.status, unknown.message()), (404, format!("study {first} does not exist")));
}

fn updates_continue_from_the_previous_response() {
    let server = TestServer::start("serve-updates", &[]);
    let id = server.start_run("sub/two.toml", SCENARIO, "sim");
    // The version of the status never decreases, whether polled with events or without.
    let mut latest = 0;
    let mut update_after = |after: &str| {
        let shown = server.get(&format!("/api/runs/{id}")).json();
        let response = server.get(&format!("/api/runs/{id}/updates?after={after}"));
        let before = shown["version"].as_u64().unwrap();
        if response.status == 204 {
            assert!(response.body.is_empty() && before == latest, "{response:?} {before} {latest}");
            return None;
        }
        let update = response.json();
        let version = update["status"]["version"].as_u64().unwrap();
        assert!(latest <= before && before <= version, "{latest} {before} {version}");
        latest = version;
        Some(update)
    };
    let (mut bins, mut after) = (std::collections::BTreeMap::new(), String::new());
    loop {
        let Some(update) = update_after(&after) else { continue };
        for event in update["events"].as_array().unwrap() {
            let own = bins.entry(event["run"].as_u64().unwrap()).or_insert(0);
            match event["kind"].as_str().unwrap() {
                "bins" => {
                    assert_eq!(event["from"], json!(*own), "each bin once");
                    *own += event["values"][0].as_array().unwrap().len();
                }
                kind => assert_eq!((kind == "begin", *own), (*own == 0, *own), "{event}"),
            }
        }
        after = update["next"].as_str().unwrap().to_owned();
        if update["status"]["phase"] == "finished" {
            break;
        }
    }
    assert_eq!(bins.values().filter(|bins| **bins == 16).count(), 2, "{bins:?}");
    assert!(update_after(&after).is_none(), "a finished study has no updates");
    let all = update_after("").unwrap();
    assert_eq!((&all["status"]["phase"], &all["next"]), (&json!("finished"), &json!(after)));
    let events = server.events(id);
    let mut versions =
        events.iter().filter(|(name, _)| name == "status").map(|(_, data)| data["version"].as_u64());
    assert!(versions.clone().is_sorted() && versions.next_back().unwrap() >= Some(latest));
    for after in ["7", "0:1", "@", "0:1@x", "x@1"] {
        let rejected = server.get(&format!("/api/runs/{id}/updates?after={after}"));
        let is_named = rejected.message().contains("is not the `next` of a previous response");
        assert_eq!((rejected.status, is_named), (400, true), "{after}");
    }
}

netstage_harness::tests![
    a_run_sends_events_and_writes_the_record_of_the_command_line,
    a_stopped_study_is_listed_and_can_be_resumed,
    an_emulated_run_sends_events,
    two_servers_can_share_folders,
    a_study_on_a_full_disk_fails_and_can_be_resumed,
    records_of_scenarios_in_subfolders_are_not_nested,
    study_numbers_are_unique_across_servers,
    updates_continue_from_the_previous_response,
];
