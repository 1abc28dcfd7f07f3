//! Enrollment of hosts in a fleet, and renewal of agents' certificates.

#[rustfmt::skip]
#[allow(missing_docs, clippy::all)]
pub mod generated;

use super::authority::Authorities;
use super::folder::{FleetFolder, IssuedCertificate};
use super::metrics::{HubCounts, count};
use generated::enrollment_server;
use generated::{JoinReply, JoinRequest, RenewReply, RenewRequest};
use netstage_host::log::{Level, LimitedLog, Log};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tonic::{Request, Response, Status};

/// Controller's side of one connection.
pub struct EnrollmentService {
    /// Fleet.
    pub fleet: FleetFolder,
    /// Certificate authorities of the fleet.
    pub authorities: Arc<Authorities>,
    /// Agent whose certificate was presented, if any.
    pub agent: Option<String>,
    /// Remote address.
    pub from: SocketAddr,
    /// Counters of the hub.
    pub counts: Arc<HubCounts>,
    /// Log of the hub.
    pub log: Log,
    /// Log of rejected clients.
    pub rejections: Arc<LimitedLog>,
}

impl EnrollmentService {
    fn log_result(&self, what: &str, counter: &AtomicU64, result: &Result<IssuedCertificate, String>) {
        match result {
            Ok(signed) => {
                count(counter);
                (self.log)(Level::Note, &format!("agent {} {what} from {}", signed.agent, self.from));
            }
            Err(why) => {
                count(&self.counts.rejected);
                self.rejections.write(Level::Alarm, &format!("{} rejected: {why}", self.from));
            }
        }
    }
}

#[tonic::async_trait]
impl enrollment_server::Enrollment for EnrollmentService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        let request = request.into_inner();
        let result = self.fleet.join(&self.authorities.current, &request.secret, &request.request);
        self.log_result("joined", &self.counts.joined, &result);
        Ok(Response::new(match result {
            Err(refusal) => JoinReply { refusal, ..JoinReply::default() },
            Ok(IssuedCertificate { agent, certificate, expires_s }) => JoinReply {
                refusal: String::new(),
                name: agent,
                controller: self.fleet.name.clone(),
                certificate,
                expires_s,
                authorities: Some(self.authorities.trusted().message()),
            },
        }))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewReply>, Status> {
        let request = request.into_inner().request;
        let result = match &self.agent {
            Some(agent) => self.fleet.renew(&self.authorities.current, agent, &request),
            None => Err("no client certificate".into()),
        };
        self.log_result("renewed its certificate", &self.counts.renewed, &result);
        Ok(Response::new(match result {
            Err(refusal) => RenewReply { refusal, ..RenewReply::default() },
            Ok(IssuedCertificate { certificate, expires_s, .. }) => {
                let authorities = Some(self.authorities.trusted().message());
                RenewReply { refusal: String::new(), certificate, expires_s, authorities }
            }
        }))
    }
}
