//! LDP messages (RFC 5036 section 3.5), parsed and checked.

use super::{LdpStatus, RawMessage, Tlv, tlvs};
use crate::bytes::{u16_at, u32_at};
use crate::mpls::LabelValue;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Message types.
#[allow(missing_docs)]
pub mod kind {
    pub const NOTIFICATION: u16 = 0x0001;
    pub const HELLO: u16 = 0x0100;
    pub const INITIALIZATION: u16 = 0x0200;
    pub const KEEPALIVE: u16 = 0x0201;
    pub const ADDRESS: u16 = 0x0300;
    pub const ADDRESS_WITHDRAW: u16 = 0x0301;
    pub const LABEL_MAPPING: u16 = 0x0400;
    pub const LABEL_REQUEST: u16 = 0x0401;
    pub const LABEL_WITHDRAW: u16 = 0x0402;
    pub const LABEL_RELEASE: u16 = 0x0403;
    pub const LABEL_ABORT_REQUEST: u16 = 0x0404;
}

/// TLV types.
#[allow(missing_docs)]
pub mod tlv {
    pub const FEC: u16 = 0x0100;
    pub const ADDRESS_LIST: u16 = 0x0101;
    pub const HOP_COUNT: u16 = 0x0103;
    pub const PATH_VECTOR: u16 = 0x0104;
    pub const GENERIC_LABEL: u16 = 0x0200;
    pub const STATUS: u16 = 0x0300;
    pub const HELLO_PARAMETERS: u16 = 0x0400;
    pub const IPV4_TRANSPORT: u16 = 0x0401;
    pub const CONFIGURATION_SEQUENCE: u16 = 0x0402;
    pub const IPV6_TRANSPORT: u16 = 0x0403;
    pub const SESSION_PARAMETERS: u16 = 0x0500;
    pub const FT_SESSION: u16 = 0x0503;
    pub const REQUEST_ID: u16 = 0x0600;
}

/// L flag of the FT Session TLV.
pub(super) const LEARN_FROM_NETWORK: u16 = 0x0001;
const FEC_WILDCARD: u8 = 1;
const FEC_PREFIX: u8 = 2;
const FAMILY_IPV4: u16 = 1;
const FAMILY_IPV6: u16 = 2;

