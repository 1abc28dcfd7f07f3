//! Writing of LDP messages into PDUs.

use super::message::{Fec, Hello, Initialization, LEARN_FROM_NETWORK, Notification, kind, tlv};
use super::{BEFORE_LENGTH, HEADER, Identifier, OPTIONAL};
use crate::mpls::LabelValue;
use core::net::{IpAddr, Ipv4Addr};

/// LDP message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing<'a> {
    /// Notification of an error or event.
    Notification(Notification),
    /// Discovery hello.
    Hello(Hello),
    /// Parameters of a new session.
    Initialization(Initialization),
    /// Keepalive of a session.
    KeepAlive,
    /// Addresses of the sender's interfaces, all of one family.
    Address(&'a [IpAddr]),
    /// Addresses the sender no longer has, all of one family.
    AddressWithdraw(&'a [IpAddr]),
    /// Label bound to a FEC.
    LabelMapping(OutgoingMapping<'a>),
    /// Request for a label.
    LabelRequest(Fec),
    /// Withdrawal of a label; `None` for all labels of the FEC.
    LabelWithdraw(Fec, Option<LabelValue>),
    /// Release of a label; `None` for all labels of the FEC.
    LabelRelease(Fec, Option<LabelValue>),
    /// Cancellation of the label request with this message ID.
    LabelAbortRequest(Fec, u32),
}

/// Label mapping to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingMapping<'a> {
    /// FEC of the label.
    pub fec: Fec,
    /// Label bound to the FEC.
    pub label: LabelValue,
    /// ID of the label request that this mapping answers.
    pub request_id: Option<u32>,
    /// Hops to the egress of the LSP; zero if unknown.
    pub hops: Option<u8>,
    /// Path vector: routers the mapping has passed, starting at the egress of the LSP; not written if empty.
    pub path: &'a [Ipv4Addr],
}

impl OutgoingMapping<'_> {
    /// Returns a mapping of a label to a FEC without optional parameters.
    pub const fn new(fec: Fec, label: LabelValue) -> Self {
        OutgoingMapping { fec, label, request_id: None, hops: None, path: &[] }
    }
}

/// Error for a message that does not fit into the rest of the PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduFull;

