//! What each message says (RFC 5036 section 3.5), where it says it right.

use super::{Raw, Status, Tlv, tlvs};
use crate::bytes::{u16_at, u32_at};
use crate::mpls::Label;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Types of messages.
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

/// Types of TLVs.
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
    pub const REQUEST_ID: u16 = 0x0600;
}

const FEC_WILDCARD: u8 = 1;
const FEC_PREFIX: u8 = 2;
const FAMILY_IPV4: u16 = 1;
const FAMILY_IPV6: u16 = 2;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Something is told, or wrong.
    Notification(Notification),
    /// Somebody is there.
    Hello(Hello),
    /// How a session is to be.
    Initialization(Initialization),
    /// The session lives.
    KeepAlive,
    /// These addresses are the sender's.
    Address(Addresses<'a>),
    /// These are no more.
    AddressWithdraw(Addresses<'a>),
    /// A label for something.
    LabelMapping(Mapping<'a>),
    /// A label is asked for.
    LabelRequest(Request<'a>),
    /// A label is no more, or all for something.
    LabelWithdraw(Removal<'a>),
    /// A label is used no more.
    LabelRelease(Removal<'a>),
    /// A label is not asked for any more.
    LabelAbortRequest(Abort<'a>),
}

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What.
    pub status: Status,
    /// About the message of this number; zero is none.
    pub message_id: u32,
    /// And this type.
    pub message_kind: u16,
    /// The message that asked for a label, where its answer is this (section 3.5.1).
    pub request_id: Option<u32>,
}

/// Discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Seconds it holds; zero is the default, 0xffff for ever.
    pub hold_seconds: u16,
    /// Sent to this router, not to all on the link.
    pub is_targeted: bool,
    /// Hellos back are asked for.
    pub asks_for_targeted: bool,
    /// Where the session is to be; left out, the address it comes from.
    pub transport: Option<IpAddr>,
    /// Another one when the sender's configuration has changed.
    pub configuration: Option<u32>,
}

/// How a session is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialization {
    /// Seconds until silence ends it; the lesser of both counts.
    pub keepalive_seconds: u16,
    /// Labels are given when they are asked for, not before.
    pub on_demand: bool,
    /// Loops are looked for.
    pub detects_loops: bool,
    /// Hops a message may have made.
    pub path_limit: u8,
    /// Longest PDU; 255 and less is 4096.
    pub most_bytes: u16,
    /// Whom it is for.
    pub receiver: super::Identifier,
}

/// A label for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// For what.
    pub fecs: Fecs<'a>,
    /// The label.
    pub label: Label,
    /// The message that asked for it.
    pub request_id: Option<u32>,
    /// Hops to the end of the LSP; zero is unknown.
    pub hops: Option<u8>,
    /// Routers it has passed, the end of the LSP first; none told is an empty list.
    pub path: Routers<'a>,
}

/// A label is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// For what.
    pub fecs: Fecs<'a>,
    /// Hops it has made; zero is unknown.
    pub hops: Option<u8>,
    /// Routers it has passed; none told is an empty list.
    pub path: Routers<'a>,
}

/// A label is not asked for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort<'a> {
    /// For what.
    pub fecs: Fecs<'a>,
    /// The message that asked for it.
    pub request_id: u32,
}

/// Labels that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal<'a> {
    /// For what.
    pub fecs: Fecs<'a>,
    /// Only this one; none is all.
    pub label: Option<Label>,
}

/// What a label may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fec {
    /// Everything; to withdraw or release.
    Wildcard,
    /// Packets to a prefix.
    Prefix {
        /// Its first address; bits beyond the length are zero.
        address: IpAddr,
        /// Its length.
        length: u8,
    },
}

/// A list of them, each right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fecs<'a>(&'a [u8]);

/// A list of routers, by their identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routers<'a>(&'a [u8]);

