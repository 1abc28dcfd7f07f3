//! Reassembly of messages from a byte stream.

use netstage_core::traffic::application::{ApplicationMessage, HEADER, InvalidMessageHeader};

/// Partially received message.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    header: [u8; HEADER as usize],
    /// Bytes of the header received.
    filled: usize,
    /// Message whose header is complete, and number of its missing bytes.
    message: Option<(ApplicationMessage, u64)>,
}

impl Inbox {
    /// Handles received bytes, and calls `each` for every complete message.
    pub fn handle_bytes(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(ApplicationMessage),
    ) -> Result<(), InvalidMessageHeader> {
        loop {
            if let Some((message, missing)) = &mut self.message {
                let length = (bytes.len() as u64).min(*missing);
                *missing -= length;
                bytes = &bytes[length as usize..];
                if *missing > 0 {
                    return Ok(());
                }
                each(*message);
                self.message = None;
                self.filled = 0;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let length = bytes.len().min(self.header.len() - self.filled);
            self.header[self.filled..][..length].copy_from_slice(&bytes[..length]);
            self.filled += length;
            bytes = &bytes[length..];
            if self.filled == self.header.len() {
                let message = ApplicationMessage::decode(&self.header)?;
                self.message = Some((message, u64::from(message.bytes - HEADER)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Instant;
    use netstage_core::traffic::application::MessageContent;

    #[test]
    fn messages_are_reassembled_from_pieces_of_any_size() {
        let message = |number, bytes| ApplicationMessage {
            bytes,
            number,
            content: MessageContent::Data,
            sent: Instant(5),
        };
        let sent = [message(1, HEADER), message(2, 500), message(3, HEADER + 1)];
        let mut bytes = Vec::new();
        for message in &sent {
            bytes.extend(message.encode());
            bytes.resize(bytes.len() + (message.bytes - HEADER) as usize, 0);
        }
        for cut in [1, 7, 32, 33, 500, bytes.len()] {
            let mut inbox = Inbox::default();
            let mut received = Vec::new();
            for piece in bytes.chunks(cut) {
                inbox.handle_bytes(piece, |message| received.push(message)).unwrap();
            }
            assert_eq!(received, sent, "pieces of {cut} bytes");
        }
        assert_eq!(Inbox::default().handle_bytes(&[1; 40], |_| {}), Err(InvalidMessageHeader));
    }
}
