//! One direction of an emulated link: the link model of `core` for frames, and its counts. Each call passes the
//! time, so a test needs no clock.

use super::bit_errors::BitErrors;
use super::classify::PacketLabel;
use super::counts::{BinSums, CounterBins, Edges, Grid};
use super::frame::EmulatedFrame;
use super::headers::Conversation;
use super::phase::PhaseWait;
use super::pool::Pool;
use super::report::{DirectionBin, DirectionTotals};
use netstage_core::link::{self, LinkDirection, LinkDirectionConfig, LinkLoss};
use netstage_core::packet::{FULL_PACKET, QueuePacket};
use netstage_core::queue;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_wire::ethernet::BROADCAST;
use std::collections::BTreeMap;

/// State shared by all directions.
#[derive(Debug)]
pub struct SharedLinkState {
    /// Frame buffers.
    pub pool: Pool,
    /// Bins of the run.
    pub grid: Grid,
    /// End of the run. Later events are not counted.
    pub end: Instant,
    /// Lost packets of each flow that lost any.
    pub flow_lost: BTreeMap<u32, BinSums>,
}

/// One direction of a link.
#[derive(Debug)]
pub struct EmulatedDirection {
    link: LinkDirection<EmulatedFrame>,
    overhead: u32,
    /// Whether the queue separates traffic classes instead of VPNs.
    by_traffic_class: bool,
    bit_errors: BitErrors,
    /// Earliest time at which a packet that was read late may enter: the last event of the line or the entry of the
    /// previous packet.
    floor: Instant,
    /// Packets that wait for their phase, if the queue is drop-tail.
    phases: Option<PhaseWait>,
    edges: Edges,
    waiting_since: Instant,
    pub(super) counts: DirectionCounts,
    pub(super) totals: DirectionTotals,
}

/// Counts of one direction per bin.
#[derive(Debug)]
pub struct DirectionCounts {
    /// Packets that reached the far end undamaged.
    pub packets: BinSums,
    /// Bytes transmitted.
    pub bytes: CounterBins,
    /// Bytes transmitted of background flows.
    pub background: CounterBins,
    /// Bytes of the VPNs whose path ends here, by class.
    pub delivered: BTreeMap<u16, BinSums>,
    /// Queue length in packets, integrated over nanoseconds.
    pub waiting: BinSums,
    /// Broadcast frames received.
    pub broadcast: BinSums,
    /// Packets dropped by the queue.
    pub drops: BinSums,
    /// Packets lost on the line.
    pub lost: BinSums,
    /// Nanoseconds of transmission.
    pub busy: CounterBins,
    /// Packets marked for congestion.
    pub marks: CounterBins,
}

/// Frame that leaves the link.
#[derive(Debug)]
pub struct FrameDeparture {
    /// The frame.
    pub frame: EmulatedFrame,
    /// Time at which the frame is due.
    pub due: Instant,
    /// Transmission time at the current rate of the line.
    pub transmission: Duration,
}

impl EmulatedDirection {
    /// Creates an idle direction. `delivers` are the classes of the VPNs whose path ends with it.
    pub fn new(
        config: &LinkDirectionConfig,
        rng: RandomStream,
        delivers: &[u16],
        grid: Grid,
    ) -> EmulatedDirection {
        let bins = || BinSums::new(grid);
        EmulatedDirection {
            overhead: config.overhead,
            by_traffic_class: matches!(config.queue, queue::QueueConfig::Classes(_)),
            bit_errors: BitErrors::new(rng.fork("bits")),
            phases: matches!(config.queue, queue::QueueConfig::DropTail).then(|| PhaseWait::new(&rng)),
            link: LinkDirection::new(config, rng),
            floor: Instant::ZERO,
            edges: Edges::new(grid),
            waiting_since: Instant::ZERO,
            counts: DirectionCounts {
                packets: bins(),
                bytes: CounterBins::new(grid),
                background: CounterBins::new(grid),
                delivered: delivers.iter().map(|class| (*class, bins())).collect(),
                waiting: bins(),
                broadcast: bins(),
                drops: bins(),
                lost: bins(),
                busy: CounterBins::new(grid),
                marks: CounterBins::new(grid),
            },
            totals: DirectionTotals::default(),
        }
    }

    /// Handles a frame that arrived at `at`, which may be in the past. `conversation` is that of a packet without labels
    /// and tunnel.
    pub fn handle_frame(
        &mut self,
        at: Instant,
        mut frame: EmulatedFrame,
        conversation: Option<&Conversation>,
        shared: &mut SharedLinkState,
    ) {
        if self.by_traffic_class {
            frame.sort_by_traffic_class();
        }
        let at = at.max(self.floor);
        self.handle_timeout(at, shared);
        let phases = self.phases.as_mut().filter(|_| self.link.queue_len() > 0);
        if let (Some(phases), Some(conversation)) = (phases, conversation)
            && let packet_time = self.link.rate().transmission_time(FULL_PACKET + self.overhead)
            && let Some(wait) = phases.draw(conversation, packet_time)
        {
            phases.push(at + wait, frame);
        } else {
            self.enter(at, frame, shared);
        }
    }

    fn enter(&mut self, at: Instant, frame: EmulatedFrame, shared: &mut SharedLinkState) {
        self.floor = at;
        self.totals.entered += u64::from(at <= shared.end);
        self.account(at);
        self.link.handle_packet(at, frame);
        self.settle(at, shared);
    }

