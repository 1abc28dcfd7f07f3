//! OpenVPN between two peers with self-signed certificates, verified by fingerprint.

use super::TunnelSpec;
use super::run::write_private;
use ring::digest::{SHA256, digest};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the program.
pub const PROGRAM: &str = "openvpn";
/// Name of its interface.
pub const INTERFACE: &str = "tun0";
/// Port of both ends.
const PORT: u16 = 1194;

/// Certificate and key of an end.
pub struct OpenVpnIdentity {
    certificate: String,
    key: String,
    fingerprint: String,
}

impl OpenVpnIdentity {
    /// Generates a certificate with its key.
    pub fn generate(name: &str) -> io::Result<OpenVpnIdentity> {
        let generated = rcgen::generate_simple_self_signed([name.to_owned()]).map_err(io::Error::other)?;
        let bytes = digest(&SHA256, generated.cert.der());
        let digits: Vec<String> = bytes.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(OpenVpnIdentity {
            certificate: generated.cert.pem(),
            key: generated.signing_key.serialize_pem(),
            fingerprint: digits.join(":"),
        })
    }
}

/// Writes the configuration of one end of a tunnel and returns its path.
pub fn write(
    tunnel: &TunnelSpec,
    end: usize,
    identities: &[OpenVpnIdentity; 2],
    folder: &Path,
) -> io::Result<PathBuf> {
    let path = folder.join("openvpn.conf");
    let cipher = match tunnel.cipher.as_str() {
        "aes-256-gcm" => "AES-256-GCM",
        "chacha20-poly1305" => "CHACHA20-POLY1305",
        _ => "AES-128-GCM",
    };
    let OpenVpnIdentity { certificate, key, .. } = &identities[end];
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
    write_private(&path, &text)?;
    Ok(path)
}
