//! `netstage serve` as programs and hostile pages meet it.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use support::network::is_privileged;
use support::{Folder, Process, can_emulate};

const PROGRAM: &str = env!("CARGO_BIN_EXE_netstage");

/// Two VPNs on one link, two seeds: simulated in a moment.
const SCENARIO: &str = r#"
[scenario]
title = "Two VPNs"
duration = "8 s"
seed = 3
repeat = 2

[defaults.link]
rate = "100 Mbit/s"
delay = "1 ms"
buffer = "50 packets"

[node.a]
[node.b]
[node.c]
[node.d]
[node.left]
kind = "pe"
[node.right]
kind = "pe"

[link.core]
ends = ["left", "right"]
rate = "8 Mbit/s"
delay = "10 ms"
[link.one]
ends = ["a", "left"]
[link.two]
ends = ["b", "left"]
[link.three]
ends = ["right", "c"]
[link.four]
ends = ["right", "d"]

[vpn.gold]
weight = 2
ingress = "left"
egress = "right"
[vpn.silver]
ingress = "left"
egress = "right"

[flow.gold]
vpn = "gold"
from = "a"
to = "c"
count = 2
[flow.silver]
vpn = "silver"
from = "b"
to = "d"
count = 2

[measure]
interval = "500 ms"

[expect.line-is-used]
metric = "link.utilisation"
subject = "core.forward"
over = ["4 s", "8 s"]
at_least = 0.5

[plot.shares]
metric = "vpn.throughput"
"#;

const SERVE: [&str; 6] = ["serve", "scenarios", "--records", "records", "--listen", "127.0.0.1:0"];

/// A server on loopback, and its folders.
struct Server {
    process: Process,
    /// `127.0.0.1:PORT`.
    host: String,
    /// The line it printed.
    printed: String,
    folder: Rc<Folder>,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The sentence of a refusal.
    fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

impl Server {
    fn start(name: &str, arguments: &[&str]) -> Server {
        let folder = Folder::new(name);
        fs::create_dir_all(folder.join("scenarios/sub")).unwrap();
        fs::write(folder.join("scenarios/sub/two.toml"), SCENARIO).unwrap();
        Server::of(Rc::new(folder), Command::new(PROGRAM).args(SERVE).args(arguments))
    }

    /// A second one, of the same folders.
    fn beside(&self) -> Server {
        Server::of(Rc::clone(&self.folder), Command::new(PROGRAM).args(SERVE))
    }

    /// What a command serves of a folder.
    fn of(folder: Rc<Folder>, command: &mut Command) -> Server {
        let mut child = command.current_dir(&**folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        let host = printed.trim().strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        Server { process: Process::new(child), host, printed, folder }
    }

    /// Sends a request as it stands; HTTP/1.0, so that the end of the answer is that of the connection.
    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let mut head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.host);
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut bytes = Vec::new();
        self.open(method, path, headers, body).read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: bytes[end + 4..].to_vec() }
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &[("Content-Type", "application/json")], &body.to_string())
    }

    fn start_run(&self, name: &str, text: &str, stage: &str) -> u64 {
        let order = json!({ "scenario": { "name": name, "text": text }, "stage": stage });
        let answer = self.ask("POST", "/api/runs", &order);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_u64().unwrap()
    }

    /// What is told of a run until it is over: names of events, and their data.
    fn events(&self, id: u64) -> Vec<(String, Value)> {
        let stream = self.open("GET", &format!("/api/runs/{id}/events"), &[], "");
        let (mut events, mut name) = (Vec::new(), String::new());
        for line in BufReader::new(stream).lines().map(Result::unwrap) {
            if let Some(kind) = line.strip_prefix("event: ") {
                name = kind.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                events.push((name.clone(), serde_json::from_str(data).unwrap()));
            }
        }
        events
    }

    /// How a run ended.
    fn end(&self, id: u64) -> Value {
        let events = self.events(id);
        assert_eq!(events.last().unwrap().0, "over");
        events.iter().rfind(|(name, _)| name == "status").unwrap().1.clone()
    }
}

