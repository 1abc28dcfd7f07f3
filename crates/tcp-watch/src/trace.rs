//! The text in which the kernel's tracing tells of TCP: a line for each event, and after those of congestion control
//! the functions it was called from.

use super::record;
use super::symbols::Function;
use netstage_core::tcp::event::State;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// A stack comes right after its event: if it has not after so many looks, it does not.
const PATIENCE: u32 = 3;

/// An event of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traced {
    /// CLOCK_MONOTONIC, nanoseconds, exact to a microsecond.
    pub time_ns: u64,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// What happened.
    pub what: What,
}

/// What happened, and how the connection then stood as far as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A segment arrived; nothing of it was looked at yet.
    Acknowledged(Standing),
    /// A segment left again.
    Retransmitted,
    /// Congestion control is about to change its state.
    Congestion(State),
    /// The connection was established.
    Established,
    /// It is no more.
    Closed,
}

/// Windows are in segments, the peer's in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub next: u32,
    pub unacknowledged: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub peer_window: u32,
    pub smoothed_round_trip_us: u32,
}

/// The stack of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// It has none.
    None,
    /// It was not told yet.
    Awaited,
    /// It was told: the innermost function that is known.
    Told(Option<Function>),
}

#[derive(Debug)]
struct Waiting {
    event: Traced,
    processor: u32,
    stack: Stack,
    looks: u32,
}

/// Reads the text as it comes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    has_stacks: bool,
    partial: Vec<u8>,
    waiting: VecDeque<Waiting>,
    /// Whose stack's functions come now, counted from the back.
    under_way: Option<usize>,
    /// Events for which the kernel had no room.
    pub lost: u64,
}

impl Lines {
    /// Of a trace in which stacks follow changes of congestion control, or do not.
    pub fn new(has_stacks: bool) -> Lines {
        Lines { has_stacks, ..Lines::default() }
    }

    /// Takes what has come.
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

    /// The next event, and the innermost known function of its stack if that was told.
    pub fn next(&mut self) -> Option<(Traced, Option<Option<Function>>)> {
        let first = self.waiting.front_mut()?;
        if first.stack == Stack::Awaited && first.looks < PATIENCE {
            first.looks += 1;
            return None;
        }
        let Waiting { event, stack, .. } = self.waiting.pop_front()?;
        self.under_way = self.under_way.filter(|back| *back < self.waiting.len());
        let told = match stack {
            Stack::Told(function) => Some(function),
            Stack::None | Stack::Awaited => None,
        };
        Some((event, told))
    }

    fn line(&mut self, line: &str) {
        if let Some(function) = line.strip_prefix(" => ") {
            return self.called_from(function);
        }
        self.under_way = None;
        if let Some(lost) = lost(line) {
            self.lost += lost;
        } else if let Some(head) = line.strip_suffix(": <stack trace>") {
            self.stack_begins(head);
        } else if let Some((processor, event)) = read(line) {
            let is_turn = matches!(event.what, What::Congestion(_));
            let stack = if is_turn && self.has_stacks { Stack::Awaited } else { Stack::None };
            self.waiting.push_back(Waiting { event, processor, stack, looks: 0 });
        }
    }

    /// A stack follows: it is the last event's of its processor that awaits one.
    fn stack_begins(&mut self, head: &str) {
        let Some((processor, _)) = origin(head) else { return };
        let awaits = |waiting: &Waiting| waiting.processor == processor && waiting.stack == Stack::Awaited;
        self.under_way = self.waiting.iter().rev().position(awaits);
        if let Some(waiting) = self.whose_stack_comes() {
            waiting.stack = Stack::Told(None);
        }
    }

    /// The next function of a stack, further out than those before.
    fn called_from(&mut self, function: &str) {
        let Some(Waiting { stack: Stack::Told(told @ None), .. }) = self.whose_stack_comes() else { return };
        *told = Function::named(function.split(['+', ' ']).next().unwrap_or_default());
    }

    fn whose_stack_comes(&mut self) -> Option<&mut Waiting> {
        let back = self.under_way?;
        self.waiting.iter_mut().rev().nth(back)
    }
}

