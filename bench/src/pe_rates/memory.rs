//! Ports over memory, and frames of customers.

use super::router::{CUSTOMER, vlans};
use netstage_host::ports::{self, ReceivedFrame};
use netstage_wire::ethernet::{Header, Tag, ethertype};
use netstage_wire::ip::v4;
use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Frames that a link between the engines holds, and their maximum length.
const LINK: usize = 1024;
const SLOT: usize = 2048;

/// Port over memory.
pub enum Memory {
    Source(CustomerFrameSource),
    Sink,
    Ends { out: Rc<RefCell<MemoryLink>>, into: Rc<RefCell<MemoryLink>> },
}

/// Frames of all flows in turn, in scattered order, which processors cannot predict. They occupy few slots, as
/// frames of a network card in the cache.
pub struct CustomerFrameSource {
    slots: Vec<u8>,
    length: usize,
    slot: usize,
    flow: u32,
    flows: u32,
    step: u32,
}

impl CustomerFrameSource {
    /// Creates frames whose wire length including the check sequence is `size`.
    pub fn new(flows: u32, size: usize) -> CustomerFrameSource {
        let tags = [Tag { kind: ethertype::VLAN, ..Tag::default() }; 2];
        let header = Header { destination: CUSTOMER, source: [2; 6], tags: &tags, kind: ethertype::IPV4 };
        // For the largest size, `size` is the packet length; the frame is longer.
        let packet = if size < 1000 { size - 4 - header.length() } else { size };
        let mut frame = vec![0; header.length() + packet];
        let start = header.write(&mut frame).unwrap();
        let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
        let ip = v4::Header { protocol: 17, source: from, destination: to, ..v4::Header::default() };
        ip.write(&mut frame[start..], packet - v4::HEADER).unwrap();
        // Close to the golden ratio, and coprime to all measured numbers of flows.
        let step = (1..).map(|more| flows * 5 / 8 + more).find(|step| step % 2 == 1 && step % 5 != 0);
        CustomerFrameSource {
            slots: frame.repeat(LINK),
            length: frame.len(),
            slot: 0,
            flow: 0,
            flows,
            step: step.unwrap(),
        }
    }

    pub fn next(&mut self) -> &[u8] {
        let start = self.slot * self.length;
        let frame = &mut self.slots[start..start + self.length];
        for (offset, vlan) in [14, 18].into_iter().zip(vlans(self.flow)) {
            frame[offset..offset + 2].copy_from_slice(&vlan.to_be_bytes());
        }
        self.slot = (self.slot + 1) % LINK;
        self.flow = (self.flow + self.step) % self.flows;
        frame
    }
}

/// Frames in transit between the engines.
pub struct MemoryLink {
    slots: Vec<u8>,
    lengths: Vec<usize>,
    first: usize,
    waiting: usize,
}

impl MemoryLink {
    pub fn new() -> MemoryLink {
        MemoryLink { slots: vec![0; LINK * SLOT], lengths: vec![0; LINK], first: 0, waiting: 0 }
    }
}

impl ports::FramePort for Memory {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        match self {
            Memory::Source(source) => {
                for _ in 0..limit {
                    each(ReceivedFrame { frame: source.next(), at_ns: u64::MAX });
                }
                Ok(limit)
            }
            Memory::Sink => Ok(0),
            Memory::Ends { into, .. } => {
                let mut link = into.borrow_mut();
                let count = limit.min(link.waiting);
                for _ in 0..count {
                    let slot = link.first;
                    let frame = &link.slots[slot * SLOT..slot * SLOT + link.lengths[slot]];
                    each(ReceivedFrame { frame, at_ns: u64::MAX });
                    link.first = (slot + 1) % LINK;
                    link.waiting -= 1;
                }
                Ok(count)
            }
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if let Memory::Ends { out, .. } = self {
            let mut link = out.borrow_mut();
            if link.waiting == LINK {
                return Ok(false);
            }
            let slot = (link.first + link.waiting) % LINK;
            link.slots[slot * SLOT..slot * SLOT + frame.len()].copy_from_slice(frame);
            link.lengths[slot] = frame.len();
            link.waiting += 1;
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        0
    }
}
