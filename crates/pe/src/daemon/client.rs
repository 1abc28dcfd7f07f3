//! Client of the control socket, used by `netstage pe show`, `top` and `reload`, and by programs that start a
//! router and wait until it forwards.

use super::control::VERSIONS;
use super::control::generated::pe_client::PeClient;
use super::control::generated::{HelloReply, HelloRequest, ReloadRequest, ShowRequest};
use super::snapshot::{self, PeSnapshot};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Maximum size of a response: enough for a million neighbors.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Error of a control request.
#[derive(Debug)]
pub enum ControlError {
    /// No router listens at this path, for this reason.
    Absent(PathBuf, String),
    /// The router, of this netstage version, uses an incompatible protocol version.
    Version(String),
    /// The request failed or its response is invalid.
    Broken(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Absent(path, why) => {
                write!(f, "no provider edge router at {}: {why}", path.display())
            }
            ControlError::Version(tool) => {
                write!(f, "the router runs netstage {tool}, which uses an incompatible protocol version")
            }
            ControlError::Broken(why) => write!(f, "request to the router failed: {why}"),
        }
    }
}

impl std::error::Error for ControlError {}

/// Connection to a router.
pub struct PeControlClient {
    runtime: tokio::runtime::Runtime,
    client: PeClient<Channel>,
    hello: HelloReply,
}

impl PeControlClient {
    /// Connects to a router.
    pub fn connect(socket: &Path) -> Result<PeControlClient, ControlError> {
        let absent = |why: &dyn fmt::Display| ControlError::Absent(socket.to_owned(), why.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ControlError::Broken(error.to_string()))?;
        // The transport's own error would not give the reason.
        std::os::unix::net::UnixStream::connect(socket).map_err(|error| absent(&error))?;
        let path = socket.to_owned();
        let connected = runtime.block_on(async move {
            let connector = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Endpoint::from_static("http://pe")
                .timeout(REQUEST_TIMEOUT)
                .connect_with_connector(connector)
                .await
        });
        let channel = connected.map_err(|error| absent(&error))?;
        let mut client = PeClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
        let request = HelloRequest {
            oldest_version: *VERSIONS.start(),
            newest_version: *VERSIONS.end(),
            tool: env!("CARGO_PKG_VERSION").into(),
        };
        let hello = runtime.block_on(client.hello(request)).map_err(|status| broken(&status))?.into_inner();
        let is_compatible =
            hello.oldest_version <= *VERSIONS.end() && hello.newest_version >= *VERSIONS.start();
        if !is_compatible || hello.state_version != snapshot::VERSION {
            return Err(ControlError::Version(hello.tool));
        }
        Ok(PeControlClient { runtime, client, hello })
    }

    /// Connects to a router that has just been started, and waits up to `patience` until it forwards.
    pub fn wait(socket: &Path, patience: Duration) -> Result<PeControlClient, ControlError> {
        let deadline = Instant::now() + patience;
        loop {
            match PeControlClient::connect(socket) {
                Err(ControlError::Absent(..)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Returns the identification of the router.
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Requests the state of the router.
    pub fn show(&mut self) -> Result<PeSnapshot, ControlError> {
        let reply = self.runtime.block_on(self.client.show(ShowRequest {}));
        let reply = reply.map_err(|status| broken(&status))?.into_inner();
        serde_json::from_slice(&reply.state).map_err(|error| ControlError::Broken(error.to_string()))
    }

    /// Makes the router reread its configuration. Returns the changes, or the reason for the rejection.
    pub fn reload(&mut self) -> Result<Result<Vec<String>, String>, ControlError> {
        let reply = self.runtime.block_on(self.client.reload(ReloadRequest {}));
        let reply = reply.map_err(|status| broken(&status))?.into_inner();
        Ok(if reply.refusal.is_empty() { Ok(reply.changes) } else { Err(reply.refusal) })
    }
}

fn broken(status: &tonic::Status) -> ControlError {
    ControlError::Broken(status.message().to_owned())
}
