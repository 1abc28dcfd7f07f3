//! STAMP session-reflector: answers each packet with its receive information. A reply has the length of its
//! packet, so spoofed sources gain no amplification.

use super::{DigestFunction, RejectReason, flag_all, sign, tlv_digest, tlvs_are_intact, verify};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use netstage_wire::stamp::tlv::{
    self, ClassOfService, DirectMeasurement, FixedTlv, FollowUpTelemetry, LocationPorts,
    TimestampInformation, location,
};
use netstage_wire::stamp::{
    DIGEST, ErrorEstimate, Mode, ReflectorPacket, SenderPacket, Timestamp, TimestampFormat,
};

/// Configuration of a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReflectorConfig {
    /// Packet layout; must match the senders'.
    pub mode: Mode,
    /// Stateful mode: count the packets of each session, which allows senders to measure loss per direction.
    pub stateful: bool,
    /// Format of the reflector's timestamps.
    pub format: TimestampFormat,
    /// Error estimate of the timestamps in nanoseconds, and whether the clock is synchronized.
    pub clock_error: (u64, bool),
    /// Synchronization source of the clock, a value of `tlv::sync_source`.
    pub sync_source: u8,
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Idle time after which a session is removed (REFWAIT; 900 s in RFC 8762).
    pub session_timeout: Duration,
    /// Report to senders the addresses and ports their packets arrived with (RFC 8972 section 4.2.2 requires
    /// this to be configurable).
    pub reports_location: bool,
    /// Send replies with the DSCP requested by the sender.
    pub honors_dscp: bool,
}

impl Default for ReflectorConfig {
    /// Unauthenticated mode, stateful, NTP timestamps with an error of 1 ms and no synchronization, 1000
    /// sessions; reports locations and uses requested DSCPs.
    fn default() -> ReflectorConfig {
        ReflectorConfig {
            mode: Mode::Unauthenticated,
            stateful: true,
            format: TimestampFormat::Ntp,
            clock_error: (1_000_000, false),
            sync_source: tlv::sync_source::FREE_RUNNING,
            sessions: 1000,
            session_timeout: Duration::from_secs(900),
            reports_location: true,
            honors_dscp: true,
        }
    }
}

/// Receive information of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacketInfo {
    /// Time of the run's clock.
    pub instant: Instant,
    /// Wall clock, nanoseconds since 1970.
    pub unix: u64,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP.
    pub dscp: u8,
    /// ECN.
    pub ecn: u8,
}

/// Counts of all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReflectorCounts {
    /// Packets answered.
    pub reflected: u64,
    /// Packets not answered.
    pub rejected: u64,
    /// Current number of sessions.
    pub sessions: usize,
}

/// Source, destination and session identifier, which identify a session (RFC 8972 section 3).
type StampSessionKey = (SocketAddr, SocketAddr, u16);

#[derive(Clone, Copy, Debug, Default)]
struct ReflectorSession {
    reflected: u32,
    last_active: Instant,
    /// Sequence number and timestamp of the previous reply.
    before: (u32, Timestamp),
}

/// STAMP session-reflector; [`SessionReflector::reflect`] answers one packet.
#[derive(Clone, Debug)]
pub struct SessionReflector {
    config: ReflectorConfig,
    sessions: BTreeMap<StampSessionKey, ReflectorSession>,
    counts: ReflectorCounts,
}

impl SessionReflector {
    /// Creates a reflector without sessions.
    pub fn new(config: ReflectorConfig) -> SessionReflector {
        SessionReflector { config, sessions: BTreeMap::new(), counts: ReflectorCounts::default() }
    }

    /// Answers a packet: writes the reply to `reply`, to be sent immediately, and returns the DSCP to send it
    /// with. `now` returns nanoseconds since 1970; it is called as late as possible.
    ///
    /// Panics in authenticated mode without a key.
    pub fn reflect(
        &mut self,
        packet: &[u8],
        arrival: &ReceivedPacketInfo,
        mac: Option<DigestFunction<'_>>,
        now: impl FnOnce() -> u64,
        reply: &mut Vec<u8>,
    ) -> Result<u8, RejectReason> {
        let answer = self.answer(packet, arrival, mac, now, reply);
        match answer {
            Ok(_) => self.counts.reflected += 1,
            Err(_) => self.counts.rejected += 1,
        }
        answer
    }

