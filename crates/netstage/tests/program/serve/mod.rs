//! Tests of `netstage serve` with valid and hostile requests.

pub mod records;
pub mod runs;
pub mod scenarios;
pub mod strangers;

use crate::support::{PROGRAM, TemporaryFolder, TestProcess};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;

/// Short simulation of two VPNs on one link with two seeds. The browser tests of the page use it, too.
const SCENARIO: &str = include_str!("two-vpns.toml");

const SERVE: [&str; 6] = ["serve", "scenarios", "--records", "records", "--listen", "127.0.0.1:0"];

/// Server on the loopback interface, with its folders.
struct TestServer {
    process: TestProcess,
    /// `127.0.0.1:PORT`.
    host: String,
    /// Line printed at the start.
    printed: String,
    folder: Rc<TemporaryFolder>,
}

/// HTTP response.
#[derive(Debug)]
struct HttpResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl HttpResponse {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Returns the message of an error response.
    fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

fn order(name: &str, text: &str, stage: &str) -> Value {
    json!({ "scenario": { "name": name, "text": text }, "stage": stage })
}

/// Returns whether a server has closed the connection. It does so without reading the rest of a request that is too long.
fn has_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl TestServer {
    fn start(name: &str, arguments: &[&str]) -> TestServer {
        let folder = TemporaryFolder::new(name);
        fs::create_dir_all(folder.join("scenarios/sub")).unwrap();
        fs::write(folder.join("scenarios/sub/two.toml"), SCENARIO).unwrap();
        TestServer::start_command(Rc::new(folder), Command::new(PROGRAM).args(SERVE).args(arguments))
    }

    /// Starts a second server with the same folders.
    fn second(&self) -> TestServer {
        self.second_with(&[])
    }

    fn second_with(&self, arguments: &[&str]) -> TestServer {
        TestServer::start_command(Rc::clone(&self.folder), Command::new(PROGRAM).args(SERVE).args(arguments))
    }

    /// Starts a server in a folder with a command.
    fn start_command(folder: Rc<TemporaryFolder>, command: &mut Command) -> TestServer {
        let mut child = command.current_dir(&**folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        let host = printed.trim().strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        TestServer { process: TestProcess::new(child), host, printed, folder }
    }

    /// Sends a request unchanged. HTTP/1.0 ends the response by closing the connection.
    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let mut head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.host);
        }
        if let Err(error) = stream.write_all(format!("{head}\r\n{body}").as_bytes()) {
            assert!(has_closed(&error), "{error}");
        }
        stream
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpResponse {
        let mut bytes = Vec::new();
        if let Err(error) = self.open(method, path, headers, body).read_to_end(&mut bytes) {
            assert!(has_closed(&error) && !bytes.is_empty(), "{error}");
        }
        let end = bytes.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpResponse { status, head, body: bytes[end + 4..].to_vec() }
    }

    fn get(&self, path: &str) -> HttpResponse {
        self.send("GET", path, &[], "")
    }

    fn send_json(&self, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.send(method, path, &[("Content-Type", "application/json")], &body.to_string())
    }

    /// Checks a text as a scenario for a stage.
    fn check(&self, name: &str, text: &str, stage: &str) -> Value {
        self.send_json("POST", "/api/check", &order(name, text, stage)).json()
    }

    fn start_run(&self, name: &str, text: &str, stage: &str) -> u64 {
        let response = self.send_json("POST", "/api/runs", &order(name, text, stage));
        assert_eq!(response.status, 201, "{response:?}");
        response.json()["id"].as_u64().unwrap()
    }

    /// Returns the events of a run until its end: names and data.
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

    /// Returns the last status of a run.
    fn end(&self, id: u64) -> Value {
        let events = self.events(id);
        assert_eq!(events.last().unwrap().0, "over");
        events.iter().rfind(|(name, _)| name == "status").unwrap().1.clone()
    }
}
