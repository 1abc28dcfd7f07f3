//! Objects of RSVP messages: layouts of each class and C-Type (RFC 2205 appendix A, RFC 3209 section 4, RFC 2961,
//! RFC 2747, RFC 4090, RFC 2210).

use super::route::Route;
use super::{BANDWIDTH_UNAVAILABLE, LOCALLY_REPAIRED, OBJECT_HEADER, RsvpError, error_code, routing_error};
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::mpls::LabelValue;
use core::net::Ipv4Addr;

/// Class numbers.
#[allow(missing_docs)]
pub mod class {
    pub const NULL: u8 = 0;
    pub const SESSION: u8 = 1;
    pub const HOP: u8 = 3;
    pub const INTEGRITY: u8 = 4;
    pub const TIME_VALUES: u8 = 5;
    pub const ERROR_SPEC: u8 = 6;
    pub const SCOPE: u8 = 7;
    pub const STYLE: u8 = 8;
    pub const FLOWSPEC: u8 = 9;
    pub const FILTER_SPEC: u8 = 10;
    pub const SENDER_TEMPLATE: u8 = 11;
    pub const SENDER_TSPEC: u8 = 12;
    pub const ADSPEC: u8 = 13;
    pub const POLICY_DATA: u8 = 14;
    pub const RESV_CONFIRM: u8 = 15;
    pub const LABEL: u8 = 16;
    pub const LABEL_REQUEST: u8 = 19;
    pub const EXPLICIT_ROUTE: u8 = 20;
    pub const RECORD_ROUTE: u8 = 21;
    pub const HELLO: u8 = 22;
    pub const MESSAGE_ID: u8 = 23;
    pub const MESSAGE_ID_ACK: u8 = 24;
    pub const MESSAGE_ID_LIST: u8 = 25;
    pub const DETOUR: u8 = 63;
    pub const CHALLENGE: u8 = 64;
    pub const FAST_REROUTE: u8 = 205;
    pub const SESSION_ATTRIBUTE: u8 = 207;
}

/// Integrated services of a FLOWSPEC (RFC 2210 section 3.2).
const CONTROLLED_LOAD: u8 = 5;
const GUARANTEED: u8 = 2;
/// Service number of a SENDER_TSPEC, and number of the token bucket parameter.
const DEFAULT_SERVICE: u8 = 1;
const TOKEN_BUCKET: u8 = 127;

/// Object with unparsed contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawObject<'a> {
    /// Class number.
    pub class: u8,
    /// C-Type, the variant within the class.
    pub c_type: u8,
    /// Contents.
    pub value: &'a [u8],
}

impl RawObject<'_> {
    /// Returns the length with the header, bytes.
    pub const fn length(&self) -> usize {
        OBJECT_HEADER + self.value.len()
    }
}

/// Iterates over objects; ends after the first one with an invalid length.
pub(super) fn objects<'a>(
    bytes: &'a [u8],
) -> impl Iterator<Item = Result<RawObject<'a>, RsvpError>> + use<'a> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = first(rest);
        rest = found.map_or(&[], |(_, rest)| rest);
        Some(found.map(|(object, _)| object))
    })
}

fn first(bytes: &[u8]) -> Result<(RawObject<'_>, &[u8]), RsvpError> {
    let head = bytes.first_chunk::<OBJECT_HEADER>().ok_or(RsvpError::ObjectLength)?;
    let length = usize::from(u16_at(head, 0));
    if length < OBJECT_HEADER || !length.is_multiple_of(4) {
        return Err(RsvpError::ObjectLength);
    }
    let (object, rest) = bytes.split_at_checked(length).ok_or(RsvpError::ObjectLength)?;
    Ok((RawObject { class: head[2], c_type: head[3], value: &object[OBJECT_HEADER..] }, rest))
}

/// Session: an LSP tunnel (RFC 3209 section 4.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Address of the egress.
    pub endpoint: Ipv4Addr,
    /// Tunnel ID, 16 bits. The upper 16 bits must be zero; they are kept for peers that use them.
    pub tunnel: u32,
    /// Extended tunnel ID: usually the ingress's address.
    pub extended: u32,
}

