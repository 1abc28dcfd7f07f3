//! Tests of authorization and of invalid or hostile requests.

use super::*;
use netstage_harness::{needs, within};
use std::time::Duration;

fn no_name_leads_out_of_the_folders() {
    let server = TestServer::start("serve-paths", &[]);
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
        let written = server.send_json("PUT", &format!("/api/scenario?name={name}"), &body);
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
    // Neither do files named in a scenario, nor files of a record.
    let trace = SCENARIO.replace(
        "[flow.gold]",
        "[flow.gold]\ntransport = \"udp\"\ntraffic = { model = \"trace\", file = \"../secret.csv\" }",
    );
    let link = trace.replace("../secret.csv", "link.csv");
    let folder = trace.replace("../secret.csv", "out/secret.csv");
    let scenarios = server.folder.join("scenarios");
    std::os::unix::fs::symlink(server.folder.join("secret.csv"), scenarios.join("link.csv")).unwrap();
    std::os::unix::fs::symlink(&*server.folder, scenarios.join("out")).unwrap();
    for text in [trace, link, folder] {
        let checked = server.check("two.toml", &text, "sim");
        assert!(
            checked["problems"].to_string().contains("is not in the folder of the scenario"),
            "{checked}"
        );
    }
    assert_eq!(server.get("/api/record/file?name=sub&file=../../secret.toml").status, 400);
}

fn requests_of_other_sites_and_without_a_token_are_rejected() {
    let server = TestServer::start("serve-strangers", &["--token-file", "token", "--name", "stage.example"]);
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

    // The page logs in and receives a cookie that scripts cannot read.
    let json = ("Content-Type", "application/json");
    let entered = server.send("POST", "/api/session", &[json], &format!("{{\"token\":\"{token}\"}}"));
    let cookie = entered.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap().to_owned();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(get(&[("Cookie", cookie)]), 200);
    // A browser sends the cookies of a host to all its ports, so the cookies of two servers have different names.
    let other = server.second_with(&["--token-file", "other"]);
    let token = fs::read_to_string(server.folder.join("other")).unwrap().trim().to_owned();
    let entered = other.send("POST", "/api/session", &[json], &format!("{{\"token\":\"{token}\"}}"));
    let theirs = entered.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let theirs = theirs.split(';').next().unwrap();
    assert_ne!(cookie.split('=').next(), theirs.split('=').next());
    let both = format!("{theirs}; {cookie}");
    assert_eq!(get(&[("Cookie", &both)]), 200);
    assert_eq!(other.send("GET", "/api/scenarios", &[("Cookie", &both)], "").status, 200);
    assert_eq!(server.send("POST", "/api/session", &[json], "{\"token\":\"wrong\"}").status, 401);

    // A form of another site cannot send JSON.
    let order = order("a.toml", SCENARIO, "sim").to_string();
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

/// Far more connections than the usual limit of descriptors send incomplete requests.
fn half_open_connections_do_not_lock_out_clients() {
    needs::time(3);
    let token = ["--token-file", "token"];
    let mut server = TestServer::start("serve-half-open", &token);
    let bearer = format!("Bearer {}", fs::read_to_string(server.folder.join("token")).unwrap().trim());
    // A client whose connection is in use.
    let mut stream = TcpStream::connect(&server.host).unwrap();
    let request = format!(
        "GET /api/scenarios HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nConnection: ",
        server.host
    );
    let mut status = [0; 12];
    stream.write_all(format!("{request}keep-alive\r\n\r\n").as_bytes()).unwrap();
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    let half = [&b""[..], b"GET / HTTP/1.1\r\n", b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\n"];
    let mut strangers: Vec<TcpStream> = (0..1_500)
        .map(|index| {
            let mut stranger = TcpStream::connect(&server.host).unwrap();
            stranger.write_all(half[index % half.len()]).unwrap();
            stranger
        })
        .collect();
    let answer = server.send("GET", "/api/scenarios", &[("Authorization", &bearer)], "");
    assert_eq!(answer.status, 200);
    // The oldest connections are closed, and no more than the limit remain.
    let folder = format!("/proc/{}/fd", server.process.child().id());
    let open = || fs::read_dir(&folder).unwrap().count();
    assert!(within(Duration::from_secs(60), || open() < 400), "{}", open());
    let closed = strangers[0].read(&mut status);
    assert!(closed.is_err() || closed.unwrap() == 0);
    // The client is still connected.
    stream.write_all(format!("{request}close\r\n\r\n").as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.contains("HTTP/1.1 200"), "{answers}");
}

fn errors_at_startup_have_a_remedy() {
    let folder = TemporaryFolder::new("serve-refusals");
    fs::create_dir(folder.join("scenarios")).unwrap();
    fs::write(folder.join("short"), "abc\n").unwrap();
    let assert_error = |arguments: &[&str], message: &str| {
        let output =
            Command::new(PROGRAM).arg("serve").args(arguments).current_dir(&*folder).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(message) && error.contains("help: "), "{error}");
    };
    assert_error(&["--listen", "0.0.0.0:0"], "is reachable from other hosts");
    assert_error(&["absent"], "absent is not a folder");
    assert_error(&["--token-file", "short"], "short does not contain a valid token");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_error(&["--listen", &taken.local_addr().unwrap().to_string()], "cannot listen on");
}

fn no_input_is_executed_as_a_command() {
    let server = TestServer::start("serve-commands", &[]);
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
        for stage in ["sim", "emu", "live"] {
            assert_eq!(server.check("typed.toml", text, stage)["sound"], false, "{text}");
            let started = server.send_json("POST", "/api/runs", &order("typed.toml", text, stage));
            assert_eq!(started.status, 422, "{text}");
        }
    }
    // A title may contain any text, and the name of a record is never passed to a shell.
    server.end(server.start_run(&format!("$({}).toml", touch.replace('/', "")), &titled, "sim"));
    assert!(!canary.exists());
}

