//! OpenVPN: between two peers, whose certificates are their own and known to each other by fingerprint.

use super::TunnelSpec;
use super::run::private;
use ring::digest::{SHA256, digest};
use std::io;
use std::path::{Path, PathBuf};

/// The program.
pub const PROGRAM: &str = "openvpn";
/// The interface it makes.
pub const INTERFACE: &str = "tun0";
/// Where both ends listen.
const PORT: u16 = 1194;

/// Who an end is.
pub struct Identity {
    certificate: String,
    key: String,
    fingerprint: String,
}

impl Identity {
    /// A fresh one.
    pub fn generate(name: &str) -> io::Result<Identity> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).map_err(io::Error::other)?;
        let bytes = digest(&SHA256, made.cert.der());
        let digits: Vec<String> = bytes.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(Identity {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
            fingerprint: digits.join(":"),
        })
    }
}

/// Writes what an end of a tunnel is told.
pub fn write(
    tunnel: &TunnelSpec,
    end: usize,
    identities: &[Identity; 2],
    folder: &Path,
) -> io::Result<PathBuf> {
    let path = folder.join("openvpn.conf");
    let cipher = match tunnel.cipher.as_str() {
        "aes-256-gcm" => "AES-256-GCM",
        "chacha20-poly1305" => "CHACHA20-POLY1305",
        _ => "AES-128-GCM",
    };
    let Identity { certificate, key, .. } = &identities[end];
    let text = format!(
        "mode p2p\nproto udp4\ndev {INTERFACE}\ndev-type tun\n\
         local {}\nremote {}\nport {PORT}\n{}\ndh none\n\
         data-ciphers {cipher}\npeer-fingerprint {}\n\
         tun-mtu {}\nmssfix 0\nreneg-sec 0\nverb 3\n\
         <cert>\n{certificate}</cert>\n<key>\n{key}</key>\n",
        tunnel.ends[end].address,
        tunnel.peer(end).address,
        ["tls-client", "tls-server"][end],
        identities[1 - end].fingerprint,
        tunnel.mtu,
    );
    private(&path, &text)?;
    Ok(path)
}