#[test]
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
    let checked = server.ask("POST", "/api/check", &json!({ "name": "wrong.toml", "text": wrong })).json();
    assert_eq!(checked["sound"], false);
    let problems = checked["problems"].as_array().unwrap();
    assert!(problems.len() >= 2, "{checked}");
    for (here, there) in problems.iter().zip(told["error"]["problems"].as_array().unwrap()) {
        for field in ["file", "line", "column", "message"] {
            assert_eq!(here[field], there[field], "{field}");
        }
        assert_eq!(here.get("help").unwrap_or(&Value::Null), &there["help"]);
    }
    let sound = server.ask("POST", "/api/check", &json!({ "name": "two.toml", "text": SCENARIO })).json();
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
    assert_eq!(fs::read_to_string(server.folder.join("scenarios/new/three.toml")).unwrap(), "# four");
}

#[test]
fn no_name_leads_out_of_the_folders() {
    let server = Server::start("serve-paths", &[]);
    fs::write(server.folder.join("secret.toml"), "secret = 1").unwrap();
    fs::write(server.folder.join("secret.csv"), "secret,1").unwrap();
    std::os::unix::fs::symlink(server.folder.join("secret.toml"), server.folder.join("scenarios/link.toml"))
        .unwrap();
    let names = [
        "../secret.toml",
        "..%2Fsecret.toml",
        "%2e%2e/secret.toml",
        "sub/../../secret.toml",
        "%2Fetc%2Fpasswd.toml",
        "link.toml",
        "sub%5C..%5C..%5Csecret.toml",
        "secret%00.toml",
        ".hidden.toml",
        "sub/",
        "",
    ];
    for name in names {
        let read = server.get(&format!("/api/scenario?name={name}"));
        assert!(matches!(read.status, 400 | 404), "{name}: {read:?}");
        assert!(!read.text().contains("secret = 1"), "{name}");
        let body = json!({ "text": "mine", "before": null });
        let written = server.ask("PUT", &format!("/api/scenario?name={name}"), &body);
        assert_eq!(written.status, 400, "{name}: {written:?}");
        for path in ["record?name=", "record/file?file=record.json&name="] {
            let read = server.get(&format!("/api/{path}{name}"));
            assert!(matches!(read.status, 400 | 404), "{path}{name}: {read:?}");
        }
    }
    assert_eq!(fs::read_to_string(server.folder.join("secret.toml")).unwrap(), "secret = 1");
    for path in
        ["/../secret.toml", "/%2e%2e/secret.toml", "/app.js/../../secret.toml", "/records/../../secret.toml"]
    {
        assert!(!server.get(path).text().contains("secret = 1"), "{path}");
    }
    // Neither does a file that a scenario names, nor the file of a record.
    let trace = SCENARIO.replace(
        "[flow.gold]",
        "[flow.gold]\ntransport = \"udp\"\ntraffic = { model = \"trace\", file = \"../secret.csv\" }",
    );
    let checked = server.ask("POST", "/api/check", &json!({ "name": "two.toml", "text": trace })).json();
    assert!(checked["problems"].to_string().contains("is out of reach"), "{checked}");
    assert_eq!(server.get("/api/record/file?name=sub&file=../../secret.toml").status, 400);
}

#[test]
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
        let (here, there) = (server.folder.join("records/sub/two"), server.folder.join("byhand"));
        assert!(fs::read(here.join(file)).unwrap() == fs::read(there.join(file)).unwrap(), "{file}");
    }

    // The record is found, shown, and taken along.
    let found = server.get("/api/records?search=TWO+vpns").json();
    assert_eq!((&found[0]["name"], &found[0]["met"]), (&json!("sub/two"), &json!(1)), "{found}");
    assert_eq!(server.get("/api/records?search=absent").json(), json!([]));
    assert_eq!(server.get("/api/record?name=sub/two").json()["title"], "Two VPNs");
    let file = server.get("/api/record/file?name=sub/two&file=series.parquet");
    assert_eq!(file.body, fs::read(server.folder.join("records/sub/two/series.parquet")).unwrap());
    assert!(
        file.head.contains("content-disposition: attachment; filename=\"sub-two-series.parquet\""),
        "{}",
        file.head
    );

    // Started again, it does not write over what is there, and both can be compared.
    let again = server.end(server.start_run("sub/two.toml", SCENARIO, "sim"));
    assert_eq!(again["record"], "sub/two-2");
    let compared = server.ask("POST", "/api/compare", &json!({ "names": ["sub/two", "sub/two-2"] }));
    assert!(compared.json()["title"].as_str().unwrap().starts_with("Comparison of"));
    let file =
        server.ask("POST", "/api/compare/report.html", &json!({ "names": ["sub/two", "sub/two-2"] })).text();
    assert!(file.starts_with("<!doctype html>") && file.contains("Comparison of"), "{file:.200}");
    for names in [json!(["sub/two"]), json!(["sub/two", "../sub/two"])] {
        let refused = server.ask("POST", "/api/compare/report.html", &json!({ "names": names }));
        assert_eq!(refused.status, 400, "{names}");
    }
}

