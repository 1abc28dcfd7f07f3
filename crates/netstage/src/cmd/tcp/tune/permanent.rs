//! Commands that make a window or a congestion control permanent on the hosts it was found for.

use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use serde::Serialize;
use std::net::IpAddr;

/// Sender and receiver of the transfers.
#[derive(Clone, Copy)]
pub struct Ends {
    /// Address of the sender.
    pub sender: IpAddr,
    /// Address of the receiver.
    pub receiver: IpAddr,
    /// This host is the sender.
    pub is_sender: bool,
}

/// Command that applies a setting.
#[derive(Serialize)]
pub struct Line {
    /// Host to run it on: `sender` or `receiver`.
    pub on: &'static str,
    /// Connections it affects.
    pub concerns: &'static str,
    /// Shell command or system call.
    pub line: String,
}

/// Returns alternative commands that limit the window to `window` bytes. `segment` is the payload of a full segment,
/// bytes.
pub fn of_window(ends: Ends, window: u64, segment: u32) -> Vec<Line> {
    let Ends { sender, receiver, is_sender } = ends;
    let segments = window / u64::from(segment);
    // The kernel and setsockopt() reserve half of a buffer for bookkeeping.
    let buffer = 2 * window;
    let line = |on, concerns, line| Line { on, concerns, line };
    let default = |default: u64| default.min(buffer);
    vec![
        // The kernel applies it from its metrics of the host, which a connection updates when it ends.
        line(
            "sender",
            "this path, from the second connection on",
            format!("{} cwnd lock {segments}; ip tcp_metrics delete {receiver}", route(receiver, is_sender)),
        ),
        line("sender", "a program", format!("setsockopt(SO_SNDBUF, {window}) before connect()")),
        line(
            "sender",
            "every connection",
            format!("sysctl -w net.ipv4.tcp_wmem='4096 {} {buffer}'", default(16_384)),
        ),
        // Some kernels, such as Linux 6.18, raise it again as they learn the buffer space of segments.
        line(
            "receiver",
            "this path (newer kernels raise it)",
            format!("{} window {window}", route(sender, !is_sender)),
        ),
        line(
            "receiver",
            "a program",
            format!("setsockopt(SO_RCVBUF, {window}) before listen() or connect()"),
        ),
        line(
            "receiver",
            "every connection",
            format!("sysctl -w net.ipv4.tcp_rmem='4096 {} {buffer}'", default(131_072)),
        ),
        line(
            "sender",
            "while the command runs",
            format!("netstage tcp limit --address {receiver} --cwnd {segments}"),
        ),
        line(
            "receiver",
            "while the command runs",
            format!("netstage tcp limit --address {sender} --window {window}B"),
        ),
    ]
}

/// Returns alternative commands that choose a congestion control.
pub fn of_control(ends: Ends, name: &str) -> Vec<Line> {
    let line = |concerns, line| Line { on: "sender", concerns, line };
    vec![
        line("this path", format!("{} congctl {name}", route(ends.receiver, ends.is_sender))),
        line("every connection", format!("sysctl -w net.ipv4.tcp_congestion_control={name}")),
    ]
}

/// Returns the command that sets a host route along the kernel's current path, to which metrics are appended. The path
/// is a placeholder for another host's kernel.
fn route(to: IpAddr, is_local: bool) -> String {
    let (command, length) = if to.is_ipv4() { ("ip route", 32) } else { ("ip -6 route", 128) };
    let known = if is_local { next_hop(to) } else { None };
    let next_hop = known.unwrap_or_else(|| format!("NEXTHOP (from `{command} get {to}`: via … dev …)"));
    format!("{command} replace {to}/{length} {next_hop}")
}

fn next_hop(to: IpAddr) -> Option<String> {
    let mut netlink = Netlink::open(&Namespace::of_this_thread().ok()?).ok()?;
    let path = netlink.route_to(to, None).ok()??;
    let link = netlink.links().ok()?.into_iter().find(|link| link.index == path.link)?.name;
    Some(match path.gateway {
        Some(gateway) => format!("via {gateway} dev {link}"),
        None => format!("dev {link}"),
    })
}
