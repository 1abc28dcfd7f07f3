//! A path for the TCP tests, in memory: a fixed delay in each direction, no bandwidth limit, and losses and marks as
//! the test decides. Its trace prints one line per instant.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netstage_core::tcp::{Ack, CongestionEvent, DataSegment, TcpConfig, TcpDataReceiver, TcpDataSender};
use netstage_core::time::{Duration, Instant};

pub const ROUND_TRIP: Duration = Duration::from_millis(100);
pub const SEGMENT: u64 = 1000;

enum PathPacket {
    Data(DataSegment, bool),
    Ack(Ack),
}

/// Action of the path on one transmission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TransmissionFate {
    Deliver,
    Drop,
    Mark,
    Duplicate,
    /// Delivery with an additional delay.
    Delay(Duration),
}

pub struct TcpPath {
    pub config: TcpConfig,
    pub sender: TcpDataSender,
    pub receiver: TcpDataReceiver,
    pub now: Instant,
    one_way: Duration,
    packets: BTreeMap<(Instant, u64), PathPacket>,
    sequence: u64,
    line: String,
    pub trace: String,
}

impl TcpPath {
    pub fn new(config: TcpConfig, round_trip: Duration) -> TcpPath {
        TcpPath {
            sender: TcpDataSender::new(&config),
            receiver: TcpDataReceiver::new(&config),
            config,
            now: Instant::ZERO,
            one_way: round_trip / 2,
            packets: BTreeMap::new(),
            sequence: 0,
            line: String::new(),
            trace: String::new(),
        }
    }

    /// Writes segments at once, and runs until everything is acknowledged or `until`.
    pub fn run(
        &mut self,
        segments: u64,
        until: Instant,
        data_fate: impl FnMut(&DataSegment) -> TransmissionFate,
        ack_fate: impl FnMut(&Ack) -> TransmissionFate,
    ) {
        self.sender.write(segments * u64::from(self.config.max_segment_size));
        self.run_written(until, data_fate, ack_fate);
    }

    /// Continues until `until`, with ACKs delivered.
    pub fn run_step(&mut self, until: Instant, data_fate: &mut impl FnMut(&DataSegment) -> TransmissionFate) {
        self.run_written(until, data_fate, deliver);
    }

    pub fn run_written(
        &mut self,
        until: Instant,
        mut data_fate: impl FnMut(&DataSegment) -> TransmissionFate,
        mut ack_fate: impl FnMut(&Ack) -> TransmissionFate,
    ) {
        self.send(&mut data_fate);
        loop {
            let next = self.packets.first_key_value().map_or(Instant::NEVER, |(k, _)| k.0);
            let timer = self.sender.poll_timeout().min(self.receiver.poll_timeout());
            let at = next.min(timer);
            if at > self.now {
                self.end_line();
            }
            if at > until || at == Instant::NEVER {
                self.now = if until == Instant::NEVER { self.now } else { until };
                return;
            }
            self.now = at;
            if next <= timer {
                match self.packets.pop_first().unwrap().1 {
                    PathPacket::Data(data, marked) => {
                        self.receiver.handle_data(&self.config, self.now, &data, marked)
                    }
                    PathPacket::Ack(ack) => {
                        self.sender.handle_ack(&self.config, self.now, &ack);
                        self.send(&mut data_fate);
                    }
                }
            } else {
                self.sender.handle_timeout(&self.config, self.now);
                self.receiver.handle_timeout(&self.config, self.now);
                self.send(&mut data_fate);
            }
            while let Some(ack) = self.receiver.poll_transmit(&self.config, self.now) {
                let fate = ack_fate(&ack);
                self.carry(fate, || PathPacket::Ack(ack));
            }
        }
    }

    fn send(&mut self, fate: &mut impl FnMut(&DataSegment) -> TransmissionFate) {
        if let Some(event) = self.sender.poll_event() {
            let name = match event {
                CongestionEvent::Reduced(cause) => cause.name(),
                CongestionEvent::Recovered => "recovered",
            };
            let _ = write!(self.line, " [{name}]");
        }
        while let Some(data) = self.sender.poll_transmit(&self.config, self.now) {
            let fate = fate(&data);
            let segment = u64::from(self.config.max_segment_size);
            let segment = if data.syn { "syn".into() } else { (data.seq / segment).to_string() };
            let retransmission = if data.retransmission { "r" } else { "" };
            let cwr = if data.cwr { "+cwr" } else { "" };
            let fate_name = match fate {
                TransmissionFate::Drop => "!",
                TransmissionFate::Mark => "*",
                _ => "",
            };
            let _ = write!(self.line, " {retransmission}{segment}{cwr}{fate_name}");
            self.carry(fate, || PathPacket::Data(data, fate == TransmissionFate::Mark));
        }
    }

    fn carry(&mut self, fate: TransmissionFate, packet: impl Fn() -> PathPacket) {
        let extra = if let TransmissionFate::Delay(extra) = fate { extra } else { Duration::ZERO };
        let copies = match fate {
            TransmissionFate::Drop => 0,
            TransmissionFate::Duplicate => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.sequence += 1;
            self.packets.insert((self.now + self.one_way + extra, self.sequence), packet());
        }
    }

    fn end_line(&mut self) {
        if !self.line.is_empty() {
            let segment = f64::from(self.config.max_segment_size);
            let cwnd = self.sender.congestion_window() as f64 / segment;
            let _ = writeln!(self.trace, "{:>4}{} | {:.1}", self.now.0 / 1_000_000, self.line, cwnd);
            self.line.clear();
        }
    }
}

/// Drops as many transmissions of each segment as it has entries in the list.
pub fn drop_listed(list: &[u64], segment: u32) -> impl FnMut(&DataSegment) -> TransmissionFate {
    let mut remaining = list.to_vec();
    move |data| {
        let number = data.seq / u64::from(segment);
        match remaining.iter().position(|&n| n == number) {
            Some(index) if !data.syn => {
                remaining.remove(index);
                TransmissionFate::Drop
            }
            _ => TransmissionFate::Deliver,
        }
    }
}

pub fn deliver<T>(_: &T) -> TransmissionFate {
    TransmissionFate::Deliver
}

/// Returns the trace of `segments` sent over a path that drops as many transmissions of each segment as it has
/// entries in `drops`.
pub fn trace(config: &TcpConfig, segments: u64, drops: &[u64]) -> String {
    let mut path = TcpPath::new(config.clone(), ROUND_TRIP);
    path.run(segments, Instant::NEVER, drop_listed(drops, SEGMENT as u32), deliver);
    assert!(path.sender.is_finished());
    assert_eq!(path.receiver.delivered(), segments * SEGMENT);
    path.trace
}

pub fn assert_trace(actual: &str, expected: &str) {
    let lines = |text: &str| text.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect();
    let (actual, expected): (Vec<String>, Vec<String>) = (lines(actual), lines(expected));
    assert!(actual == expected, "sent:\n{}\nexpected:\n{}", actual.join("\n"), expected.join("\n"));
}
