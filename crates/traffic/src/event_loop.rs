//! Event loop of one thread. Its members, each one side of a flow, are called at the time they request and when
//! their sockets are ready.

use super::dialogue::{DatagramDialogue, StreamDialogue};
use super::one_ended::{Prober, Reflections};
use super::pacing::Pacer;
use super::run_context::{BinClock, MAX_DRAIN, RunTimes, SocketWatch};
use super::stalls::{StallObserver, TICK};
use super::stamp_flow::{StampReflector, StampSender};
use super::tcp::{TcpReceiver, TcpSender};
use super::udp::{UdpReceiver, UdpSender};
use super::{FlowProgress, ThreadRemarks};
use netstage_agent_api::results::{BinCounts, FlowResult, TcpSample, Travel};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::realtime::leave_realtime;
use netstage_host::reserved_cpu::ReservedCpu;
use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent};
use socket2::Socket;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// Minimum time between wake-ups of receivers, like interrupt moderation of a network card. A wake-up costs a
/// sender on the same machine more than the packet itself.
const MODERATION: Duration = Duration::from_micros(200);

/// One side of a flow. Called from one thread; never blocks.
pub enum FlowMember {
    /// Sender over UDP, including multicast.
    UdpSender(UdpSender),
    /// Receiver over UDP, including multicast.
    UdpReceiver(UdpReceiver),
    /// Sender over TCP.
    TcpSender(TcpSender),
    /// Receiver over TCP.
    TcpReceiver(TcpReceiver),
    /// Sender of one-ended probes.
    Prober(Prober),
    /// Receiver of answers to one-ended probes.
    Reflections(Reflections),
    /// STAMP session-sender.
    StampSender(Box<StampSender>),
    /// STAMP session-reflector.
    StampReflector(StampReflector),
    /// One end of an application over UDP.
    Datagrams(DatagramDialogue),
    /// One end of an application over TCP.
    Streams(StreamDialogue),
}

macro_rules! each {
    ($member:expr, $inner:ident => $call:expr) => {
        match $member {
            FlowMember::UdpSender($inner) => $call,
            FlowMember::UdpReceiver($inner) => $call,
            FlowMember::TcpSender($inner) => $call,
            FlowMember::TcpReceiver($inner) => $call,
            FlowMember::Prober($inner) => $call,
            FlowMember::Reflections($inner) => $call,
            FlowMember::StampSender($inner) => $call,
            FlowMember::StampReflector($inner) => $call,
            FlowMember::Datagrams($inner) => $call,
            FlowMember::Streams($inner) => $call,
        }
    };
}

impl FlowMember {
    /// Returns whether the member reacts to packets, so that its results depend on a thread that always runs.
    fn has_no_schedule(&self) -> bool {
        matches!(
            self,
            FlowMember::TcpSender(_)
                | FlowMember::TcpReceiver(_)
                | FlowMember::StampReflector(_)
                | FlowMember::Datagrams(_)
                | FlowMember::Streams(_)
        )
    }

    /// Returns the time of the next call of [`handle_due`](FlowMember::handle_due).
    fn due(&self) -> Instant {
        each!(self, inner => inner.due())
    }

    fn handle_due(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        match self {
            FlowMember::UdpSender(sender) => sender.handle_due(epoch),
            FlowMember::TcpSender(sender) => sender.handle_due(epoch, watch),
            FlowMember::TcpReceiver(receiver) => receiver.handle_ready(epoch, watch),
            FlowMember::Prober(prober) => prober.handle_due(epoch),
            FlowMember::Datagrams(dialogue) => dialogue.handle_due(epoch),
            FlowMember::StampSender(sender) => sender.handle_due(epoch),
            FlowMember::Streams(dialogue) => dialogue.handle_due(epoch, watch),
            FlowMember::UdpReceiver(_) | FlowMember::Reflections(_) | FlowMember::StampReflector(_) => {}
        }
    }

    fn handle_ready(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        match self {
            FlowMember::UdpReceiver(receiver) => receiver.handle_ready(epoch),
            FlowMember::TcpSender(sender) => sender.handle_ready(epoch, watch),
            FlowMember::TcpReceiver(receiver) => receiver.handle_ready(epoch, watch),
            FlowMember::Reflections(reflections) => reflections.handle_ready(epoch),
            FlowMember::StampSender(sender) => sender.handle_ready(epoch),
            FlowMember::StampReflector(reflector) => reflector.handle_ready(epoch),
            FlowMember::Datagrams(dialogue) => dialogue.handle_ready(epoch),
            FlowMember::Streams(dialogue) => dialogue.handle_ready(epoch, watch),
            FlowMember::UdpSender(_) | FlowMember::Prober(_) => {}
        }
    }

