//! The session-sender: one packet every interval, and what the replies say.

use super::{Mac, Moment, Rejected, append, append_tlv_digest, sign, tlvs_are_intact, verify};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use netstage_wire::stamp::tlv::{self, ClassOfService, DirectMeasurement, Fixed, TimestampInformation};
use netstage_wire::stamp::{ErrorEstimate, Mode, ReflectorPacket, SenderPacket, Timestamp, TimestampFormat};
use serde::{Deserialize, Serialize};

/// How a session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Layout, as the reflector expects it.
    pub mode: Mode,
    /// Session identifier; 0 leaves the field empty, as in RFC 8762.
    pub session: u16,
    /// Format of our timestamps.
    pub format: TimestampFormat,
    /// How good they are, nanoseconds, and whether the clock is synchronized.
    pub clock_error: (u64, bool),
    /// From packet to packet.
    pub interval: Duration,
    /// Packets to send.
    pub count: u32,
    /// How long a reply is waited for.
    pub timeout: Duration,
    /// The reflector counts by itself (RFC 8762 section 4): loss can be told per direction.
    pub reflector_is_stateful: bool,
    /// Ask for class of service with this DSCP on the way back.
    pub class_of_service: Option<u8>,
    /// Exchange counters of packets.
    pub direct_measurement: bool,
    /// Ask how timestamps are taken.
    pub timestamp_information: bool,
    /// Bytes of extra padding, so that packets have the size wanted.
    pub padding: Option<u16>,
}

impl Default for SenderConfig {
    /// Unauthenticated, NTP timestamps good to a millisecond and unsynchronized, ten packets a
    /// second for ten seconds, without TLVs.
    fn default() -> SenderConfig {
        SenderConfig {
            mode: Mode::Unauthenticated,
            session: 0,
            format: TimestampFormat::Ntp,
            clock_error: (1_000_000, false),
            interval: Duration::from_millis(100),
            count: 100,
            timeout: Duration::from_secs(2),
            reflector_is_stateful: true,
            class_of_service: None,
            direct_measurement: false,
            timestamp_information: false,
            padding: None,
        }
    }
}

/// What a reply says. Delays are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Number of the packet.
    pub sequence: u32,
    /// Number the reflector gave it.
    pub reflector_sequence: u32,
    /// There and back less the time at the reflector: needs no common clock.
    pub round_trip: i64,
    /// There: the reflector's clock less ours, so as good as they agree.
    pub forward: i64,
    /// Back: our clock less the reflector's.
    pub backward: i64,
    /// By how much one-way delays may be off by what both ends say of their clocks: the sum of
    /// their error estimates. `None` if either is not synchronized: then their difference is
    /// not known at all.
    pub uncertainty: Option<u64>,
    /// From receiving to sending at the reflector.
    pub at_reflector: i64,
    /// TTL or hop limit with which the packet reached the reflector.
    pub ttl_at_reflector: u8,
    /// Class of service, if asked for and answered.
    pub class_of_service: Option<ClassOfService>,
    /// Counters, if asked for and answered.
    pub direct_measurement: Option<DirectMeasurement>,
    /// Sources of time, if asked for and answered.
    pub timestamp_information: Option<TimestampInformation>,
}

/// Counts of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderResult {
    /// Packets sent.
    pub sent: u32,
    /// Of these, answered in time.
    pub answered: u32,
    /// Of these, still waited for.
    pub outstanding: u32,
    /// Lost on the way there: what the reflector's numbers leave out. Zero for a stateless one.
    pub lost_forward: u32,
    /// Lost on the way back.
    pub lost_backward: u32,
    /// Unanswered, direction unknown: after the last reply, or of a stateless reflector.
    pub lost_somewhere: u32,
    /// Answers after one to a packet sent later.
    pub reordered: u32,
    /// Packets that came in and were not taken.
    pub rejected: u32,
}

/// The sender: while [`Sender::poll_timeout`] gives a time, call [`Sender::poll_transmit`] then,
/// and [`Sender::handle_packet`] with what comes in; it gives `None` when all is sent and
/// answered or given up.
#[derive(Clone, Debug)]
pub struct Sender {
    config: SenderConfig,
    next_at: Instant,
    sent: u32,
    outstanding: BTreeMap<u32, Moment>,
    answered: u32,
    /// Highest numbers among the replies: ours and the reflector's own.
    highest: Option<(u32, u32)>,
    reordered: u32,
    rejected: u32,
    given_up: u32,
}

