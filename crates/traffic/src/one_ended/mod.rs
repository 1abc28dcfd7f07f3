//! One-ended probes: any host answers them, and no agent is needed there. Each answer
//! carries its probe back, so round trips and losses are counted by the probe's own number.

mod echo;
mod probe;
mod reflections;

pub use probe::Prober;
pub use reflections::Reflections;

use super::emissions::Emissions;
use super::error::Problem;
use super::kernel::{set_option, set_traffic_class};
use super::ledger::Ledger;
use super::udp;
use netstage_agent_api::task::{FlowTask, ONE_ENDED_LIMIT, OneEnded, Transport};
use socket2::{SockAddr, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Both halves of a one-ended flow: what sends, and what takes the answers.
pub fn prepare(
    task: &FlowTask,
    emissions: Emissions,
    ledger: impl Fn() -> Ledger,
) -> Result<(Prober, Reflections), Problem> {
    let (options, form) = match &task.transport {
        Transport::IcmpEcho(options) => (options, None),
        Transport::UdpUnreachable(options) => (options, Some(Form::Datagram)),
        _ => return Err(Problem::Refused("it is not one-ended")),
    };
    limit(&emissions, options)?;
    let (socket, form) = match form {
        Some(form) => (datagrams(task.source)?, form),
        None => echo::open(task)?,
    };
    set_traffic_class(socket.as_fd(), task).map_err(Problem::system("setting the traffic class"))?;
    let mut destination = task.destination;
    if form != Form::Datagram {
        // Echo has no ports.
        destination.set_port(0);
    }
    udp::date_arrivals(&socket).map_err(Problem::system("asking for arrival times"))?;
    socket.connect(&SockAddr::from(destination)).map_err(Problem::system("finding a route to the host"))?;
    let answers = socket.try_clone().map_err(Problem::system("sharing the socket"))?;
    let reflections = Reflections::new(task, &emissions, answers, form, ledger());
    Ok((Prober::new(task, socket, form, emissions, ledger())?, reflections))
}

/// How a probe looks on its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A UDP datagram; the answer is an ICMP error that quotes it.
    Datagram,
    /// An ICMP echo message; `raw` where the socket gives IP headers, too, and takes the
    /// answers to everybody.
    Echo {
        /// Whether the address family is IPv6.
        ipv6: bool,
        /// Whether the socket is raw; then this is its identifier.
        raw: Option<u16>,
    },
}

fn limit(emissions: &Emissions, options: &OneEnded) -> Result<(), Problem> {
    let limit = options.limit.unwrap_or(ONE_ENDED_LIMIT);
    let asked_bps = emissions.mean_rate().ok_or(Problem::NoRate("a one-ended transport"))?;
    if asked_bps > limit.as_f64() {
        return Err(Problem::AboveLimit { asked_bps, limit_bps: limit.0 });
    }
    Ok(())
}

/// A UDP socket to which ICMP errors are told.
fn datagrams(source: SocketAddr) -> Result<Socket, Problem> {
    let socket = udp::bound(source, false)?;
    let told = match source {
        SocketAddr::V4(_) => set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1),
        SocketAddr::V6(_) => set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    };
    told.map_err(Problem::system("asking for ICMP errors"))?;
    Ok(socket)
}

/// An error that belongs to an earlier probe and came back by a call about another.
fn is_answer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable)
}
