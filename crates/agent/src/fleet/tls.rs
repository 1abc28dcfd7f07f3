//! Mutual TLS 1.3 under the authority of a fleet. The application protocol says what a
//! connection is for; whoever joins has no certificate yet, and trusts by the fingerprint
//! in its token.

use super::authority::{CONTROLLER, Identity};
use super::token::sha256;
use netstage_host::keyed::{Stream, Trust, Verifier};
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

/// The agents' protocol, the one who dials being its server.
pub const COMMANDS: &[u8] = b"netstage-agent";
/// Joining and renewal.
pub const ENROLMENT: &[u8] = b"h2";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(Arc::new(roots))
}

/// The controller's side.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// With the controller's identity. One who shows no certificate gets in, to join.
    pub fn new(identity: Identity, authority: &CertificateDer<'static>) -> Result<Acceptor, Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain, identity.key)?;
        config.alpn_protocols = vec![COMMANDS.to_vec(), ENROLMENT.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake with one who connected. The caller limits the time.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        Stream::new(self.0.accept(stream).await?)
    }
}

/// An agent's side.
pub struct Dialler {
    connector: TlsConnector,
}

impl Dialler {
    /// Without a certificate: trusts the authority of this fingerprint.
    pub fn joining(fingerprint: &str) -> Result<Dialler, Error> {
        let verifier = Arc::new(Verifier::new(Pinned(fingerprint.into())));
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Dialler::with(config, ENROLMENT))
    }

    /// With an identity, for this application protocol.
    pub fn member(
        identity: Identity,
        authority: &CertificateDer<'static>,
        application: &[u8],
    ) -> Result<Dialler, Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots(authority)?)
            .with_client_auth_cert(identity.chain, identity.key)?;
        Ok(Dialler::with(config, application))
    }

    fn with(mut config: ClientConfig, application: &[u8]) -> Dialler {
        config.alpn_protocols = vec![application.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Dialler { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// The handshake over a connection. The caller limits the time.
    pub async fn dial(&self, stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(CONTROLLER).expect("a name of letters and dots");
        Stream::new(self.connector.connect(name, stream).await?)
    }
}

/// Trusts the one authority whose fingerprint it has, which the other side has to show.
#[derive(Debug)]
struct Pinned(String);

impl Trust for Pinned {
    fn check(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let authority = intermediates.iter().find(|certificate| sha256(certificate) == self.0);
        let authority = authority.ok_or(CertificateError::UnknownIssuer)?.clone().into_owned();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(&authority)?, provider());
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        let name = name.ok_or(CertificateError::NotValidForName)?;
        verifier.verify_server_cert(shown, &[], name, &[], now).map(|_| ())
    }
}

/// What went wrong between the two, in words.
pub fn describe(error: &io::Error) -> String {
    use rustls::AlertDescription as Alert;
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "its certificate has expired".into(),
        Some(Error::AlertReceived(Alert::CertificateExpired)) => "our certificate has expired".into(),
        Some(Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => "its certificate is not valid yet: compare both clocks".into(),
        Some(Error::InvalidCertificate(_)) => "its certificate is of another fleet".into(),
        Some(Error::AlertReceived(_)) => "it does not accept our certificate".into(),
        Some(other) => format!("it speaks something else ({other})"),
        None => format!("the connection broke ({error})"),
    }
}
