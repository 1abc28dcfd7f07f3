//! Tests of complete and damaged records.

use super::*;

fn damaged_records_are_listed_as_damaged() {
    let server = TestServer::start("serve-damaged", &[]);
    let write = |path: &str, text: &str| {
        let path = server.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("records/broken/record.json", "{");
    write("records/newer/record.json", "{\"schema\": \"99.0\"}");
    write("records/empty/other.txt", "");
    let found = server.get("/api/records").json();
    let states: Vec<(&str, &str)> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("broken", "unreadable"), ("newer", "unreadable")]);
    assert!(found[1]["problem"].as_str().unwrap().contains("use a newer netstage"), "{found}");
    assert_eq!(server.get("/api/record?name=broken").status, 422);
    assert_eq!(server.get("/api/record?name=empty").status, 404);
}

/// Name of the record, file, damage to it, resulting state, and part of the message.
type Damage<'a> = (&'a str, &'a str, &'a dyn Fn(&Path), &'a str, &'a str);

fn the_damaged_file_of_a_record_is_named() {
    let server = TestServer::start("serve-damaged-files", &[]);
    server.end(server.start_run("whole.toml", SCENARIO, "sim"));
    let copy = |name: &str| {
        let folder = server.folder.join("records").join(name);
        fs::create_dir(&folder).unwrap();
        for file in ["record.json", "series.parquet", "figures.json", "environment.json"] {
            fs::copy(server.folder.join("records/whole").join(file), folder.join(file)).unwrap();
        }
        folder
    };
    let fifo = |file: &Path| {
        fs::remove_file(file).unwrap();
        nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    let damages: [Damage; 11] = [
        ("a", "series.parquet", &|file| fs::remove_file(file).unwrap(), "damaged", "the file is missing"),
        (
            "b",
            "series.parquet",
            &|file| fs::write(file, "garbage").unwrap(),
            "damaged",
            "the file has 7 bytes",
        ),
        (
            "c",
            "series.parquet",
            &|file| fs::write(file, vec![7; fs::metadata(file).unwrap().len() as usize]).unwrap(),
            "damaged",
            "series.parquet: ",
        ),
        ("d", "figures.json", &|file| fs::remove_file(file).unwrap(), "damaged", "the file is missing"),
        ("e", "figures.json", &|file| fs::write(file, "garbage").unwrap(), "unreadable", "figures.json: "),
        ("f", "record.json", &|file| fs::write(file, "garbage").unwrap(), "unreadable", "record.json: "),
        (
            "g",
            "record.json",
            &|file| {
                fs::remove_file(file).unwrap();
                fs::write(file.with_file_name("plan.json"), "garbage").unwrap();
            },
            "unreadable",
            "plan.json: the file is damaged",
        ),
        // FIFOs without a writer.
        ("h", "record.json", &fifo, "unreadable", "record.json: not a regular file"),
        ("i", "series.parquet", &fifo, "damaged", "series.parquet: not a regular file"),
        ("j", "figures.json", &fifo, "damaged", "figures.json: not a regular file"),
        ("k", "environment.json", &fifo, "finished", ""),
    ];
    for (name, file, damage, ..) in &damages {
        let folder = copy(name);
        // The list caches the complete record, but must notice the damage.
        assert!(server.get("/api/records").text().contains("finished"));
        damage(&folder.join(file));
    }
    let found = server.get("/api/records").json();
    for (name, _, _, state, message) in &damages {
        let entry = found.as_array().unwrap().iter().find(|entry| entry["name"] == *name).unwrap();
        let problem = entry["problem"].as_str().unwrap_or_default();
        assert!(entry["state"] == *state && problem.contains(message), "{entry}");
        let opened = server.get(&format!("/api/record?name={name}"));
        match *state {
            "damaged" => {
                let warning = format!("The record is damaged: {problem}");
                assert_eq!((opened.status, &opened.json()["warnings"][0]), (200, &json!(warning)));
            }
            "finished" => assert_eq!(opened.status, 200),
            _ => assert_eq!((opened.status, opened.message().as_str()), (422, problem)),
        }
    }
    for (name, file) in [("h", "record.json"), ("i", "series.parquet"), ("k", "environment.json")] {
        let response = server.get(&format!("/api/record/file?name={name}&file={file}"));
        assert_eq!(
            (response.status, response.message()),
            (400, format!("cannot read {file}: not a regular file"))
        );
    }
    let mut report = Command::new(PROGRAM);
    let output = report.arg("report").arg(server.folder.join("records/h")).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("record.json: not a regular file"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(server.get("/api/record/file?name=a&file=series.parquet").status, 404);
}

fn expectations_are_counted_as_in_the_report() {
    let server = TestServer::start("serve-counted", &[]);
    let swept =
        format!("{SCENARIO}\n[sweep]\n\"vpn.gold.weight\" = [2, 5, 7]\n").replace("repeat = 2", "repeat = 1");
    server.end(server.start_run("swept.toml", &swept, "sim"));
    let found = server.get("/api/records").json();
    let report = server.get("/api/record?name=swept").json();
    let verdicts = report["expectations"].as_array().unwrap();
    assert_eq!((&found[0]["expected"], &found[0]["met"]), (&json!(3), &json!(3)), "{found}");
    assert_eq!(verdicts.len(), 3);
}

netstage_harness::tests![
    damaged_records_are_listed_as_damaged,
    the_damaged_file_of_a_record_is_named,
    expectations_are_counted_as_in_the_report,
];
