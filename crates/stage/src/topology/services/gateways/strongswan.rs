//! strongSwan: IKEv2 with a key shared by both ends, ESP in user space (its plugin kernel-libipsec), since not
//! every kernel has ESP. charon is told by swanctl.

use super::TunnelSpec;
use super::run::{Secret, private};
use crate::topology::services::find;
use std::io;
use std::path::{Path, PathBuf};

/// The daemon.
pub const PROGRAM: &str = "charon";
/// What tells it what to do.
pub const TELLER: &str = "swanctl";
/// The interface it makes, the first of its network namespace.
pub const INTERFACE: &str = "ipsec0";
/// Where, in the folder that is its /run, it listens for swanctl.
pub const SOCKET: &str = "charon.vici";

/// Where it keeps its plugins.
const PLUGINS: &str = "/usr/lib/ipsec/plugins";

/// What is not there, and the package that has it.
pub fn missing() -> Option<(&'static str, &'static str)> {
    let program = |name, package| find(name).is_none().then_some((name, package));
    let plugin =
        |file: &'static str, package| (!Path::new(PLUGINS).join(file).is_file()).then_some((file, package));
    program(PROGRAM, "strongswan-charon")
        .or_else(|| program(TELLER, "strongswan-swanctl"))
        .or_else(|| plugin("libstrongswan-kernel-libipsec.so", "libcharon-extra-plugins"))
        .or_else(|| plugin("libstrongswan-gcm.so", "libstrongswan-standard-plugins"))
}

/// Writes what an end of a tunnel is told; returns its strongswan.conf and its swanctl.conf.
pub fn write(tunnel: &TunnelSpec, end: usize, secret: &Secret, folder: &Path) -> io::Result<[PathBuf; 2]> {
    let paths = ["strongswan.conf", "swanctl.conf"].map(|name| folder.join(name));
    private(&paths[0], SETTINGS)?;
    private(&paths[1], &connection(tunnel, end, secret))?;
    Ok(paths)
}

/// Where packets go is not its to say: routes through its interface are ours, and its own, of whole halves of
/// all addresses, lie behind them in the main table.
const SETTINGS: &str = "charon {
  load = random nonce openssl aes sha1 sha2 hmac gcm kdf kernel-libipsec kernel-netlink socket-default vici
  install_virtual_ip = no
  routing_table = 0
}
";

fn connection(tunnel: &TunnelSpec, end: usize, secret: &Secret) -> String {
    let (own, peer) = (&tunnel.ends[end], tunnel.peer(end));
    let proposal = match tunnel.cipher.as_str() {
        "3des-sha1" => "3des-sha1",
        "aes-256-gcm" => "aes256gcm16",
        "chacha20-poly1305" => "chacha20poly1305",
        _ => "aes128gcm16",
    };
    format!(
        "connections {{ tunnel {{
  version = 2
  local_addrs = {}
  remote_addrs = {}
  encap = yes
  mobike = no
  rekey_time = 0
  proposals = aes128-sha256-ecp256
  local {{
    auth = psk
    id = {}
  }}
  remote {{
    auth = psk
    id = {}
  }}
  children {{ tunnel {{
    local_ts = 0.0.0.0/0,::/0
    remote_ts = 0.0.0.0/0,::/0
    esp_proposals = {proposal}
    rekey_time = 0
    start_action = {}
  }} }}
}} }}
secrets {{ ike {{ secret = 0x{} }} }}
",
        own.address,
        peer.address,
        own.address,
        peer.address,
        // One end begins, the other answers.
        if end == 0 { "start" } else { "none" },
        secret.0
    )
}
