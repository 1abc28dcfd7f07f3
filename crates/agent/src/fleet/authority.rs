//! Certificate authority of the controller (X.509, ECDSA P-256).
//!
//! A fleet has one authority. For a transition after [`rotate`], its predecessor is trusted, too: agents
//! that have not renewed their certificates yet know only that, so the controller presents a certificate of
//! the predecessor until the end of the transition. New certificates are those of the current authority.
//!
//! The name in a certificate identifies its holder: `NAME.agent.netstage` for an agent, `controller.netstage`
//! for the controller. Only the key of an agent's certificate request is used; its other fields are ignored.

use super::folder::now_s;
use super::private;
use super::token::sha256;
use super::trust::{PreviousAuthority, TrustedAuthorities};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;
use webpki::EndEntityCert;

/// Name in the controller's certificate.
pub const CONTROLLER: &str = "controller.netstage";
/// Suffix of the name in an agent's certificate.
const AGENT: &str = ".agent.netstage";
/// Validity of the authority's certificate.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(20 * 366 * 86_400);
/// Time by which a certificate's validity begins early, for hosts whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

const KEY_FILE: &str = "authority.key";
const CERTIFICATE_FILE: &str = "authority.pem";
/// Both authorities after a rotation, in place of the two files above.
const ROTATION_FILE: &str = "rotation.json";

/// Key and certificate of an authority (PEM).
#[derive(Clone, Serialize, Deserialize)]
struct StoredAuthority {
    key: String,
    certificate: String,
}

/// Content of the rotation file.
#[derive(Serialize, Deserialize)]
struct Rotation {
    current: StoredAuthority,
    previous: StoredAuthority,
    /// End of the transition, seconds since 1970.
    ends_s: u64,
}

/// Certificate authority of a fleet.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate chain and private key of one side of a connection.
pub struct TlsIdentity {
    /// Certificate, followed by the authority's on the controller's side.
    pub chain: Vec<CertificateDer<'static>>,
    /// Private key.
    pub key: PrivateKeyDer<'static>,
}

/// Current authority of a fleet, and its predecessor with the end of the transition.
pub struct Authorities {
    /// Issuer of new certificates.
    pub current: Authority,
    /// Predecessor during a transition, and the end of the transition, seconds since 1970.
    pub previous: Option<(Authority, u64)>,
}