/// PDU under construction; valid once it has a message.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    /// Starts a PDU. The length of `bytes` limits the length of the PDU.
    pub fn new(bytes: &'a mut [u8], sender: Identifier) -> Result<Writer<'a>, PduFull> {
        let mut writer = Writer { bytes, length: 0 };
        writer.put(&[0, 1, 0, 0])?;
        writer.put(&sender.router.octets())?;
        writer.put(&sender.space.to_be_bytes())?;
        Ok(writer)
    }

    /// Returns `true` if the PDU has no message yet.
    pub fn is_empty(&self) -> bool {
        self.length == HEADER
    }

    /// Returns the PDU written up to now.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Adds a message with the message ID `id`. If it does not fit, the PDU is unchanged.
    ///
    /// Panics if the addresses of a message are of two families.
    pub fn message(&mut self, id: u32, message: &Outgoing<'_>) -> Result<(), PduFull> {
        let start = self.length;
        let written = self.write(start, id, message);
        if written.is_err() {
            self.length = start;
        }
        let length = (self.length - BEFORE_LENGTH) as u16;
        self.bytes[2..BEFORE_LENGTH].copy_from_slice(&length.to_be_bytes());
        written
    }

    fn write(&mut self, start: usize, id: u32, message: &Outgoing<'_>) -> Result<(), PduFull> {
        self.put(&kind_of(message).to_be_bytes())?;
        self.put(&[0, 0])?;
        self.put(&id.to_be_bytes())?;
        match *message {
            Outgoing::KeepAlive => {}
            Outgoing::Notification(Notification { status, message_id, message_kind, request_id }) => {
                let parts =
                    [&status.0.to_be_bytes()[..], &message_id.to_be_bytes(), &message_kind.to_be_bytes()];
                self.tlv(tlv::STATUS, &parts)?;
                self.request_id(request_id)?;
            }
            Outgoing::Hello(hello) => self.hello(&hello)?,
            Outgoing::Initialization(initialization) => self.initialization(&initialization)?,
            Outgoing::Address(addresses) | Outgoing::AddressWithdraw(addresses) => {
                self.addresses(addresses)?
            }
            Outgoing::LabelMapping(mapping) => self.mapping(&mapping)?,
            Outgoing::LabelAbortRequest(fec, request) => {
                self.fec(fec)?;
                self.request_id(Some(request))?;
            }
            Outgoing::LabelRequest(fec) => self.fec(fec)?,
            Outgoing::LabelWithdraw(fec, label) | Outgoing::LabelRelease(fec, label) => {
                self.fec(fec)?;
                if let Some(label) = label {
                    self.label(label)?;
                }
            }
        }
        let length = (self.length - start - BEFORE_LENGTH) as u16;
        self.bytes[start + 2..start + BEFORE_LENGTH].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    fn hello(&mut self, hello: &Hello) -> Result<(), PduFull> {
        let flags = u8::from(hello.is_targeted) << 7 | u8::from(hello.requests_targeted) << 6;
        self.tlv(tlv::HELLO_PARAMETERS, &[&hello.hold_seconds.to_be_bytes(), &[flags, 0]])?;
        match hello.transport {
            Some(IpAddr::V4(address)) => self.tlv(tlv::IPV4_TRANSPORT, &[&address.octets()])?,
            Some(IpAddr::V6(address)) => self.tlv(tlv::IPV6_TRANSPORT, &[&address.octets()])?,
            None => {}
        }
        match hello.configuration {
            Some(number) => self.tlv(tlv::CONFIGURATION_SEQUENCE, &[&number.to_be_bytes()]),
            None => Ok(()),
        }
    }

    fn initialization(&mut self, parameters: &Initialization) -> Result<(), PduFull> {
        let flags = u8::from(parameters.on_demand) << 7 | u8::from(parameters.detects_loops) << 6;
        let parts = [
            &[0, 1][..],
            &parameters.keepalive_seconds.to_be_bytes(),
            &[flags, parameters.path_limit],
            &parameters.max_pdu_length.to_be_bytes(),
            &parameters.receiver.router.octets(),
            &parameters.receiver.space.to_be_bytes(),
        ];
        self.tlv(tlv::SESSION_PARAMETERS, &parts)?;
        let Some(session) = parameters.ft_session else { return Ok(()) };
        let flags = if session.learns_from_network { LEARN_FROM_NETWORK } else { 0 };
        let parts = [
            &flags.to_be_bytes()[..],
            &[0, 0],
            &session.reconnect_timeout_ms.to_be_bytes(),
            &session.recovery_time_ms.to_be_bytes(),
        ];
        // Routers that do not support the TLV ignore it (RFC 3478 section 2).
        self.tlv(OPTIONAL | tlv::FT_SESSION, &parts)
    }

    fn mapping(&mut self, mapping: &OutgoingMapping<'_>) -> Result<(), PduFull> {
        self.fec(mapping.fec)?;
        self.label(mapping.label)?;
        self.request_id(mapping.request_id)?;
        if let Some(hops) = mapping.hops {
            self.tlv(tlv::HOP_COUNT, &[&[hops]])?;
        }
        if !mapping.path.is_empty() {
            self.tlv_head(tlv::PATH_VECTOR, 4 * mapping.path.len())?;
            mapping.path.iter().try_for_each(|router| self.put(&router.octets()))?;
        }
        Ok(())
    }

    fn addresses(&mut self, addresses: &[IpAddr]) -> Result<(), PduFull> {
        let is_v4 = addresses.first().is_none_or(IpAddr::is_ipv4);
        assert!(addresses.iter().all(|address| address.is_ipv4() == is_v4), "a list is of one family");
        let width = if is_v4 { 4 } else { 16 };
        self.tlv_head(tlv::ADDRESS_LIST, 2 + addresses.len() * width)?;
        self.put(&[0, if is_v4 { 1 } else { 2 }])?;
        addresses.iter().try_for_each(|address| match address {
            IpAddr::V4(address) => self.put(&address.octets()),
            IpAddr::V6(address) => self.put(&address.octets()),
        })
    }

    fn fec(&mut self, fec: Fec) -> Result<(), PduFull> {
        let Fec::Prefix { address, length } = fec else { return self.tlv(tlv::FEC, &[&[1]]) };
        let byte_count = usize::from(length).div_ceil(8);
        let family = if address.is_ipv4() { 1 } else { 2 };
        let head = [2, 0, family, length];
        match address {
            IpAddr::V4(address) => self.tlv(tlv::FEC, &[&head, &address.octets()[..byte_count.min(4)]]),
            IpAddr::V6(address) => self.tlv(tlv::FEC, &[&head, &address.octets()[..byte_count.min(16)]]),
        }
    }

    fn label(&mut self, label: LabelValue) -> Result<(), PduFull> {
        self.tlv(tlv::GENERIC_LABEL, &[&label.number().to_be_bytes()])
    }

    fn request_id(&mut self, request: Option<u32>) -> Result<(), PduFull> {
        match request {
            Some(request) => self.tlv(tlv::REQUEST_ID, &[&request.to_be_bytes()]),
            None => Ok(()),
        }
    }

    fn tlv(&mut self, kind: u16, parts: &[&[u8]]) -> Result<(), PduFull> {
        self.tlv_head(kind, parts.iter().map(|part| part.len()).sum())?;
        parts.iter().try_for_each(|part| self.put(part))
    }

    fn tlv_head(&mut self, kind: u16, length: usize) -> Result<(), PduFull> {
        let [kind, length] = [kind, length as u16].map(u16::to_be_bytes);
        self.put(&[kind[0], kind[1], length[0], length[1]])
    }

    fn put(&mut self, field: &[u8]) -> Result<(), PduFull> {
        let end = self.length + field.len();
        self.bytes.get_mut(self.length..end).ok_or(PduFull)?.copy_from_slice(field);
        self.length = end;
        Ok(())
    }
}

fn kind_of(message: &Outgoing<'_>) -> u16 {
    match message {
        Outgoing::Notification(_) => kind::NOTIFICATION,
        Outgoing::Hello(_) => kind::HELLO,
        Outgoing::Initialization(_) => kind::INITIALIZATION,
        Outgoing::KeepAlive => kind::KEEPALIVE,
        Outgoing::Address(_) => kind::ADDRESS,
        Outgoing::AddressWithdraw(_) => kind::ADDRESS_WITHDRAW,
        Outgoing::LabelMapping(..) => kind::LABEL_MAPPING,
        Outgoing::LabelRequest(_) => kind::LABEL_REQUEST,
        Outgoing::LabelWithdraw(..) => kind::LABEL_WITHDRAW,
        Outgoing::LabelRelease(..) => kind::LABEL_RELEASE,
        Outgoing::LabelAbortRequest(..) => kind::LABEL_ABORT_REQUEST,
    }
}