fn a_read_only_server_starts_and_writes_nothing() {
    let server = TestServer::start("serve-read-only", &["--read-only"]);
    let started = server.send_json("POST", "/api/runs", &order("sub/two.toml", SCENARIO, "sim"));
    assert_eq!(started.status, 403);
    let kept = server.send_json("PUT", "/api/scenario?name=a.toml", &json!({ "text": "", "before": null }));
    assert_eq!(kept.status, 403);
    assert_eq!(server.get("/api/scenarios").status, 200);
    assert!(!server.folder.join("scenarios/a.toml").exists());
}

/// Checks the responses to valid and invalid requests generated from the description by schemathesis.
fn responses_match_the_description() {
    needs::time(6);
    let server = TestServer::start("serve-description", &[]);
    // The requests need a run and its record.
    assert_eq!(server.end(server.start_run("sub/two.toml", SCENARIO, "sim"))["phase"], "finished");
    let description = server.get("/api/openapi.json").json();
    assert!(description["paths"].as_object().unwrap().len() >= 12);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis.sh");
    let output =
        Command::new(script).arg(format!("http://{}/api/openapi.json", server.host)).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn unknown_paths_return_the_page_to_browsers_and_json_to_programs() {
    let server = TestServer::start("serve-nowhere", &[]);
    for path in ["/nonsense", "/runs/1/2", "/app.js/x", "/%FF", "/apix"] {
        let page = server.get(path);
        assert_eq!(page.status, 404, "{path}");
        assert!(page.head.contains("content-type: text/html") && page.text().contains("app.js"), "{path}");
        assert!(page.head.contains("content-security-policy: default-src 'none'"), "{path}");
        assert_eq!(server.send("POST", path, &[], "").message(), "unknown path", "{path}");
    }
    for path in ["/api/nonsense", "/api", "/api/"] {
        let rejected = server.get(path);
        assert_eq!((rejected.status, rejected.message().as_str()), (404, "unknown path"), "{path}");
    }
    for (method, path) in [("DELETE", "/api/records"), ("POST", "/scenarios"), ("PUT", "/metrics")] {
        let rejected = server.send(method, path, &[], "");
        assert_eq!((rejected.status, rejected.message()), (405, format!("{path} does not support {method}")));
        assert!(rejected.head.contains("\nallow: get,head"), "{}", rejected.head);
    }
}

fn invalid_requests_are_rejected_with_a_clear_message() {
    let server = TestServer::start("serve-words", &[]);
    let json = [("Content-Type", "application/json")];
    let post = |body: &str| server.send("POST", "/api/runs", &json, body);
    let draft = |more: &str| {
        format!("{{\"stage\": \"sim\", \"scenario\": {{\"name\": \"a.toml\", \"text\": \"\"{more}}}}}")
    };
    for (response, status, message) in [
        (post("{"), 400, "the request body is not JSON: EOF while parsing an object at line 1 column 1"),
        (post("[]"), 422, "the request is invalid; expected an object"),
        (post("7"), 422, "the request is 7; expected an object"),
        (post("{\"scenario\": {}}"), 422, "missing name in scenario"),
        (
            post(&draft(", \"seed\": \"1e3\"")),
            422,
            "scenario.seed is the string \"1e3\"; expected an integer of 0 or more",
        ),
        (post(&draft(", \"seed\": -1")), 422, "scenario.seed is -1; expected an integer of 0 or more"),
        (post(&draft("").replace("sim", "mars")), 422, "stage is \"mars\"; expected sim, emu, live"),
        (server.send("POST", "/api/runs", &[], "{}"), 415, "the content type is not JSON"),
        (server.get("/api/scenario"), 400, "missing name"),
        (
            server.get("/api/record/file?name=a&file=passwd"),
            400,
            "file is \"passwd\"; expected report.html, record.json, series.parquet, distributions.parquet, \
             figures.json, environment.json",
        ),
        (server.get("/api/runs/xyz"), 400, "/api/runs/xyz: invalid run number"),
    ] {
        assert_eq!((response.status, response.message().as_str()), (status, message));
    }
    let long = server.send("POST", "/api/check", &json, &format!("\"{}\"", "a".repeat(5 << 20)));
    assert_eq!((long.status, long.message().as_str()), (413, "the request body exceeds 4 MiB"));
}

netstage_harness::tests![
    no_name_leads_out_of_the_folders,
    requests_of_other_sites_and_without_a_token_are_rejected,
    half_open_connections_do_not_lock_out_clients,
    errors_at_startup_have_a_remedy,
    no_input_is_executed_as_a_command,
    a_read_only_server_starts_and_writes_nothing,
    responses_match_the_description,
    unknown_paths_return_the_page_to_browsers_and_json_to_programs,
    invalid_requests_are_rejected_with_a_clear_message,
];
