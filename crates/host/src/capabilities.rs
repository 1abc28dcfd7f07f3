//! Linux capabilities that a process needs only while it starts (capabilities(7)).

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io;

/// Capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_ADMIN.
    NetAdmin,
    /// CAP_BPF.
    Bpf,
}

/// Gives up capabilities of the calling thread, and of threads and programs that it starts later. They cannot be
/// regained.
pub fn renounce(given_up: &[Capability]) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    for capability in given_up {
        let one = match capability {
            Capability::NetAdmin => CapabilitySet::NET_ADMIN,
            Capability::Bpf => CapabilitySet::BPF,
        };
        sets.effective.remove(one);
        sets.permitted.remove(one);
        sets.inheritable.remove(one);
    }
    Ok(set_capabilities(None, sets)?)
}