/// Sender of a session: an LSP of a tunnel (RFC 3209 sections 4.6.2.1 and 4.6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender {
    /// Address of the ingress.
    pub address: Ipv4Addr,
    /// LSP ID, 16 bits. The upper 16 bits must be zero; they are kept for peers that use them.
    pub lsp: u32,
}

/// Previous or next hop (RFC 2205 section A.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Address of the interface that sent the message.
    pub address: Ipv4Addr,
    /// Logical interface handle, which the receiver returns in messages of the other direction.
    pub interface: u32,
}

/// Token bucket of a flow (RFC 2215 section 3.6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    /// Rate, bytes per second; not negative.
    pub rate: f32,
    /// Bucket size, bytes.
    pub size: f32,
    /// Peak rate, bytes per second; may be infinite.
    pub peak: f32,
    /// Minimum policed unit, bytes.
    pub min_policed: u32,
    /// Maximum packet size, bytes.
    pub max_packet: u32,
}

/// Reservation style (RFC 2205 section A.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One reservation for each sender.
    FixedFilter,
    /// One reservation shared by the listed senders.
    SharedExplicit,
}

/// Error of a message (RFC 2205 section A.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorSpec {
    /// Router that detected the error.
    pub node: Ipv4Addr,
    /// Flags: 1 for a reservation that remains in place, 2 for a request above an existing reservation, 4 for path state
    /// that the reporting router has removed (RFC 3473 section 4.4).
    pub flags: u8,
    /// Error code.
    pub code: u8,
    /// Error value.
    pub value: u16,
}

impl ErrorSpec {
    /// Returns the meaning of code and value.
    pub const fn meaning(&self) -> &'static str {
        match (self.code, self.value) {
            (error_code::ADMISSION, BANDWIDTH_UNAVAILABLE) => "the requested bandwidth is not available",
            (error_code::ADMISSION, _) => "admission control refused the reservation",
            (error_code::ROUTING, routing_error::BAD_EXPLICIT_ROUTE) => "the explicit route is invalid",
            (error_code::ROUTING, routing_error::BAD_STRICT_HOP) => {
                "a strict hop is no neighbor of the hop before it"
            }
            (error_code::ROUTING, routing_error::BAD_LOOSE_HOP) => "there is no route to a loose hop",
            (error_code::ROUTING, routing_error::BAD_FIRST_HOP) => {
                "the explicit route begins at another router"
            }
            (error_code::ROUTING, routing_error::NO_ROUTE) => "there is no route to the endpoint",
            (error_code::ROUTING, routing_error::UNACCEPTABLE_LABEL) => "the label is not acceptable",
            (error_code::ROUTING, routing_error::LOOP) => "the route contains a loop",
            (error_code::ROUTING, routing_error::NO_LABEL) => "no label is free",
            (error_code::ROUTING, routing_error::UNSUPPORTED_PROTOCOL) => {
                "the payload protocol is not supported"
            }
            (error_code::ROUTING, _) => "routing error",
            (error_code::SYSTEM, _) => "system error",
            (error_code::NOTIFY, LOCALLY_REPAIRED) => "the LSP takes a bypass",
            (error_code::NOTIFY, _) => "notification",
            _ => "other error",
        }
    }
}

/// Attributes of a session (RFC 3209 section 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionAttribute<'a> {
    /// Affinities of links: exclude any, include any, include all.
    pub affinities: Option<[u32; 3]>,
    /// Setup priority; 0 is the highest, 7 the lowest.
    pub setup: u8,
    /// Holding priority.
    pub holding: u8,
    /// Flags: 1 for local protection, 2 for recording of labels, 4 for the shared-explicit style.
    pub flags: u8,
    /// Name of the session.
    pub name: &'a [u8],
}

/// Flags of a session attribute.
#[allow(missing_docs)]
pub mod attribute_flag {
    pub const LOCAL_PROTECTION: u8 = 1;
    pub const LABEL_RECORDING: u8 = 2;
    pub const SHARED_EXPLICIT: u8 = 4;
}