/// A list of addresses, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses<'a> {
    family: u16,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// What a message says. None: it is of a kind that is not known and may be ignored.
    pub fn new(raw: &Raw<'a>) -> Result<Option<Message<'a>>, Status> {
        let parameters = Parameters::of(raw)?;
        Ok(Some(match raw.kind {
            kind::NOTIFICATION => Message::Notification(notification(&parameters)?),
            kind::HELLO => Message::Hello(hello(&parameters)?),
            kind::INITIALIZATION => Message::Initialization(initialization(&parameters)?),
            kind::KEEPALIVE => Message::KeepAlive,
            kind::ADDRESS => Message::Address(parameters.addresses()?),
            kind::ADDRESS_WITHDRAW => Message::AddressWithdraw(parameters.addresses()?),
            kind::LABEL_MAPPING => Message::LabelMapping(Mapping {
                fecs: parameters.fecs()?,
                label: parameters.label()?.ok_or(Status::MISSING_PARAMETERS)?,
                request_id: parameters.request_id()?,
                hops: parameters.hops()?,
                path: parameters.path()?,
            }),
            kind::LABEL_REQUEST => Message::LabelRequest(Request {
                fecs: parameters.fecs()?,
                hops: parameters.hops()?,
                path: parameters.path()?,
            }),
            kind::LABEL_ABORT_REQUEST => Message::LabelAbortRequest(Abort {
                fecs: parameters.fecs()?,
                request_id: parameters.request_id()?.ok_or(Status::MISSING_PARAMETERS)?,
            }),
            kind::LABEL_WITHDRAW => {
                Message::LabelWithdraw(Removal { fecs: parameters.fecs()?, label: parameters.label()? })
            }
            kind::LABEL_RELEASE => {
                Message::LabelRelease(Removal { fecs: parameters.fecs()?, label: parameters.label()? })
            }
            _ if raw.is_optional => return Ok(None),
            _ => return Err(Status::UNKNOWN_MESSAGE),
        }))
    }
}

/// The TLVs of a message that mean something here, by type.
#[derive(Default)]
struct Parameters<'a> {
    found: [Option<Tlv<'a>>; 12],
}

const KNOWN: [u16; 12] = [
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
    tlv::REQUEST_ID,
];

impl<'a> Parameters<'a> {
    fn of(raw: &Raw<'a>) -> Result<Parameters<'a>, Status> {
        let mut parameters = Parameters::default();
        for tlv in tlvs(raw.tlvs) {
            let tlv = tlv?;
            match KNOWN.iter().position(|kind| *kind == tlv.kind) {
                // The first counts.
                Some(place) => _ = parameters.found[place].get_or_insert(tlv),
                None if tlv.is_optional => {}
                None => return Err(Status::UNKNOWN_TLV),
            }
        }
        Ok(parameters)
    }

    fn get(&self, kind: u16) -> Option<&'a [u8]> {
        let place = KNOWN.iter().position(|known| *known == kind)?;
        self.found[place].map(|tlv| tlv.value)
    }

    /// A value of this many bytes, if there is one.
    fn sized<const N: usize>(&self, kind: u16) -> Result<Option<&'a [u8; N]>, Status> {
        let value = self.get(kind);
        value.map(|value| value.try_into().map_err(|_| Status::BAD_TLV_LENGTH)).transpose()
    }

    fn fecs(&self) -> Result<Fecs<'a>, Status> {
        let fecs = Fecs(self.get(tlv::FEC).ok_or(Status::MISSING_PARAMETERS)?);
        let mut rest = fecs.0;
        if rest.is_empty() {
            return Err(Status::MALFORMED_TLV);
        }
        while !rest.is_empty() {
            let (fec, behind) = first_fec(rest)?;
            // Everything stands alone (section 3.4.1).
            if fec == Fec::Wildcard && fecs.0.len() > 1 {
                return Err(Status::MALFORMED_TLV);
            }
            rest = behind;
        }
        Ok(fecs)
    }

    fn label(&self) -> Result<Option<Label>, Status> {
        let Some(value) = self.sized::<4>(tlv::GENERIC_LABEL)? else { return Ok(None) };
        Label::new(u32_at(value, 0)).map(Some).ok_or(Status::MALFORMED_TLV)
    }

    fn request_id(&self) -> Result<Option<u32>, Status> {
        Ok(self.sized::<4>(tlv::REQUEST_ID)?.map(|value| u32_at(value, 0)))
    }

    fn hops(&self) -> Result<Option<u8>, Status> {
        Ok(self.sized::<1>(tlv::HOP_COUNT)?.map(|value| value[0]))
    }

    fn path(&self) -> Result<Routers<'a>, Status> {
        let value = self.get(tlv::PATH_VECTOR).unwrap_or_default();
        if value.len().is_multiple_of(4) { Ok(Routers(value)) } else { Err(Status::BAD_TLV_LENGTH) }
    }

    fn addresses(&self) -> Result<Addresses<'a>, Status> {
        let value = self.get(tlv::ADDRESS_LIST).ok_or(Status::MISSING_PARAMETERS)?;
        let (family, bytes) = value.split_first_chunk::<2>().ok_or(Status::BAD_TLV_LENGTH)?;
        let family = u16::from_be_bytes(*family);
        let width = width(family)?;
        if !bytes.len().is_multiple_of(width) {
            return Err(Status::BAD_TLV_LENGTH);
        }
        Ok(Addresses { family, bytes })
    }
}

