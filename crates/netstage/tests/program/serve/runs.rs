//! Runs, started, told of and stopped.

use super::*;
use netstage_harness::needs;

fn a_run_is_told_as_it_happens_and_leaves_the_record_of_the_command_line() {
    let server = Server::start("serve-run", &[]);
    let id = server.start_run("sub/two.toml", SCENARIO, "sim");
    let events = server.events(id);
    let status = server.get(&format!("/api/runs/{id}")).json();
    assert_eq!((&status["phase"], &status["exit"]), (&json!("finished"), &json!(0)), "{status}");
    assert_eq!(status["topology"]["nodes"].as_array().unwrap().len(), 6);

    // Every bin of both runs, each told once since its run was last begun.
    let mut told = std::collections::BTreeMap::new();
    for (_, data) in events.iter().filter(|(name, _)| name == "told") {
        let run = data["run"].as_u64().unwrap();
        match data["kind"].as_str().unwrap() {
            "begin" => drop(told.insert(run, (data.clone(), 0, false))),
            "bins" => {
                let of = told.get_mut(&run).unwrap();
                assert_eq!(data["from"], json!(of.1));
                let values = data["values"].as_array().unwrap();
                assert_eq!(values.len(), of.0["series"].as_array().unwrap().len());
                of.1 += values[0].as_array().unwrap().len();
            }
            _ => told.get_mut(&run).unwrap().2 = true,
        }
    }
    let whole: Vec<u64> = told
        .values()
        .filter(|(_, bins, over)| *bins == 16 && *over)
        .map(|(b, ..)| b["seed"].as_u64().unwrap())
        .collect();
    assert_eq!(
        {
            let mut seeds = whole;
            seeds.sort();
            seeds.dedup();
            seeds
        },
        [3, 4],
        "{told:?}"
    );
    let (begun, ..) = told.values().next().unwrap();
    for metric in ["vpn.throughput", "vpn.window", "fairness.inter_vpn", "link.utilisation", "link.queue"] {
        assert!(begun["series"].to_string().contains(metric), "{metric}");
    }

    // Being watched changes no byte.
    let ran = Command::new(PROGRAM)
        .args(["run", "scenarios/sub/two.toml", "--out", "byhand"])
        .current_dir(&*server.folder)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    for file in ["series.parquet", "record.json", "figures.json"] {
        let (here, there) = (server.folder.join("records/sub-two"), server.folder.join("byhand"));
        assert!(fs::read(here.join(file)).unwrap() == fs::read(there.join(file)).unwrap(), "{file}");
    }

    // The record is found, shown, and taken along.
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

    // Started again, it does not write over what is there, and both can be compared.
    let again = server.end(server.start_run("sub/two.toml", SCENARIO, "sim"));
    assert_eq!(again["record"], "sub-two-2");
    let compared = server.ask("POST", "/api/compare", &json!({ "names": ["sub-two", "sub-two-2"] }));
    assert!(compared.json()["title"].as_str().unwrap().starts_with("Comparison of"));
    let file =
        server.ask("POST", "/api/compare/report.html", &json!({ "names": ["sub-two", "sub-two-2"] })).text();
    assert!(file.starts_with("<!doctype html>") && file.contains("Comparison of"), "{file:.200}");
    for names in [json!(["sub-two"]), json!(["sub-two", "../sub-two"])] {
        let refused = server.ask("POST", "/api/compare/report.html", &json!({ "names": names }));
        assert_eq!(refused.status, 400, "{names}");
    }
}

fn a_stopped_study_is_shown_as_such_and_goes_on() {
    let server = Server::start("serve-stop", &[]);
    // Long enough that no machine is done with it before it is stopped.
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let id = server.start_run("long.toml", &long, "sim");
    let refused = server.ask("POST", "/api/runs", &order("sub/two.toml", SCENARIO, "sim"));
    assert_eq!((refused.status, refused.message()), (409, "\"Two VPNs\" is running".into()));
    assert!(server.get("/metrics").text().contains("\nnetstage_controller_studies_running 1\n"));
    assert_eq!(server.ask("DELETE", &format!("/api/runs/{id}"), &Value::Null).status, 202);
    let status = server.end(id);
    assert_eq!((&status["phase"], &status["exit"]), (&json!("stopped"), &json!(130)));
    let found = server.get("/api/records").json();
    assert_eq!((&found[0]["state"], &found[0]["total"]), (&json!("unfinished"), &json!(100_000)), "{found}");
    assert_eq!(found[0]["title"], "Two VPNs");
    let read = server.get("/api/record?name=long");
    assert_eq!(read.status, 409);
    assert!(read.message().contains("is unfinished"));
    // The same study goes on in the same folder.
    let id = server.start_run("long.toml", &long, "sim");
    assert_eq!(server.get(&format!("/api/runs/{id}")).json()["record"], "long");
    // The server ends in good order though it runs.
    let Server { mut process, folder, .. } = server;
    process.signal("-TERM");
    assert!(process.output().status.success());
    assert!(folder.join("records/long/plan.json").exists());
}