/// LDP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdpMessage<'a> {
    /// Notification of an error or event.
    Notification(Notification),
    /// Discovery hello.
    Hello(Hello),
    /// Parameters of a new session.
    Initialization(Initialization),
    /// Keepalive of a session.
    KeepAlive,
    /// Addresses of the sender's interfaces.
    Address(Addresses<'a>),
    /// Addresses the sender no longer has.
    AddressWithdraw(Addresses<'a>),
    /// Label bound to a FEC.
    LabelMapping(Mapping<'a>),
    /// Request for a label.
    LabelRequest(LabelRequestMessage<'a>),
    /// Withdrawal of a label, or of all labels of a FEC.
    LabelWithdraw(Removal<'a>),
    /// Release of a label by its receiver.
    LabelRelease(Removal<'a>),
    /// Cancellation of a label request.
    LabelAbortRequest(Abort<'a>),
}

/// Notification of an error or event (section 3.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Status code.
    pub status: LdpStatus,
    /// ID of the message the status refers to; zero if none.
    pub message_id: u32,
    /// Type of that message; zero if none.
    pub message_kind: u16,
    /// ID of the label request that the notification answers (section 3.5.1).
    pub request_id: Option<u32>,
}

/// Discovery hello (section 3.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Hold time, seconds; zero selects the default, 0xffff is infinite.
    pub hold_seconds: u16,
    /// Targeted hello, sent to this router instead of all routers on the link.
    pub is_targeted: bool,
    /// Request for targeted hellos in return.
    pub requests_targeted: bool,
    /// Transport address for the session; `None` selects the hello's source address.
    pub transport: Option<IpAddr>,
    /// Configuration sequence number; changes with the sender's configuration.
    pub configuration: Option<u32>,
}

/// Session parameters (section 3.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialization {
    /// Keepalive time, seconds; the session uses the smaller of both peers' values.
    pub keepalive_seconds: u16,
    /// Downstream-on-demand label advertisement instead of downstream unsolicited.
    pub on_demand: bool,
    /// Loop detection.
    pub detects_loops: bool,
    /// Path vector limit: the maximum number of hops with loop detection.
    pub path_limit: u8,
    /// Maximum PDU length, bytes; values up to 255 stand for 4096.
    pub max_pdu_length: u16,
    /// Identifier of the receiving router.
    pub receiver: super::Identifier,
    /// Fault tolerant session: graceful restart (RFC 3478).
    pub ft_session: Option<FtSession>,
}

/// FT Session TLV (RFC 3478 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtSession {
    /// Learn from network: the sender restarts gracefully. The other flags belong to the procedures of RFC 3479.
    pub learns_from_network: bool,
    /// Time for which the receiver is to keep the sender's labels after the loss of the session, milliseconds; zero if
    /// the sender does not preserve its forwarding state.
    pub reconnect_timeout_ms: u32,
    /// Time for which the sender keeps the forwarding state that it has preserved over a restart, milliseconds; zero if
    /// it has not preserved it.
    pub recovery_time_ms: u32,
}

/// Label mapping (section 3.5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// FECs of the label.
    pub fecs: Fecs<'a>,
    /// Label bound to the FECs.
    pub label: LabelValue,
    /// ID of the label request that this mapping answers.
    pub request_id: Option<u32>,
    /// Hops to the egress of the LSP; zero if unknown.
    pub hops: Option<u8>,
    /// Routers the mapping has passed, starting at the egress of the LSP; empty without a path vector.
    pub path: Routers<'a>,
}

/// Label request (section 3.5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelRequestMessage<'a> {
    /// FECs to bind a label to.
    pub fecs: Fecs<'a>,
    /// Hops the request has made; zero if unknown.
    pub hops: Option<u8>,
    /// Routers the request has passed; empty without a path vector.
    pub path: Routers<'a>,
}

/// Cancellation of a label request (section 3.5.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort<'a> {
    /// FECs of the canceled request.
    pub fecs: Fecs<'a>,
    /// ID of the canceled request.
    pub request_id: u32,
}

/// Label withdrawal or release (sections 3.5.10 and 3.5.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal<'a> {
    /// FECs of the labels.
    pub fecs: Fecs<'a>,
    /// Label to remove; `None` for all labels of the FECs.
    pub label: Option<LabelValue>,
}

/// Forwarding equivalence class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fec {
    /// All FECs; only in withdrawals and releases.
    Wildcard,
    /// Packets to a prefix.
    Prefix {
        /// First address of the prefix; bits beyond the length are zero.
        address: IpAddr,
        /// Prefix length, bits.
        length: u8,
    },
}

/// List of validated FECs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fecs<'a>(&'a [u8]);

/// List of routers by LSR ID (path vector).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routers<'a>(&'a [u8]);

/// List of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses<'a> {
    family: u16,
    bytes: &'a [u8],
}