    fn answer(
        &mut self,
        packet: &[u8],
        arrival: &ReceivedPacketInfo,
        mac: Option<DigestFunction<'_>>,
        now: impl FnOnce() -> u64,
        reply: &mut Vec<u8>,
    ) -> Result<u8, RejectReason> {
        let mode = self.config.mode;
        let sender = SenderPacket::read(packet, mode).map_err(|_| RejectReason::Short)?;
        verify(packet, mode, mac)?;
        let session = self.session(sender.session, arrival)?;
        reply.clear();
        reply.extend_from_slice(packet);
        let sequence = if self.config.stateful { session.reflected } else { sender.sequence };
        let intact = tlvs_are_intact(packet, mode, mac);
        let mut dscp = arrival.dscp;
        if intact {
            dscp = self.answer_tlvs(reply, arrival, &session);
        } else {
            flag_all(reply, mode.base());
        }
        let (error, synchronized) = self.config.clock_error;
        let format = self.config.format;
        let answer = ReflectorPacket {
            sequence,
            timestamp: Timestamp::from_unix(now(), format),
            error_estimate: ErrorEstimate::new(error, synchronized, format),
            session: sender.session,
            received: Timestamp::from_unix(arrival.unix, format),
            sender,
            sender_ttl: arrival.ttl,
        };
        answer.write(reply, mode).expect("a reply is as long as its packet");
        if intact {
            update_tlv_digest(reply, mode.base(), mac);
        }
        sign(reply, mode, mac);
        let session = ReflectorSession {
            reflected: session.reflected.wrapping_add(1),
            last_active: arrival.instant,
            before: (sequence, answer.timestamp),
        };
        if self.config.stateful {
            self.sessions.insert((arrival.source, arrival.destination, sender.session), session);
        }
        Ok(dscp)
    }

    /// Returns the state of a session, or an error if the session limit is reached.
    fn session(
        &mut self,
        identifier: u16,
        arrival: &ReceivedPacketInfo,
    ) -> Result<ReflectorSession, RejectReason> {
        let key = (arrival.source, arrival.destination, identifier);
        let alive = |session: &ReflectorSession| {
            arrival.instant.since(session.last_active) < self.config.session_timeout
        };
        if let Some(&session) = self.sessions.get(&key) {
            return Ok(if alive(&session) { session } else { ReflectorSession::default() });
        }
        if self.config.stateful && self.sessions.len() >= self.config.sessions {
            self.sessions.retain(|_, session| alive(session));
            if self.sessions.len() >= self.config.sessions {
                return Err(RejectReason::TooManySessions);
            }
        }
        Ok(ReflectorSession::default())
    }

    /// Fills in the TLVs of a reply; returns the DSCP to send it with.
    fn answer_tlvs(&self, reply: &mut [u8], arrival: &ReceivedPacketInfo, session: &ReflectorSession) -> u8 {
        let (mut start, mut dscp) = (self.config.mode.base(), arrival.dscp);
        loop {
            match tlv::at(reply, start) {
                None => return dscp,
                Some(Err(malformed)) => {
                    // A truncated TLV has no valid length to skip by: flag it and stop.
                    reply[malformed.start] = reply[malformed.start] & !tlv::UNRECOGNIZED | tlv::MALFORMED;
                    return dscp;
                }
                Some(Ok(extent)) => {
                    let value = &mut reply[extent.value()];
                    let known = self.answer_tlv(extent.kind, value, arrival, session, &mut dscp);
                    reply[extent.start] = match known {
                        Some(Ok(())) => 0,
                        Some(Err(tlv::WrongLength)) => tlv::MALFORMED,
                        None => tlv::UNRECOGNIZED,
                    };
                    start = extent.end;
                }
            }
        }
    }

