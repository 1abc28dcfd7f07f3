//! Block storage over one connection, as iSCSI carries it (RFC 7143): every command and
//! response has a header of 48 bytes; data go with the write command or the read's response.

use super::{ApplicationError, Content, Context, Machine, Message, Observation};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Basic header segment of an iSCSI PDU (RFC 7143 section 11.2).
const PDU: u32 = 48;

/// Blocks read and written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockStorage {
    /// Bytes of a block.
    pub block: u32,
    /// Share of the commands that read.
    pub reads: f64,
    /// Commands under way at once.
    pub queue_depth: u32,
    /// Time the device takes for a command.
    pub server: Duration,
}

impl BlockStorage {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        if self.queue_depth == 0 || self.block == 0 {
            return Err(ApplicationError::ZeroCount);
        }
        if self.block > u32::MAX - PDU {
            return Err(ApplicationError::Size);
        }
        if (0.0..=1.0).contains(&self.reads) { Ok(()) } else { Err(ApplicationError::Share) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    model: BlockStorage,
    asked: BTreeMap<u32, Instant>,
    number: u32,
}

impl Client {
    pub fn new(model: BlockStorage) -> Client {
        Client { model, asked: BTreeMap::new(), number: 0 }
    }

    fn command(&mut self, context: &mut Context) {
        let with_data = PDU + self.model.block;
        let read = context.rng.chance(self.model.reads);
        let (bytes, answer) = if read { (PDU, with_data) } else { (with_data, PDU) };
        self.number = self.number.wrapping_add(1);
        self.asked.insert(self.number, context.now);
        context.send(0, bytes, self.number, Content::Request { answer, after: self.model.server });
    }
}

impl Machine for Client {
    fn start(&mut self, context: &mut Context) {
        context.open(0);
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        for _ in 0..self.model.queue_depth {
            self.command(context);
        }
    }

    fn failed(&mut self, context: &mut Context, connection: u32) {
        for _ in 0..self.asked.len().max(1) {
            context.observe(Observation::Failure { at: context.now });
        }
        self.asked.clear();
        context.open(connection);
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &Message) {
        if let Some(asked) = self.asked.remove(&message.number) {
            context.observe(Observation::Transaction { at: context.now, took: context.now.since(asked) });
            self.command(context);
        }
    }
}