/// Identifier of a message (RFC 2961 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageId {
    /// Flags: 1 requests an acknowledgment.
    pub flags: u8,
    /// Epoch of the sender, 24 bits: changes when it restarts.
    pub epoch: u32,
    /// Number of the message, increasing.
    pub id: u32,
}

/// Flag of a message ID that requests an acknowledgment.
pub const ACK_DESIRED: u8 = 1;

/// Numbers of messages to refresh (RFC 2961 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageIds<'a> {
    /// Epoch of the sender, 24 bits.
    pub epoch: u32,
    bytes: &'a [u8],
}

impl<'a> MessageIds<'a> {
    /// Creates a list of encoded numbers, four bytes each.
    pub fn new(epoch: u32, bytes: &'a [u8]) -> MessageIds<'a> {
        MessageIds { epoch, bytes }
    }

    /// Iterates over the numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.bytes.chunks_exact(4).map(|bytes| u32_at(bytes, 0))
    }
}

/// Hello of a neighbor (RFC 3209 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Request, to be acknowledged at once.
    pub is_request: bool,
    /// Instance of the sender; changes when it restarts or loses state.
    pub source: u32,
    /// Instance last received from the neighbor; zero before the first.
    pub destination: u32,
}

/// Authentication of a message (RFC 2747 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// Flags: [`HANDSHAKE`].
    pub flags: u8,
    /// Number of the key, 48 bits.
    pub key: u64,
    /// Sequence number, increasing.
    pub sequence: u64,
    /// Keyed digest of the message with a digest of zero.
    pub digest: [u8; DIGEST],
}

/// Length of a digest: HMAC-MD5, bytes.
pub const DIGEST: usize = 16;
/// Highest number of a key: 48 bits.
pub const KEY_NUMBERS: u64 = 0xffff_ffff_ffff;
/// Flag of [`Integrity`]: the sender answers challenges.
pub const HANDSHAKE: u8 = 0x80;

/// Challenge to prove that a message is not a repetition (RFC 2747 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Number of the key, 48 bits.
    pub key: u64,
    /// Cookie, which the response repeats.
    pub cookie: &'a [u8],
}

/// Request for local protection (RFC 4090 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FastReroute {
    /// Setup and holding priority of the backup.
    pub priorities: [u8; 2],
    /// Maximum number of additional hops of the backup.
    pub hop_limit: u8,
    /// Flags: 1 for one-to-one backup, 2 for facility backup.
    pub flags: u8,
    /// Bandwidth of the backup, bytes per second.
    pub bandwidth: f32,
    /// Affinities of links: include any, exclude any, include all.
    pub affinities: [u32; 3],
}