/// How many events a line says that there was no room for.
fn lost(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("[LOST ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The processor and time of a line: `COMMAND-PROCESS [001] ..s2. 123.456789`. The command may hold anything.
fn origin(head: &str) -> Option<(u32, u64)> {
    let mut words = head.rsplit(' ').filter(|word| !word.is_empty());
    let (seconds, micros) = words.next()?.split_once('.')?;
    let time_ns =
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)? + micros.parse::<u64>().ok()? * 1_000;
    let processor = words.take(2).find_map(|word| word.strip_prefix('[')?.strip_suffix(']')?.parse().ok())?;
    Some((processor, time_ns))
}

/// An event's line.
fn read(line: &str) -> Option<(u32, Traced)> {
    const EVENTS: [&str; 4] =
        [": tcp_probe: ", ": tcp_retransmit_skb: ", ": tcp_cong_state_set: ", ": inet_sock_set_state: "];
    let (kind, at) = EVENTS.iter().enumerate().find_map(|(kind, name)| Some((kind, line.rfind(name)?)))?;
    let (processor, time_ns) = origin(&line[..at])?;
    let text = &line[at + EVENTS[kind].len()..];
    let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| {
        let text = field(name)?;
        match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    // IPv4's addresses are in those of IPv6, too.
    let end = |address: &str, port: &str| -> Option<SocketAddr> {
        let address: IpAddr = field(address)?.parse().ok()?;
        Some(SocketAddr::new(address.to_canonical(), number(port)?.try_into().ok()?))
    };
    let socket = |name: &str| {
        let address: SocketAddr = field(name)?.parse().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    };
    let what = match kind {
        0 => What::Acknowledged(Standing {
            next: number("snd_nxt")?,
            unacknowledged: number("snd_una")?,
            cwnd: number("snd_cwnd")?,
            ssthresh: number("ssthresh")?,
            peer_window: number("snd_wnd")?,
            smoothed_round_trip_us: number("srtt")?,
        }),
        1 => What::Retransmitted,
        2 => What::Congestion(record::state(number("cong_state")?.try_into().ok()?)?),
        _ if field("protocol")? != "IPPROTO_TCP" => return None,
        _ => match field("newstate")? {
            "TCP_ESTABLISHED" => What::Established,
            "TCP_CLOSE" => What::Closed,
            _ => return None,
        },
    };
    let (local, remote) = match kind {
        0 => (socket("src")?, socket("dest")?),
        _ => (end("saddrv6", "sport")?, end("daddrv6", "dport")?),
    };
    Some((processor, Traced { time_ns, local, remote, what }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 tells it, and one process with a name that is meant to mislead.
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
    fn events_are_told_in_order_with_the_stack_of_their_processor_however_they_are_cut() {
        for cut in [0, 1, 200, 417, 900, 1_100, TRACE.len()] {
            let mut lines = Lines::new(true);
            lines.take(&TRACE.as_bytes()[..cut]);
            lines.take(&TRACE.as_bytes()[cut..]);
            let events: Vec<_> = std::iter::from_fn(|| lines.next()).collect();
            assert_eq!((events.len(), lines.lost), (4, 17), "{events:?}");
            let standing = Standing {
                next: 1_000,
                unacknowledged: 500,
                cwnd: 12,
                ssthresh: 0x7fff_ffff,
                peer_window: 64_000,
                smoothed_round_trip_us: 1_500,
            };
            assert_eq!(
                (events[0].0.what, events[0].0.time_ns),
                (What::Acknowledged(standing), 1_234_000_001_000)
            );
            assert_eq!(events[1].0.what, What::Congestion(State::Reducing));
            assert_eq!(events[1].1, Some(Some(Function::Transmit)));
            assert_eq!((events[1].0.local, events[1].0.remote), (events[0].0.local, events[0].0.remote));
            assert_eq!(events[2].0.remote, "[2001:db8::2]:9".parse().unwrap());
            assert_eq!((events[3].0.what, events[3].1), (What::Closed, None));
        }
    }

    #[test]
    fn a_stack_that_does_not_come_is_not_waited_for() {
        let turn = TRACE.lines().nth(1).unwrap().to_owned() + "\n";
        let mut lines = Lines::new(true);
        lines.take(turn.as_bytes());
        for _ in 0..PATIENCE {
            assert_eq!(lines.next(), None);
        }
        assert_eq!(lines.next().map(|(_, told)| told), Some(None));
        let mut without = Lines::new(false);
        without.take(turn.as_bytes());
        assert!(without.next().is_some());
    }

    #[test]
    fn what_is_no_event_is_left_out() {
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
