//! Parser of the text of the kernel's TCP tracepoints: one line per event, followed by the call stack for
//! congestion state changes.

use super::record;
use super::symbols::Function;
use netstage_core::tcp::event::CongestionState;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Number of polls after which a missing stack, which should directly follow its event, is given up.
const MAX_STACK_POLLS: u32 = 3;

/// Event of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceEvent {
    /// Time in nanoseconds of CLOCK_MONOTONIC, with a resolution of 1 µs.
    pub time_ns: u64,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Kind of the event.
    pub kind: TraceEventKind,
}

/// Kind of an event, with the values it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceEventKind {
    /// A segment arrived and was not processed yet.
    Acknowledged(ProbeValues),
    /// A segment was retransmitted.
    Retransmitted,
    /// Congestion control is about to change its state.
    Congestion(CongestionState),
    /// The connection was established.
    Established,
    /// The connection was closed.
    Closed,
}

/// Values of tcp_probe. Windows are in segments, except the peer's, which is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeValues {
    pub next: u32,
    pub unacknowledged: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub peer_window: u32,
    pub smoothed_round_trip_us: u32,
}

/// Stack of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// The event has no stack.
    None,
    /// Not received yet.
    Awaited,
    /// Innermost known function of the received stack.
    Received(Option<Function>),
}

#[derive(Debug)]
struct PendingEvent {
    event: TraceEvent,
    processor: u32,
    stack: Stack,
    polls: u32,
}

/// Incremental parser of trace lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    has_stacks: bool,
    partial: Vec<u8>,
    waiting: VecDeque<PendingEvent>,
    /// Event whose stack is being received, counted from the back.
    receiving: Option<usize>,
    /// Events lost because the kernel's buffer was full.
    pub lost: u64,
}

impl Lines {
    /// Creates a parser. `has_stacks`: stacks follow congestion state changes.
    pub fn new(has_stacks: bool) -> Lines {
        Lines { has_stacks, ..Lines::default() }
    }

    /// Parses received bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.partial.extend(&rest[..end]);
            let line = std::mem::take(&mut self.partial);
            self.line(&String::from_utf8_lossy(&line));
            rest = &rest[end + 1..];
        }
        self.partial.extend(rest);
    }

    /// Returns the next event, with the innermost known function of its stack if the stack was received.
    pub fn next(&mut self) -> Option<(TraceEvent, Option<Option<Function>>)> {
        let first = self.waiting.front_mut()?;
        if first.stack == Stack::Awaited && first.polls < MAX_STACK_POLLS {
            first.polls += 1;
            return None;
        }
        let PendingEvent { event, stack, .. } = self.waiting.pop_front()?;
        self.receiving = self.receiving.filter(|back| *back < self.waiting.len());
        let function = match stack {
            Stack::Received(function) => Some(function),
            Stack::None | Stack::Awaited => None,
        };
        Some((event, function))
    }

    fn line(&mut self, line: &str) {
        if let Some(function) = line.strip_prefix(" => ") {
            return self.handle_caller(function);
        }
        self.receiving = None;
        if let Some(lost) = lost(line) {
            self.lost += lost;
        } else if let Some(head) = line.strip_suffix(": <stack trace>") {
            self.begin_stack(head);
        } else if let Some((processor, event)) = read(line) {
            let is_state_change = matches!(event.kind, TraceEventKind::Congestion(_));
            let stack = if is_state_change && self.has_stacks { Stack::Awaited } else { Stack::None };
            self.waiting.push_back(PendingEvent { event, processor, stack, polls: 0 });
        }
    }

    /// Starts a stack, which belongs to the last event of its processor that awaits one.
    fn begin_stack(&mut self, head: &str) {
        let Some((processor, _)) = origin(head) else { return };
        let is_awaiting =
            |waiting: &PendingEvent| waiting.processor == processor && waiting.stack == Stack::Awaited;
        self.receiving = self.waiting.iter().rev().position(is_awaiting);
        if let Some(waiting) = self.receiving_event() {
            waiting.stack = Stack::Received(None);
        }
    }

    /// Evaluates the next function of a stack, from the inside out.
    fn handle_caller(&mut self, function: &str) {
        let Some(PendingEvent { stack: Stack::Received(innermost @ None), .. }) = self.receiving_event()
        else {
            return;
        };
        *innermost = Function::named(function.split(['+', ' ']).next().unwrap_or_default());
    }

    fn receiving_event(&mut self) -> Option<&mut PendingEvent> {
        let back = self.receiving?;
        self.waiting.iter_mut().rev().nth(back)
    }
}