fn an_emulated_run_is_told_as_it_happens() {
    needs::emulation();
    let server = Server::start("serve-emu", &[]);
    let short = SCENARIO
        .replace("repeat = 2", "repeat = 1")
        .replace("8 s\"\nseed", "4 s\"\nseed")
        .replace("\"8 s\"]", "\"4 s\"]")
        .replace("[\"4 s\",", "[\"2 s\",");
    // Programs in the kernel need root.
    let watched = needs::are_namespaces_allowed();
    let short = match watched {
        true => short.replace("interval = ", "flow_detail = true\ntcp = \"events\"\ninterval = "),
        false => short,
    };
    let id = server.start_run("emu.toml", &short, "emu");
    let events = server.events(id);
    let status = &events.iter().rfind(|(name, _)| name == "status").unwrap().1;
    assert_eq!(status["phase"], "finished", "{status}");
    let told: Vec<&Value> = events.iter().filter(|(name, _)| name == "told").map(|(_, data)| data).collect();
    // Told piece by piece before the end, windows and why they fell among it; what came late to a bin may
    // be told once more at the end.
    let begun: Vec<&&Value> = told.iter().filter(|data| data["kind"] == "begin").collect();
    let pieces = |begin: &&&&Value| {
        told.iter().filter(|data| data["kind"] == "bins" && data["run"] == begin["run"]).count()
    };
    let told_early: Vec<&&&Value> = begun.iter().filter(|begin| pieces(begin) >= 2).collect();
    let said = format!("{told_early:?}");
    for metric in ["link.utilisation", "vpn.throughput", "vpn.window", "fairness.inter_vpn"] {
        assert!(said.contains(metric), "{metric}: {said}");
    }
    assert!(!watched || said.contains("flow.cause.fast_retransmit"), "{said}");
    // What was told of the link early is what the record says of it.
    let place = |begin: &Value| {
        let is_core = |of: &Value| of["metric"] == "link.throughput" && of["subject"] == "core.forward";
        begin["series"].as_array().unwrap().iter().position(is_core).unwrap()
    };
    let values = |begin: &Value| -> Vec<Value> {
        let own = told.iter().filter(|data| data["kind"] == "bins" && data["run"] == begin["run"]);
        own.flat_map(|data| data["values"][place(begin)].as_array().unwrap().clone()).collect()
    };
    let (early, late) = (values(begun[0]), values(begun.last().unwrap()));
    assert_eq!(early[..], late[..early.len()]);
    assert_eq!(late.len(), 8);
}

fn two_servers_of_one_folder_leave_each_others_work_alone() {
    let one = Server::start("serve-two", &[]);
    let other = one.beside();
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let begun = [&one, &other].map(|server| server.start_run("long.toml", &long, "sim"));
    let records = [(&one, begun[0]), (&other, begun[1])].map(|(server, id)| {
        server.ask("DELETE", &format!("/api/runs/{id}"), &Value::Null);
        let ended = server.end(id);
        assert_eq!(ended["phase"], "stopped");
        ended["record"].as_str().unwrap().to_owned()
    });
    assert!(records.contains(&"long".into()) && records.contains(&"long-2".into()), "{records:?}");
    // Either shows both.
    let names = |server: &Server| -> Vec<Value> {
        server.get("/api/records").json().as_array().unwrap().iter().map(|one| one["name"].clone()).collect()
    };
    assert_eq!(names(&one), ["long", "long-2"]);
    assert_eq!(names(&one), names(&other));

    // What one keeps, the other does not write over.
    let keep = |server: &Server, text: &str| {
        let body = json!({ "text": text, "before": SCENARIO });
        server.ask("PUT", "/api/scenario?name=sub/two.toml", &body).status
    };
    assert_eq!((keep(&one, "# one"), keep(&other, "# other")), (204, 409));
    assert_eq!(fs::read_to_string(one.folder.join("scenarios/sub/two.toml")).unwrap(), "# one");
}

fn a_full_disk_fails_a_study_with_its_reason_and_room_lets_it_go_on() {
    needs::root();
    let folder = Folder::new("serve-full");
    fs::create_dir_all(folder.join("scenarios")).unwrap();
    fs::create_dir_all(folder.join("records")).unwrap();
    // A mount that nobody else sees, and that goes with the server.
    let script = "mount -t tmpfs -o size=128k none records && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", PROGRAM]).args(SERVE);
    let mut server = Server::of(Rc::new(folder), &mut command);
    let many = SCENARIO.replace("repeat = 2", "repeat = 40").replace("\"8 s\"", "\"2 s\"");
    let many = many.replace("[\"4 s\", \"2 s\"]", "[\"1 s\", \"2 s\"]");
    let ended = server.end(server.start_run("many.toml", &many, "sim"));
    assert_eq!((&ended["phase"], &ended["exit"]), (&json!("failed"), &json!(1)), "{ended}");
    assert!(ended["problem"].as_str().unwrap().contains("No space left"), "{ended}");
    let found = server.get("/api/records").json();
    let kept = found[0]["done"].as_u64().unwrap();
    assert!(found[0]["state"] == "unfinished" && (1..40).contains(&kept), "{found}");

    let process = server.process.child().id().to_string();
    let grown = Command::new("nsenter")
        .args(["--target", &process, "--mount", "mount", "-o", "remount,size=64m"])
        .arg(server.folder.join("records"))
        .status();
    assert!(grown.unwrap().success());
    let ended = server.end(server.start_run("many.toml", &many, "sim"));
    assert_eq!((&ended["phase"], &ended["record"]), (&json!("finished"), &json!("many")), "{ended}");
    let file = server.get("/api/record/file?name=many&file=environment.json").json();
    assert_eq!(file["resumed_runs"], kept);
}

