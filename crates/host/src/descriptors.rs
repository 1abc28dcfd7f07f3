//! Limit on open file descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. A daemon with fewer descriptors serves fewer agents, and reports it
/// once there are too many.
pub fn raise_limit() {
    if let Ok((_, hard_limit)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard_limit, hard_limit);
    }
}
