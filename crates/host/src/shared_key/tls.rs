//! Mutual TLS 1.3 by a shared key.
//!
//! Two Ed25519 keys are derived from the shared key, one for each role, so that a reflected handshake fails.
//! Each side has both: its own to sign with, the peer's to compare.

use super::PresharedKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{CryptoProvider, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, SignatureScheme,
};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;

/// PKCS #8 prefix of the 32 bytes of an Ed25519 key (RFC 8410 section 7).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// ALPN identifier of HTTP/2, which gRPC uses (RFC 7301).
const ALPN: &[u8] = b"h2";

/// Accepts connections of clients that have the key.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

/// Opens connections to servers that have the key.
#[derive(Clone)]
pub struct Dialer(TlsConnector);

/// Error of a connection to a server with a key.
#[derive(Debug)]
pub enum DialError {
    /// The server has another key.
    OtherKey,
    /// The server speaks another protocol.
    OtherProtocol(String),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::OtherKey => f.write_str("the server has another key"),
            DialError::OtherProtocol(reason) => write!(f, "the server is not netstage ({reason})"),
        }
    }
}

/// Addresses of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAddresses {
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Local address and port.
    pub local: SocketAddr,
}

impl Acceptor {
    /// Creates an acceptor for clients with this key.
    pub fn new(key: &PresharedKey) -> Acceptor {
        let verifier = ExpectedKey::verifier(key, TlsRole::Client);
        let mut config = ServerConfig::builder_with_provider(verifier.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("ring has TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own_key(
                key,
                TlsRole::Server,
            ))));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Acceptor(TlsAcceptor::from(Arc::new(config)))
    }

    /// Performs the handshake with a client. The caller limits the time.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsConnection> {
        stream.set_nodelay(true)?;
        let peer = peer(&stream)?;
        let stream = self.0.accept(stream).await?;
        Ok(TlsConnection { stream: stream.into(), peer })
    }
}

impl Dialer {
    /// Creates a dialer with this key.
    pub fn new(key: &PresharedKey) -> Dialer {
        let verifier = ExpectedKey::verifier(key, TlsRole::Server);
        let mut config = ClientConfig::builder_with_provider(verifier.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("ring has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own_key(
                key,
                TlsRole::Client,
            ))));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Dialer(TlsConnector::from(Arc::new(config)))
    }

    /// Performs the handshake with a server. The caller limits the time.
    pub async fn dial(&self, stream: TcpStream) -> Result<TlsConnection, DialError> {
        let foreign = |error: io::Error| DialError::OtherProtocol(error.to_string());
        let name = ServerName::try_from("netstage").expect("a name of letters");
        let peer = stream.set_nodelay(true).and_then(|()| peer(&stream)).map_err(foreign)?;
        match self.0.connect(name, stream).await {
            Ok(stream) => Ok(TlsConnection { stream: stream.into(), peer }),
            Err(error) => Err(if is_other_key(&error) { DialError::OtherKey } else { foreign(error) }),
        }
    }
}

fn peer(stream: &TcpStream) -> io::Result<ConnectionAddresses> {
    // A dual-stack socket reports IPv4 addresses as IPv4-mapped IPv6 addresses.
    let canonical = |address: SocketAddr| match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    };
    Ok(ConnectionAddresses { remote: canonical(stream.peer_addr()?), local: canonical(stream.local_addr()?) })
}

fn is_other_key(error: &io::Error) -> bool {
    let other_key = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    error.get_ref().and_then(|error| error.downcast_ref::<Error>()) == Some(&other_key)
}

/// Describes the reason a client was rejected.
pub fn rejection_reason(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        // The client compared this side's key first, and rejected it.
        Some(Error::AlertReceived(AlertDescription::AccessDenied | AlertDescription::BadCertificate))
        | Some(Error::InvalidCertificate(_) | Error::NoCertificatesPresented) => {
            "the client has another key".into()
        }
        Some(_) => format!("the client speaks another protocol ({error})"),
        None => format!("the connection was lost ({error})"),
    }
}

#[derive(Clone, Copy)]
enum TlsRole {
    Client,
    Server,
}

fn signing_key(key: &PresharedKey, role: TlsRole) -> Arc<dyn rustls::sign::SigningKey> {
    let purpose = match role {
        TlsRole::Client => "client's signature",
        TlsRole::Server => "server's signature",
    };
    let document = [&PKCS8[..], &key.derive(purpose)].concat();
    any_eddsa_type(&PrivatePkcs8KeyDer::from(document)).expect("any 32 bytes are an Ed25519 key")
}

fn public_key(key: &dyn rustls::sign::SigningKey) -> SubjectPublicKeyInfoDer<'static> {
    key.public_key().expect("an Ed25519 key has a public key").into_owned()
}

/// Returns the key a side of this role presents and signs with.
fn own_key(key: &PresharedKey, role: TlsRole) -> Arc<CertifiedKey> {
    let key = signing_key(key, role);
    let presented = CertificateDer::from(public_key(&*key).to_vec());
    Arc::new(CertifiedKey::new(vec![presented], key))
}

/// Check of the peer's certificate. [`Verifier`] checks that the peer has its private key.
pub trait Trust: fmt::Debug + Send + Sync {
    /// Whether the peer presents a raw public key instead of a certificate (RFC 7250).
    const RAW: bool = false;