    /// Fills in one value; returns `None` for an unknown type.
    fn answer_tlv(
        &self,
        kind: u8,
        value: &mut [u8],
        arrival: &ReceivedPacketInfo,
        session: &ReflectorSession,
        dscp: &mut u8,
    ) -> Option<Result<(), tlv::WrongLength>> {
        let counted = session.reflected.wrapping_add(1);
        Some(match kind {
            tlv::kind::EXTRA_PADDING => Ok(()),
            tlv::kind::LOCATION => self.answer_location(value, arrival),
            tlv::kind::TIMESTAMP_INFORMATION => TimestampInformation {
                sync_in: self.config.sync_source,
                method_in: tlv::timestamp_method::SOFTWARE,
                sync_out: self.config.sync_source,
                method_out: tlv::timestamp_method::SOFTWARE,
            }
            .write(value),
            tlv::kind::CLASS_OF_SERVICE => ClassOfService::read(value).and_then(|asked| {
                if self.config.honors_dscp {
                    *dscp = asked.requested_dscp;
                }
                let (received_dscp, received_ecn) = (arrival.dscp, arrival.ecn);
                let reverse_path = u8::from(!self.config.honors_dscp);
                ClassOfService { received_dscp, received_ecn, reverse_path, ..asked }.write(value)
            }),
            tlv::kind::DIRECT_MEASUREMENT => DirectMeasurement::read(value).and_then(|counters| {
                DirectMeasurement { reflector_received: counted, reflector_sent: counted, ..counters }
                    .write(value)
            }),
            tlv::kind::FOLLOW_UP_TELEMETRY => {
                let (sequence, timestamp) = session.before;
                let method = if session.reflected > 0 { tlv::timestamp_method::SOFTWARE } else { 0 };
                FollowUpTelemetry { sequence, timestamp, method }.write(value)
            }
            tlv::kind::HMAC if value.len() == DIGEST => Ok(()),
            tlv::kind::HMAC => Err(tlv::WrongLength),
            _ => return None,
        })
    }

    fn answer_location(
        &self,
        value: &mut [u8],
        arrival: &ReceivedPacketInfo,
    ) -> Result<(), tlv::WrongLength> {
        let (destination, source) = match self.config.reports_location {
            true => (arrival.destination.port(), arrival.source.port()),
            false => (0, 0),
        };
        LocationPorts { destination, source }.write(value)?;
        let mut start = LocationPorts::LENGTH;
        while let Some(found) = tlv::at(value, start) {
            let extent = found.map_err(|_| tlv::WrongLength)?;
            let part = &mut value[extent.start..extent.end];
            if location::value_length(extent.kind).is_some_and(|length| length != extent.value().len()) {
                part[0] = tlv::MALFORMED;
            } else {
                part[0] = if self.answer_place(part, arrival) { 0 } else { tlv::UNRECOGNIZED };
            }
            start = extent.end;
        }
        Ok(())
    }

    /// Fills in one sub-TLV of a Location TLV, whose length must match its type; returns false for an unknown
    /// type.
    fn answer_place(&self, part: &mut [u8], arrival: &ReceivedPacketInfo) -> bool {
        use location::{
            DESTINATION_IP, DESTINATION_IPV4, DESTINATION_IPV6, SOURCE_IP, SOURCE_IPV4, SOURCE_IPV6,
        };
        let (address, four, six) = match part[1] {
            SOURCE_IP => (arrival.source.ip(), SOURCE_IPV4, SOURCE_IPV6),
            DESTINATION_IP => (arrival.destination.ip(), DESTINATION_IPV4, DESTINATION_IPV6),
            // A socket does not provide link-layer addresses.
            _ => return false,
        };
        if !self.config.reports_location {
            return true;
        }
        match address {
            IpAddr::V4(address) => {
                part[1] = four;
                part[tlv::HEADER..tlv::HEADER + 4].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                part[1] = six;
                part[tlv::HEADER..].copy_from_slice(&address.octets());
            }
        }
        true
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> ReflectorCounts {
        ReflectorCounts { sessions: self.sessions.len(), ..self.counts }
    }
}

/// Recomputes the digest over a reply's TLVs, if it has one.
fn update_tlv_digest(reply: &mut [u8], base: usize, mac: Option<DigestFunction<'_>>) {
    let extent = tlv::tlvs(reply, base)
        .flatten()
        .find(|extent| extent.kind == tlv::kind::HMAC && extent.value().len() == DIGEST);
    if let (Some(extent), Some(mac)) = (extent, mac) {
        let digest = tlv_digest(reply, base, extent.start, mac);
        reply[extent.value()].copy_from_slice(&digest);
    }
}
