//! Label stacks, and the channel header and message below them, a measurement, a reference or news, from arbitrary
//! bytes: accepted or rejected. Accepted data is written back, a response is no longer than its
//! query, and accepted references and news are valid for computation.

use netstage_core::fair::Egress;
use netstage_core::fair::news::{self, NewsReceiver};
use netstage_core::fair::publication::{self, PublicationReceiver};
use netstage_core::fair::wire::{Authentication, Querier, ResponderTimes, answer};
use netstage_core::time::Instant;
use netstage_wire::gach;
use netstage_wire::loss_delay::{LossDelayMessage, LossDelaySession, tlv};
use netstage_wire::mpls::{LabelStackEntry, Stack, write_stack};
use netstage_wire::news::NewsMessage;
use netstage_wire::reference::ReferenceMessage;

/// Accepts every digest of zeros, so that the code behind the check is reached.
fn digest(_: u8, _: &[u8]) -> Option<[u8; 16]> {
    Some([0; 16])
}

fn reference(payload: &[u8]) {
    let Ok((message, length)) = ReferenceMessage::read(payload) else { return };
    let bytes = &payload[..length];
    let mut again = bytes.to_vec();
    message.write(&mut again).expect("the buffer has the original length");
    // Reserved bits are not preserved.
    assert_eq!(again[4..], bytes[4..]);
    for authentication in [None, Some(Authentication { key: 1, digest: &digest })] {
        let mut heard = PublicationReceiver::default();
        let Ok(published) = heard.accept(Instant(1), &message, bytes, authentication) else { continue };
        assert_eq!(publication::message(message.number, &published, message.sent_ns), Some(message));
        assert!(
            heard.accept(Instant(2), &message, bytes, authentication).is_err(),
            "a repeated message is rejected"
        );
    }
}

fn news(payload: &[u8]) {
    let Ok((message, length)) = NewsMessage::read(payload) else { return };
    let bytes = &payload[..length];
    for authentication in [None, Some(Authentication { key: 1, digest: &digest })] {
        let mut heard = NewsReceiver::new(0);
        let Ok(news) = heard.accept(Instant(1), &message, bytes, authentication) else { continue };
        let mut again = bytes.to_vec();
        let written = news::write((message.publisher, message.sent_ns), &news, None, &mut again);
        assert_eq!(written, Ok(message.fields()));
        let (read, length) = NewsMessage::read(&again).expect("the message was just written");
        let again = NewsReceiver::new(0).accept(Instant(1), &read, &again[..length], None);
        assert_eq!(again, Ok(news));
        assert!(
            heard.accept(Instant(2), &message, bytes, authentication).is_err(),
            "a repeated message is rejected"
        );
    }
}

pub fn run(bytes: &[u8]) {
    let Ok(stack) = Stack::new(bytes) else { return };
    let entries: Vec<LabelStackEntry> = stack.entries().collect();
    let mut again = vec![0; stack.payload_offset()];
    assert_eq!(write_stack(&entries, &mut again), Ok(again.len()));
    assert_eq!(again, bytes[..again.len()]);

    let payload = &bytes[stack.payload_offset()..];
    let Ok(channel) = gach::read(payload) else { return };
    assert_eq!(gach::read(&gach::header(channel)), Ok(channel));
    let payload = &payload[gach::HEADER..];
    reference(payload);
    self::news(payload);
    let Ok((message, length)) = LossDelayMessage::read(payload) else { return };
    let mut again = payload[..length].to_vec();
    message.write(&mut again).expect("the buffer has the original length");
    assert_eq!(LossDelayMessage::read(&again), Ok((message, length)));
    for found in tlv::of_message(&again).flatten() {
        let _ = found.content();
    }

    for authentication in [None, Some(Authentication { key: 1, digest: &digest })] {
        let mut packet = payload.to_vec();
        let egress = Egress { packets: 1, bytes: 2, marked: 3 };
        let times = ResponderTimes { arrived_ns: 1 << 60, departs_ns: 1 << 60 };
        let Ok(length) = answer(&mut packet, &egress, (4, 5), times, authentication) else { continue };
        let (response, found) = LossDelayMessage::read(&packet).expect("a response is whole");
        assert!(response.is_response && found == length && length <= again.len());
        assert_eq!((response.session, response.counters[2]), (message.session, message.counters[0]));
        assert!(tlv::of_message(&packet[..length]).all(|tlv| tlv.is_ok()));
        // Without a query, a response is rejected.
        let mut querier = Querier::new(LossDelaySession::from_bits(message.session.number()), 0, true);
        assert!(querier.read(&packet, authentication).is_err());
    }
}
