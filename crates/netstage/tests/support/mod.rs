//! Support of the program's tests: folders and processes that are removed with their test.
#![allow(dead_code)]

pub mod fleet;
pub mod network;
pub mod routing;

pub use netstage_harness::{TemporaryFolder, within};

use netstage_host::netns::{Namespace, spawn_in};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_netstage");

/// Returns a command that runs the program with these arguments and captures its output.
pub fn netstage(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns a command that runs a program with the restrictions of a unit; drop-ins follow it after colons.
pub fn as_unit(unit: &str, program: &Path) -> Command {
    let mut command = Command::new(project().join("crates/netstage/tests/support/as_unit.py"));
    command.arg(unit).arg(program).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns a command that runs the program under test as a service of the package.
pub fn as_service(unit: &str) -> Command {
    as_unit(&project().join("packaging").join(unit).display().to_string(), Path::new(PROGRAM))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the standard output and standard error of a program.
pub fn output_text(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// Reads the record in a folder.
pub fn record(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("record.json")).unwrap()).unwrap()
}

/// Returns the mean of a metric of a subject in a record's first cell.
pub fn mean(record: &Value, metric: &str, subject: &str) -> f64 {
    let mut summary = record["cells"][0]["summary"].as_array().unwrap().iter();
    let found = summary.find(|entry| entry["metric"] == metric && entry["subject"] == subject);
    let mean = found.and_then(|entry| entry["mean"].as_f64());
    mean.unwrap_or_else(|| panic!("no {metric} of {subject}: {record:#}"))
}

/// Returns the mean of an expectation in a record's first cell.
pub fn expectation(record: &Value, name: &str) -> f64 {
    let all = record["expectations"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {all:#?}"));
    found["cells"][0]["mean"].as_f64().unwrap_or_else(|| panic!("{found:#}"))
}

/// Process that is killed at the end of its test.
pub struct TestProcess(Option<Child>);

impl TestProcess {
    pub fn new(child: Child) -> TestProcess {
        TestProcess(Some(child))
    }

    pub fn spawn_in(namespace: &Namespace, command: Command) -> TestProcess {
        TestProcess::new(spawn_in(namespace, command).unwrap())
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("the process has not been waited for")
    }

    pub fn signal(&mut self, name: &str) {
        signal(self.child().id(), name);
    }

    pub fn output(mut self) -> Output {
        self.0.take().expect("the process has not been waited for").wait_with_output().unwrap()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal, such as `-KILL`.
pub fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Returns the root folder of the project.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs the shell blocks of a page of docs/ in a folder, with separate mount, network and process namespaces, and
/// returns their output.
pub fn run_page(page: &str, folder: &TemporaryFolder) -> String {
    // Separate mounts avoid conflicts between names of namespaces; separate processes are killed with the script.
    let script = format!("mount -t tmpfs none /run && mkdir -p /run/netns\n{}", page_script(page));
    let unshare =
        "unshare --mount --net --propagation private --pid --fork --kill-child --mount-proc bash page.sh";
    run_script(&script, folder, &unshare.split(' ').collect::<Vec<_>>())
}

/// Runs the shell blocks of a page that needs no privilege, with the project's scenarios in the folder.
pub fn run_page_for_anybody(page: &str, folder: &TemporaryFolder) -> String {
    std::os::unix::fs::symlink(project().join("scenarios"), folder.join("scenarios")).unwrap();
    run_script(&page_script(page), folder, &["bash", "page.sh"])
}

/// Returns a script of a page's blocks. Each command of a block marked `sh` must succeed; a block marked `sh fails`
/// must fail.
fn page_script(page: &str) -> String {
    let page = std::fs::read_to_string(project().join("docs").join(page)).unwrap();
    let blocks = page.split("```sh").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks = blocks.map(|block| match block.split_once('\n').unwrap() {
        ("", commands) => commands.to_owned(),
        (" fails", commands) => {
            format!("set +e\n(set -e\n{commands})\n[ $? -ne 0 ] || {{ echo no error; exit 1; }}\nset -e\n")
        }
        (other, _) => panic!("{page}: a block is marked `sh{other}`"),
    });
    format!("set -em\n{}\necho the end\n", blocks.collect::<Vec<_>>().join("\n"))
}

fn run_script(script: &str, folder: &TemporaryFolder, command: &[&str]) -> String {
    let programs = Path::new(PROGRAM).parent().unwrap();
    std::fs::write(folder.join("page.sh"), format!("export PATH={}:$PATH\n{script}", programs.display()))
        .unwrap();
    let output = Command::new(command[0]).args(&command[1..]).current_dir(&**folder).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.trim_end().ends_with("the end"), "{text}");
    text
}
