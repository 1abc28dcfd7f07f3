//! STAMP session-sender: sends one packet per interval and evaluates the replies.

use super::{
    ClockReading, DigestFunction, RejectReason, append, append_tlv_digest, sign, tlvs_are_intact, verify,
};
use crate::measure::lateness::{Departure, LatenessLimits};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use netstage_wire::stamp::tlv::{self, ClassOfService, DirectMeasurement, FixedTlv, TimestampInformation};
use netstage_wire::stamp::{ErrorEstimate, Mode, ReflectorPacket, SenderPacket, Timestamp, TimestampFormat};
use serde::{Deserialize, Serialize};

/// Error of timestamps due to their format, and due to the rate of the reflector's clock within a round trip, nanoseconds.
const TIMESTAMP_ERROR: i64 = 1_000_000;

/// Configuration of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Packet layout; must match the reflector's.
    pub mode: Mode,
    /// STAMP session identifier; 0 leaves the field empty as in RFC 8762.
    pub session: u16,
    /// Format of the sender's timestamps.
    pub format: TimestampFormat,
    /// Error estimate of the timestamps in nanoseconds, and whether the clock is synchronized.
    pub clock_error: (u64, bool),
    /// Interval between packets.
    pub interval: Duration,
    /// Number of packets to send.
    pub count: u32,
    /// Time to wait for a reply.
    pub timeout: Duration,
    /// Stateful reflector (RFC 8762 section 4), which allows loss to be measured per direction.
    pub reflector_is_stateful: bool,
    /// DSCP for the replies, requested with a Class of Service TLV; `None` sends no such TLV.
    pub class_of_service: Option<u8>,
    /// Exchange packet counters with the reflector (Direct Measurement TLV).
    pub direct_measurement: bool,
    /// Request the sources of the reflector's timestamps (Timestamp Information TLV).
    pub timestamp_information: bool,
    /// Bytes of extra padding, to reach a given packet size.
    pub padding: Option<u16>,
}

impl Default for SenderConfig {
    /// Unauthenticated mode, NTP timestamps with an error of 1 ms and no synchronization, ten packets per
    /// second for ten seconds, no TLVs.
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

/// Measurements from one reply. Delays are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampSample {
    /// Sequence number of the packet.
    pub sequence: u32,
    /// Sequence number assigned by the reflector.
    pub reflector_sequence: u32,
    /// Round trip minus the time at the reflector, zero if the latter is longer because of its timestamps' error; needs no
    /// synchronized clocks.
    pub round_trip: i64,
    /// Forward delay: reflector's clock minus sender's clock, so only as accurate as the clocks agree.
    pub forward: i64,
    /// Backward delay: sender's clock minus reflector's clock.
    pub backward: i64,
    /// Error bound of one-way delays: sum of both hosts' error estimates. `None` if one clock is not
    /// synchronized, because the clock offset is then unknown.
    pub uncertainty: Option<u64>,
    /// Time from receive to send at the reflector.
    pub reflector_time: i64,
    /// TTL or hop limit of the packet at its arrival at the reflector.
    pub ttl_at_reflector: u8,
    /// Class of Service TLV, if requested and answered.
    pub class_of_service: Option<ClassOfService>,
    /// Packet counters, if requested and answered.
    pub direct_measurement: Option<DirectMeasurement>,
    /// Timestamp sources, if requested and answered.
    pub timestamp_information: Option<TimestampInformation>,
}

/// Counts of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderResult {
    /// Packets sent.
    pub sent: u32,
    /// Packets not sent because they were too late.
    #[serde(default)]
    pub skipped: u32,
    /// Packets answered in time.
    pub answered: u32,
    /// Packets still waiting for a reply.
    pub outstanding: u32,
    /// Packets lost in the forward direction, from gaps in the reflector's numbers; zero for a stateless
    /// reflector.
    pub lost_forward: u32,
    /// Packets lost in the backward direction.
    pub lost_backward: u32,
    /// Unanswered packets lost in an unknown direction: after the last reply, or with a stateless reflector.
    pub lost_unattributed: u32,
    /// Replies that arrived after the reply to a later packet.
    pub reordered: u32,
    /// Received packets that were rejected.
    pub rejected: u32,
}

