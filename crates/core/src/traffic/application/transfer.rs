//! File transfers (FTP model of IEEE 802.16m-08/004r5, section 10.3): each file has its own connection and is
//! followed by a think time.

use super::{
    ApplicationError, ApplicationMessage, Context, HEADER, MessageContent, ModelEndpoint, Observation,
    SizeDistribution,
};
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// File transfers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfers {
    /// Size of a file.
    pub size: SizeDistribution,
    /// Mean think time between transfers, exponential.
    pub think: Duration,
    /// Direction of the transfers.
    pub direction: TransferDirection,
    /// Total number of files; `None` for unlimited.
    pub files: Option<u64>,
}

/// Direction of file transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferDirection {
    /// From the server to the client.
    Download,
    /// From the client to the server.
    Upload,
}

impl Transfers {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        self.size.check()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TransferClient {
    model: Transfers,
    started_at: Instant,
    next: Instant,
    number: u32,
    remaining: u64,
}

impl TransferClient {
    pub fn new(model: Transfers) -> TransferClient {
        let remaining = model.files.unwrap_or(u64::MAX);
        TransferClient { model, started_at: Instant::ZERO, next: Instant::NEVER, number: 0, remaining }
    }

    fn begin(&mut self, context: &mut Context) {
        self.next = Instant::NEVER;
        if self.remaining > 0 {
            self.remaining -= 1;
            self.started_at = context.now;
            context.open(0);
        }
    }

    fn schedule_next(&mut self, context: &mut Context) {
        self.next = context.now + context.exponential(self.model.think);
    }
}

impl ModelEndpoint for TransferClient {
    fn start(&mut self, context: &mut Context) {
        self.begin(context);
    }

    fn connected(&mut self, context: &mut Context, connection: u32) {
        let size = self.model.size.draw(context.rng);
        let (bytes, answer) = match self.model.direction {
            TransferDirection::Download => (HEADER, size),
            TransferDirection::Upload => (size, HEADER),
        };
        self.number = self.number.wrapping_add(1);
        context.send(
            connection,
            bytes,
            self.number,
            MessageContent::Request { answer, after: Duration::ZERO },
        );
    }

    fn failed(&mut self, context: &mut Context, _: u32) {
        context.observe(Observation::Failure { at: context.now });
        self.schedule_next(context);
    }

    fn message(&mut self, context: &mut Context, connection: u32, message: &ApplicationMessage) {
        if message.number != self.number {
            return;
        }
        context
            .observe(Observation::Transaction { at: context.now, took: context.now.since(self.started_at) });
        context.close(connection);
        self.schedule_next(context);
    }

    fn timeout(&mut self, context: &mut Context) {
        self.begin(context);
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}
