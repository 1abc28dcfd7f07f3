//! Where an agent is, and the way to it.

use super::error::Error;
use hyper_util::rt::TokioIo;
use netstage_host::keyed::{DialError, Dialler, Key};
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

/// Where an agent is.
#[derive(Debug)]
pub enum Place {
    /// It listens, or soon will, on this socket.
    Socket(PathBuf),
    /// It is at the other end of this connection.
    Connection(UnixStream),
    /// It listens on another host, to whoever has the key.
    Host(SocketAddr, Key),
    /// It is of the fleet whose hub listens on this socket.
    Fleet(PathBuf),
}

impl From<PathBuf> for Place {
    fn from(socket: PathBuf) -> Place {
        Place::Socket(socket)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => write!(f, "{}", path.display()),
            Place::Connection(_) => f.write_str("this process"),
            Place::Host(address, _) => write!(f, "{address}"),
            Place::Fleet(_) => f.write_str("its host"),
        }
    }
}

impl Place {
    /// Connects to the agent called `name`, by the deadline.
    pub async fn dial(self, name: &str, deadline: Instant) -> Result<Channel, Error> {
        let place = self.to_string();
        let unreachable =
            |reason: String| Error::Unreachable { agent: name.to_owned(), place: place.clone(), reason };
        match self {
            Place::Socket(path) | Place::Fleet(path) => {
                dial_socket(&path, name, deadline).await.map_err(unreachable)
            }
            Place::Connection(stream) => {
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| tokio::net::UnixStream::from_std(stream))
                    .map_err(|error| unreachable(error.to_string()))?;
                channel_over(stream, name, deadline).await.map_err(unreachable)
            }
            Place::Host(address, key) => {
                let connected = timeout_at(deadline, TcpStream::connect(address)).await;
                let stream = connected
                    .map_err(|_| unreachable("no answer to the connection request".into()))?
                    .map_err(|error| unreachable(format!("nobody listens ({error})")))?;
                let shaken = timeout_at(deadline, Dialler::new(&key).dial(stream)).await;
                let stream = shaken
                    .map_err(|_| unreachable("it listens, but does not answer".into()))?
                    .map_err(|error| match error {
                        DialError::OtherKey => {
                            Error::OtherKey { agent: name.to_owned(), place: place.clone() }
                        }
                        DialError::Foreign(_) => unreachable(error.to_string()),
                    })?;
                channel_over(stream, name, deadline).await.map_err(unreachable)
            }
        }
    }
}

/// Connects as soon as something listens: an agent just spawned takes a moment.
async fn dial_socket(socket: &Path, name: &str, deadline: Instant) -> Result<Channel, String> {
    let stream = loop {
        let error = match tokio::net::UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        let soon = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !soon || Instant::now() >= deadline {
            return Err(format!("nobody listens ({error}); is the agent running?"));
        }
        sleep(Duration::from_millis(10)).await;
    };
    channel_over(stream, name, deadline).await
}

/// A channel over one connection, which is not opened again once it breaks. Its requests
/// bear a name, by which a hub knows whom they are for.
pub(crate) async fn channel_over<S>(stream: S, name: &str, deadline: Instant) -> Result<Channel, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = Some(TokioIo::new(stream));
    let once =
        service_fn(move |_| ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))));
    // The authority is in the requests' headers only; nodes of one machine may be called anything.
    let endpoint = Endpoint::from_shared(format!("http://{name}"));
    let endpoint = endpoint.unwrap_or_else(|_| Endpoint::from_static("http://agent"));
    let connected = timeout_at(deadline, endpoint.connect_with_connector(once)).await;
    connected.map_err(|_| "it does not accept connections")?.map_err(|error| super::member::deepest(&error))
}