/// STAMP session-sender. While [`SessionSender::poll_timeout`] returns a time, call
/// [`SessionSender::poll_transmit`] at that time, and [`SessionSender::handle_packet`] for each received
/// packet. `poll_timeout` returns `None` once every packet was sent and answered or has timed out.
#[derive(Clone, Debug)]
pub struct SessionSender {
    config: SenderConfig,
    next_at: Instant,
    limits: LatenessLimits,
    sent: u32,
    skipped: u32,
    outstanding: BTreeMap<u32, ClockReading>,
    answered: u32,
    /// Highest sequence numbers among the replies: the sender's and the reflector's.
    highest: Option<(u32, u32)>,
    reordered: u32,
    rejected: u32,
    expired: u32,
}

impl SessionSender {
    /// Creates a session that sends its first packet at `start`. Panics if the interval is zero.
    pub fn new(config: SenderConfig, start: Instant) -> SessionSender {
        assert!(config.interval > Duration::ZERO, "{config:?}");
        SessionSender {
            limits: LatenessLimits::for_gap(config.interval),
            config,
            next_at: start,
            sent: 0,
            skipped: 0,
            outstanding: BTreeMap::new(),
            answered: 0,
            highest: None,
            reordered: 0,
            rejected: 0,
            expired: 0,
        }
    }

