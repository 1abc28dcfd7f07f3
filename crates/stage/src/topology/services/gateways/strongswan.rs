//! strongSwan: IKEv2 with a pre-shared key, and ESP in user space (plug-in kernel-libipsec), because not every kernel
//! has ESP. swanctl configures charon.

use super::TunnelSpec;
use super::run::{Secret, write_private};
use crate::topology::services::find;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the daemon.
pub const PROGRAM: &str = "charon";
/// Name of the program that configures the daemon.
pub const CONTROL_PROGRAM: &str = "swanctl";
/// Name of its interface, the first one in its network namespace.
pub const INTERFACE: &str = "ipsec0";
/// Name of its control socket for swanctl, in its /run folder.
pub const SOCKET: &str = "charon.vici";

/// Folder of its plug-ins.
const PLUGINS: &str = "/usr/lib/ipsec/plugins";

/// Returns the first missing program or plug-in, and its package.
pub fn missing() -> Option<(&'static str, &'static str)> {
    let program = |name, package| find(name).is_none().then_some((name, package));
    let plugin =
        |file: &'static str, package| (!Path::new(PLUGINS).join(file).is_file()).then_some((file, package));
    program(PROGRAM, "strongswan-charon")
        .or_else(|| program(CONTROL_PROGRAM, "strongswan-swanctl"))
        .or_else(|| plugin("libstrongswan-kernel-libipsec.so", "libcharon-extra-plugins"))
        .or_else(|| plugin("libstrongswan-gcm.so", "libstrongswan-standard-plugins"))
}

/// Writes the configuration of one end of a tunnel; returns the paths of strongswan.conf and swanctl.conf.
pub fn write(tunnel: &TunnelSpec, end: usize, secret: &Secret, folder: &Path) -> io::Result<[PathBuf; 2]> {
    let paths = ["strongswan.conf", "swanctl.conf"].map(|name| folder.join(name));
    write_private(&paths[0], SETTINGS)?;
    write_private(&paths[1], &connection(tunnel, end, secret))?;
    Ok(paths)
}

/// Settings of charon. netstage sets the routes through the interface; the daemon's own routes, for both halves of the
/// address space, are less specific and in the main table.
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
        // One end initiates, the other responds.
        if end == 0 { "start" } else { "none" },
        secret.0
    )
}
