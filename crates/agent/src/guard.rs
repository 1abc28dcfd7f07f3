//! Admission control for controllers of other hosts.

use netstage_agent_api::path::{FoundPath, PathAddresses, PathSearch};
use netstage_agent_api::protocol::generated::{Consent, NatMapping};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::PolicyDrops;
use netstage_agent_api::task::Assignment;
use netstage_host::shared_key::ConnectionAddresses;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Decides what an agent does for a controller, and keeps account of its requests. Called from any thread.
pub trait RunGuard: Send + Sync {
    /// Notes that a controller now owns the agent.
    fn taken(&self, peer: ConnectionAddresses);

    /// Checks the greeting of a fleet's controller: its last starts with the changes since each, and the fingerprint of its authority. All may be
    /// empty.
    fn greeted(&self, _starts: &[String], _changes: &[u64], _authority: &str) -> Result<(), String> {
        Ok(())
    }
    /// Notes that the controller is no longer heard, and that the run continues for at most this time.
    fn left_alone(&self, _left: Duration) {}

    /// Admits or refuses a run. Fills in the addresses that the assignment leaves open.
    fn prepare(
        &self,
        run: u64,
        assignment: &mut Assignment,
        consents: &[Consent],
        peer: ConnectionAddresses,
    ) -> Result<(), OrderRefusal>;

    /// Subjects the calling thread, and all that it starts, to the limits on what a run may send.
    fn confine(&self) -> Result<(), OrderRefusal> {
        Ok(())
    }

    /// Confirms the consents of the receivers of an admitted run with the receivers themselves, until `stop` is
    /// set. Blocks for several seconds if one does not answer.
    fn confirm(&self, _run: u64, _assignment: &Assignment, _stop: &AtomicBool) -> Result<(), OrderRefusal> {
        Ok(())
    }

    /// Notes that an admitted run could not be prepared.
    fn could_not_prepare(&self, _run: u64, _refusal: &OrderRefusal) {}

    /// Returns the packets that each rule of the policy has dropped since the start of the agent.
    fn drops(&self) -> Vec<PolicyDrops> {
        Vec::new()
    }

    /// Returns signed consent to the flows that the assignment has the agent receive.
    fn agree(self: Arc<Self>, _run: u64, _assignment: &Assignment) -> Result<Vec<Consent>, OrderRefusal> {
        Err(OrderRefusal::new(OrderRefusalKind::Policy, "this agent does not issue consents"))
    }

    /// Begins the search for the paths of flows of a run. Returns at which addresses the agent may be reached. Blocks for
    /// a second if the controller does not answer STUN requests.
    fn open_paths(
        &self,
        _run: u64,
        _search: PathSearch,
        _controller: IpAddr,
    ) -> Result<Vec<PathAddresses>, OrderRefusal> {
        Err(OrderRefusal::new(OrderRefusalKind::Policy, "this agent does not search paths through NATs"))
    }

    /// Checks the addresses of the other ends, and returns the paths that were found. Blocks for several seconds.
    fn check_paths(
        self: Arc<Self>,
        _run: u64,
        _peers: Vec<PathAddresses>,
    ) -> Result<Vec<FoundPath>, OrderRefusal> {
        Err(OrderRefusal::new(OrderRefusalKind::Policy, "this agent does not search paths through NATs"))
    }

    /// Returns the addresses of this host as the controller sees them.
    fn mappings(&self) -> Vec<NatMapping> {
        Vec::new()
    }

    /// Returns the capabilities announced in
    /// [`HelloReply`](netstage_agent_api::protocol::generated::HelloReply).
    fn capabilities(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the addresses of this host that flows may use.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
}
