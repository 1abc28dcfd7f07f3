//! Private key of a router for encrypted tunnels: a Curve25519 key in a file, in the text form of WireGuard.

use boringtun::x25519::{PublicKey, StaticSecret};
use netstage_scenario::pe::{format_key, parse_key};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Private key. Its debug output does not contain it.
#[derive(Clone)]
pub struct PrivateKey([u8; 32]);

impl PartialEq for PrivateKey {
    fn eq(&self, other: &PrivateKey) -> bool {
        self.public() == other.public()
    }
}

impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// Creates a key from its bytes.
    pub fn new(bytes: [u8; 32]) -> PrivateKey {
        PrivateKey(bytes)
    }

    /// Reads a key from a file that only its owner can read.
    pub fn read(path: &Path) -> io::Result<PrivateKey> {
        let mode = std::fs::metadata(path)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(io::Error::other("other users can access the file; run chmod 600 on it"));
        }
        let text = std::fs::read_to_string(path)?;
        let key = parse_key(text.trim());
        key.map(PrivateKey).ok_or_else(|| io::Error::other("expected a key of 44 characters"))
    }

    /// Writes a random key to a new file that only its owner can read.
    pub fn create(path: &Path) -> io::Result<PrivateKey> {
        let mut bytes = [0; 32];
        let random = SystemRandom::new().fill(&mut bytes);
        random.map_err(|_| io::Error::other("the system's random generator failed"))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(format!("{}\n", format_key(&bytes)).as_bytes())?;
        file.sync_all()?;
        Ok(PrivateKey(bytes))
    }

    /// Returns the public key, which peers need.
    pub fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.secret()).to_bytes()
    }

    pub(crate) fn secret(&self) -> StaticSecret {
        StaticSecret::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_key_is_that_of_the_standard() {
        // RFC 7748 section 6.1, Alice.
        let private = PrivateKey::new(parse_key("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=").unwrap());
        assert_eq!(format_key(&private.public()), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
        assert_eq!(format!("{private:?}"), "PrivateKey");
    }

    #[test]
    fn a_created_file_is_private_and_never_overwritten() {
        let folder = std::env::temp_dir().join(format!("netstage-key-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("pe.key");
        let created = PrivateKey::create(&path).unwrap();
        assert_eq!(PrivateKey::read(&path).unwrap(), created);
        assert_eq!(PrivateKey::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(PrivateKey::read(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
