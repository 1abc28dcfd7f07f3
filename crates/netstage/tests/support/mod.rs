//! What tests of the program share: folders and processes that go when their test does.
#![allow(dead_code)]

pub mod network;
pub mod routing;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Whether the emulated stage can run here; says "skipped" where it cannot.
pub fn can_emulate() -> bool {
    use netstage_live::netns::user::{Privileges, privileges};
    let can = !matches!(privileges(), Privileges::Neither(_));
    if !can {
        println!("skipped: network namespaces are not allowed here");
    }
    can
}

/// A folder that goes when the test does.
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one; no two tests may use the same name.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("netstage-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that does not outlive its test.
pub struct Process(Option<Child>);

impl Process {
    pub fn new(child: Child) -> Process {
        Process(Some(child))
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("not waited for yet")
    }

    pub fn signal(&mut self, name: &str) {
        signal(self.child().id(), name);
    }

    pub fn output(mut self) -> Output {
        self.0.take().expect("not waited for yet").wait_with_output().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal by its name, as `-KILL`.
pub fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Waits until it holds, at most this long.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Runs the shell blocks of a page of docs/ as they stand, in a folder; what they said.
pub fn run_page(page: &str, folder: &Folder) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let page = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/netns\nset -em\nexport PATH={}:$PATH\n{}\necho the end\n",
        Path::new(env!("CARGO_BIN_EXE_netstage")).parent().unwrap().display(),
        blocks.join("\n")
    );
    std::fs::write(folder.join("page.sh"), script).unwrap();
    // Its own mounts, so that names of namespaces are nobody else's, and its own processes, so that all of them
    // go with it however it ends.
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "page.sh"])
        .current_dir(&**folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    assert!(output.status.success() && said.trim_end().ends_with("the end"), "{text}");
    text
}