impl<'a> LdpMessage<'a> {
    /// Parses a message. Returns `None` for an unknown type that may be ignored.
    pub fn new(raw: &RawMessage<'a>) -> Result<Option<LdpMessage<'a>>, LdpStatus> {
        let parameters = Parameters::from_message(raw)?;
        Ok(Some(match raw.kind {
            kind::NOTIFICATION => LdpMessage::Notification(notification(&parameters)?),
            kind::HELLO => LdpMessage::Hello(hello(&parameters)?),
            kind::INITIALIZATION => LdpMessage::Initialization(initialization(&parameters)?),
            kind::KEEPALIVE => LdpMessage::KeepAlive,
            kind::ADDRESS => LdpMessage::Address(parameters.addresses()?),
            kind::ADDRESS_WITHDRAW => LdpMessage::AddressWithdraw(parameters.addresses()?),
            kind::LABEL_MAPPING => LdpMessage::LabelMapping(Mapping {
                fecs: parameters.fecs()?,
                label: parameters.label()?.ok_or(LdpStatus::MISSING_PARAMETERS)?,
                request_id: parameters.request_id()?,
                hops: parameters.hops()?,
                path: parameters.path()?,
            }),
            kind::LABEL_REQUEST => LdpMessage::LabelRequest(LabelRequestMessage {
                fecs: parameters.fecs()?,
                hops: parameters.hops()?,
                path: parameters.path()?,
            }),
            kind::LABEL_ABORT_REQUEST => LdpMessage::LabelAbortRequest(Abort {
                fecs: parameters.fecs()?,
                request_id: parameters.request_id()?.ok_or(LdpStatus::MISSING_PARAMETERS)?,
            }),
            kind::LABEL_WITHDRAW => {
                LdpMessage::LabelWithdraw(Removal { fecs: parameters.fecs()?, label: parameters.label()? })
            }
            kind::LABEL_RELEASE => {
                LdpMessage::LabelRelease(Removal { fecs: parameters.fecs()?, label: parameters.label()? })
            }
            _ if raw.is_optional => return Ok(None),
            _ => return Err(LdpStatus::UNKNOWN_MESSAGE),
        }))
    }
}

/// Known TLVs of a message, by type.
#[derive(Default)]
struct Parameters<'a> {
    found: [Option<Tlv<'a>>; 13],
}

const KNOWN_TLVS: [u16; 13] = [
    tlv::FEC,
    tlv::ADDRESS_LIST,
    tlv::HOP_COUNT,
    tlv::PATH_VECTOR,
    tlv::GENERIC_LABEL,
    tlv::STATUS,
    tlv::HELLO_PARAMETERS,
    tlv::IPV4_TRANSPORT,
    tlv::CONFIGURATION_SEQUENCE,
    tlv::IPV6_TRANSPORT,
    tlv::SESSION_PARAMETERS,
    tlv::FT_SESSION,
    tlv::REQUEST_ID,
];

impl<'a> Parameters<'a> {
    fn from_message(raw: &RawMessage<'a>) -> Result<Parameters<'a>, LdpStatus> {
        let mut parameters = Parameters::default();
        for tlv in tlvs(raw.tlvs) {
            let tlv = tlv?;
            match KNOWN_TLVS.iter().position(|kind| *kind == tlv.kind) {
                // Only the first of several TLVs of a type is used.
                Some(index) => _ = parameters.found[index].get_or_insert(tlv),
                None if tlv.is_optional => {}
                None => return Err(LdpStatus::UNKNOWN_TLV),
            }
        }
        Ok(parameters)
    }

    fn get(&self, kind: u16) -> Option<&'a [u8]> {
        let index = KNOWN_TLVS.iter().position(|known| *known == kind)?;
        self.found[index].map(|tlv| tlv.value)
    }

    /// Returns the value of a TLV of exactly `N` bytes, or `None` if the TLV is missing.
    fn sized<const N: usize>(&self, kind: u16) -> Result<Option<&'a [u8; N]>, LdpStatus> {
        let value = self.get(kind);
        value.map(|value| value.try_into().map_err(|_| LdpStatus::BAD_TLV_LENGTH)).transpose()
    }

