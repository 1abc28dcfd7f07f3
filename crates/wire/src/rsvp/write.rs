//! Writing of RSVP messages.

use super::object::{
    Integrity, KEY_NUMBERS, MessageId, Object, RawObject, Sender, Style, TokenBucket, class,
};
use super::{HEADER, OBJECT_HEADER, VERSION};
use crate::checksum::checksum;

/// Error for a message that does not fit into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsvpMessageFull;

/// Message under construction.
#[derive(Debug)]
pub struct RsvpWriter<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> RsvpWriter<'a> {
    /// Starts a message. The length of `bytes` limits the length of the message.
    pub fn new(bytes: &'a mut [u8], kind: u8, flags: u8, ttl: u8) -> Result<RsvpWriter<'a>, RsvpMessageFull> {
        let mut writer = RsvpWriter { bytes, length: 0 };
        writer.put(&[VERSION << 4 | flags & 0xf, kind, 0, 0, ttl, 0, 0, 0])?;
        Ok(writer)
    }

    /// Adds an object; [`Object::Ignored`] and [`Object::Foreign`] add nothing. If it does not fit, the message is
    /// unchanged.
    pub fn object(&mut self, object: &Object<'_>) -> Result<(), RsvpMessageFull> {
        let start = self.length;
        let Some((class, c_type)) = class_of(object) else { return Ok(()) };
        self.framed(start, class, c_type, |writer| writer.contents(object))
    }

    /// Adds an object with unparsed contents, padded to a multiple of four bytes.
    pub fn raw(&mut self, object: &RawObject<'_>) -> Result<(), RsvpMessageFull> {
        self.framed(self.length, object.class, object.c_type, |writer| writer.put(object.value))
    }

    /// Sets length and checksum, and returns the message.
    pub fn finish(self) -> &'a [u8] {
        let RsvpWriter { bytes, length } = self;
        let message = &mut bytes[..length];
        message[6..8].copy_from_slice(&(length as u16).to_be_bytes());
        let sum = checksum(message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    }

    fn framed(
        &mut self,
        start: usize,
        class: u8,
        c_type: u8,
        contents: impl FnOnce(&mut Self) -> Result<(), RsvpMessageFull>,
    ) -> Result<(), RsvpMessageFull> {
        let written =
            self.put(&[0, 0, class, c_type]).and_then(|()| contents(self)).and_then(|()| self.pad(start));
        let length = self.length - start;
        match (written, u16::try_from(length), u16::try_from(self.length)) {
            (Ok(()), Ok(length), Ok(_)) => {
                self.bytes[start..start + 2].copy_from_slice(&length.to_be_bytes());
                Ok(())
            }
            _ => {
                self.length = start;
                Err(RsvpMessageFull)
            }
        }
    }

    fn contents(&mut self, object: &Object<'_>) -> Result<(), RsvpMessageFull> {
        match *object {
            Object::Session(session) => {
                self.put(&session.endpoint.octets())?;
                self.words(&[session.tunnel, session.extended])
            }
            Object::Hop(hop) => {
                self.put(&hop.address.octets())?;
                self.words(&[hop.interface])
            }
            Object::Integrity(integrity) => self.integrity(&integrity),
            Object::Challenge(challenge) => {
                self.put(&(challenge.key & KEY_NUMBERS).to_be_bytes())?;
                self.put(challenge.cookie)
            }
            Object::TimeValues(period) => self.words(&[period]),
            Object::ErrorSpec(error) => {
                self.put(&error.node.octets())?;
                self.put(&[error.flags, error.code])?;
                self.put(&error.value.to_be_bytes())
            }
            Object::Style(Style::FixedFilter) => self.words(&[0x0a]),
            Object::Style(Style::SharedExplicit) => self.words(&[0x12]),
            Object::Flowspec(bucket) => self.token_bucket(5, &bucket),
            Object::SenderTspec(bucket) => self.token_bucket(1, &bucket),
            Object::FilterSpec(sender) | Object::SenderTemplate(sender) => self.sender(sender),
            Object::Adspec(bytes) | Object::Detour(bytes) => self.put(bytes),
            Object::ResvConfirm(receiver) => self.put(&receiver.octets()),
            Object::Label(label) => self.words(&[label.number()]),
            Object::LabelRequest(protocol) => self.words(&[protocol.into()]),
            Object::ExplicitRoute(route) | Object::RecordRoute(route) => self.put(route.bytes()),
            Object::Hello(hello) => self.words(&[hello.source, hello.destination]),
            Object::MessageId(id) | Object::Acknowledged(id) | Object::Unknown(id) => self.id(id),
            Object::MessageIds(ids) => {
                self.words(&[ids.epoch & 0xff_ffff])?;
                ids.iter().try_for_each(|id| self.words(&[id]))
            }
            Object::FastReroute(request) => {
                self.put(&request.priorities)?;
                self.put(&[request.hop_limit, request.flags])?;
                self.words(&[request.bandwidth.to_bits()])?;
                self.words(&request.affinities)
            }
            Object::SessionAttribute(attribute) => {
                self.words(attribute.affinities.as_ref().map_or(&[][..], |bits| &bits[..]))?;
                let length = u8::try_from(attribute.name.len()).map_err(|_| RsvpMessageFull)?;
                self.put(&[attribute.setup, attribute.holding, attribute.flags, length])?;
                self.put(attribute.name)
            }
            Object::Ignored | Object::Foreign { .. } => Ok(()),
        }
    }

    fn integrity(&mut self, integrity: &Integrity) -> Result<(), RsvpMessageFull> {
        let head = u64::from(integrity.flags) << 56 | integrity.key & KEY_NUMBERS;
        self.put(&head.to_be_bytes())?;
        self.put(&integrity.sequence.to_be_bytes())?;
        self.put(&integrity.digest)
    }

    fn token_bucket(&mut self, service: u8, bucket: &TokenBucket) -> Result<(), RsvpMessageFull> {
        self.put(&[0, 0, 0, 7, service, 0, 0, 6, 127, 0, 0, 5])?;
        self.words(&[bucket.rate, bucket.size, bucket.peak].map(f32::to_bits))?;
        self.words(&[bucket.min_policed, bucket.max_packet])
    }

    fn sender(&mut self, sender: Sender) -> Result<(), RsvpMessageFull> {
        self.put(&sender.address.octets())?;
        self.words(&[sender.lsp])
    }

    fn id(&mut self, id: MessageId) -> Result<(), RsvpMessageFull> {
        self.words(&[u32::from(id.flags) << 24 | id.epoch & 0xff_ffff, id.id])
    }

    fn words(&mut self, words: &[u32]) -> Result<(), RsvpMessageFull> {
        words.iter().try_for_each(|word| self.put(&word.to_be_bytes()))
    }

    fn pad(&mut self, start: usize) -> Result<(), RsvpMessageFull> {
        let excess = (self.length - start) % OBJECT_HEADER;
        self.put(&[0; OBJECT_HEADER][..(OBJECT_HEADER - excess) % OBJECT_HEADER])
    }

    fn put(&mut self, field: &[u8]) -> Result<(), RsvpMessageFull> {
        let end = self.length + field.len();
        self.bytes.get_mut(self.length..end).ok_or(RsvpMessageFull)?.copy_from_slice(field);
        self.length = end;
        Ok(())
    }
}

