//! Two ports connected by memory, for tests and for two parts of one process that exchange frames.

use super::{FramePort, ReceivedFrame};
use crate::clock;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Creates a pair of ports, each of which holds at most `capacity` received frames.
pub fn pair(capacity: usize) -> io::Result<(RingPort, RingPort)> {
    let (one, other) = (Arc::new(FrameQueue::new(capacity)?), Arc::new(FrameQueue::new(capacity)?));
    let end = |inbox: &Arc<FrameQueue>, outbox: &Arc<FrameQueue>| RingPort {
        inbox: inbox.clone(),
        outbox: outbox.clone(),
        queued: Vec::new(),
    };
    Ok((end(&one, &other), end(&other, &one)))
}

/// One end of a pair.
#[derive(Debug)]
pub struct RingPort {
    inbox: Arc<FrameQueue>,
    outbox: Arc<FrameQueue>,
    queued: Vec<QueuedFrame>,
}

impl RingPort {
    /// Queues a frame as [`FramePort::send`] does, with this arrival time in nanoseconds of the monotonic clock, or
    /// of a test's clock.
    pub fn send_at(&mut self, frame: &[u8], at_ns: u64) {
        self.queued.push(QueuedFrame { bytes: frame.to_vec(), at_ns });
    }
}

#[derive(Debug)]
struct QueuedFrame {
    bytes: Vec<u8>,
    at_ns: u64,
}

/// Frames in one direction. Both ends hold a reference, so the last reference is that of the remaining end.
#[derive(Debug)]
struct FrameQueue {
    waiting: Mutex<FrameQueueState>,
    capacity: usize,
    /// Readable as long as frames are waiting.
    event: OwnedFd,
}

#[derive(Debug, Default)]
struct FrameQueueState {
    frames: VecDeque<QueuedFrame>,
    missed: u64,
}

impl FrameQueue {
    fn new(capacity: usize) -> io::Result<FrameQueue> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(FrameQueue { waiting: Mutex::default(), capacity, event })
    }

    fn waiting(&self) -> MutexGuard<'_, FrameQueueState> {
        self.waiting.lock().expect("no holder of the lock panics")
    }
}

impl FramePort for RingPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let mut waiting = self.inbox.waiting();
        let count = limit.min(waiting.frames.len());
        let frames: Vec<QueuedFrame> = waiting.frames.drain(..count).collect();
        if waiting.frames.is_empty() && count > 0 {
            rustix::io::read(&self.inbox.event, &mut [0; 8])?;
        }
        drop(waiting);
        if count == 0 && limit > 0 && Arc::strong_count(&self.inbox) == 1 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the other end of the ring is gone"));
        }
        frames.iter().for_each(|frame| each(ReceivedFrame { frame: &frame.bytes, at_ns: frame.at_ns }));
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.send_at(frame, clock::monotonic_ns());
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        let mut waiting = self.outbox.waiting();
        let was_empty = waiting.frames.is_empty();
        for frame in self.queued.drain(..) {
            if waiting.frames.len() < self.outbox.capacity {
                waiting.frames.push_back(frame);
            } else {
                waiting.missed += 1;
            }
        }
        if was_empty && !waiting.frames.is_empty() {
            rustix::io::write(&self.outbox.event, &1_u64.to_ne_bytes())?;
        }
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.event.as_fd())
    }

    fn missed(&mut self) -> u64 {
        self.inbox.waiting().missed
    }
}