    fn fecs(&self) -> Result<Fecs<'a>, LdpStatus> {
        let fecs = Fecs(self.get(tlv::FEC).ok_or(LdpStatus::MISSING_PARAMETERS)?);
        let mut rest = fecs.0;
        if rest.is_empty() {
            return Err(LdpStatus::MALFORMED_TLV);
        }
        while !rest.is_empty() {
            let (fec, rest_of_list) = first_fec(rest)?;
            // The wildcard must be the only FEC (section 3.4.1).
            if fec == Fec::Wildcard && fecs.0.len() > 1 {
                return Err(LdpStatus::MALFORMED_TLV);
            }
            rest = rest_of_list;
        }
        Ok(fecs)
    }

    fn label(&self) -> Result<Option<LabelValue>, LdpStatus> {
        let Some(value) = self.sized::<4>(tlv::GENERIC_LABEL)? else { return Ok(None) };
        LabelValue::new(u32_at(value, 0)).map(Some).ok_or(LdpStatus::MALFORMED_TLV)
    }

    fn request_id(&self) -> Result<Option<u32>, LdpStatus> {
        Ok(self.sized::<4>(tlv::REQUEST_ID)?.map(|value| u32_at(value, 0)))
    }

    fn hops(&self) -> Result<Option<u8>, LdpStatus> {
        Ok(self.sized::<1>(tlv::HOP_COUNT)?.map(|value| value[0]))
    }

    fn path(&self) -> Result<Routers<'a>, LdpStatus> {
        let value = self.get(tlv::PATH_VECTOR).unwrap_or_default();
        if value.len().is_multiple_of(4) { Ok(Routers(value)) } else { Err(LdpStatus::BAD_TLV_LENGTH) }
    }

    fn addresses(&self) -> Result<Addresses<'a>, LdpStatus> {
        let value = self.get(tlv::ADDRESS_LIST).ok_or(LdpStatus::MISSING_PARAMETERS)?;
        let (family, bytes) = value.split_first_chunk::<2>().ok_or(LdpStatus::BAD_TLV_LENGTH)?;
        let family = u16::from_be_bytes(*family);
        let width = width(family)?;
        if !bytes.len().is_multiple_of(width) {
            return Err(LdpStatus::BAD_TLV_LENGTH);
        }
        Ok(Addresses { family, bytes })
    }
}

fn notification(parameters: &Parameters<'_>) -> Result<Notification, LdpStatus> {
    let value = parameters.sized::<10>(tlv::STATUS)?.ok_or(LdpStatus::MISSING_PARAMETERS)?;
    Ok(Notification {
        status: LdpStatus(u32_at(value, 0)),
        message_id: u32_at(value, 4),
        message_kind: u16_at(value, 8),
        request_id: parameters.request_id()?,
    })
}

fn hello(parameters: &Parameters<'_>) -> Result<Hello, LdpStatus> {
    let common = parameters.sized::<4>(tlv::HELLO_PARAMETERS)?.ok_or(LdpStatus::MISSING_PARAMETERS)?;
    let v4 = parameters.sized::<4>(tlv::IPV4_TRANSPORT)?.map(|value| Ipv4Addr::from(*value).into());
    let v6 = parameters.sized::<16>(tlv::IPV6_TRANSPORT)?.map(|value| Ipv6Addr::from(*value).into());
    Ok(Hello {
        hold_seconds: u16_at(common, 0),
        is_targeted: common[2] & 0x80 != 0,
        requests_targeted: common[2] & 0x40 != 0,
        transport: v4.or(v6),
        configuration: parameters.sized::<4>(tlv::CONFIGURATION_SEQUENCE)?.map(|value| u32_at(value, 0)),
    })
}

fn initialization(parameters: &Parameters<'_>) -> Result<Initialization, LdpStatus> {
    let common = parameters.sized::<14>(tlv::SESSION_PARAMETERS)?.ok_or(LdpStatus::MISSING_PARAMETERS)?;
    if u16_at(common, 0) != 1 {
        return Err(LdpStatus::BAD_VERSION);
    }
    Ok(Initialization {
        keepalive_seconds: u16_at(common, 2),
        on_demand: common[4] & 0x80 != 0,
        detects_loops: common[4] & 0x40 != 0,
        path_limit: common[5],
        max_pdu_length: u16_at(common, 6),
        receiver: super::Identifier { router: u32_at(common, 8).into(), space: u16_at(common, 12) },
        ft_session: parameters.sized::<12>(tlv::FT_SESSION)?.map(|value| FtSession {
            learns_from_network: u16_at(value, 0) & LEARN_FROM_NETWORK != 0,
            reconnect_timeout_ms: u32_at(value, 4),
            recovery_time_ms: u32_at(value, 8),
        }),
    })
}