    /// Registers the sockets that are polled from the start.
    fn watch(&self, watch: SocketWatch<'_>) -> io::Result<()> {
        match self {
            FlowMember::UdpReceiver(receiver) => watch.add_level_triggered(receiver.socket()),
            FlowMember::TcpReceiver(receiver) => {
                receiver.listener().map_or(Ok(()), |socket| watch.add_level_triggered(socket))
            }
            FlowMember::Reflections(reflections) => watch.add_level_triggered(reflections.socket()),
            FlowMember::StampSender(sender) => watch.add_level_triggered(sender.socket()),
            FlowMember::StampReflector(reflector) => watch.add_level_triggered(reflector.socket()),
            FlowMember::Datagrams(dialogue) => watch.add_level_triggered(dialogue.socket()),
            FlowMember::Streams(dialogue) => {
                dialogue.listener().map_or(Ok(()), |socket| watch.add_level_triggered(socket))
            }
            FlowMember::UdpSender(_) | FlowMember::TcpSender(_) | FlowMember::Prober(_) => Ok(()),
        }
    }

    /// Returns the UDP socket whose mapping in a NAT is to be kept, if it has one.
    pub fn udp_socket(&self) -> Option<&Socket> {
        match self {
            FlowMember::UdpSender(sender) => Some(sender.socket()),
            FlowMember::UdpReceiver(receiver) => Some(receiver.socket()),
            FlowMember::Datagrams(dialogue) => Some(dialogue.socket()),
            _ => None,
        }
    }

    /// Returns whether the member has ended.
    fn done(&self, now: Instant) -> bool {
        each!(self, inner => inner.done(now))
    }

    /// Ends a bin and returns its counts.
    fn end_bin(&mut self, bin: usize) -> (BinCounts, Option<TcpSample>, Option<Travel>) {
        match self {
            FlowMember::TcpSender(sender) => {
                let (counts, tcp) = sender.end_bin(bin);
                (counts, tcp, None)
            }
            FlowMember::UdpReceiver(receiver) => (receiver.counts(bin), None, Some(receiver.end_bin())),
            FlowMember::Reflections(answers) => (answers.counts(bin), None, Some(answers.end_bin())),
            other => (other.counts(bin), None, None),
        }
    }

    fn counts(&mut self, bin: usize) -> BinCounts {
        each!(self, inner => inner.counts(bin))
    }

    /// Closes the sockets and returns the result. Warnings for the report are added to `warnings`.
    fn finish(self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        each!(self, inner => inner.finish(now, warnings))
    }
}

/// Event loop of one thread.
pub struct EventLoop {
    epoll: Epoll,
    /// Index of the flow in the assignment, and the member.
    members: Vec<(usize, FlowMember)>,
    /// Time of the next call of each member. Other times in the queue are stale.
    dues: Vec<Instant>,
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Members being called; reused to avoid allocation.
    called: Vec<usize>,
    watching: bool,
    /// Set if all members only count datagrams, which the kernel timestamps, so that a delayed call does no harm.
    counting: bool,
    /// Spin before a scheduled time.
    exact: bool,
    /// CPU of the thread, if its flows request one.
    cpu: Option<ReservedCpu>,
    /// Set if members have no schedule by which stalls would show.
    observes_stalls: bool,
}