fn records_of_scenarios_in_folders_lie_side_by_side() {
    let server = Server::start("serve-flat", &[]);
    let short = SCENARIO.replace("repeat = 2", "repeat = 1");
    let record = |name: &str| server.end(server.start_run(name, &short, "sim"))["record"].clone();
    assert_eq!(
        ["sub.toml", "sub/two.toml", "sub-two.toml", "a/b/c/d.toml"].map(record),
        ["sub", "sub-two", "sub-two-2", "a-b-c-d"]
    );
    let found = server.get("/api/records").json();
    assert_eq!(found.as_array().unwrap().len(), 4, "none lies in another: {found}");
    let deep = server.ask("POST", "/api/runs", &order("a/b/c/d/e.toml", &short, "sim"));
    assert_eq!((deep.status, deep.message().contains("lies too deep")), (400, true), "{deep:?}");
}

fn no_number_of_a_run_comes_again() {
    let server = Server::start("serve-numbers", &[]);
    let short = SCENARIO.replace("repeat = 2", "repeat = 1");
    let run = |server: &Server| {
        let id = server.start_run("short.toml", &short, "sim");
        server.end(id);
        id
    };
    let first = run(&server);
    let second = run(&server);
    assert!(server.get("/metrics").text().contains("\nnetstage_controller_studies_total 2\n"));
    let other = server.beside();
    let third = run(&other);
    assert!(first < second && second < third && third < 1 << 53, "{first} {second} {third}");
    let unknown = other.get(&format!("/api/runs/{first}"));
    assert_eq!((unknown.status, unknown.message()), (404, format!("there is no run {first}")));
}

fn news_begin_where_the_answer_before_ended() {
    let server = Server::start("serve-news", &[]);
    let id = server.start_run("sub/two.toml", SCENARIO, "sim");
    // How it is told, and asked for, never goes back behind what was told before.
    let mut latest = 0;
    let mut news = |after: &str| {
        let shown = server.get(&format!("/api/runs/{id}")).json();
        let answer = server.get(&format!("/api/runs/{id}/news?after={after}"));
        let before = shown["version"].as_u64().unwrap();
        if answer.status == 204 {
            assert!(answer.body.is_empty() && before == latest, "{answer:?} {before} {latest}");
            return None;
        }
        let news = answer.json();
        let version = news["status"]["version"].as_u64().unwrap();
        assert!(latest <= before && before <= version, "{latest} {before} {version}");
        latest = version;
        Some(news)
    };
    let (mut bins, mut after) = (std::collections::BTreeMap::new(), String::new());
    loop {
        let Some(news) = news(&after) else { continue };
        for told in news["told"].as_array().unwrap() {
            let own = bins.entry(told["run"].as_u64().unwrap()).or_insert(0);
            match told["kind"].as_str().unwrap() {
                "bins" => {
                    assert_eq!(told["from"], json!(*own), "each bin once");
                    *own += told["values"][0].as_array().unwrap().len();
                }
                kind => assert_eq!((kind == "begin", *own), (*own == 0, *own), "{told}"),
            }
        }
        after = news["next"].as_str().unwrap().to_owned();
        if news["status"]["phase"] == "finished" {
            break;
        }
    }
    assert_eq!(bins.values().filter(|bins| **bins == 16).count(), 2, "{bins:?}");
    assert!(news(&after).is_none(), "nothing comes of a study that is over");
    let whole = news("").unwrap();
    assert_eq!((&whole["status"]["phase"], &whole["next"]), (&json!("finished"), &json!(after)));
    let events = server.events(id);
    let mut versions =
        events.iter().filter(|(name, _)| name == "status").map(|(_, data)| data["version"].as_u64());
    assert!(versions.clone().is_sorted() && versions.next_back().unwrap() >= Some(latest));
    for after in ["7", "0:1", "@", "0:1@x", "x@1"] {
        let refused = server.get(&format!("/api/runs/{id}/news?after={after}"));
        let said = refused.message().contains("is not what an answer before told");
        assert_eq!((refused.status, said), (400, true), "{after}");
    }
}

netstage_harness::tests![
    a_run_is_told_as_it_happens_and_leaves_the_record_of_the_command_line,
    a_stopped_study_is_shown_as_such_and_goes_on,
    an_emulated_run_is_told_as_it_happens,
    two_servers_of_one_folder_leave_each_others_work_alone,
    a_full_disk_fails_a_study_with_its_reason_and_room_lets_it_go_on,
    records_of_scenarios_in_folders_lie_side_by_side,
    no_number_of_a_run_comes_again,
    news_begin_where_the_answer_before_ended,
];
