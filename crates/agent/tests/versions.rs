//! Agent of another version: the controller names the versions, and sends no other request.

use netstage_agent::controller::{ControlledAgents, ControllerError};
use netstage_agent_api::protocol::generated::agent_server::{Agent, AgentServer};
use netstage_agent_api::protocol::generated::{
    AgreeReply, AgreeRequest, CollectRequest, CompareClocksReply, CompareClocksRequest, FinishReply,
    FinishRequest, Heartbeat, HelloReply, HelloRequest, KeptReply, KeptRequest, PathsReply, PathsRequest,
    PrepareReply, PrepareRequest, Progress, ReadClockReply, ReadClockRequest, ReleaseReply, ReleaseRequest,
    ReportChunk, StartReply, StartRequest, StopReply, StopRequest,
};
use tokio::net::UnixListener;
use tokio_stream::Empty;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

struct Newer;

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl Agent for Newer {
    type AttendStream = Empty<Result<Progress, Status>>;
    type CollectStream = Empty<Result<ReportChunk, Status>>;

    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        let reply =
            HelloReply { oldest_version: 8, newest_version: 9, tool: "7.0".into(), ..HelloReply::default() };
        Ok(Response::new(reply))
    }

    async fn read_clock(&self, _: Request<ReadClockRequest>) -> Answer<ReadClockReply> {
        unreachable!("no other request is sent")
    }

    async fn compare_clocks(&self, _: Request<CompareClocksRequest>) -> Answer<CompareClocksReply> {
        unreachable!("no other request is sent")
    }

    async fn attend(&self, _: Request<Streaming<Heartbeat>>) -> Answer<Self::AttendStream> {
        unreachable!("no other request is sent")
    }

    async fn prepare(&self, _: Request<PrepareRequest>) -> Answer<PrepareReply> {
        unreachable!("no other request is sent")
    }

    async fn start(&self, _: Request<StartRequest>) -> Answer<StartReply> {
        unreachable!("no other request is sent")
    }

    async fn stop(&self, _: Request<StopRequest>) -> Answer<StopReply> {
        unreachable!("no other request is sent")
    }

    async fn collect(&self, _: Request<CollectRequest>) -> Answer<Self::CollectStream> {
        unreachable!("no other request is sent")
    }

    async fn open_paths(&self, _: Request<PathsRequest>) -> Answer<PathsReply> {
        unreachable!("no other request is sent")
    }

    async fn check_paths(&self, _: Request<PathsRequest>) -> Answer<PathsReply> {
        unreachable!("no other request is sent")
    }

    async fn release(&self, _: Request<ReleaseRequest>) -> Answer<ReleaseReply> {
        unreachable!("no other request is sent")
    }

    async fn kept(&self, _: Request<KeptRequest>) -> Answer<KeptReply> {
        unreachable!("no other request is sent")
    }

    async fn agree(&self, _: Request<AgreeRequest>) -> Answer<AgreeReply> {
        unreachable!("no other request is sent")
    }

    async fn finish(&self, _: Request<FinishRequest>) -> Answer<FinishReply> {
        unreachable!("no other request is sent")
    }
}

#[test]
fn unsupported_versions_are_named() {
    let socket = std::env::temp_dir().join(format!("netstage-versions-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(async { UnixListener::bind(&socket).unwrap() });
    let server = tonic::transport::Server::builder();
    runtime.spawn(server.serve_with_incoming(AgentServer::new(Newer), UnixListenerStream::new(listener)));

    let error = ControlledAgents::connect(vec![("new".into(), socket.clone())])
        .err()
        .expect("the versions have nothing in common");
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(error, ControllerError::Version { agent: "new".into(), tool: "7.0".into(), speaks: (8, 9) });
    let expected = "agent new (netstage 7.0) supports agent protocol versions 8 to 9, this program 1 to 1";
    assert!(error.to_string().starts_with(expected), "{error}");
}
