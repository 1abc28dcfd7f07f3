//! Why a flow cannot be prepared.

use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_core::traffic::PatternError;
use netstage_core::traffic::application::ApplicationError;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A flow that cannot be sent or received as asked.
#[derive(Debug)]
pub struct PrepareError {
    /// Name of the flow.
    pub flow: String,
    /// What is in the way.
    pub problem: Problem,
}

/// What is in the way, and what to do about it.
#[derive(Debug)]
pub enum Problem {
    /// Another socket has the port.
    PortInUse(SocketAddr),
    /// No interface has the address.
    NoSuchAddress(SocketAddr),
    /// The system does not let this process do it.
    Permission {
        /// What it wanted.
        what: &'static str,
        /// What grants it.
        remedy: &'static str,
    },
    /// The pattern cannot be sent.
    Pattern(PatternError),
    /// The application cannot run over this transport, or not as it is set.
    Application(ApplicationError),
    /// The pattern has no rate, which the transport needs.
    NoRate(&'static str),
    /// The transport cannot carry packets of so many bytes.
    PacketSize {
        /// Bytes asked for.
        bytes: u64,
        /// Most that can be carried.
        limit: u64,
    },
    /// Nobody agreed to receive it, so it is limited.
    AboveLimit {
        /// Mean rate asked for, bits per second.
        asked_bps: f64,
        /// The limit, bits per second.
        limit_bps: u64,
    },
    /// The kernel does not know this congestion control.
    CongestionControl(String),
    /// The task contradicts itself, or asks for what does not exist.
    Refused(&'static str),
    /// Another system call failed.
    System {
        /// Which.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
}

impl Problem {
    /// The problem behind a failed bind to `address`.
    pub(super) fn binding(address: SocketAddr, error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::AddrInUse => Problem::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => Problem::NoSuchAddress(address),
            io::ErrorKind::PermissionDenied => Problem::Permission {
                what: "a port below 1024",
                remedy: "use another port, or grant CAP_NET_BIND_SERVICE",
            },
            _ => Problem::System { what: "binding the socket", error },
        }
    }

    /// A problem of another system call.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Problem {
        move |error| Problem::System { what, error }
    }
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}: {}", self.flow, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::PortInUse(address) => {
                write!(
                    f,
                    "{address} is in use; end the program that has it (ss -lntup shows it), or use another port"
                )
            }
            Problem::NoSuchAddress(address) => {
                write!(f, "no interface here has the address {} (ip address shows them)", address.ip())
            }
            Problem::Permission { what, remedy } => write!(f, "no permission for {what}; {remedy}"),
            Problem::Pattern(error) => write!(f, "the traffic cannot be sent: {error}"),
            Problem::Application(error) => write!(f, "the application cannot run: {error}"),
            Problem::NoRate(transport) => {
                write!(
                    f,
                    "bulk traffic has no rate, which {transport} needs; use a pattern with a rate, or TCP"
                )
            }
            Problem::PacketSize { bytes, limit } => {
                write!(f, "packets of {bytes} bytes are too large; at most {limit} fit")
            }
            Problem::AboveLimit { asked_bps, limit_bps } => write!(
                f,
                "{asked_bps:.0} bit/s to a host that did not agree; at most {limit_bps} bit/s, or raise the flow's limit"
            ),
            Problem::CongestionControl(name) => write!(
                f,
                "congestion control {name} is not available; see \
                 /proc/sys/net/ipv4/tcp_available_congestion_control, or load the module tcp_{name}"
            ),
            Problem::Refused(why) => f.write_str(why),
            Problem::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for PrepareError {}

impl From<PrepareError> for Refusal {
    fn from(error: PrepareError) -> Refusal {
        let kind = match &error.problem {
            Problem::PortInUse(_) => RefusalKind::InUse,
            Problem::Permission { .. } | Problem::CongestionControl(_) => RefusalKind::Missing,
            Problem::Pattern(_)
            | Problem::Application(_)
            | Problem::NoRate(_)
            | Problem::PacketSize { .. }
            | Problem::AboveLimit { .. }
            | Problem::Refused(_) => RefusalKind::Assignment,
            Problem::NoSuchAddress(_) | Problem::System { .. } => RefusalKind::System,
        };
        match error.problem {
            Problem::Permission { what, remedy } => {
                Refusal::new(kind, format!("no permission for {what}")).remedy(remedy)
            }
            problem => Refusal::new(kind, problem.to_string()),
        }
        .flow(error.flow)
    }
}