#[test]
fn a_stopped_study_is_shown_as_such_and_goes_on() {
    let server = Server::start("serve-stop", &[]);
    // Long enough that no machine is done with it before it is stopped.
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let id = server.start_run("long.toml", &long, "sim");
    let busy = json!({ "scenario": { "name": "sub/two.toml", "text": SCENARIO }, "stage": "sim" });
    let refused = server.ask("POST", "/api/runs", &busy);
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

#[test]
fn an_emulated_run_is_told_as_it_happens() {
    if !can_emulate() {
        return;
    }
    let server = Server::start("serve-emu", &[]);
    let short = SCENARIO
        .replace("repeat = 2", "repeat = 1")
        .replace("8 s\"\nseed", "4 s\"\nseed")
        .replace("\"8 s\"]", "\"4 s\"]")
        .replace("[\"4 s\",", "[\"2 s\",");
    // Programs in the kernel need root.
    let watched = is_privileged();
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

#[test]
fn other_sites_and_strangers_are_refused() {
    let server = Server::start("serve-strangers", &["--token-file", "token", "--name", "stage.example"]);
    let token = fs::read_to_string(server.folder.join("token")).unwrap().trim().to_owned();
    assert_eq!(server.printed.trim(), format!("http://{}/#token={token}", server.host));
    let bearer = format!("Bearer {token}");
    let get = |headers: &[(&str, &str)]| server.send("GET", "/api/scenarios", headers, "").status;
    assert_eq!(get(&[]), 401);
    assert_eq!(get(&[("Authorization", "Bearer wrong")]), 401);
    assert_eq!(get(&[("Authorization", &bearer)]), 200);
    assert_eq!(get(&[("Authorization", &bearer), ("Host", "stage.example")]), 200);
    assert_eq!(get(&[("Authorization", &bearer), ("Host", "evil.example")]), 421);
    assert_eq!(get(&[("Authorization", &bearer), ("Origin", "http://evil.example")]), 403);
    assert_eq!(get(&[("Authorization", &bearer), ("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(server.get("/metrics").status, 401);

    // The page comes in with a cookie that its scripts cannot read.
    let json = ("Content-Type", "application/json");
    let entered = server.send("POST", "/api/session", &[json], &format!("{{\"token\":\"{token}\"}}"));
    let cookie = entered.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap().to_owned();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    assert_eq!(get(&[("Cookie", &format!("netstage={token}"))]), 200);
    assert_eq!(server.send("POST", "/api/session", &[json], "{\"token\":\"wrong\"}").status, 401);

    // A form of another site can only send what is no JSON.
    let order = json!({ "scenario": { "name": "a.toml", "text": SCENARIO }, "stage": "sim" }).to_string();
    let form = [("Authorization", bearer.as_str()), ("Content-Type", "text/plain")];
    assert_eq!(server.send("POST", "/api/runs", &form, &order).status, 415);
    assert_eq!(server.get("/api/runs").status, 401);

    let page = server.get("/scenarios");
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "x-content-type-options: nosniff",
        "frame-ancestors 'none'",
    ] {
        assert!(page.head.contains(header), "{}", page.head);
    }
    assert!(!page.text().contains("<script>") && !page.text().contains("onload"));
}

#[test]
fn what_cannot_be_served_is_said() {
    let folder = Folder::new("serve-refusals");
    fs::create_dir(folder.join("scenarios")).unwrap();
    fs::write(folder.join("short"), "abc\n").unwrap();
    let refuse = |arguments: &[&str], said: &str| {
        let output =
            Command::new(PROGRAM).arg("serve").args(arguments).current_dir(&*folder).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(said) && error.contains("help: "), "{error}");
    };
    refuse(&["--listen", "0.0.0.0:0"], "is not only this machine");
    refuse(&["absent"], "absent is no folder");
    refuse(&["--token-file", "short"], "short holds no token");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    refuse(&["--listen", &taken.local_addr().unwrap().to_string()], "cannot listen on");
}

#[test]
fn two_servers_of_one_folder_leave_each_others_work_alone() {
    let one = Server::start("serve-two", &[]);
    let other = one.beside();
    let long = SCENARIO.replace("repeat = 2", "repeat = 100000");
    let begun = [&one, &other].map(|server| server.start_run("long.toml", &long, "sim"));
    for (server, id) in [&one, &other].into_iter().zip(begun) {
        server.ask("DELETE", &format!("/api/runs/{id}"), &Value::Null);
        assert_eq!(server.end(id)["phase"], "stopped");
    }
    let records =
        [&one, &other].map(|server| server.get("/api/runs/1").json()["record"].as_str().unwrap().to_owned());
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

#[test]
fn a_full_disk_fails_a_study_with_its_reason_and_room_lets_it_go_on() {
    if !is_privileged() {
        println!("skipped: mounting a small disk needs root");
        return;
    }
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

#[test]
fn nothing_typed_becomes_a_command() {
    let server = Server::start("serve-commands", &[]);
    let canary = server.folder.join("canary");
    let touch = format!("touch {}", canary.display());
    let services = [
        format!("program = \"{touch}\""),
        "program = \"/bin/sh\"".into(),
        "program = \"sh\"".into(),
        "program = \"../../bin/sh\"".into(),
        format!("program = \"ftp\"\ncommand = \"{touch}\""),
        format!("program = \"ftp\"\narguments = [\"-c\", \"{touch}\"]"),
        format!("program = \"ftp\"\nfrom = \"$({touch})\"\nto = \"c\""),
        format!("program = \"ftp\"\nfrom = \"a\"\nto = \"c\"\nsize = \"1 MB; {touch}\""),
    ];
    let services = services.map(|service| format!("{SCENARIO}\n[service.s]\n{service}\n"));
    let names = [";", "`", "$(", "|", "&&"]
        .map(|by| SCENARIO.replace("[node.a]", &format!("[node.\"a{by}{touch}\"]")));
    let titled = SCENARIO.replace("Two VPNs", &format!("$({touch})`{touch}`;{touch}"));
    for text in services.iter().chain(&names) {
        let draft = json!({ "name": "typed.toml", "text": text });
        let checked = server.ask("POST", "/api/check", &draft).json();
        assert_eq!(checked["sound"], false, "{text}");
        for stage in ["sim", "emu", "live"] {
            let order = json!({ "scenario": draft, "stage": stage });
            assert_eq!(server.ask("POST", "/api/runs", &order).status, 422, "{text}");
        }
    }
    // A title may be anything, a record's name what no shell is ever given.
    server.end(server.start_run(&format!("$({}).toml", touch.replace('/', "")), &titled, "sim"));
    assert!(!canary.exists());
}

#[test]
fn what_only_shows_starts_and_writes_nothing() {
    let server = Server::start("serve-read-only", &["--read-only"]);
    let order = json!({ "scenario": { "name": "sub/two.toml", "text": SCENARIO }, "stage": "sim" });
    assert_eq!(server.ask("POST", "/api/runs", &order).status, 403);
    let kept = server.ask("PUT", "/api/scenario?name=a.toml", &json!({ "text": "", "before": null }));
    assert_eq!(kept.status, 403);
    assert_eq!(server.get("/api/scenarios").status, 200);
    assert!(!server.folder.join("scenarios/a.toml").exists());
}

#[test]
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
    assert_eq!(server.get("/api/record?name=broken").status, 500);
    assert_eq!(server.get("/api/record?name=empty").status, 404);
}

/// Properties of every request that the description allows, and of many it does not, by schemathesis.
#[test]
fn answers_are_those_the_description_promises() {
    let server = Server::start("serve-description", &[]);
    // There is a run and its record to ask for.
    assert_eq!(server.end(server.start_run("sub/two.toml", SCENARIO, "sim"))["phase"], "finished");
    let description = server.get("/api/openapi.json").json();
    assert!(description["paths"].as_object().unwrap().len() >= 12);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis.sh");
    let output =
        Command::new(script).arg(format!("http://{}/api/openapi.json", server.host)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
