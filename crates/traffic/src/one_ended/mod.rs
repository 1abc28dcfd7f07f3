//! One-ended probes, which any host answers without an agent. Each answer carries the probe back, so round trips and
//! losses are measured by the probe's number.

mod echo;
mod probe;
mod reflections;

pub use probe::Prober;
pub use reflections::Reflections;

use super::emissions::Emissions;
use super::error::FlowProblem;
use super::kernel::{set_option, set_traffic_class};
use super::records::FlowLedger;
use super::udp;
use netstage_agent_api::task::{FlowTask, ONE_ENDED_LIMIT, OneEnded, TaskTransport};
use netstage_core::measure::ProbeBackoff;
use socket2::{SockAddr, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prepares both halves of a one-ended flow: the sender of probes and the receiver of answers.
pub fn prepare(
    task: &FlowTask,
    emissions: Emissions,
    ledger: impl Fn() -> FlowLedger,
) -> Result<(Prober, Reflections), FlowProblem> {
    let (options, form) = match &task.transport {
        TaskTransport::IcmpEcho(options) => (options, None),
        TaskTransport::UdpUnreachable(options) => (options, Some(ProbeFormat::Datagram)),
        _ => return Err(FlowProblem::InvalidTask("the transport is not one-ended")),
    };
    limit(&emissions, options)?;
    let (socket, form) = match form {
        Some(form) => (datagram_socket(task.source)?, form),
        None => echo::open(task)?,
    };
    set_traffic_class(socket.as_fd(), task).map_err(FlowProblem::system("setting the traffic class"))?;
    let mut destination = task.destination;
    if form != ProbeFormat::Datagram {
        // ICMP echo has no ports.
        destination.set_port(0);
    }
    udp::enable_arrival_timestamps(&socket).map_err(FlowProblem::system("enabling arrival timestamps"))?;
    socket
        .connect(&SockAddr::from(destination))
        .map_err(FlowProblem::system("finding a route to the host"))?;
    let answers = socket.try_clone().map_err(FlowProblem::system("sharing the socket"))?;
    let backoff = SharedBackoff::default();
    let prober_backoff = (!options.keep_rate).then(|| backoff.clone());
    let reflections = Reflections::new(task, &emissions, answers, form, backoff, ledger());
    Ok((Prober::new(task, socket, form, emissions, prober_backoff, ledger())?, reflections))
}

/// Control of the rate, which the sender and the receiver share.
type SharedBackoff = Arc<Mutex<ProbeBackoff>>;

/// Format of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFormat {
    /// UDP datagram, answered by an ICMP error that quotes it.
    Datagram,
    /// ICMP echo message.
    Echo {
        /// Set for IPv6.
        ipv6: bool,
        /// Identifier of a raw socket, which receives the answers to all sockets; with IPv4 also their IP headers.
        raw: Option<u16>,
    },
}

/// Locks the control of the rate. Its state is valid even if the other thread panicked.
fn lock(backoff: &SharedBackoff) -> MutexGuard<'_, ProbeBackoff> {
    backoff.lock().unwrap_or_else(PoisonError::into_inner)
}

fn limit(emissions: &Emissions, options: &OneEnded) -> Result<(), FlowProblem> {
    let limit = options.limit.unwrap_or(ONE_ENDED_LIMIT);
    let requested_bps = emissions.mean_rate().ok_or(FlowProblem::NoRate("a one-ended transport"))?;
    if requested_bps > limit.as_f64() {
        return Err(FlowProblem::AboveLimit { requested_bps, limit_bps: limit.0 });
    }
    Ok(())
}

/// Opens a UDP socket that reports ICMP errors.
fn datagram_socket(source: SocketAddr) -> Result<Socket, FlowProblem> {
    let socket = udp::bound(source, false)?;
    let result = match source {
        SocketAddr::V4(_) => set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1),
        SocketAddr::V6(_) => set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    };
    result.map_err(FlowProblem::system("enabling ICMP errors"))?;
    Ok(socket)
}

/// Returns whether a send error is an answer to an earlier probe.
fn is_answer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable)
}
