//! WireGuard of the kernel, or wireguard-go if the kernel has none. wg(8) configures both.

use super::TunnelSpec;
use super::run::write_private;
use crate::topology::services::find;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the program for WireGuard in user space.
pub const PROGRAM: &str = "wireguard-go";
/// Name of the program that configures it and the kernel.
pub const CONTROL_PROGRAM: &str = "wg";
/// Name of the interface.
pub const INTERFACE: &str = "wg0";
/// Port of both ends.
const PORT: u16 = 51_820;

/// Returns the missing program, and its package. The need for wireguard-go is determined later, by a request to the
/// kernel.
pub fn missing() -> Option<(&'static str, &'static str)> {
    find(CONTROL_PROGRAM).is_none().then_some((CONTROL_PROGRAM, "wireguard-tools"))
}

/// Key pair.
pub struct Keys {
    private: String,
    public: String,
}

impl Keys {
    /// Generates a key pair.
    pub fn generate() -> io::Result<Keys> {
        let private = wg("genkey", "")?;
        let public = wg("pubkey", &private)?;
        Ok(Keys { private, public })
    }
}

fn wg(command: &str, input: &str) -> io::Result<String> {
    let program = find(CONTROL_PROGRAM).ok_or(io::ErrorKind::NotFound)?;
    let mut child =
        Command::new(program).arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().expect("the input is piped").write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(io::Error::other(format!("wg {command} failed"))),
    }
}

/// Writes the configuration of one end of a tunnel for `wg setconf` and returns its path.
pub fn write(tunnel: &TunnelSpec, end: usize, keys: &[Keys; 2], folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("wg.conf");
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n\n\
         [Peer]\nPublicKey = {}\nEndpoint = {}:{PORT}\nAllowedIPs = 0.0.0.0/0, ::/0\n",
        keys[end].private,
        keys[1 - end].public,
        tunnel.peer(end).address
    );
    write_private(&path, &text)?;
    Ok(path)
}
