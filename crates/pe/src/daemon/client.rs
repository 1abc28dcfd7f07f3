//! The other end of the control socket, for `netstage pe show`, `top` and `reload`, and for
//! whoever started a router and waits until it forwards.

use super::control::VERSIONS;
use super::control::generated::pe_client::PeClient;
use super::control::generated::{HelloReply, HelloRequest, ReloadRequest, ShowRequest};
use super::snapshot::{self, Snapshot};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// A router that runs is told this much of at most: a million stations.
const MOST_BYTES: usize = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a router cannot be asked.
#[derive(Debug)]
pub enum Error {
    /// Nobody listens there.
    Absent(PathBuf, String),
    /// It speaks another version.
    Version(String),
    /// It does not answer as it should.
    Broken(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Absent(path, why) => {
                write!(f, "no provider edge router answers at {}: {why}", path.display())
            }
            Error::Version(tool) => write!(f, "the router is netstage {tool}, which speaks another version"),
            Error::Broken(why) => write!(f, "the router does not answer: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// A connection to a router.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    client: PeClient<Channel>,
    hello: HelloReply,
}

impl Client {
    /// Connects to a router.
    pub fn connect(socket: &Path) -> Result<Client, Error> {
        let absent = |why: &dyn fmt::Display| Error::Absent(socket.to_owned(), why.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Broken(error.to_string()))?;
        // The transport would only say that it failed.
        std::os::unix::net::UnixStream::connect(socket).map_err(|error| absent(&error))?;
        let path = socket.to_owned();
        let connected = runtime.block_on(async move {
            let connector = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Endpoint::from_static("http://pe").timeout(PATIENCE).connect_with_connector(connector).await
        });
        let channel = connected.map_err(|error| absent(&error))?;
        let mut client = PeClient::new(channel).max_decoding_message_size(MOST_BYTES);
        let question = HelloRequest {
            oldest_version: *VERSIONS.start(),
            newest_version: *VERSIONS.end(),
            tool: env!("CARGO_PKG_VERSION").into(),
        };
        let hello = runtime.block_on(client.hello(question)).map_err(|status| broken(&status))?.into_inner();
        let meets = hello.oldest_version <= *VERSIONS.end() && hello.newest_version >= *VERSIONS.start();
        if !meets || hello.state_version != snapshot::VERSION {
            return Err(Error::Version(hello.tool));
        }
        Ok(Client { runtime, client, hello })
    }

    /// Connects to a router that has just been started, once it forwards.
    pub fn wait(socket: &Path, patience: Duration) -> Result<Client, Error> {
        let end = Instant::now() + patience;
        loop {
            match Client::connect(socket) {
                Err(Error::Absent(..)) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Who it is.
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// How it stands.
    pub fn show(&mut self) -> Result<Snapshot, Error> {
        let reply = self.runtime.block_on(self.client.show(ShowRequest {}));
        let reply = reply.map_err(|status| broken(&status))?.into_inner();
        serde_json::from_slice(&reply.state).map_err(|error| Error::Broken(error.to_string()))
    }

    /// Has it read its configuration again: what has changed, or why it was refused.
    pub fn reload(&mut self) -> Result<Result<Vec<String>, String>, Error> {
        let reply = self.runtime.block_on(self.client.reload(ReloadRequest {}));
        let reply = reply.map_err(|status| broken(&status))?.into_inner();
        Ok(if reply.refusal.is_empty() { Ok(reply.changes) } else { Err(reply.refusal) })
    }
}

fn broken(status: &tonic::Status) -> Error {
    Error::Broken(status.message().to_owned())
}
