//! Who decides what an agent does for controllers of other hosts.

use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::task::Assignment;
use netstage_host::keyed::Peer;
use std::net::IpAddr;

/// Decides, and keeps account of what was asked; called from any thread.
pub trait Guard: Send + Sync {
    /// A controller has the agent now.
    fn taken(&self, peer: Peer);

    /// A run is asked for: agrees, or refuses. Fills in addresses that are left open.
    fn prepare(
        &self,
        run: u64,
        assignment: &mut Assignment,
        consents: &[Consent],
        peer: Peer,
    ) -> Result<(), Refusal>;

    /// A run it agreed to could not be prepared after all.
    fn could_not_prepare(&self, _run: u64, _refusal: &Refusal) {}

    /// Gives its word for what the assignment has the agent receive.
    fn agree(&self, _run: u64, _assignment: &Assignment) -> Result<Vec<Consent>, Refusal> {
        Err(Refusal::new(RefusalKind::Policy, "this agent gives no word on what it receives"))
    }

    /// What this host can do beyond its version, as [`HelloReply`](netstage_agent_api::protocol::generated::HelloReply) tells it.
    fn capabilities(&self) -> Vec<String> {
        Vec::new()
    }

    /// Addresses of this host that flows may use.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
}