impl Authorities {
    /// Opens the authorities of a folder.
    pub fn open(folder: &Path) -> io::Result<Authorities> {
        match private::read_json::<Rotation>(&folder.join(ROTATION_FILE)) {
            Ok(Rotation { current, previous, ends_s }) => {
                let previous = match now_s() < ends_s {
                    true => Some((Authority::read(&previous)?, ends_s)),
                    false => None,
                };
                Ok(Authorities { current: Authority::read(&current)?, previous })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Authorities { current: Authority::read(&stored(folder)?)?, previous: None })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the authority of the controller's own certificate and of new tokens.
    pub fn presented(&self) -> &Authority {
        self.previous.as_ref().map_or(&self.current, |(previous, _)| previous)
    }

    /// Returns the certificates that are trusted now.
    pub fn trusted(&self) -> TrustedAuthorities {
        let previous = self.previous.as_ref().map(|(authority, ends_s)| PreviousAuthority {
            certificate: authority.certificate.clone(),
            ends_s: *ends_s,
        });
        TrustedAuthorities { current: self.current.certificate.clone(), previous }
    }
}

/// Replaces the authority of a folder. The old one is trusted for the time of the transition. Returns the end
/// of the transition, seconds since 1970.
pub fn rotate(folder: &Path, fleet: &str, transition: Duration) -> io::Result<u64> {
    let path = folder.join(ROTATION_FILE);
    let previous = match private::read_json::<Rotation>(&path) {
        Ok(rotation) => rotation.current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => stored(folder)?,
        Err(error) => return Err(error),
    };
    let ends_s = now_s() + transition.as_secs();
    private::write_json(&path, &Rotation { current: StoredAuthority::generate(fleet)?, previous, ends_s })?;
    // The files before the first rotation, whose content is in the other file now.
    for file in [KEY_FILE, CERTIFICATE_FILE] {
        let _ = std::fs::remove_file(folder.join(file));
    }
    Ok(ends_s)
}

/// Reads the authority of a folder whose authority was never replaced.
fn stored(folder: &Path) -> io::Result<StoredAuthority> {
    let read = |file| std::fs::read_to_string(folder.join(file));
    Ok(StoredAuthority { key: read(KEY_FILE)?, certificate: read(CERTIFICATE_FILE)? })
}

impl StoredAuthority {
    fn generate(fleet: &str) -> io::Result<StoredAuthority> {
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        params.distinguished_name.push(DnType::CommonName, format!("netstage fleet {fleet}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        set_validity(&mut params, now_s() + AUTHORITY_VALIDITY.as_secs());
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        Ok(StoredAuthority { key: key.serialize_pem(), certificate: certificate.pem() })
    }
}

impl Authority {
    /// Creates an authority in a folder that has none.
    pub fn create(folder: &Path, fleet: &str) -> io::Result<Authority> {
        let created = StoredAuthority::generate(fleet)?;
        private::write(&folder.join(KEY_FILE), created.key.as_bytes())?;
        private::write(&folder.join(CERTIFICATE_FILE), created.certificate.as_bytes())?;
        Authority::read(&created)
    }

    fn read(stored: &StoredAuthority) -> io::Result<Authority> {
        let key = KeyPair::from_pem(&stored.key).map_err(io::Error::other)?;
        let certificate =
            CertificateDer::from_pem_slice(stored.certificate.as_bytes()).map_err(io::Error::other)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(io::Error::other)?;
        Ok(Authority { certificate, issuer })
    }

    /// Returns the authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the SHA-256 fingerprint of the authority's certificate.
    pub fn fingerprint(&self) -> String {
        sha256(&self.certificate)
    }

    /// Creates an identity for the controller, used until its process ends.
    pub fn controller(&self) -> io::Result<TlsIdentity> {
        let mut params = CertificateParams::new([CONTROLLER.to_owned()]).map_err(io::Error::other)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, now_s() + AUTHORITY_VALIDITY.as_secs());
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?;
        Ok(TlsIdentity { chain, key })
    }

    /// Signs a certificate for an agent, valid until `expires_s`, for the key of the request. The request's
    /// signature proves possession of the key.
    pub fn sign(
        &self,
        agent: &str,
        request: &[u8],
        expires_s: u64,
    ) -> Result<rcgen::Certificate, rcgen::Error> {
        let request =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))?;
        let mut params = CertificateParams::new([agent_name(agent)])?;
        params.distinguished_name.push(DnType::CommonName, agent);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, expires_s);
        params.signed_by(&request.public_key, &self.issuer)
    }
}

/// Returns the name in the certificate of an agent.
pub fn agent_name(agent: &str) -> String {
    format!("{agent}{AGENT}")
}

/// Returns the name of the agent that a certificate identifies.
pub fn agent_name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut names = certificate.valid_dns_names();
    names.find_map(|name| name.strip_suffix(AGENT).filter(|name| is_agent_name(name)).map(str::to_owned))
}

/// Reports whether an agent may have this name, which is used in certificates, file names and scenarios.
pub fn is_agent_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Creates a key and the request for its certificate (DER).
pub fn request() -> Result<(KeyPair, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(Vec::new())?;
    let request = params.serialize_request(&key)?;
    Ok((key, request.der().to_vec()))
}

/// Reads a certificate (PEM).
pub fn read_certificate(path: &Path) -> io::Result<CertificateDer<'static>> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    CertificateDer::from_pem_slice(&std::fs::read(path)?).map_err(wrong)
}

fn set_validity(params: &mut CertificateParams, expires_s: u64) {
    let epoch = date_time_ymd(1970, 1, 1);
    let now = Duration::from_secs(now_s());
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW).min(Duration::from_secs(expires_s));
    params.not_after = epoch + Duration::from_secs(expires_s);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_are_valid_in_certificates_file_names_and_scenarios() {
        for good in ["a", "ber-1", "7", &"x".repeat(63)] {
            assert!(is_agent_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "../a", "ä", &"x".repeat(64)] {
            assert!(!is_agent_name(bad), "{bad}");
        }
    }
}