    /// Returns when to call [`SessionSender::poll_transmit`] next; `None` when the session is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.sent + self.skipped < self.config.count {
            return Some(self.next_at);
        }
        let (_, oldest) = self.outstanding.first_key_value()?;
        Some(oldest.instant + self.config.timeout)
    }

    /// Writes the packet that is due, if any, and expires overdue replies.
    ///
    /// Clears `bytes` first; returns true if `bytes` holds a packet to send immediately. Panics in
    /// authenticated mode without a key.
    pub fn poll_transmit(
        &mut self,
        now: ClockReading,
        mac: Option<DigestFunction<'_>>,
        bytes: &mut Vec<u8>,
    ) -> bool {
        self.expire(now.instant);
        bytes.clear();
        // A sender that was stopped continues on its schedule, without a burst.
        while self.sent + self.skipped < self.config.count
            && self.limits.departure(self.next_at, now.instant) == Departure::Skipped
        {
            self.skipped += 1;
            self.next_at += self.config.interval;
        }
        if self.sent + self.skipped >= self.config.count || now.instant < self.next_at {
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
        packet.write(bytes, mode).expect("the buffer holds the base packet");
        self.append_tlvs(bytes, mac);
        sign(bytes, mode, mac);
        self.outstanding.insert(self.sent, now);
        self.sent += 1;
        // Relative to the schedule, so that a late packet does not delay the following ones.
        self.next_at += self.config.interval;
        true
    }

    fn append_tlvs(&self, bytes: &mut Vec<u8>, mac: Option<DigestFunction<'_>>) {
        let base = bytes.len();
        if let Some(asked_dscp) = self.config.class_of_service {
            write_tlv(bytes, &ClassOfService { requested_dscp: asked_dscp, ..ClassOfService::default() });
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

    fn expire(&mut self, now: Instant) {
        while let Some((&sequence, sent)) = self.outstanding.first_key_value() {
            if now < sent.instant + self.config.timeout {
                break;
            }
            self.outstanding.remove(&sequence);
            self.expired += 1;
        }
    }

    /// Handles a received packet.
    pub fn handle_packet(
        &mut self,
        bytes: &[u8],
        now: ClockReading,
        mac: Option<DigestFunction<'_>>,
    ) -> Result<StampSample, RejectReason> {
        let sample = self.read(bytes, now, mac);
        self.rejected += u32::from(sample.is_err());
        sample
    }

    fn read(
        &mut self,
        bytes: &[u8],
        now: ClockReading,
        mac: Option<DigestFunction<'_>>,
    ) -> Result<StampSample, RejectReason> {
        let mode = self.config.mode;
        let reply = ReflectorPacket::read(bytes, mode).map_err(|_| RejectReason::Short)?;
        verify(bytes, mode, mac)?;
        // Reflectors that implement only RFC 8762 leave the identifier zero.
        if reply.session != self.config.session && reply.session != 0 {
            return Err(RejectReason::OtherSession);
        }
        let ours = reply.sender.sequence;
        let sent = self.outstanding.remove(&ours).ok_or(RejectReason::NotOutstanding)?;
        self.count(ours, reply.sequence);
        let mut sample = self.sample(&reply, sent, now);
        let elapsed = now.instant.since(sent.instant).0 as i64;
        if sample.reflector_time < -TIMESTAMP_ERROR || sample.reflector_time > elapsed + TIMESTAMP_ERROR {
            return Err(RejectReason::ReflectorClock);
        }
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

    fn sample(&self, reply: &ReflectorPacket, sent: ClockReading, now: ClockReading) -> StampSample {
        let (ours, theirs) = (self.config.format, reply.error_estimate.format());
        let stamp = |unix: u64| Timestamp::from_unix(unix, theirs);
        let at_reflector = reply.timestamp.since(reply.received, theirs);
        let elapsed = now.instant.since(sent.instant).0 as i64;
        let (error, synchronized) = self.config.clock_error;
        let own_error = ErrorEstimate::new(error, synchronized, ours).nanoseconds();
        let both = synchronized && reply.error_estimate.is_synchronized();
        StampSample {
            sequence: reply.sender.sequence,
            reflector_sequence: reply.sequence,
            round_trip: elapsed.saturating_sub(at_reflector).max(0),
            // The local record of the send time, since the copy in the packet may have been modified.
            forward: reply.received.since(stamp(sent.unix), theirs),
            backward: stamp(now.unix).since(reply.timestamp, theirs),
            uncertainty: both.then(|| own_error.saturating_add(reply.error_estimate.nanoseconds())),
            reflector_time: at_reflector,
            ttl_at_reflector: reply.sender_ttl,
            class_of_service: None,
            direct_measurement: None,
            timestamp_information: None,
        }
    }

    /// Returns the number of packets skipped so far, and the scheduled time of the packet sent or skipped last.
    pub fn schedule(&self) -> (u32, Instant) {
        (self.skipped, Instant(self.next_at.0.saturating_sub(self.config.interval.0)))
    }

    /// Returns the counts so far.
    pub fn result(&self) -> SenderResult {
        let outstanding = self.outstanding.len() as u32;
        let (mut lost_forward, mut lost_backward) = (0, 0);
        // If the reflector's counter started before this session, its number does not show the forward loss.
        let counts =
            |&(ours, reflectors): &(u32, u32)| self.config.reflector_is_stateful && reflectors <= ours;
        if let Some((ours, reflectors)) = self.highest.filter(counts) {
            // Up to the last packet answered: packets sent, seen by the reflector, and answered. Outstanding
            // packets are not lost yet; they are subtracted from the backward loss, where they would appear
            // first.
            let seen = reflectors.saturating_add(1);
            lost_forward = ours.saturating_add(1).saturating_sub(seen);
            let pending = self.outstanding.range(..ours).count() as u32;
            lost_backward = seen.saturating_sub(self.answered).saturating_sub(pending);
        }
        let lost_forward = lost_forward.min(self.expired);
        let lost_backward = lost_backward.min(self.expired - lost_forward);
        SenderResult {
            sent: self.sent,
            skipped: self.skipped,
            answered: self.answered,
            outstanding,
            lost_forward,
            lost_backward,
            lost_unattributed: self.expired - lost_forward - lost_backward,
            reordered: self.reordered,
            rejected: self.rejected,
        }
    }
}

fn write_tlv<T: FixedTlv>(bytes: &mut Vec<u8>, value: &T) {
    let extent = append(bytes, T::KIND, T::LENGTH);
    value.write(&mut bytes[extent]).expect("the buffer holds the value");
}

fn read_tlvs(bytes: &[u8], base: usize, sample: &mut StampSample) {
    for extent in tlv::tlvs(bytes, base).flatten() {
        if extent.flags & (tlv::UNRECOGNIZED | tlv::MALFORMED | tlv::INTEGRITY_FAILED) != 0 {
            continue;
        }
        let value = &bytes[extent.value()];
        match extent.kind {
            tlv::kind::CLASS_OF_SERVICE => sample.class_of_service = ClassOfService::read(value).ok(),
            tlv::kind::DIRECT_MEASUREMENT => sample.direct_measurement = DirectMeasurement::read(value).ok(),
            tlv::kind::TIMESTAMP_INFORMATION => {
                sample.timestamp_information = TimestampInformation::read(value).ok();
            }
            _ => {}
        }
    }
}
