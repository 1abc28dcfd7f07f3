//! Certificate authorities that an agent or a controller trusts: the current one of the fleet and, during the
//! transition after a rotation, its predecessor.

use super::enrollment::generated;
use super::folder::now_s;
use super::private;
use super::token::sha256;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// Authority at the time of joining (PEM).
const JOINED_FILE: &str = "authority.pem";
/// Authorities after a rotation, in place of the file above.
const ROTATED_FILE: &str = "authorities.json";

/// Trusted authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedAuthorities {
    /// Issuer of new certificates.
    pub current: CertificateDer<'static>,
    /// Authority before the last rotation.
    pub previous: Option<PreviousAuthority>,
}

/// Authority that is trusted until the end of a transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousAuthority {
    /// Certificate of the authority.
    pub certificate: CertificateDer<'static>,
    /// End of the transition, seconds since 1970.
    pub ends_s: u64,
}

/// Content of the file after a rotation, and message of the controller: certificates in PEM.
#[derive(Serialize, Deserialize)]
struct StoredAuthorities {
    current: String,
    previous: String,
    previous_ends_s: u64,
}

impl TrustedAuthorities {
    /// Trusts one authority.
    pub fn one(current: CertificateDer<'static>) -> TrustedAuthorities {
        TrustedAuthorities { current, previous: None }
    }

    /// Returns the authorities that are trusted now.
    pub fn valid(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        let now = now_s();
        let previous = self.previous.as_ref().filter(move |previous| now < previous.ends_s);
        [&self.current].into_iter().chain(previous.map(|previous| &previous.certificate))
    }

    /// Returns the SHA-256 fingerprint of the current authority.
    pub fn fingerprint(&self) -> String {
        sha256(&self.current)
    }

    /// Reads the authorities from an agent's folder.
    pub fn read(folder: &Path) -> io::Result<TrustedAuthorities> {
        match private::read_json::<StoredAuthorities>(&folder.join(ROTATED_FILE)) {
            Ok(stored) => TrustedAuthorities::parse(&stored),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(TrustedAuthorities::one(super::authority::read_certificate(&folder.join(JOINED_FILE))?))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the authorities to an agent's folder.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        match &self.previous {
            None if !folder.join(ROTATED_FILE).exists() => {
                private::write(&folder.join(JOINED_FILE), pem(&self.current).as_bytes())
            }
            _ => {
                private::write_json(&folder.join(ROTATED_FILE), &self.stored())?;
                // The authority at the time of joining must not be trusted again.
                let _ = std::fs::remove_file(folder.join(JOINED_FILE));
                Ok(())
            }
        }
    }

    /// Returns the message that announces the authorities to an agent.
    pub fn message(&self) -> generated::Authorities {
        let StoredAuthorities { current, previous, previous_ends_s } = self.stored();
        generated::Authorities { current, previous, previous_ends_s }
    }

    /// Reads the message of a controller.
    pub fn from_message(message: generated::Authorities) -> io::Result<TrustedAuthorities> {
        let generated::Authorities { current, previous, previous_ends_s } = message;
        TrustedAuthorities::parse(&StoredAuthorities { current, previous, previous_ends_s })
    }

    fn stored(&self) -> StoredAuthorities {
        let (previous, previous_ends_s) = match &self.previous {
            Some(previous) => (pem(&previous.certificate), previous.ends_s),
            None => (String::new(), 0),
        };
        StoredAuthorities { current: pem(&self.current), previous, previous_ends_s }
    }

    fn parse(stored: &StoredAuthorities) -> io::Result<TrustedAuthorities> {
        let certificate = |text: &str| {
            let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("authority: {error}"));
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(wrong)
        };
        let previous = match stored.previous.is_empty() {
            true => None,
            false => Some(PreviousAuthority {
                certificate: certificate(&stored.previous)?,
                ends_s: stored.previous_ends_s,
            }),
        };
        Ok(TrustedAuthorities { current: certificate(&stored.current)?, previous })
    }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::authority::{Authorities, Authority, rotate};
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_previous_authority_is_trusted_until_the_end_of_the_transition() {
        let folder = netstage_harness::TemporaryFolder::new("rotation");
        let first = Authority::create(&folder, "lab").unwrap().fingerprint();
        let before = Authorities::open(&folder).unwrap();
        assert!(before.previous.is_none() && before.presented().fingerprint() == first);
        before.trusted().write(&folder).unwrap();

        rotate(&folder, "lab", Duration::from_secs(1000)).unwrap();
        let during = Authorities::open(&folder).unwrap();
        assert_eq!(during.presented().fingerprint(), first);
        assert_ne!(during.current.fingerprint(), first);
        let trusted = during.trusted();
        assert_eq!(trusted.valid().count(), 2);
        assert_eq!(TrustedAuthorities::from_message(trusted.message()).unwrap(), trusted);
        trusted.write(&folder).unwrap();
        assert_eq!(TrustedAuthorities::read(&folder).unwrap(), trusted);
        assert!(!folder.join(JOINED_FILE).exists());

        // A transition without length: only the third authority is trusted.
        rotate(&folder, "lab", Duration::ZERO).unwrap();
        let after = Authorities::open(&folder).unwrap();
        assert!(after.previous.is_none());
        assert!(![first, during.current.fingerprint()].contains(&after.current.fingerprint()));
        let mut ended = trusted;
        ended.previous.as_mut().unwrap().ends_s = now_s();
        assert_eq!(ended.valid().collect::<Vec<_>>(), [&ended.current]);
    }
}
