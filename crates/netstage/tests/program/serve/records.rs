//! Records, whole and damaged.

use super::*;

fn damaged_records_are_shown_as_such() {
    let server = Server::start("serve-damaged", &[]);
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
        .map(|one| (one["name"].as_str().unwrap(), one["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("broken", "unreadable"), ("newer", "unreadable")]);
    assert!(found[1]["problem"].as_str().unwrap().contains("use a newer netstage"), "{found}");
    assert_eq!(server.get("/api/record?name=broken").status, 422);
    assert_eq!(server.get("/api/record?name=empty").status, 404);
}

/// The record's name, its file, what is done to it, the state then shown, and what is said.
type Damage<'a> = (&'a str, &'a str, &'a dyn Fn(&Path), &'a str, &'a str);

fn a_record_with_a_damaged_file_says_which() {
    let server = Server::start("serve-damaged-files", &[]);
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
        ("a", "series.parquet", &|file| fs::remove_file(file).unwrap(), "damaged", "it is missing"),
        ("b", "series.parquet", &|file| fs::write(file, "garbage").unwrap(), "damaged", "it has 7 bytes"),
        (
            "c",
            "series.parquet",
            &|file| fs::write(file, vec![7; fs::metadata(file).unwrap().len() as usize]).unwrap(),
            "damaged",
            "series.parquet: ",
        ),
        ("d", "figures.json", &|file| fs::remove_file(file).unwrap(), "damaged", "it is missing"),
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
            "plan.json: it is damaged",
        ),
        // Nobody ever writes into them.
        ("h", "record.json", &fifo, "unreadable", "record.json: it is no regular file"),
        ("i", "series.parquet", &fifo, "damaged", "series.parquet: it is no regular file"),
        ("j", "figures.json", &fifo, "damaged", "figures.json: it is no regular file"),
        ("k", "environment.json", &fifo, "finished", ""),
    ];
    for (name, file, damage, ..) in &damages {
        let folder = copy(name);
        // Seen whole before, it is not shown so for ever.
        assert!(server.get("/api/records").text().contains("finished"));
        damage(&folder.join(file));
    }
    let found = server.get("/api/records").json();
    for (name, _, _, state, said) in &damages {
        let entry = found.as_array().unwrap().iter().find(|one| one["name"] == *name).unwrap();
        let problem = entry["problem"].as_str().unwrap_or_default();
        assert!(entry["state"] == *state && problem.contains(said), "{entry}");
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
        let taken = server.get(&format!("/api/record/file?name={name}&file={file}"));
        assert_eq!(
            (taken.status, taken.message()),
            (400, format!("cannot read {file}: it is no regular file"))
        );
    }
    let mut report = Command::new(PROGRAM);
    let odd = report.arg("report").arg(server.folder.join("records/h")).output().unwrap();
    let said = String::from_utf8_lossy(&odd.stderr);
    assert!(said.contains("record.json: it is no regular file"), "{odd:?}");
    assert_eq!(odd.status.code(), Some(1));
    assert_eq!(server.get("/api/record/file?name=a&file=series.parquet").status, 404);
}

fn expectations_are_counted_as_the_report_counts_them() {
    let server = Server::start("serve-counted", &[]);
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
    damaged_records_are_shown_as_such,
    a_record_with_a_damaged_file_says_which,
    expectations_are_counted_as_the_report_counts_them,
];
