//! A user without any privilege stages a network in a user namespace. Not under the usual
//! test harness: only a process without threads can enter a user namespace.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_host::netns::user::{Privileges, become_privileged, privileges};
use pair::{Pair, skip};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// "nobody" and "nogroup" of most systems; any without privileges do.
const NOBODY: u32 = 65_534;

fn main() {
    match privileges() {
        _ if std::env::args().any(|argument| argument == "--inside") => stage(),
        Privileges::Held => stage_as_nobody(),
        Privileges::UserNamespace => stage(),
        Privileges::Neither(forbidden) => skip(&forbidden.to_string()),
    }
}

fn stage_as_nobody() {
    // Where the program was built, others may not read.
    let folder = std::env::temp_dir().join(format!("netstage-unprivileged-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.join("inside");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let status = Command::new(&program).arg("--inside").current_dir("/").uid(NOBODY).gid(NOBODY).status();
    std::fs::remove_dir_all(&folder).unwrap();
    match status {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => skip(&format!("no process of another user can be started: {error}")),
    }
}

fn stage() {
    match privileges() {
        Privileges::UserNamespace => become_privileged().expect("privileges() said so"),
        Privileges::Neither(forbidden) => {
            assert_eq!(become_privileged(), Err(forbidden.clone()));
            return skip(&forbidden.to_string());
        }
        Privileges::Held => panic!("nobody has privileges"),
    }
    assert_eq!(privileges(), Privileges::Held);
    let pair = Pair::new(Default::default());
    pair.left.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let bind = |address: &'static str| move || UdpSocket::bind(address).unwrap();
    let sender = pair.left.run(bind("10.1.0.0:7")).unwrap();
    let receiver = pair.right.run(bind("10.1.0.1:7")).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    sender.send_to(b"hello", "10.1.0.1:7").unwrap();
    let mut bytes = [0; 16];
    assert_eq!(receiver.recv(&mut bytes).unwrap(), 5);
    println!("a network staged without privileges");
}