impl Sender {
    /// A session whose first packet leaves at `start`. Panics if the interval is zero.
    pub fn new(config: SenderConfig, start: Instant) -> Sender {
        assert!(config.interval > Duration::ZERO, "{config:?}");
        Sender {
            config,
            next_at: start,
            sent: 0,
            outstanding: BTreeMap::new(),
            answered: 0,
            highest: None,
            reordered: 0,
            rejected: 0,
            given_up: 0,
        }
    }

    /// When to call [`Sender::poll_transmit`] next; `None` when the session is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.sent < self.config.count {
            return Some(self.next_at);
        }
        let (_, oldest) = self.outstanding.first_key_value()?;
        Some(oldest.instant + self.config.timeout)
    }

    /// Write the packet that is due, if one is, and give up replies that are overdue.
    ///
    /// `bytes` is cleared first; true if it holds a packet to be sent at once. Panics in
    /// authenticated mode without a key.
    pub fn poll_transmit(&mut self, now: Moment, mac: Option<Mac<'_>>, bytes: &mut Vec<u8>) -> bool {
        self.give_up(now.instant);
        bytes.clear();
        if self.sent >= self.config.count || now.instant < self.next_at {
            return false;
        }
        let SenderConfig { mode, session, format, clock_error: (error, synchronized), .. } = self.config;
        bytes.resize(mode.base(), 0);
        let packet = SenderPacket {
            sequence: self.sent,
            timestamp: Timestamp::from_unix(now.unix, format),
            error_estimate: ErrorEstimate::new(error, synchronized, format),
            session,
        };
        packet.write(bytes, mode).expect("there is room for the base");
        self.append_tlvs(bytes, mac);
        sign(bytes, mode, mac);
        self.outstanding.insert(self.sent, now);
        self.sent += 1;
        // From the schedule, not from now: a late packet must not delay all that follow.
        self.next_at += self.config.interval;
        true
    }

    fn append_tlvs(&self, bytes: &mut Vec<u8>, mac: Option<Mac<'_>>) {
        let base = bytes.len();
        if let Some(asked_dscp) = self.config.class_of_service {
            write_tlv(bytes, &ClassOfService { asked_dscp, ..ClassOfService::default() });
        }
        if self.config.direct_measurement {
            let sender_sent = self.sent + 1;
            write_tlv(bytes, &DirectMeasurement { sender_sent, ..DirectMeasurement::default() });
        }
        if self.config.timestamp_information {
            write_tlv(bytes, &TimestampInformation::default());
        }
        if let Some(padding) = self.config.padding {
            append(bytes, tlv::kind::EXTRA_PADDING, usize::from(padding));
        }
        if bytes.len() > base
            && let Some(mac) = mac
        {
            append_tlv_digest(bytes, base, mac);
        }
    }

    fn give_up(&mut self, now: Instant) {
        while let Some((&sequence, sent)) = self.outstanding.first_key_value() {
            if now < sent.instant + self.config.timeout {
                break;
            }
            self.outstanding.remove(&sequence);
            self.given_up += 1;
        }
    }

    /// A packet came in.
    pub fn handle_packet(
        &mut self,
        bytes: &[u8],
        now: Moment,
        mac: Option<Mac<'_>>,
    ) -> Result<Sample, Rejected> {
        let sample = self.read(bytes, now, mac);
        self.rejected += u32::from(sample.is_err());
        sample
    }

    fn read(&mut self, bytes: &[u8], now: Moment, mac: Option<Mac<'_>>) -> Result<Sample, Rejected> {
        let mode = self.config.mode;
        let reply = ReflectorPacket::read(bytes, mode).map_err(|_| Rejected::Short)?;
        verify(bytes, mode, mac)?;
        // Reflectors of RFC 8762 alone leave the identifier zero.
        if reply.session != self.config.session && reply.session != 0 {
            return Err(Rejected::OtherSession);
        }
        let ours = reply.sender.sequence;
        let sent = self.outstanding.remove(&ours).ok_or(Rejected::NotOutstanding)?;
        self.count(ours, reply.sequence);
        let mut sample = self.sample(&reply, sent, now);
        if tlvs_are_intact(bytes, mode, mac) {
            read_tlvs(bytes, mode.base(), &mut sample);
        }
        Ok(sample)
    }

    fn count(&mut self, ours: u32, reflectors: u32) {
        self.answered += 1;
        match &mut self.highest {
            Some((highest, _)) if ours < *highest => self.reordered += 1,
            Some((highest, _)) => *highest = ours,
            None => self.highest = Some((ours, reflectors)),
        }
        if let Some((_, highest)) = &mut self.highest {
            *highest = reflectors.max(*highest);
        }
    }

    fn sample(&self, reply: &ReflectorPacket, sent: Moment, now: Moment) -> Sample {
        let (ours, theirs) = (self.config.format, reply.error_estimate.format());
        let stamp = |unix: u64| Timestamp::from_unix(unix, theirs);
        let at_reflector = reply.timestamp.since(reply.received, theirs);
        let there_and_back = now.instant.since(sent.instant).0 as i64;
        let (error, synchronized) = self.config.clock_error;
        let own_error = ErrorEstimate::new(error, synchronized, ours).nanoseconds();
        let both = synchronized && reply.error_estimate.is_synchronized();
        Sample {
            sequence: reply.sender.sequence,
            reflector_sequence: reply.sequence,
            round_trip: there_and_back.saturating_sub(at_reflector),
            // Our own record of the time sent: the packet's copy passed through other hands.
            forward: reply.received.since(stamp(sent.unix), theirs),
            backward: stamp(now.unix).since(reply.timestamp, theirs),
            uncertainty: both.then(|| own_error.saturating_add(reply.error_estimate.nanoseconds())),
            at_reflector,
            ttl_at_reflector: reply.sender_ttl,
            class_of_service: None,
            direct_measurement: None,
            timestamp_information: None,
        }
    }

    /// Counts so far.
    pub fn result(&self) -> SenderResult {
        let outstanding = self.outstanding.len() as u32;
        let (mut lost_forward, mut lost_backward) = (0, 0);
        // A reflector that counted before this session began cannot tell its losses from ours.
        let counts =
            |&(ours, reflectors): &(u32, u32)| self.config.reflector_is_stateful && reflectors <= ours;
        if let Some((ours, reflectors)) = self.highest.filter(counts) {
            // Up to the last packet answered: what we sent, what the reflector saw, what came back.
            // Those still waited for are not lost yet; they are taken for lost on the way back
            // first, since that is what their absence here first looks like.
            let seen = reflectors.saturating_add(1);
            lost_forward = ours.saturating_add(1).saturating_sub(seen);
            let waited_for = self.outstanding.range(..ours).count() as u32;
            lost_backward = seen.saturating_sub(self.answered).saturating_sub(waited_for);
        }
        let lost_forward = lost_forward.min(self.given_up);
        let lost_backward = lost_backward.min(self.given_up - lost_forward);
        SenderResult {
            sent: self.sent,
            answered: self.answered,
            outstanding,
            lost_forward,
            lost_backward,
            lost_somewhere: self.given_up - lost_forward - lost_backward,
            reordered: self.reordered,
            rejected: self.rejected,
        }
    }
}

fn write_tlv<T: Fixed>(bytes: &mut Vec<u8>, value: &T) {
    let place = append(bytes, T::KIND, T::LENGTH);
    value.write(&mut bytes[place]).expect("there is room for the value");
}

fn read_tlvs(bytes: &[u8], base: usize, sample: &mut Sample) {
    for place in tlv::places(bytes, base).flatten() {
        if place.flags & (tlv::UNRECOGNIZED | tlv::MALFORMED | tlv::INTEGRITY_FAILED) != 0 {
            continue;
        }
        let value = &bytes[place.value()];
        match place.kind {
            tlv::kind::CLASS_OF_SERVICE => sample.class_of_service = ClassOfService::read(value).ok(),
            tlv::kind::DIRECT_MEASUREMENT => sample.direct_measurement = DirectMeasurement::read(value).ok(),
            tlv::kind::TIMESTAMP_INFORMATION => {
                sample.timestamp_information = TimestampInformation::read(value).ok();
            }
            _ => {}
        }
    }
}
