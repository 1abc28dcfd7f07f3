//! What netstage asks of Linux, and nothing about the networks under test.
//!
//! - [`netns`]: network namespaces, and links, addresses and routes in them by netlink.
//! - [`ports`]: where frames enter and leave: AF_PACKET, AF_XDP, TUN, pcapng.
//! - [`clock`]: the monotonic clock that all times are taken from; [`wait`]: sleeping until something is due;
//!   [`realtime`]: what the kernel grants a thread that has to be on time.
//! - [`socket`]: a daemon's control socket; [`keyed`]: connections between hosts that share a key.
//! - [`log`], [`counter`], [`prometheus`]: what a daemon logs, counts and exports; [`signals`] and [`ender`]: what ends it.
//! - [`obstacle`]: what keeps a daemon from running; [`doctor`]: what this host can do.
//! - [`kernel_program`]: loading BPF programs; [`lock`], [`memory`], [`descriptors`]: files, memory and file descriptors.
//!
//! ```
//! let before = netstage_host::clock::monotonic_ns();
//! assert!(netstage_host::clock::monotonic_ns() >= before);
//! ```
//!
//! Invariant: nearly all unsafe code of the workspace is here, each block with its reason, and nothing outside
//! namespaces of our own is changed.

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
