//! The server of all request-response models: requests contain the size and the delay of the response.

use super::{ApplicationMessage, Context, MessageContent, ModelEndpoint};
use crate::time::Instant;
use alloc::collections::BTreeMap;

/// Pending responses, by due time and then by the order of the requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Responder {
    due: BTreeMap<(Instant, u64), (u32, u32, u32, MessageContent)>,
    requests: u64,
}

impl ModelEndpoint for Responder {
    fn message(&mut self, context: &mut Context, connection: u32, message: &ApplicationMessage) {
        let (answer, after, content) = match message.content {
            MessageContent::Request { answer, after } => (answer, after, MessageContent::Data),
            MessageContent::WindowRequest { answer, after } => (answer, after, MessageContent::Window(0)),
            _ => return,
        };
        if answer == 0 {
            return;
        }
        if after.0 == 0 {
            context.send(connection, answer, message.number, content);
            return;
        }
        let at = Instant(context.now.0.saturating_add(after.0));
        self.due.insert((at, self.requests), (connection, answer, message.number, content));
        self.requests += 1;
    }

    fn timeout(&mut self, context: &mut Context) {
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > context.now {
                return;
            }
            let (connection, bytes, number, content) = entry.remove();
            context.send(connection, bytes, number, content);
        }
    }

    fn deadline(&self) -> Instant {
        self.due.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at)
    }
}