impl EventLoop {
    /// Creates an event loop. With `exact` it spins before scheduled times, and with a CPU it spins longer.
    pub fn new(
        members: Vec<(usize, FlowMember)>,
        exact: bool,
        cpu: Option<ReservedCpu>,
    ) -> io::Result<EventLoop> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (index, (_, member)) in members.iter().enumerate() {
            member.watch(SocketWatch::new(&epoll, index))?;
        }
        let watching = members
            .iter()
            .any(|(_, member)| !matches!(member, FlowMember::UdpSender(_) | FlowMember::Prober(_)));
        let counting = members.iter().all(|(_, member)| matches!(member, FlowMember::UdpReceiver(_)));
        let observes_stalls = members.iter().any(|(_, member)| member.has_no_schedule());
        let dues = vec![Instant::NEVER; members.len()];
        Ok(EventLoop {
            epoll,
            members,
            dues,
            queue: BinaryHeap::new(),
            called: Vec::new(),
            watching,
            counting,
            exact,
            cpu,
            observes_stalls,
        })
    }

    /// Runs until every member is done, or the run has ended or is stopped. Returns the index and result of each
    /// flow.
    pub fn run(
        mut self,
        frame: RunTimes<'_>,
        progress: &mpsc::Sender<FlowProgress>,
        remarks: &mut ThreadRemarks,
    ) -> Vec<(usize, FlowResult)> {
        let mut pacer = self.pacer(remarks);
        let stopped = || frame.stop.load(Ordering::Relaxed);
        while netstage_host::clock::monotonic_ns() < frame.epoch.0 && !stopped() {
            pacer.wait(frame.epoch.0, self.exact, None);
        }
        for index in 0..self.members.len() {
            self.enqueue(index);
        }
        let end = Instant(frame.duration.0) + MAX_DRAIN;
        let mut bin = 0;
        let mut bins = BinClock::new(frame.interval, frame.duration);
        let mut next_check = Instant::ZERO;
        let mut called_at = Instant::ZERO;
        let mut stalls = StallObserver::new(frame.epoch.now(), frame.duration);
        loop {
            let now = frame.epoch.now();
            if self.observes_stalls {
                stalls.observe(now);
            }
            self.call_due(frame.epoch, now);
            while bins.next <= now {
                for (flow, member) in &mut self.members {
                    let (counts, tcp, travel) = member.end_bin(bin);
                    // Fails only while the run is being stopped.
                    let _ = progress.send(FlowProgress { flow: *flow, bin, counts, tcp, travel });
                }
                bin += 1;
                bins.advance();
            }
            if now >= next_check {
                if stopped() || now >= end || self.members.iter().all(|(_, member)| member.done(now)) {
                    // After a stall, packets that arrived in time are still in the sockets.
                    while self.call_ready(frame.epoch) && frame.epoch.now() < end {}
                    break;
                }
                next_check = now + Duration::from_millis(10);
            }
            if self.counting && now < called_at + MODERATION {
                pacer.wait(frame.epoch.monotonic_ns(now + MODERATION), false, None);
            }
            let due = self.next_due();
            let mut until = due.min(bins.next).min(end);
            if self.observes_stalls {
                until = until.min(now + TICK);
            }
            let exact = self.exact && due == until;
            pacer.wait(frame.epoch.monotonic_ns(until), exact, self.watching.then(|| self.epoll.0.as_fd()));
            if self.watching && self.call_ready(frame.epoch) {
                called_at = frame.epoch.now();
            }
        }
        leave_realtime();
        let now = frame.epoch.now();
        remarks.void.extend(stalls.void_reason(crate::UNSCHEDULED_THREAD));
        let warnings = &mut remarks.warnings;
        let spun =
            self.cpu.is_some().then(|| pacer.spun_ns() as f64 / now.since(Instant::ZERO).0.max(1) as f64);
        let finish = |(flow, member): (usize, FlowMember)| {
            let mut result = member.finish(now, warnings);
            if let Some(schedule) = &mut result.schedule {
                schedule.spun = spun;
            }
            (flow, result)
        };
        self.members.into_iter().map(finish).collect()
    }

    /// Returns the pacer of this thread, which moves to the CPU reserved for it.
    fn pacer(&self, remarks: &mut ThreadRemarks) -> Pacer {
        let Some(cpu) = &self.cpu else { return Pacer::for_this_thread() };
        let warning = |error| format!("the sender cannot be bound to the CPU reserved for it: {error}");
        remarks.warnings.extend(cpu.enter().err().map(warning));
        Pacer::for_reserved_cpu()
    }

    /// Calls each due member once, so that a slow member does not delay the others.
    fn call_due(&mut self, epoch: Epoch, now: Instant) {
        let mut called = std::mem::take(&mut self.called);
        while let Some(&Reverse((due, index))) = self.queue.peek()
            && due <= now
        {
            self.queue.pop();
            if self.dues[index] == due {
                self.dues[index] = Instant::NEVER;
                called.push(index);
            }
        }
        for index in called.drain(..) {
            self.members[index].1.handle_due(epoch, SocketWatch::new(&self.epoll, index));
            self.enqueue(index);
        }
        self.called = called;
    }

    /// Calls the members whose sockets are ready. Returns whether any was.
    fn call_ready(&mut self, epoch: Epoch) -> bool {
        let mut events = [EpollEvent::empty(); 64];
        let Ok(count) = self.epoll.wait(&mut events, PollTimeout::ZERO) else { return false };
        for event in &events[..count] {
            let index = event.data() as usize;
            self.members[index].1.handle_ready(epoch, SocketWatch::new(&self.epoll, index));
            self.enqueue(index);
        }
        count > 0
    }

    fn enqueue(&mut self, index: usize) {
        let due = self.members[index].1.due();
        if due != self.dues[index] {
            self.dues[index] = due;
            if due != Instant::NEVER {
                self.queue.push(Reverse((due, index)));
            }
        }
    }

    fn next_due(&mut self) -> Instant {
        while let Some(&Reverse((due, index))) = self.queue.peek() {
            if self.dues[index] == due {
                return due;
            }
            self.queue.pop();
        }
        Instant::NEVER
    }
}
