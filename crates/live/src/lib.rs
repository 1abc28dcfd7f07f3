//! The live driver: real packets in real time.
//!
//! - [`agent`]: carries out one node's part of a run; [`controller`]: has agents do so
//!   together; [`protocol`]: what they say to each other.
//! - [`bgp`]: BGP-4 for testing routers.
//! - [`clock`]: the time everything here is told by.
//! - [`counter`]: how counters are declared.
//! - [`doctor`]: what this host can do.
//! - [`emulator`]: the links of a scenario between pairs of ports.
//! - [`ender`]: what ends a daemon from outside.
//! - [`emulation`]: a plan on the emulated stage; [`fabric`]: the namespaces it runs in.
//! - [`fleet`]: agents on other hosts under one controller.
//! - [`keyed`]: connections between hosts that share a key.
//! - [`ldp`]: label distribution over sockets.
//! - [`learn`]: application models from captures.
//! - [`log`]: what a daemon tells of while it runs; [`signals`]: what it listens to.
//! - [`measure`]: one measurement between two hosts.
//! - [`memory`]: what is left to the system.
//! - [`netns`]: network namespaces, and links and routes in them.
//! - [`obstacle`]: what keeps a daemon from running.
//! - [`pe`]: the provider edge router.
//! - [`placed`]: a plan on the live stage: agents of a fleet.
//! - [`ports`]: where frames enter and leave.
//! - [`realtime`]: what the kernel grants a thread that has to be on time.
//! - [`router`]: the MPLS and IP router.
//! - [`stamp`]: STAMP between any two hosts.
//! - [`task`]: what an agent is asked to do, and [`results`], what it found: the contents
//!   of the messages between agents and their controller.
//! - [`tcpmon`]: what the kernel's TCP senders do, and why.
//! - [`traffic`]: the engine that sends and receives flows.
//!
//! What to send and when is decided in `netstage_core`; here are the sockets, threads and
//! namespaces. The controller cannot tell whether an agent runs in a namespace of this
//! machine or on another host.

pub mod agent;
pub mod bgp;
pub mod clock;
pub mod controller;
pub mod counter;
mod descriptors;
pub mod doctor;
pub mod emulation;
pub mod emulator;
pub mod ender;
pub mod fabric;
pub mod fleet;
pub mod kernel_program;
pub mod keyed;
pub mod ldp;
pub mod learn;
mod lock;
pub mod log;
pub mod measure;
pub mod memory;
pub mod netns;
pub mod obstacle;
pub mod pe;
mod peering;
pub mod placed;
pub mod ports;
pub mod prometheus;
pub mod protocol;
pub mod realtime;
pub mod results;
pub mod router;
pub mod signals;
pub mod stamp;
pub mod task;
pub mod tcpmon;
pub mod tester;
pub mod traffic;
mod wait;
