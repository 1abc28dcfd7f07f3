//! Access to the Linux kernel and host. Knows nothing of the networks under test.
//!
//! - [`netns`]: network namespaces, and links, addresses and routes in them by netlink.
//! - [`ports`]: ports for frames: AF_PACKET, AF_XDP, TUN, pcapng.
//! - [`clock`]: the monotonic clock of all times; [`wait`]: precise sleeping; [`realtime`]: scheduling of real-time threads.
//! - [`socket`]: a daemon's control socket; [`keyed`]: connections between hosts that share a key.
//! - [`log`], [`counter`], [`prometheus`]: logs, counters and metrics of a daemon; [`signals`] and [`ender`]: its shutdown.
//! - [`obstacle`]: startup errors of a daemon; [`doctor`]: features of this host.
//! - [`kernel_program`]: errors of BPF programs; [`lock`], [`memory`], [`descriptors`]: lock files, memory, file descriptors.
//!
//! ```
//! let before = netstage_host::clock::monotonic_ns();
//! assert!(netstage_host::clock::monotonic_ns() >= before);
//! ```
//!
//! Invariant: nearly all unsafe code of the workspace is here, each block with its reason, and nothing outside
//! netstage's own namespaces is changed.

pub mod clock;
pub mod counter;
pub mod descriptors;
pub mod doctor;
pub mod ender;
pub mod kernel_program;
pub mod keyed;
pub mod lock;
pub mod log;
pub mod memory;
pub mod netns;
pub mod obstacle;
pub mod ports;
pub mod prometheus;
pub mod realtime;
pub mod signals;
pub mod socket;
pub mod wait;