    /// Counts a frame that arrived at `at` if it is a broadcast, regardless of its further processing.
    pub fn count_broadcast(&mut self, at: Instant, frame: &[u8]) {
        if frame.starts_with(&BROADCAST) {
            self.counts.broadcast.add(at, 1);
        }
    }

    /// Returns whether the link is up at `at`.
    pub fn is_up(&mut self, at: Instant, shared: &mut SharedLinkState) -> bool {
        self.handle_timeout(at, shared);
        self.link.is_up()
    }

    /// Advances to `now`. Each change of the queue and the line until then takes place at its own time.
    pub fn handle_timeout(&mut self, now: Instant, shared: &mut SharedLinkState) {
        loop {
            let (step, entry, edge) = (self.link.next_step(), self.next_entry(), self.edges.next());
            if edge <= step.min(entry).min(now) && edge < Instant::NEVER {
                self.close_bin(edge);
            } else if step <= entry.min(now) && step < Instant::NEVER {
                self.account(step);
                self.link.handle_timeout(step);
                self.floor = step;
                self.settle(step, shared);
            } else if entry <= now
                && let Some(frame) = self.phases.as_mut().and_then(PhaseWait::pop)
            {
                self.enter(entry, frame, shared);
            } else {
                return;
            }
        }
    }

    /// Returns the time at which the next packet has waited for its phase, or the line would be idle for it.
    fn next_entry(&self) -> Instant {
        match self.phases.as_ref().and_then(PhaseWait::next) {
            Some(entry) if self.link.queue_len() == 0 => entry.min(self.floor),
            entry => entry.unwrap_or(Instant::NEVER),
        }
    }

    /// Returns the counts of a past bin.
    pub fn ended_bin(&self, bin: usize) -> DirectionBin {
        let counts = &self.counts;
        DirectionBin {
            bytes: counts.bytes.of(bin),
            background: counts.background.of(bin),
            delivered: counts.delivered.iter().map(|(class, bytes)| (*class, bytes.of(bin))).collect(),
            waiting_ns: counts.waiting.of(bin),
            busy_ns: counts.busy.of(bin),
            drops: counts.drops.of(bin),
            lost: counts.lost.of(bin),
            marks: counts.marks.of(bin),
        }
    }

    /// Returns the time of the next departure, entry or change of the line.
    pub fn poll_timeout(&self) -> Instant {
        self.link.poll_timeout().min(self.next_entry())
    }

    /// Returns the next frame that is due by `now`.
    pub fn poll_departure(&mut self, now: Instant, shared: &mut SharedLinkState) -> Option<FrameDeparture> {
        self.handle_timeout(now, shared);
        let link::LinkArrival { packet: mut frame, at: due, bit_errors } = self.link.poll_arrival(now)?;
        let label = frame.label();
        let counted = due <= shared.end;
        self.totals.duplicated += u64::from(counted && frame.is_copy());
        if bit_errors > 0 {
            if frame.is_copy() {
                self.bit_errors.flip_again(frame.counted_mut());
            } else {
                self.bit_errors.flip(frame.counted_mut(), bit_errors);
            }
            self.totals.corrupted += u64::from(counted);
            self.counts.lost.add(due, 1);
            shared.lose(due, label);
        } else {
            self.totals.delivered += u64::from(counted);
            self.deliver(due, &frame);
        }
        let transmission = self.link.rate().transmission_time(frame.size() + self.overhead);
        Some(FrameDeparture { frame, due, transmission })
    }

    fn deliver(&mut self, due: Instant, frame: &EmulatedFrame) {
        self.counts.packets.add(due, 1);
        if let Some(delivered) = self.counts.delivered.get_mut(&frame.label().class) {
            delivered.add(due, u64::from(frame.customer()));
        }
    }

    /// Accounts for the time since the last change of the queue length. Must be called before each change.
    fn account(&mut self, now: Instant) {
        let waiting = self.link.queue_len() as u64;
        if waiting > 0 {
            self.counts.waiting.spread(self.waiting_since, now, waiting);
        }
        self.waiting_since = now;
    }

    fn close_bin(&mut self, edge: Instant) {
        let carried = self.link.carried();
        self.counts.bytes.close(carried.total);
        self.counts.background.close(carried.background);
        self.counts.busy.close(self.link.busy(edge).0);
        self.counts.marks.close(self.link.marks());
        self.edges.advance();
        if self.edges.next() == Instant::NEVER {
            self.account(edge);
        }
    }

    /// Counts the packets that the link lost at `now` and releases their buffers.
    fn settle(&mut self, now: Instant, shared: &mut SharedLinkState) {
        let counted = u64::from(now <= shared.end);
        while let Some((frame, loss)) = self.link.poll_loss() {
            match loss {
                LinkLoss::Queue => {
                    self.counts.drops.add(now, 1);
                    self.totals.dropped += counted;
                }
                LinkLoss::Line | LinkLoss::Down => {
                    self.counts.lost.add(now, 1);
                    self.totals.lost += counted;
                }
            }
            self.totals.duplicated += u64::from(frame.is_copy()) * counted;
            shared.lose(now, frame.label());
            shared.recycle(frame);
        }
    }
}

impl SharedLinkState {
    /// Releases the buffer of a frame that has left.
    pub fn recycle(&mut self, frame: EmulatedFrame) {
        if let Some(buffer) = frame.into_buffer() {
            self.pool.release(buffer);
        }
    }

    fn lose(&mut self, now: Instant, label: PacketLabel) {
        if let Some(flow) = label.flow {
            self.flow_lost.entry(flow).or_insert_with(|| BinSums::new(self.grid)).add(now, 1);
        }
    }
}