/// Returns the number of lost events that a line reports.
fn lost(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("[LOST ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Parses the processor and time of a line: `COMMAND-PROCESS [001] ..s2. 123.456789`. The command may contain
/// any characters.
fn origin(head: &str) -> Option<(u32, u64)> {
    let mut words = head.rsplit(' ').filter(|word| !word.is_empty());
    let (seconds, micros) = words.next()?.split_once('.')?;
    let time_ns =
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)? + micros.parse::<u64>().ok()? * 1_000;
    let processor = words.take(2).find_map(|word| word.strip_prefix('[')?.strip_suffix(']')?.parse().ok())?;
    Some((processor, time_ns))
}

/// Parses the line of an event.
fn read(line: &str) -> Option<(u32, TraceEvent)> {
    const EVENTS: [&str; 4] =
        [": tcp_probe: ", ": tcp_retransmit_skb: ", ": tcp_cong_state_set: ", ": inet_sock_set_state: "];
    let (kind, start) = EVENTS.iter().enumerate().find_map(|(kind, name)| Some((kind, line.rfind(name)?)))?;
    let (processor, time_ns) = origin(&line[..start])?;
    let text = &line[start + EVENTS[kind].len()..];
    let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| {
        let text = field(name)?;
        match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    // The IPv6 fields also contain IPv4 addresses.
    let end = |address: &str, port: &str| -> Option<SocketAddr> {
        let address: IpAddr = field(address)?.parse().ok()?;
        Some(SocketAddr::new(address.to_canonical(), number(port)?.try_into().ok()?))
    };
    let socket = |name: &str| {
        let address: SocketAddr = field(name)?.parse().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    };
    let what = match kind {
        0 => TraceEventKind::Acknowledged(ProbeValues {
            next: number("snd_nxt")?,
            unacknowledged: number("snd_una")?,
            cwnd: number("snd_cwnd")?,
            ssthresh: number("ssthresh")?,
            peer_window: number("snd_wnd")?,
            smoothed_round_trip_us: number("srtt")?,
        }),
        1 => TraceEventKind::Retransmitted,
        2 => TraceEventKind::Congestion(record::state(number("cong_state")?.try_into().ok()?)?),
        _ if field("protocol")? != "IPPROTO_TCP" => return None,
        _ => match field("newstate")? {
            "TCP_ESTABLISHED" => TraceEventKind::Established,
            "TCP_CLOSE" => TraceEventKind::Closed,
            _ => return None,
        },
    };
    let (local, remote) = match kind {
        0 => (socket("src")?, socket("dest")?),
        _ => (end("saddrv6", "sport")?, end("daddrv6", "dport")?),
    };
    Some((processor, TraceEvent { time_ns, local, remote, kind: what }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of Linux 6.18, and a process with a misleading name.
    const TRACE: &str = "\
          iperf3-4711    [001] b.s3.  1234.000001: tcp_probe: family=AF_INET src=10.0.0.1:5000 dest=10.0.0.2:80 mark=0x0 data_len=0 snd_nxt=0x3e8 snd_una=0x1f4 snd_cwnd=12 ssthresh=2147483647 snd_wnd=64000 srtt=1500 rcv_wnd=65536 sock_cookie=2001 skbaddr=00000000aa skaddr=00000000bb
 [000] 1.2: tcp_-99 [000] ..s2.  1234.000100: tcp_cong_state_set: family=AF_INET sport=5000 dport=80 saddr=10.0.0.1 daddr=10.0.0.2 saddrv6=::ffff:10.0.0.1 daddrv6=::ffff:10.0.0.2 cong_state=2
          iperf3-4711    [001] b.s3.  1234.000101: tcp_retransmit_skb: skbaddr=00 skaddr=00 family=AF_INET6 sport=443 dport=9 saddr=0.0.0.0 daddr=0.0.0.0 saddrv6=2001:db8::1 daddrv6=2001:db8::2 state=TCP_ESTABLISHED err=0
          <idle>-0       [000] ..s2.  1234.000102: <stack trace>
 => tcp_enter_cwr
 => __tcp_transmit_skb
 => tcp_try_to_open
CPU:1 [LOST 17 EVENTS]
          iperf3-4711    [001] .....  1234.000200: inet_sock_set_state: family=AF_INET protocol=IPPROTO_TCP sport=5000 dport=80 saddr=10.0.0.1 daddr=10.0.0.2 saddrv6=::ffff:10.0.0.1 daddrv6=::ffff:10.0.0.2 oldstate=TCP_LAST_ACK newstate=TCP_CLOSE
          other-1       [001] .....  1234.000201: something_else: sport=1
";

    #[test]
    fn events_are_parsed_in_order_with_their_stacks_wherever_the_input_is_split() {
        for cut in [0, 1, 200, 417, 900, 1_100, TRACE.len()] {
            let mut lines = Lines::new(true);
            lines.take(&TRACE.as_bytes()[..cut]);
            lines.take(&TRACE.as_bytes()[cut..]);
            let events: Vec<_> = std::iter::from_fn(|| lines.next()).collect();
            assert_eq!((events.len(), lines.lost), (4, 17), "{events:?}");
            let values = ProbeValues {
                next: 1_000,
                unacknowledged: 500,
                cwnd: 12,
                ssthresh: 0x7fff_ffff,
                peer_window: 64_000,
                smoothed_round_trip_us: 1_500,
            };
            assert_eq!(
                (events[0].0.kind, events[0].0.time_ns),
                (TraceEventKind::Acknowledged(values), 1_234_000_001_000)
            );
            assert_eq!(events[1].0.kind, TraceEventKind::Congestion(CongestionState::Reducing));
            assert_eq!(events[1].1, Some(Some(Function::Transmit)));
            assert_eq!((events[1].0.local, events[1].0.remote), (events[0].0.local, events[0].0.remote));
            assert_eq!(events[2].0.remote, "[2001:db8::2]:9".parse().unwrap());
            assert_eq!((events[3].0.kind, events[3].1), (TraceEventKind::Closed, None));
        }
    }

    #[test]
    fn a_missing_stack_is_given_up() {
        let state_change = TRACE.lines().nth(1).unwrap().to_owned() + "\n";
        let mut lines = Lines::new(true);
        lines.take(state_change.as_bytes());
        for _ in 0..MAX_STACK_POLLS {
            assert_eq!(lines.next(), None);
        }
        assert_eq!(lines.next().map(|(_, function)| function), Some(None));
        let mut without = Lines::new(false);
        without.take(state_change.as_bytes());
        assert!(without.next().is_some());
    }

    #[test]
    fn invalid_lines_are_ignored() {
        for line in TRACE.lines().take(5) {
            for cut in (0..line.len()).filter(|cut| line.is_char_boundary(*cut)) {
                let mut lines = Lines::new(true);
                lines.take(&line.as_bytes()[..cut]);
                lines.take(b"\n => \n: <stack trace>\n[LOST x\n");
                while lines.next().is_some() {}
            }
        }
    }
}
