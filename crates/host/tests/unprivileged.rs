//! Tests that an unprivileged user can create a network in a user namespace. Does not use the standard test
//! harness: only a process without threads can enter a user namespace.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_harness::{TemporaryFolder, needs, skip};
use netstage_host::netns::user::{Privileges, become_privileged, privileges};
use pair::Pair;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// "nobody" and "nogroup" on most systems; any unprivileged account works.
const NOBODY: u32 = 65_534;
/// Exit code if user namespaces are forbidden.
const FORBIDDEN: u8 = 4;

const INSIDE: &str = "--inside";

fn main() -> ExitCode {
    // Only a process without threads can enter a user namespace: the test starts this program again.
    match std::env::args().any(|argument| argument == INSIDE) {
        true => stage(),
        false => netstage_harness::run([tests()]),
    }
}

fn a_network_is_created_without_privileges() {
    needs::emulation();
    match privileges() {
        Privileges::Held => stage_as_nobody(),
        Privileges::UserNamespace => inside(Command::new(std::env::current_exe().unwrap())),
        Privileges::Unavailable(forbidden) => skip(forbidden.to_string()),
    }
}

/// Creates the network in a separate process.
fn inside(mut command: Command) {
    match command.arg(INSIDE).current_dir("/").output() {
        Ok(output) if output.status.code() == Some(i32::from(FORBIDDEN)) => {
            skip(String::from_utf8_lossy(&output.stderr))
        }
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => skip(format!("cannot start a process of another user: {error}")),
    }
}

fn stage_as_nobody() {
    // Other users may be unable to read the build folder.
    let folder = TemporaryFolder::new("unprivileged");
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.program("inside", &std::fs::read(std::env::current_exe().unwrap()).unwrap());
    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY);
    inside(command);
}

fn stage() -> ExitCode {
    match privileges() {
        Privileges::UserNamespace => become_privileged().expect("privileges() reported that it succeeds"),
        Privileges::Unavailable(forbidden) => {
            assert_eq!(become_privileged(), Err(forbidden.clone()));
            eprintln!("{forbidden}");
            return ExitCode::from(FORBIDDEN);
        }
        Privileges::Held => panic!("the account is privileged"),
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
    ExitCode::SUCCESS
}

netstage_harness::tests![a_network_is_created_without_privileges];