/// Returns the length of an address, bytes.
fn width(family: u16) -> Result<usize, LdpStatus> {
    match family {
        FAMILY_IPV4 => Ok(4),
        FAMILY_IPV6 => Ok(16),
        _ => Err(LdpStatus::UNSUPPORTED_FAMILY),
    }
}

fn first_fec(bytes: &[u8]) -> Result<(Fec, &[u8]), LdpStatus> {
    match bytes {
        [FEC_WILDCARD, rest @ ..] => Ok((Fec::Wildcard, rest)),
        [FEC_PREFIX, high, low, length, rest @ ..] => {
            let family = u16::from_be_bytes([*high, *low]);
            let width = width(family)?;
            if usize::from(*length) > 8 * width {
                return Err(LdpStatus::MALFORMED_TLV);
            }
            let byte_count = usize::from(*length).div_ceil(8);
            let (prefix, rest) = rest.split_at_checked(byte_count).ok_or(LdpStatus::MALFORMED_TLV)?;
            let mut bits = [0; 16];
            bits[..byte_count].copy_from_slice(prefix);
            if let (Some(last), beyond @ 1..) =
                (byte_count.checked_sub(1), byte_count * 8 - usize::from(*length))
            {
                bits[last] &= 0xff << beyond;
            }
            Ok((Fec::Prefix { address: address(family, &bits), length: *length }, rest))
        }
        [] | [FEC_PREFIX, ..] => Err(LdpStatus::MALFORMED_TLV),
        _ => Err(LdpStatus::UNKNOWN_FEC),
    }
}

/// Returns the address at the start of `bytes`.
fn address(family: u16, bytes: &[u8]) -> IpAddr {
    if family == FAMILY_IPV4 {
        let bits: [u8; 4] = core::array::from_fn(|byte| bytes[byte]);
        return Ipv4Addr::from(bits).into();
    }
    let bits: [u8; 16] = core::array::from_fn(|byte| bytes[byte]);
    Ipv6Addr::from(bits).into()
}

impl Fec {
    /// Returns the prefix of an address, or `None` if `length` exceeds the address length.
    pub fn prefix(address: IpAddr, length: u8) -> Option<Fec> {
        let address = match address {
            IpAddr::V4(address) => {
                let beyond = 32_u32.checked_sub(length.into())?;
                let mask = u32::MAX.checked_shl(beyond).unwrap_or(0);
                Ipv4Addr::from(u32::from(address) & mask).into()
            }
            IpAddr::V6(address) => {
                let beyond = 128_u32.checked_sub(length.into())?;
                let mask = u128::MAX.checked_shl(beyond).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & mask).into()
            }
        };
        Some(Fec::Prefix { address, length })
    }
}

impl<'a> Fecs<'a> {
    /// Iterates over the FECs.
    pub fn iter(&self) -> impl Iterator<Item = Fec> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (fec, after) = first_fec(rest).ok()?;
            rest = after;
            Some(fec)
        })
    }
}

impl<'a> Routers<'a> {
    /// Iterates over the LSR IDs.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Ipv4Addr> + use<'a> {
        self.0.chunks_exact(4).map(|bytes| u32_at(bytes, 0).into())
    }
}

impl<'a> Addresses<'a> {
    /// Iterates over the addresses.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let family = self.family;
        let width = if family == FAMILY_IPV4 { 4 } else { 16 };
        self.bytes.chunks_exact(width).map(move |bytes| address(family, bytes))
    }
}