    /// Checks the identity of the peer.
    fn check(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error>;
}

/// Verifier of TLS 1.3 handshakes by the trust `T`.
#[derive(Debug)]
pub struct Verifier<T> {
    trust: T,
    provider: Arc<CryptoProvider>,
}

impl<T> Verifier<T> {
    /// Creates a verifier.
    pub fn new(trust: T) -> Verifier<T> {
        Verifier { trust, provider: Arc::new(default_provider()) }
    }
}

/// Signature methods, the same for both roles.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _shown: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3 is supported".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            presented: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            if T::RAW {
                let presented = SubjectPublicKeyInfoDer::from(presented.as_ref());
                return verify_tls13_signature_with_raw_key(message, &presented, signature, algorithms);
            }
            verify_tls13_signature(message, presented, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            match T::RAW {
                true => vec![SignatureScheme::ED25519],
                false => self.provider.signature_verification_algorithms.supported_schemes(),
            }
        }

        fn requires_raw_public_keys(&self) -> bool {
            T::RAW
        }
    };
}

impl<T: Trust> ServerCertVerifier for Verifier<T> {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _status: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trust.check(presented, intermediates, Some(name), now).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl<T: Trust> ClientCertVerifier for Verifier<T> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.trust.check(presented, intermediates, None, now).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

/// Trust in exactly one public key.
#[derive(Debug)]
struct ExpectedKey(SubjectPublicKeyInfoDer<'static>);

impl ExpectedKey {
    /// Creates a verifier of the key that a side of this role has.
    fn verifier(key: &PresharedKey, role: TlsRole) -> Arc<Verifier<ExpectedKey>> {
        Arc::new(Verifier::new(ExpectedKey(public_key(&*signing_key(key, role)))))
    }
}

impl Trust for ExpectedKey {
    const RAW: bool = true;

    fn check(
        &self,
        presented: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: Option<&ServerName<'_>>,
        _now: UnixTime,
    ) -> Result<(), Error> {
        // The keys are public, so the duration of the comparison reveals nothing.
        if presented.as_ref() == self.0.as_ref() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }
}

/// Connection whose peer has the key.
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    peer: ConnectionAddresses,
}

impl TlsConnection {
    /// Wraps a connection after its handshake.
    pub fn new(stream: impl Into<TlsStream<TcpStream>>) -> io::Result<TlsConnection> {
        let stream = stream.into();
        let peer = peer(stream.get_ref().0)?;
        Ok(TlsConnection { stream, peer })
    }

    /// Returns the certificates presented by the peer.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.stream.get_ref().1.peer_certificates().unwrap_or_default()
    }

    /// Returns the negotiated application protocol.
    pub fn application_protocol(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }

    /// Returns the underlying connection, to close it from outside.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref().0
    }

    /// Returns the addresses of both ends.
    pub fn peer(&self) -> ConnectionAddresses {
        self.peer
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = ConnectionAddresses;

    fn connect_info(&self) -> ConnectionAddresses {
        self.peer
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// Returns the result of a handshake on each side.
    fn handshake(
        server: &PresharedKey,
        client: &PresharedKey,
    ) -> (io::Result<TlsConnection>, Result<TlsConnection, DialError>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (acceptor, dialler) = (Acceptor::new(server), Dialer::new(client));
            let accept = async {
                let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await?;
                stream.write_all(b"hello").await?;
                Ok(stream)
            };
            let dial = async {
                let mut stream = dialler.dial(TcpStream::connect(address).await.unwrap()).await?;
                let mut greeting = [0; 5];
                stream
                    .read_exact(&mut greeting)
                    .await
                    .map_err(|e| DialError::OtherProtocol(e.to_string()))?;
                assert_eq!(&greeting, b"hello");
                Ok(stream)
            };
            tokio::join!(accept, dial)
        })
    }

    #[test]
    fn a_handshake_with_the_same_key_succeeds() {
        let key = PresharedKey::generate().unwrap();
        let (server, client) = handshake(&key, &key);
        let (server, client) = (server.unwrap().peer(), client.unwrap().peer());
        assert_eq!((server.remote, server.local), (client.local, client.remote));
    }

    #[test]
    fn a_handshake_with_different_keys_fails_on_both_sides() {
        let (server, client) =
            handshake(&PresharedKey::generate().unwrap(), &PresharedKey::generate().unwrap());
        assert_eq!(rejection_reason(&server.err().unwrap()), "the client has another key");
        assert!(matches!(client, Err(DialError::OtherKey)));
    }

    #[test]
    fn a_client_with_another_key_is_rejected_by_the_server() {
        let (expected, other) = (PresharedKey::generate().unwrap(), PresharedKey::generate().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            // The client expects the server's key but signs with another key.
            let verifier = ExpectedKey::verifier(&expected, TlsRole::Server);
            let config = ClientConfig::builder_with_provider(verifier.provider.clone())
                .with_protocol_versions(&[&TLS13])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own_key(
                    &other,
                    TlsRole::Client,
                ))));
            let dialler = Dialer(TlsConnector::from(Arc::new(config)));
            let acceptor = Acceptor::new(&expected);
            let accept = async { acceptor.accept(listener.accept().await.unwrap().0).await };
            let dial = async { dialler.dial(TcpStream::connect(address).await.unwrap()).await };
            let (accepted, _) = tokio::join!(accept, dial);
            let error = accepted.err().expect("rejected");
            assert!(is_other_key(&error), "{error}");
        });
    }
}