/// Object of a known class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Object<'a> {
    /// Session.
    Session(Session),
    /// Previous or next hop.
    Hop(Hop),
    /// Authentication.
    Integrity(Integrity),
    /// Challenge of the receiver of a message.
    Challenge(Challenge<'a>),
    /// Refresh period, milliseconds.
    TimeValues(u32),
    /// Error.
    ErrorSpec(ErrorSpec),
    /// Reservation style.
    Style(Style),
    /// Requested reservation.
    Flowspec(TokenBucket),
    /// Sender of a reservation.
    FilterSpec(Sender),
    /// Sender of a path.
    SenderTemplate(Sender),
    /// Traffic of the sender.
    SenderTspec(TokenBucket),
    /// Properties of the path for integrated services, not interpreted.
    Adspec(&'a [u8]),
    /// Receiver that asks for a confirmation.
    ResvConfirm(Ipv4Addr),
    /// Label of a reservation.
    Label(LabelValue),
    /// Request for a label: EtherType of the packets in the LSP.
    LabelRequest(u16),
    /// Explicit route.
    ExplicitRoute(Route<'a>),
    /// Recorded route.
    RecordRoute(Route<'a>),
    /// Hello.
    Hello(Hello),
    /// Identifier of the message.
    MessageId(MessageId),
    /// Acknowledgment of a message; flags are zero.
    Acknowledged(MessageId),
    /// A message to be refreshed is unknown; flags are zero.
    Unknown(MessageId),
    /// Messages to be refreshed.
    MessageIds(MessageIds<'a>),
    /// Detours of an LSP, not interpreted: pairs of addresses.
    Detour(&'a [u8]),
    /// Request for local protection.
    FastReroute(FastReroute),
    /// Attributes of the session.
    SessionAttribute(SessionAttribute<'a>),
    /// Object of a known class without effect: NULL, SCOPE, POLICY_DATA.
    Ignored,
    /// Object of an unknown class, to be ignored (class 10xxxxxx) or forwarded (11xxxxxx).
    Foreign {
        /// Forwarded with the message.
        is_forwarded: bool,
    },
}

/// Reads a finite, or infinite if allowed, float that is not negative.
fn float(bytes: &[u8], at: usize) -> Option<f32> {
    let value = f32::from_bits(u32_at(bytes, at));
    (value >= 0.0).then_some(value)
}

fn token_bucket(value: &[u8], services: &[u8]) -> Option<TokenBucket> {
    // Format version 0 and length in words, header of the service, header of the parameter.
    if value.len() < 32 || value[0] >> 4 != 0 || usize::from(u16_at(value, 2)) * 4 + 4 != value.len() {
        return None;
    }
    if !services.contains(&value[4]) || value[8] != TOKEN_BUCKET || u16_at(value, 10) != 5 {
        return None;
    }
    Some(TokenBucket {
        rate: float(value, 12).filter(|rate| rate.is_finite())?,
        size: float(value, 16)?,
        peak: float(value, 20)?,
        min_policed: u32_at(value, 24),
        max_packet: u32_at(value, 28),
    })
}

fn attribute(value: &[u8], has_affinities: bool) -> Option<SessionAttribute<'_>> {
    let start = if has_affinities { 12 } else { 0 };
    let affinities =
        has_affinities.then(|| value.get(..12)).flatten().map(|bits| [0, 4, 8].map(|at| u32_at(bits, at)));
    let [setup, holding, flags, length, name @ ..] = value.get(start..)? else { return None };
    let name = name.get(..usize::from(*length))?;
    Some(SessionAttribute { affinities, setup: *setup, holding: *holding, flags: *flags, name })
}

impl<'a> Object<'a> {
    /// Parses an object. Errors follow the rules for unknown classes and C-Types (RFC 2205 section 3.10).
    pub fn new(raw: &RawObject<'a>) -> Result<Object<'a>, RsvpError> {
        let RawObject { class, c_type, value } = *raw;
        let expected = match class {
            class::NULL | class::SCOPE | class::POLICY_DATA => return Ok(Object::Ignored),
            class::SESSION | class::FILTER_SPEC | class::SENDER_TEMPLATE | class::DETOUR => &[7][..],
            class::FLOWSPEC | class::SENDER_TSPEC | class::ADSPEC => &[2],
            class::HELLO | class::MESSAGE_ID_ACK => &[1, 2],
            class::SESSION_ATTRIBUTE => &[7, 1],
            class::HOP
            | class::INTEGRITY
            | class::CHALLENGE
            | class::TIME_VALUES
            | class::ERROR_SPEC
            | class::STYLE
            | class::RESV_CONFIRM
            | class::LABEL
            | class::LABEL_REQUEST
            | class::EXPLICIT_ROUTE
            | class::RECORD_ROUTE
            | class::MESSAGE_ID
            | class::MESSAGE_ID_LIST
            | class::FAST_REROUTE => &[1],
            _ if class < 0x80 => return Err(RsvpError::UnknownClass(class, c_type)),
            _ => return Ok(Object::Foreign { is_forwarded: class >= 0xc0 }),
        };
        if !expected.contains(&c_type) {
            return Err(RsvpError::UnknownType(class, c_type));
        }
        match class {
            class::EXPLICIT_ROUTE => return Route::new(value, class).map(Object::ExplicitRoute),
            class::RECORD_ROUTE => return Route::new(value, class).map(Object::RecordRoute),
            _ => {}
        }
        Object::contents(class, c_type, value).ok_or(RsvpError::Malformed(class))
    }

    fn contents(class: u8, c_type: u8, value: &'a [u8]) -> Option<Object<'a>> {
        let address = |at: usize| Ipv4Addr::from(u32_at(value, at));
        let id = || MessageId { flags: value[0], epoch: u32_at(value, 0) & 0xff_ffff, id: u32_at(value, 4) };
        let sender = || Sender { address: address(0), lsp: u32_at(value, 4) };
        Some(match (class, value.len()) {
            (class::SESSION, 12) => Object::Session(Session {
                endpoint: address(0),
                tunnel: u32_at(value, 4),
                extended: u32_at(value, 8),
            }),
            (class::HOP, 8) => Object::Hop(Hop { address: address(0), interface: u32_at(value, 4) }),
            (class::INTEGRITY, 32) => Object::Integrity(Integrity {
                flags: value[0],
                key: u64_at(value, 0) & KEY_NUMBERS,
                sequence: u64_at(value, 8),
                digest: *value.last_chunk()?,
            }),
            (class::CHALLENGE, 12..) => {
                Object::Challenge(Challenge { key: u64_at(value, 0) & KEY_NUMBERS, cookie: &value[8..] })
            }
            (class::TIME_VALUES, 4) => Object::TimeValues(u32_at(value, 0)),
            (class::ERROR_SPEC, 8) => Object::ErrorSpec(ErrorSpec {
                node: address(0),
                flags: value[4],
                code: value[5],
                value: u16_at(value, 6),
            }),
            (class::STYLE, 4) => Object::Style(match u32_at(value, 0) & 0xff_ffff {
                0x0a => Style::FixedFilter,
                0x12 => Style::SharedExplicit,
                _ => return None,
            }),
            (class::FLOWSPEC, _) => Object::Flowspec(token_bucket(value, &[CONTROLLED_LOAD, GUARANTEED])?),
            (class::SENDER_TSPEC, _) => Object::SenderTspec(token_bucket(value, &[DEFAULT_SERVICE])?),
            (class::FILTER_SPEC, 8) => Object::FilterSpec(sender()),
            (class::SENDER_TEMPLATE, 8) => Object::SenderTemplate(sender()),
            (class::ADSPEC, _) => Object::Adspec(value),
            (class::RESV_CONFIRM, 4) => Object::ResvConfirm(address(0)),
            (class::LABEL, 4) => Object::Label(LabelValue::new(u32_at(value, 0))?),
            (class::LABEL_REQUEST, 4) => Object::LabelRequest(u16_at(value, 2)),
            (class::HELLO, 8) => Object::Hello(Hello {
                is_request: c_type == 1,
                source: u32_at(value, 0),
                destination: u32_at(value, 4),
            }),
            (class::MESSAGE_ID, 8) => Object::MessageId(id()),
            (class::MESSAGE_ID_ACK, 8) if c_type == 1 => Object::Acknowledged(id()),
            (class::MESSAGE_ID_ACK, 8) => Object::Unknown(id()),
            (class::MESSAGE_ID_LIST, 8..) => {
                Object::MessageIds(MessageIds { epoch: u32_at(value, 0) & 0xff_ffff, bytes: &value[4..] })
            }
            (class::DETOUR, 8..) if value.len().is_multiple_of(8) => Object::Detour(value),
            (class::FAST_REROUTE, 20) => Object::FastReroute(FastReroute {
                priorities: [value[0], value[1]],
                hop_limit: value[2],
                flags: value[3],
                bandwidth: float(value, 4)?,
                affinities: [8, 12, 16].map(|at| u32_at(value, at)),
            }),
            (class::SESSION_ATTRIBUTE, _) => Object::SessionAttribute(attribute(value, c_type == 1)?),
            _ => return None,
        })
    }
}
