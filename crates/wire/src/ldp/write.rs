//! Messages written into PDUs.

use super::message::{Fec, Hello, Initialization, Notification, kind, tlv};
use super::{BEFORE_LENGTH, HEADER, Identifier};
use crate::mpls::Label;
use core::net::{IpAddr, Ipv4Addr};

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing<'a> {
    /// Something is told, or wrong.
    Notification(Notification),
    /// Somebody is there.
    Hello(Hello),
    /// How a session is to be.
    Initialization(Initialization),
    /// The session lives.
    KeepAlive,
    /// These addresses, of one family, are the sender's.
    Address(&'a [IpAddr]),
    /// These are no more.
    AddressWithdraw(&'a [IpAddr]),
    /// A label for something.
    LabelMapping(OutgoingMapping<'a>),
    /// A label is asked for.
    LabelRequest(Fec),
    /// A label is no more; none is all.
    LabelWithdraw(Fec, Option<Label>),
    /// A label is used no more; none is all.
    LabelRelease(Fec, Option<Label>),
    /// A label is not asked for any more, as it was by this message.
    LabelAbortRequest(Fec, u32),
}

/// A label for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingMapping<'a> {
    /// For what.
    pub fec: Fec,
    /// The label.
    pub label: Label,
    /// The message that asked for it.
    pub request_id: Option<u32>,
    /// Hops to the end of the LSP; zero is unknown.
    pub hops: Option<u8>,
    /// Routers it has passed, the end of the LSP first; left out if there are none.
    pub path: &'a [Ipv4Addr],
}

impl OutgoingMapping<'_> {
    /// A label, and no more.
    pub const fn new(fec: Fec, label: Label) -> Self {
        OutgoingMapping { fec, label, request_id: None, hops: None, path: &[] }
    }
}

/// There is no room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short;

/// A PDU that is being written. It is one once it has a message.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    /// A PDU in a buffer as long as PDUs may be.
    pub fn new(bytes: &'a mut [u8], sender: Identifier) -> Result<Writer<'a>, Short> {
        let mut writer = Writer { bytes, length: 0 };
        writer.put(&[0, 1, 0, 0])?;
        writer.put(&sender.router.octets())?;
        writer.put(&sender.space.to_be_bytes())?;
        Ok(writer)
    }

    /// Whether it has a message.
    pub fn is_empty(&self) -> bool {
        self.length == HEADER
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Adds a message with a number of its sender's; without room for all of it, nothing.
    ///
    /// Panics if addresses are of two families.
    pub fn message(&mut self, id: u32, message: &Outgoing<'_>) -> Result<(), Short> {
        let start = self.length;
        let written = self.write(start, id, message);
        if written.is_err() {
            self.length = start;
        }
        let length = (self.length - BEFORE_LENGTH) as u16;
        self.bytes[2..BEFORE_LENGTH].copy_from_slice(&length.to_be_bytes());
        written
    }

    fn write(&mut self, start: usize, id: u32, message: &Outgoing<'_>) -> Result<(), Short> {
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

    fn hello(&mut self, hello: &Hello) -> Result<(), Short> {
        let flags = u8::from(hello.is_targeted) << 7 | u8::from(hello.asks_for_targeted) << 6;
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

    fn initialization(&mut self, how: &Initialization) -> Result<(), Short> {
        let flags = u8::from(how.on_demand) << 7 | u8::from(how.detects_loops) << 6;
        let parts = [
            &[0, 1][..],
            &how.keepalive_seconds.to_be_bytes(),
            &[flags, how.path_limit],
            &how.most_bytes.to_be_bytes(),
            &how.receiver.router.octets(),
            &how.receiver.space.to_be_bytes(),
        ];
        self.tlv(tlv::SESSION_PARAMETERS, &parts)
    }

    fn mapping(&mut self, mapping: &OutgoingMapping<'_>) -> Result<(), Short> {
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

    fn addresses(&mut self, addresses: &[IpAddr]) -> Result<(), Short> {
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

    fn fec(&mut self, fec: Fec) -> Result<(), Short> {
        let Fec::Prefix { address, length } = fec else { return self.tlv(tlv::FEC, &[&[1]]) };
        let taken = usize::from(length).div_ceil(8);
        let family = if address.is_ipv4() { 1 } else { 2 };
        let head = [2, 0, family, length];
        match address {
            IpAddr::V4(address) => self.tlv(tlv::FEC, &[&head, &address.octets()[..taken.min(4)]]),
            IpAddr::V6(address) => self.tlv(tlv::FEC, &[&head, &address.octets()[..taken.min(16)]]),
        }
    }

    fn label(&mut self, label: Label) -> Result<(), Short> {
        self.tlv(tlv::GENERIC_LABEL, &[&label.number().to_be_bytes()])
    }

    fn request_id(&mut self, request: Option<u32>) -> Result<(), Short> {
        match request {
            Some(request) => self.tlv(tlv::REQUEST_ID, &[&request.to_be_bytes()]),
            None => Ok(()),
        }
    }

    fn tlv(&mut self, kind: u16, parts: &[&[u8]]) -> Result<(), Short> {
        self.tlv_head(kind, parts.iter().map(|part| part.len()).sum())?;
        parts.iter().try_for_each(|part| self.put(part))
    }

    fn tlv_head(&mut self, kind: u16, length: usize) -> Result<(), Short> {
        let [kind, length] = [kind, length as u16].map(u16::to_be_bytes);
        self.put(&[kind[0], kind[1], length[0], length[1]])
    }

    fn put(&mut self, field: &[u8]) -> Result<(), Short> {
        let end = self.length + field.len();
        self.bytes.get_mut(self.length..end).ok_or(Short)?.copy_from_slice(field);
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