/// Inserts an INTEGRITY object as the first object of a message, clears the checksum (RFC 2747 section 3.1), and returns
/// the length of the message. The digest is zero. `bytes` holds the message and has room for the object.
pub fn insert_integrity(
    bytes: &mut [u8],
    length: usize,
    integrity: &Integrity,
) -> Result<usize, RsvpMessageFull> {
    let mut object = [0; HEADER + INTEGRITY];
    let mut writer = RsvpWriter::new(&mut object, 0, 0, 0)?;
    writer.object(&Object::Integrity(Integrity { digest: [0; _], ..*integrity }))?;
    let total = length + INTEGRITY;
    if length < HEADER || total > bytes.len() || total > usize::from(u16::MAX) {
        return Err(RsvpMessageFull);
    }
    bytes.copy_within(HEADER..length, HEADER + INTEGRITY);
    bytes[HEADER..HEADER + INTEGRITY].copy_from_slice(&object[HEADER..]);
    bytes[2..4].fill(0);
    bytes[6..8].copy_from_slice(&(total as u16).to_be_bytes());
    Ok(total)
}

/// Length of an INTEGRITY object, bytes.
pub const INTEGRITY: usize = 36;
/// Position of the digest in a message that begins with an INTEGRITY object, bytes.
pub const DIGEST_OFFSET: usize = HEADER + INTEGRITY - super::object::DIGEST;

fn class_of(object: &Object<'_>) -> Option<(u8, u8)> {
    Some(match object {
        Object::Session(_) => (class::SESSION, 7),
        Object::Hop(_) => (class::HOP, 1),
        Object::Integrity(_) => (class::INTEGRITY, 1),
        Object::Challenge(_) => (class::CHALLENGE, 1),
        Object::TimeValues(_) => (class::TIME_VALUES, 1),
        Object::ErrorSpec(_) => (class::ERROR_SPEC, 1),
        Object::Style(_) => (class::STYLE, 1),
        Object::Flowspec(_) => (class::FLOWSPEC, 2),
        Object::FilterSpec(_) => (class::FILTER_SPEC, 7),
        Object::SenderTemplate(_) => (class::SENDER_TEMPLATE, 7),
        Object::SenderTspec(_) => (class::SENDER_TSPEC, 2),
        Object::Adspec(_) => (class::ADSPEC, 2),
        Object::ResvConfirm(_) => (class::RESV_CONFIRM, 1),
        Object::Label(_) => (class::LABEL, 1),
        Object::LabelRequest(_) => (class::LABEL_REQUEST, 1),
        Object::ExplicitRoute(_) => (class::EXPLICIT_ROUTE, 1),
        Object::RecordRoute(_) => (class::RECORD_ROUTE, 1),
        Object::Hello(hello) => (class::HELLO, if hello.is_request { 1 } else { 2 }),
        Object::MessageId(_) => (class::MESSAGE_ID, 1),
        Object::Acknowledged(_) => (class::MESSAGE_ID_ACK, 1),
        Object::Unknown(_) => (class::MESSAGE_ID_ACK, 2),
        Object::MessageIds(_) => (class::MESSAGE_ID_LIST, 1),
        Object::Detour(_) => (class::DETOUR, 7),
        Object::FastReroute(_) => (class::FAST_REROUTE, 1),
        Object::SessionAttribute(attribute) => {
            (class::SESSION_ATTRIBUTE, if attribute.affinities.is_some() { 1 } else { 7 })
        }
        Object::Ignored | Object::Foreign { .. } => return None,
    })
}
