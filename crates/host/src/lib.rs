//! Access to the Linux kernel and host. Knows nothing of the networks under test.
//!
//! - [`netns`]: network namespaces, and links, addresses and routes in them by netlink.
//! - [`ports`]: ports for frames: AF_PACKET, AF_XDP, TUN, pcapng.
//! - [`clock`]: the monotonic clock of all times; [`wait`]: precise sleeping; [`realtime`], [`reserved_cpu`]: scheduling of
//!   real-time threads, and CPUs of threads that spin.
//! - [`packet_socket`]: UDP with arrival times; [`socket`]: a daemon's control socket; [`pending_connections`]: limit of unidentified clients; [`shared_key`]: connections between hosts that share a key.
//! - [`log`], [`counter`], [`prometheus`]: logs, counters and metrics of a daemon; [`signals`] and [`shutdown`]: its shutdown.
//! - [`startup_error`]: startup errors of a daemon; [`doctor`]: features of this host.
//! - [`egress`]: limits on what a group of threads sends; [`capabilities`]: giving them up; [`bpf_error`]: errors of BPF programs; [`lock`], [`memory`], [`descriptors`]: lock files, memory, file descriptors.
//!
//! ```
//! let before = netstage_host::clock::monotonic_ns();
//! assert!(netstage_host::clock::monotonic_ns() >= before);
//! ```
//!
//! Invariant: nearly all unsafe code of the workspace is here, each block with its reason, and nothing outside
//! netstage's own namespaces is changed.

pub mod bpf_error;
pub mod capabilities;
pub mod clock;
pub mod counter;
pub mod descriptors;
pub mod doctor;
pub mod egress;
pub mod lock;
pub mod log;
pub mod memory;
pub mod netns;
pub mod packet_socket;
pub mod pending_connections;
pub mod ports;
pub mod prometheus;
pub mod realtime;
pub mod reserved_cpu;
pub mod shared_key;
pub mod shutdown;
pub mod signals;
pub mod socket;
pub mod startup_error;
pub mod wait;

mod cgroup;