fn notification(parameters: &Parameters<'_>) -> Result<Notification, Status> {
    let value = parameters.sized::<10>(tlv::STATUS)?.ok_or(Status::MISSING_PARAMETERS)?;
    Ok(Notification {
        status: Status(u32_at(value, 0)),
        message_id: u32_at(value, 4),
        message_kind: u16_at(value, 8),
        request_id: parameters.request_id()?,
    })
}

fn hello(parameters: &Parameters<'_>) -> Result<Hello, Status> {
    let common = parameters.sized::<4>(tlv::HELLO_PARAMETERS)?.ok_or(Status::MISSING_PARAMETERS)?;
    let v4 = parameters.sized::<4>(tlv::IPV4_TRANSPORT)?.map(|value| Ipv4Addr::from(*value).into());
    let v6 = parameters.sized::<16>(tlv::IPV6_TRANSPORT)?.map(|value| Ipv6Addr::from(*value).into());
    Ok(Hello {
        hold_seconds: u16_at(common, 0),
        is_targeted: common[2] & 0x80 != 0,
        asks_for_targeted: common[2] & 0x40 != 0,
        transport: v4.or(v6),
        configuration: parameters.sized::<4>(tlv::CONFIGURATION_SEQUENCE)?.map(|value| u32_at(value, 0)),
    })
}

fn initialization(parameters: &Parameters<'_>) -> Result<Initialization, Status> {
    let common = parameters.sized::<14>(tlv::SESSION_PARAMETERS)?.ok_or(Status::MISSING_PARAMETERS)?;
    if u16_at(common, 0) != 1 {
        return Err(Status::BAD_VERSION);
    }
    Ok(Initialization {
        keepalive_seconds: u16_at(common, 2),
        on_demand: common[4] & 0x80 != 0,
        detects_loops: common[4] & 0x40 != 0,
        path_limit: common[5],
        most_bytes: u16_at(common, 6),
        receiver: super::Identifier { router: u32_at(common, 8).into(), space: u16_at(common, 12) },
    })
}

/// Bytes of an address.
fn width(family: u16) -> Result<usize, Status> {
    match family {
        FAMILY_IPV4 => Ok(4),
        FAMILY_IPV6 => Ok(16),
        _ => Err(Status::UNSUPPORTED_FAMILY),
    }
}

fn first_fec(bytes: &[u8]) -> Result<(Fec, &[u8]), Status> {
    match bytes {
        [FEC_WILDCARD, rest @ ..] => Ok((Fec::Wildcard, rest)),
        [FEC_PREFIX, high, low, length, rest @ ..] => {
            let family = u16::from_be_bytes([*high, *low]);
            let width = width(family)?;
            if usize::from(*length) > 8 * width {
                return Err(Status::MALFORMED_TLV);
            }
            let taken = usize::from(*length).div_ceil(8);
            let (prefix, rest) = rest.split_at_checked(taken).ok_or(Status::MALFORMED_TLV)?;
            let mut bits = [0; 16];
            bits[..taken].copy_from_slice(prefix);
            if let (Some(last), beyond @ 1..) = (taken.checked_sub(1), taken * 8 - usize::from(*length)) {
                bits[last] &= 0xff << beyond;
            }
            Ok((Fec::Prefix { address: address(family, &bits), length: *length }, rest))
        }
        [] | [FEC_PREFIX, ..] => Err(Status::MALFORMED_TLV),
        _ => Err(Status::UNKNOWN_FEC),
    }
}

/// An address that these bytes begin with.
fn address(family: u16, bytes: &[u8]) -> IpAddr {
    if family == FAMILY_IPV4 {
        let bits: [u8; 4] = core::array::from_fn(|byte| bytes[byte]);
        return Ipv4Addr::from(bits).into();
    }
    let bits: [u8; 16] = core::array::from_fn(|byte| bytes[byte]);
    Ipv6Addr::from(bits).into()
}

impl Fec {
    /// The prefix that an address lies in; none if it is longer than addresses are.
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
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Fec> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (fec, behind) = first_fec(rest).ok()?;
            rest = behind;
            Some(fec)
        })
    }
}

impl<'a> Routers<'a> {
    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Ipv4Addr> + use<'a> {
        self.0.chunks_exact(4).map(|bytes| u32_at(bytes, 0).into())
    }
}

impl<'a> Addresses<'a> {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let family = self.family;
        let width = if family == FAMILY_IPV4 { 4 } else { 16 };
        self.bytes.chunks_exact(width).map(move |bytes| address(family, bytes))
    }
}
