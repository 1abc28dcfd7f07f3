//! Block storage over one connection, as in iSCSI (RFC 7143): each command and response has a header of 48
//! bytes; write commands and read responses contain the data.

use super::{ApplicationError, ApplicationMessage, Context, MessageContent, ModelEndpoint, Observation};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Length of the basic header segment of an iSCSI PDU (RFC 7143 section 11.2), bytes.
const PDU_HEADER: u32 = 48;

/// Block reads and writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockStorage {
    /// Size of a block, bytes.
    pub block: u32,
    /// Share of read commands.
    pub reads: f64,
    /// Number of concurrent commands.
    pub queue_depth: u32,
    /// Processing time of the device per command.
    pub server: Duration,
    /// Whether reads follow the congestion window that the server reports with each response. All reads together are
    /// then as large as the window, and each at most a block.
    pub follow_window: bool,
}

impl BlockStorage {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        if self.queue_depth == 0 || self.block == 0 {
            return Err(ApplicationError::ZeroCount);
        }
        if self.block > u32::MAX - PDU_HEADER {
            return Err(ApplicationError::Size);
        }
        if (0.0..=1.0).contains(&self.reads) { Ok(()) } else { Err(ApplicationError::Share) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BlockStorageClient {
    model: BlockStorage,
    pending: BTreeMap<u32, Instant>,
    number: u32,
    /// Window of the server, bytes.
    window: u32,
}

impl BlockStorageClient {
    pub fn new(model: BlockStorage) -> BlockStorageClient {
        BlockStorageClient { model, pending: BTreeMap::new(), number: 0, window: 0 }
    }

    /// Returns the size of the next read, a whole number of sectors.
    fn read_size(&self) -> u32 {
        const SECTOR: u32 = 512;
        const SMALLEST: u32 = 8 * SECTOR;
        if !self.model.follow_window {
            return self.model.block;
        }
        let share = self.window / self.model.queue_depth / SECTOR * SECTOR;
        share.max(SMALLEST).min(self.model.block)
    }

    fn send_command(&mut self, context: &mut Context) {
        let read = context.rng.chance(self.model.reads);
        let (bytes, answer) = match read {
            true => (PDU_HEADER, PDU_HEADER + self.read_size()),
            false => (PDU_HEADER + self.model.block, PDU_HEADER),
        };
        self.number = self.number.wrapping_add(1);
        self.pending.insert(self.number, context.now);
        let after = self.model.server;
        let content = match self.model.follow_window {
            true => MessageContent::WindowRequest { answer, after },
            false => MessageContent::Request { answer, after },
        };
        context.send(0, bytes, self.number, content);
    }
}

impl ModelEndpoint for BlockStorageClient {
    fn start(&mut self, context: &mut Context) {
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        for _ in 0..self.model.queue_depth {
            self.send_command(context);
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        for _ in 0..self.pending.len().max(1) {
            context.observe(Observation::Failure { at: context.now });
        }
        self.pending.clear();
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if let MessageContent::Window(window) = message.content {
            self.window = window;
        }
        if let Some(at) = self.pending.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(at) });
            self.send_command(context);
        }
    }
}
