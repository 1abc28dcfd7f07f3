//! Addresses of agents, and connections to them.

use super::error::ControllerError;
use hyper_util::rt::TokioIo;
use netstage_host::shared_key::{DialError, Dialer, PresharedKey};
use std::fmt;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Address of an agent.
#[derive(Debug)]
pub enum AgentAddress {
    /// Unix socket on which the agent listens, or will listen soon.
    Socket(PathBuf),
    /// Established connection to the agent.
    Connection(UnixStream),
    /// Address of an agent on another host, and the key it requires.
    Host(SocketAddr, PresharedKey),
    /// Unix socket of the hub of the agent's fleet.
    Fleet(PathBuf),
}

impl From<PathBuf> for AgentAddress {
    fn from(socket: PathBuf) -> AgentAddress {
        AgentAddress::Socket(socket)
    }
}

impl fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentAddress::Socket(path) => write!(f, "{}", path.display()),
            AgentAddress::Connection(_) => f.write_str("this process"),
            AgentAddress::Host(address, _) => write!(f, "{address}"),
            AgentAddress::Fleet(_) => f.write_str("its fleet host"),
        }
    }
}

impl AgentAddress {
    /// Connects to the agent called `name` before the deadline.
    pub async fn dial(self, name: &str, deadline: Instant) -> Result<Channel, ControllerError> {
        let place = self.to_string();
        let unreachable = |reason: String| ControllerError::Unreachable {
            agent: name.to_owned(),
            place: place.clone(),
            reason,
        };
        match self {
            AgentAddress::Socket(path) | AgentAddress::Fleet(path) => {
                dial_socket(&path, name, deadline).await.map_err(unreachable)
            }
            AgentAddress::Connection(stream) => {
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| tokio::net::UnixStream::from_std(stream))
                    .map_err(|error| unreachable(error.to_string()))?;
                channel_over(stream, name, deadline).await.map_err(unreachable)
            }
            AgentAddress::Host(address, key) => {
                let connected = timeout_at(deadline, TcpStream::connect(address)).await;
                let stream = connected
                    .map_err(|_| unreachable("no answer to the connection request".into()))?
                    .map_err(|error| unreachable(format!("no agent listens ({error})")))?;
                let handshake = timeout_at(deadline, Dialer::new(&key).dial(stream)).await;
                let stream = handshake.map_err(|_| unreachable("connected, but no answer".into()))?.map_err(
                    |error| match error {
                        DialError::OtherKey => {
                            ControllerError::WrongKey { agent: name.to_owned(), place: place.clone() }
                        }
                        DialError::OtherProtocol(_) => unreachable(error.to_string()),
                    },
                )?;
                channel_over(stream, name, deadline).await.map_err(unreachable)
            }
        }
    }
}

/// Connects as soon as the socket accepts connections. An agent that has just been started takes a moment.
async fn dial_socket(socket: &Path, name: &str, deadline: Instant) -> Result<Channel, String> {
    let stream = loop {
        let error = match tokio::net::UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        let soon = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !soon || Instant::now() >= deadline {
            return Err(format!("no agent listens ({error}); is the agent running?"));
        }
        sleep(Duration::from_millis(10)).await;
    };
    channel_over(stream, name, deadline).await
}

/// Creates a channel over one connection, which is not re-established once it breaks. Requests carry the
/// agent's name as their authority, by which a hub selects the agent.
pub(crate) async fn channel_over<S>(stream: S, name: &str, deadline: Instant) -> Result<Channel, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = Some(TokioIo::new(stream));
    let once =
        service_fn(move |_| ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))));
    // The authority is used only in request headers. Nodes of one machine may have names that are no valid
    // host names.
    let endpoint = Endpoint::from_shared(format!("http://{name}"));
    let endpoint = endpoint.unwrap_or_else(|_| Endpoint::from_static("http://agent"));
    let connected = timeout_at(deadline, endpoint.connect_with_connector(once)).await;
    connected
        .map_err(|_| "the agent does not accept connections")?
        .map_err(|error| super::member::deepest(&error))
}
