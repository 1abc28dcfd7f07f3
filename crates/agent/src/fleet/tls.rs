//! Mutual TLS 1.3 under the authority of a fleet. The application protocol selects the purpose of a
//! connection. A host that joins has no certificate yet, and trusts the authority whose fingerprint is in its
//! token.

use super::authority::{CONTROLLER, TlsIdentity};
use super::token::sha256;
use super::trust::TrustedAuthorities;
use netstage_host::shared_key::{TlsConnection, Trust, Verifier};
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore, ServerConfig};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Application protocol of the agent protocol, in which the dialing side is the gRPC server.
pub const COMMANDS: &[u8] = b"netstage-agent";
/// Application protocol of enrollment and renewal.
pub const ENROLLMENT: &[u8] = b"h2";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn roots<'a>(
    authorities: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(Arc::new(roots))
}

/// Controller's side of the handshake.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Returns an acceptor with the controller's identity. Clients without a certificate are accepted, so
    /// that they can join.
    pub fn new(identity: TlsIdentity, trusted: &TrustedAuthorities) -> Result<Acceptor, Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(trusted.valid())?, provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain, identity.key)?;
        config.alpn_protocols = vec![COMMANDS.to_vec(), ENROLLMENT.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the handshake on an accepted connection. The caller limits its time.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsConnection> {
        stream.set_nodelay(true)?;
        TlsConnection::new(self.0.accept(stream).await?)
    }
}

/// Agent's side of the handshake.
pub struct FleetDialer {
    connector: TlsConnector,
}

impl FleetDialer {
    /// Returns a dialer without a certificate, which trusts the authority with this fingerprint.
    pub fn for_joining(fingerprint: &str) -> Result<FleetDialer, Error> {
        let verifier = Arc::new(Verifier::new(PinnedAuthority(fingerprint.into())));
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(FleetDialer::with(config, ENROLLMENT))
    }

    /// Returns a dialer with an identity, for the given application protocol.
    pub fn for_member(
        identity: TlsIdentity,
        trusted: &TrustedAuthorities,
        application: &[u8],
    ) -> Result<FleetDialer, Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots(trusted.valid())?)
            .with_client_auth_cert(identity.chain, identity.key)?;
        Ok(FleetDialer::with(config, application))
    }

    fn with(mut config: ClientConfig, application: &[u8]) -> FleetDialer {
        config.alpn_protocols = vec![application.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        FleetDialer { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// Performs the handshake on a connection. The caller limits its time.
    pub async fn dial(&self, stream: TcpStream) -> io::Result<TlsConnection> {
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(CONTROLLER).expect("the name is valid");
        TlsConnection::new(self.connector.connect(name, stream).await?)
    }
}

/// Trusts the one authority with this fingerprint, whose certificate the other side has to present.
#[derive(Debug)]
struct PinnedAuthority(String);

impl Trust for PinnedAuthority {
    fn check(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let authority = intermediates.iter().find(|certificate| sha256(certificate) == self.0);
        let authority = authority.ok_or(CertificateError::UnknownIssuer)?.clone().into_owned();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots([&authority])?, provider());
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        let name = name.ok_or(CertificateError::NotValidForName)?;
        verifier.verify_server_cert(shown, &[], name, &[], now).map(|_| ())
    }
}

/// Describes an error of a handshake or connection.
pub fn describe(error: &io::Error) -> String {
    use rustls::AlertDescription as Alert;
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "the peer's certificate has expired".into(),
        Some(Error::AlertReceived(Alert::CertificateExpired)) => {
            "the certificate of this host has expired".into()
        }
        Some(Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => "the peer's certificate is not valid yet; check both clocks".into(),
        Some(Error::InvalidCertificate(_)) => {
            "the peer's certificate belongs to another fleet, or to an authority that was rotated out".into()
        }
        Some(Error::AlertReceived(_)) => "the peer does not accept the certificate of this host".into(),
        Some(other) => format!("TLS error ({other})"),
        None => format!("connection broke ({error})"),
    }
}
