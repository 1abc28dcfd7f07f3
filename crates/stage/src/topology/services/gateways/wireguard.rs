//! WireGuard: the kernel's where it has it, else wireguard-go. Both are told by wg(8).

use super::TunnelSpec;
use super::run::private;
use crate::topology::services::find;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// WireGuard in user space.
pub const PROGRAM: &str = "wireguard-go";
/// What tells it and the kernel what to do.
pub const TELLER: &str = "wg";
/// The interface.
pub const INTERFACE: &str = "wg0";
/// Where both ends listen.
const PORT: u16 = 51_820;

/// What is not there, and the package that has it. Whether wireguard-go is needed is known only once the kernel
/// was asked.
pub fn missing() -> Option<(&'static str, &'static str)> {
    find(TELLER).is_none().then_some((TELLER, "wireguard-tools"))
}

/// A key pair.
pub struct Keys {
    private: String,
    public: String,
}

impl Keys {
    /// A fresh one.
    pub fn generate() -> io::Result<Keys> {
        let private = wg("genkey", "")?;
        let public = wg("pubkey", &private)?;
        Ok(Keys { private, public })
    }
}

fn wg(command: &str, input: &str) -> io::Result<String> {
    let program = find(TELLER).ok_or(io::ErrorKind::NotFound)?;
    let mut child =
        Command::new(program).arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().expect("it is piped").write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(io::Error::other(format!("wg {command} has failed"))),
    }
}

/// Writes what an end of a tunnel is told, as `wg setconf` reads it.
pub fn write(tunnel: &TunnelSpec, end: usize, keys: &[Keys; 2], folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("wg.conf");
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n\n\
         [Peer]\nPublicKey = {}\nEndpoint = {}:{PORT}\nAllowedIPs = 0.0.0.0/0, ::/0\n",
        keys[end].private,
        keys[1 - end].public,
        tunnel.peer(end).address
    );
    private(&path, &text)?;
    Ok(path)
}
