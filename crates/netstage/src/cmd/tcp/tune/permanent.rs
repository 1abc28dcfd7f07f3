//! Lines that make a window, or a congestion control, permanent on the hosts it was found for.

use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use serde::Serialize;
use std::net::IpAddr;

/// The two hosts, and which of them this is.
#[derive(Clone, Copy)]
pub struct Ends {
    /// Who sends.
    pub sender: IpAddr,
    /// Who receives.
    pub receiver: IpAddr,
    /// Whether this host is the sender.
    pub is_sender: bool,
}

/// A way to set it.
#[derive(Serialize)]
pub struct Line {
    /// `sender` or `receiver`.
    pub on: &'static str,
    /// Whom it concerns.
    pub concerns: &'static str,
    /// The command, or call.
    pub line: String,
}

/// Ways to limit a window of so many bytes and segments, any of which is enough.
pub fn of_window(ends: Ends, window: u64, segment: u32) -> Vec<Line> {
    let Ends { sender, receiver, is_sender } = ends;
    let segments = window / u64::from(segment);
    // Half of a buffer is taken to be bookkeeping, by the kernel as by setsockopt().
    let buffer = 2 * window;
    let line = |on, concerns, line| Line { on, concerns, line };
    let usual = |usual: u64| usual.min(buffer);
    vec![
        // The kernel takes it from what it remembers of the host, which a connection writes as it ends.
        line(
            "sender",
            "this path, from the second connection on",
            format!("{} cwnd lock {segments}; ip tcp_metrics delete {receiver}", route(receiver, is_sender)),
        ),
        line("sender", "a program", format!("setsockopt(SO_SNDBUF, {window}) before it connects")),
        line(
            "sender",
            "every connection",
            format!("sysctl -w net.ipv4.tcp_wmem='4096 {} {buffer}'", usual(16_384)),
        ),
        // Linux 6.18, for one, raises it again as it learns how much of a buffer segments take.
        line(
            "receiver",
            "this path (newer kernels raise it)",
            format!("{} window {window}", route(sender, !is_sender)),
        ),
        line(
            "receiver",
            "a program",
            format!("setsockopt(SO_RCVBUF, {window}) before it listens or connects"),
        ),
        line(
            "receiver",
            "every connection",
            format!("sysctl -w net.ipv4.tcp_rmem='4096 {} {buffer}'", usual(131_072)),
        ),
        line("sender", "while it runs", format!("netstage tcp limit --address {receiver} --cwnd {segments}")),
        line(
            "receiver",
            "while it runs",
            format!("netstage tcp limit --address {sender} --window {window}B"),
        ),
    ]
}

/// Ways to choose a congestion control.
pub fn of_control(ends: Ends, name: &str) -> Vec<Line> {
    let line = |concerns, line| Line { on: "sender", concerns, line };
    vec![
        line("this path", format!("{} congctl {name}", route(ends.receiver, ends.is_sender))),
        line("every connection", format!("sysctl -w net.ipv4.tcp_congestion_control={name}")),
    ]
}

/// What sets a route to a host as the kernel has it now, to which metrics are added; of another host's kernel that
/// is not known.
fn route(to: IpAddr, is_here: bool) -> String {
    let (command, length) = if to.is_ipv4() { ("ip route", 32) } else { ("ip -6 route", 128) };
    let known = if is_here { way(to) } else { None };
    let way = known.unwrap_or_else(|| format!("WAY (of {command} get {to}: via … dev …)"));
    format!("{command} replace {to}/{length} {way}")
}

fn way(to: IpAddr) -> Option<String> {
    let mut netlink = Netlink::open(&Namespace::of_this_thread().ok()?).ok()?;
    let way = netlink.way_to(to, None).ok()??;
    let link = netlink.links().ok()?.into_iter().find(|link| link.index == way.link)?.name;
    Some(match way.gateway {
        Some(gateway) => format!("via {gateway} dev {link}"),
        None => format!("dev {link}"),
    })
}
