//! Errors of preparing a flow.

use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_core::traffic::PatternError;
use netstage_core::traffic::application::ApplicationError;
use netstage_host::reserved_cpu::ReservationError;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Error of a flow that cannot be sent or received as requested.
#[derive(Debug)]
pub struct PrepareError {
    /// Name of the flow.
    pub flow: String,
    /// Cause of the error.
    pub problem: FlowProblem,
}

/// Cause of an error in preparing a flow.
#[derive(Debug)]
pub enum FlowProblem {
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
        requested_bps: f64,
        /// Limit in bits per second.
        limit_bps: u64,
    },
    /// No CPU can be reserved for a sender that spins.
    NoCpu(ReservationError),
    /// The congestion control is not available in the kernel.
    CongestionControl(String),
    /// The task is contradictory or unsupported.
    InvalidTask(&'static str),
    /// Another system call failed.
    System {
        /// Failed operation.
        what: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
}

impl FlowProblem {
    /// Returns the problem of a failed bind to `address`.
    pub(super) fn binding(address: SocketAddr, error: io::Error) -> FlowProblem {
        match error.kind() {
            io::ErrorKind::AddrInUse => FlowProblem::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => FlowProblem::NoSuchAddress(address),
            io::ErrorKind::PermissionDenied => FlowProblem::Permission {
                what: "a port below 1024",
                remedy: "use another port, or grant CAP_NET_BIND_SERVICE",
            },
            _ => FlowProblem::System { what: "binding the socket", error },
        }
    }

    /// Returns a conversion from the error of another system call.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> FlowProblem {
        move |error| FlowProblem::System { what, error }
    }
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}: {}", self.flow, self.problem)
    }
}

impl fmt::Display for FlowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowProblem::PortInUse(address) => {
                write!(
                    f,
                    "{address} is in use; end the program that uses it (ss -lntup shows it), or use another port"
                )
            }
            FlowProblem::NoSuchAddress(address) => {
                write!(
                    f,
                    "no interface has the address {}; list the addresses with: ip address",
                    address.ip()
                )
            }
            FlowProblem::Permission { what, remedy } => write!(f, "no permission for {what}; {remedy}"),
            FlowProblem::Pattern(error) => write!(f, "the traffic cannot be sent: {error}"),
            FlowProblem::Application(error) => write!(f, "the application cannot run: {error}"),
            FlowProblem::NoRate(transport) => {
                write!(
                    f,
                    "bulk traffic has no rate, but {transport} requires one; use a pattern with a rate, or TCP"
                )
            }
            FlowProblem::PacketSize { bytes, limit } => {
                write!(f, "packets of {bytes} bytes are too large; the maximum is {limit}")
            }
            FlowProblem::AboveLimit { requested_bps, limit_bps } => write!(
                f,
                "{requested_bps:.0} bit/s exceeds the limit of {limit_bps} bit/s toward a host without an agent; lower the rate, or \
                 raise the flow's limit"
            ),
            FlowProblem::NoCpu(error) => {
                write!(f, "pacing = \"spin\" needs a CPU: {error}; use pacing = \"sleep\"")
            }
            FlowProblem::CongestionControl(name) => write!(
                f,
                "congestion control {name} is not available; see \
                 /proc/sys/net/ipv4/tcp_available_congestion_control, or load the module tcp_{name}"
            ),
            FlowProblem::InvalidTask(reason) => f.write_str(reason),
            FlowProblem::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for PrepareError {}

impl From<PrepareError> for OrderRefusal {
    fn from(error: PrepareError) -> OrderRefusal {
        let kind = match &error.problem {
            FlowProblem::PortInUse(_) | FlowProblem::NoCpu(ReservationError::AllReserved(_)) => {
                OrderRefusalKind::InUse
            }
            FlowProblem::Permission { .. }
            | FlowProblem::CongestionControl(_)
            | FlowProblem::NoCpu(ReservationError::OneCpu) => OrderRefusalKind::Missing,
            FlowProblem::Pattern(_)
            | FlowProblem::Application(_)
            | FlowProblem::NoRate(_)
            | FlowProblem::PacketSize { .. }
            | FlowProblem::AboveLimit { .. }
            | FlowProblem::InvalidTask(_) => OrderRefusalKind::Assignment,
            FlowProblem::NoSuchAddress(_)
            | FlowProblem::NoCpu(ReservationError::System(_))
            | FlowProblem::System { .. } => OrderRefusalKind::System,
        };
        match error.problem {
            FlowProblem::Permission { what, remedy } => {
                OrderRefusal::new(kind, format!("no permission for {what}")).remedy(remedy)
            }
            problem => OrderRefusal::new(kind, problem.to_string()),
        }
        .flow(error.flow)
    }
}
