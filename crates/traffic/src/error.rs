//! Errors of preparing a flow.

use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_core::traffic::PatternError;
use netstage_core::traffic::application::ApplicationError;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Error of a flow that cannot be sent or received as requested.
#[derive(Debug)]
pub struct PrepareError {
    /// Name of the flow.
    pub flow: String,
    /// Cause of the error.
    pub problem: Problem,
}

/// Cause of an error in preparing a flow.
#[derive(Debug)]
pub enum Problem {
    /// Another socket uses the port.
    PortInUse(SocketAddr),
    /// No interface has the address.
    NoSuchAddress(SocketAddr),
    /// The process lacks a permission.
    Permission {
        /// Denied action.
        what: &'static str,
        /// Change that grants the permission, or avoids it.
        remedy: &'static str,
    },
    /// The pattern cannot be sent.
    Pattern(PatternError),
    /// The application cannot run over this transport or with these settings.
    Application(ApplicationError),
    /// The pattern has no rate, but the transport requires one.
    NoRate(&'static str),
    /// The transport cannot carry packets of this size.
    PacketSize {
        /// Requested size in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// The rate exceeds the limit toward a host without an agent.
    AboveLimit {
        /// Requested mean rate in bits per second.
        asked_bps: f64,
        /// Limit in bits per second.
        limit_bps: u64,
    },
    /// The congestion control is not available in the kernel.
    CongestionControl(String),
    /// The task is contradictory or unsupported.
    Refused(&'static str),
    /// Another system call failed.
    System {
        /// Failed operation.
        what: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
}

impl Problem {
    /// Returns the problem of a failed bind to `address`.
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

    /// Returns a conversion from the error of another system call.
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
                    "{address} is in use; end the program that uses it (ss -lntup shows it), or use another port"
                )
            }
            Problem::NoSuchAddress(address) => {
                write!(
                    f,
                    "no interface has the address {}; list the addresses with: ip address",
                    address.ip()
                )
            }
            Problem::Permission { what, remedy } => write!(f, "no permission for {what}; {remedy}"),
            Problem::Pattern(error) => write!(f, "the traffic cannot be sent: {error}"),
            Problem::Application(error) => write!(f, "the application cannot run: {error}"),
            Problem::NoRate(transport) => {
                write!(
                    f,
                    "bulk traffic has no rate, but {transport} requires one; use a pattern with a rate, or TCP"
                )
            }
            Problem::PacketSize { bytes, limit } => {
                write!(f, "packets of {bytes} bytes are too large; the maximum is {limit}")
            }
            Problem::AboveLimit { asked_bps, limit_bps } => write!(
                f,
                "{asked_bps:.0} bit/s exceeds the limit of {limit_bps} bit/s toward a host without an agent; lower the rate, or \
                 raise the flow's limit"
            ),
            Problem::CongestionControl(name) => write!(
                f,
                "congestion control {name} is not available; see \
                 /proc/sys/net/ipv4/tcp_available_congestion_control, or load the module tcp_{name}"
            ),
            Problem::Refused(reason) => f.write_str(reason),
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
