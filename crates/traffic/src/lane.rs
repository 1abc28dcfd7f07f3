//! One thread of the engine: an event loop over members, each one side of a flow. Members
//! say when they want to be called next and are called when their sockets are ready.

use super::Progress;
use super::dialogue::{DatagramDialogue, StreamDialogue};
use super::frame::{Bins, Frame, LONGEST_DRAIN, Watch};
use super::one_ended::{Prober, Reflections};
use super::pace::Pacer;
use super::stamp_flow::{StampReflector, StampSender};
use super::tcp::{TcpReceiver, TcpSender};
use super::udp::{UdpReceiver, UdpSender};
use netstage_agent_api::results::{Counts, FlowResult, TcpSample, Travel};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::realtime::step_back;
use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// Where packets wake receivers more often than this, they gather for as long, as a network
/// card lets them: a wake-up costs the sender of a packet, on the same machine, more than
/// the packet itself.
const MODERATION: Duration = Duration::from_micros(200);

/// One side of a flow at work. Called from one thread; never blocks.
pub enum Member {
    /// Sends UDP, multicast too.
    UdpSender(UdpSender),
    /// Receives UDP, multicast too.
    UdpReceiver(UdpReceiver),
    /// Sends over TCP.
    TcpSender(TcpSender),
    /// Receives over TCP.
    TcpReceiver(TcpReceiver),
    /// Sends one-ended probes.
    Prober(Prober),
    /// Takes the answers to them.
    Reflections(Reflections),
    /// Sends STAMP packets and takes the answers.
    StampSender(Box<StampSender>),
    /// Answers STAMP packets.
    StampReflector(StampReflector),
    /// One end of an application over UDP.
    Datagrams(DatagramDialogue),
    /// One end of an application over TCP.
    Streams(StreamDialogue),
}

macro_rules! each {
    ($member:expr, $inner:ident => $call:expr) => {
        match $member {
            Member::UdpSender($inner) => $call,
            Member::UdpReceiver($inner) => $call,
            Member::TcpSender($inner) => $call,
            Member::TcpReceiver($inner) => $call,
            Member::Prober($inner) => $call,
            Member::Reflections($inner) => $call,
            Member::StampSender($inner) => $call,
            Member::StampReflector($inner) => $call,
            Member::Datagrams($inner) => $call,
            Member::Streams($inner) => $call,
        }
    };
}

impl Member {
    /// When to call [`handle_due`](Member::handle_due) next.
    fn due(&self) -> Instant {
        each!(self, inner => inner.due())
    }

    fn handle_due(&mut self, epoch: Epoch, watch: Watch<'_>) {
        match self {
            Member::UdpSender(sender) => sender.handle_due(epoch),
            Member::TcpSender(sender) => sender.handle_due(epoch, watch),
            Member::TcpReceiver(receiver) => receiver.handle_ready(epoch, watch),
            Member::Prober(prober) => prober.handle_due(epoch),
            Member::Datagrams(dialogue) => dialogue.handle_due(epoch),
            Member::StampSender(sender) => sender.handle_due(epoch),
            Member::Streams(dialogue) => dialogue.handle_due(epoch, watch),
            Member::UdpReceiver(_) | Member::Reflections(_) | Member::StampReflector(_) => {}
        }
    }

    fn handle_ready(&mut self, epoch: Epoch, watch: Watch<'_>) {
        match self {
            Member::UdpReceiver(receiver) => receiver.handle_ready(epoch),
            Member::TcpSender(sender) => sender.handle_ready(epoch),
            Member::TcpReceiver(receiver) => receiver.handle_ready(epoch, watch),
            Member::Reflections(reflections) => reflections.handle_ready(epoch),
            Member::StampSender(sender) => sender.handle_ready(epoch),
            Member::StampReflector(reflector) => reflector.handle_ready(epoch),
            Member::Datagrams(dialogue) => dialogue.handle_ready(epoch),
            Member::Streams(dialogue) => dialogue.handle_ready(epoch, watch),
            Member::UdpSender(_) | Member::Prober(_) => {}
        }
    }

    /// Sockets to watch from the start.
    fn watch(&self, watch: Watch<'_>) -> io::Result<()> {
        match self {
            Member::UdpReceiver(receiver) => watch.level(receiver.socket()),
            Member::TcpReceiver(receiver) => receiver.listener().map_or(Ok(()), |socket| watch.level(socket)),
            Member::Reflections(reflections) => watch.level(reflections.socket()),
            Member::StampSender(sender) => watch.level(sender.socket()),
            Member::StampReflector(reflector) => watch.level(reflector.socket()),
            Member::Datagrams(dialogue) => watch.level(dialogue.socket()),
            Member::Streams(dialogue) => dialogue.listener().map_or(Ok(()), |socket| watch.level(socket)),
            Member::UdpSender(_) | Member::TcpSender(_) | Member::Prober(_) => Ok(()),
        }
    }

    /// Whether nothing more will happen.
    fn done(&self, now: Instant) -> bool {
        each!(self, inner => inner.done(now))
    }

    /// A bin has ended.
    fn end_bin(&mut self, bin: usize) -> (Counts, Option<TcpSample>, Option<Travel>) {
        match self {
            Member::TcpSender(sender) => {
                let (counts, tcp) = sender.end_bin(bin);
                (counts, tcp, None)
            }
            Member::UdpReceiver(receiver) => (receiver.counts(bin), None, Some(receiver.end_bin())),
            Member::Reflections(answers) => (answers.counts(bin), None, Some(answers.end_bin())),
            other => (other.counts(bin), None, None),
        }
    }

    fn counts(&mut self, bin: usize) -> Counts {
        each!(self, inner => inner.counts(bin))
    }

    /// Closes the sockets and gives what was found, and what a reader must know.
    fn finish(self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        each!(self, inner => inner.finish(now, warnings))
    }
}

/// The event loop of one thread.
pub struct Lane {
    epoll: Epoll,
    /// Index of the flow in the assignment, and the member.
    members: Vec<(usize, Member)>,
    /// When each member is to be called; what the queue holds beside that is stale.
    dues: Vec<Instant>,
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Members being called, kept for its memory.
    called: Vec<usize>,
    watching: bool,
    /// Whether all members only count datagrams, which the kernel dates: none minds a delay.
    counting: bool,
    /// Whether a moment is worth a spin, and the thread its priority.
    exact: bool,
}

impl Lane {
    /// A lane for these members. An `exact` one spins and asks for real-time priority.
    pub fn new(members: Vec<(usize, Member)>, exact: bool) -> io::Result<Lane> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (index, (_, member)) in members.iter().enumerate() {
            member.watch(Watch::new(&epoll, index))?;
        }
        let watching =
            members.iter().any(|(_, member)| !matches!(member, Member::UdpSender(_) | Member::Prober(_)));
        let counting = members.iter().all(|(_, member)| matches!(member, Member::UdpReceiver(_)));
        let dues = vec![Instant::NEVER; members.len()];
        Ok(Lane {
            epoll,
            members,
            dues,
            queue: BinaryHeap::new(),
            called: Vec::new(),
            watching,
            counting,
            exact,
        })
    }

    /// Runs until every member is done, the run has ended or is stopped. Returns each
    /// flow's index and result.
    pub fn run(
        mut self,
        frame: Frame<'_>,
        progress: &mpsc::Sender<Progress>,
        warnings: &mut Vec<String>,
    ) -> Vec<(usize, FlowResult)> {
        let mut pacer = Pacer::for_this_thread();
        let stopped = || frame.stop.load(Ordering::Relaxed);
        while netstage_host::clock::monotonic_ns() < frame.epoch.0 && !stopped() {
            pacer.wait(frame.epoch.0, self.exact, None);
        }
        for index in 0..self.members.len() {
            self.enqueue(index);
        }
        let end = Instant(frame.duration.0) + LONGEST_DRAIN;
        let mut bin = 0;
        let mut bins = Bins::new(frame.interval, frame.duration);
        let mut next_check = Instant::ZERO;
        let mut called_at = Instant::ZERO;
        loop {
            let now = frame.epoch.now();
            self.call_due(frame.epoch, now);
            while bins.next <= now {
                for (flow, member) in &mut self.members {
                    let (counts, tcp, travel) = member.end_bin(bin);
                    // Nobody listens any more where the run is being stopped.
                    let _ = progress.send(Progress { flow: *flow, bin, counts, tcp, travel });
                }
                bin += 1;
                bins.advance();
            }
            if now >= next_check {
                if stopped() || now >= end || self.members.iter().all(|(_, member)| member.done(now)) {
                    break;
                }
                next_check = now + Duration::from_millis(10);
            }
            if self.counting && now < called_at + MODERATION {
                pacer.wait(frame.epoch.monotonic_ns(now + MODERATION), false, None);
            }
            let due = self.next_due();
            let until = due.min(bins.next).min(end);
            let exact = self.exact && due == until;
            pacer.wait(frame.epoch.monotonic_ns(until), exact, self.watching.then(|| self.epoll.0.as_fd()));
            if self.watching && self.call_ready(frame.epoch) {
                called_at = frame.epoch.now();
            }
        }
        step_back();
        let now = frame.epoch.now();
        self.members.into_iter().map(|(flow, member)| (flow, member.finish(now, warnings))).collect()
    }

    /// Calls each member that is due once, so that one that cannot keep up holds nobody back.
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
            self.members[index].1.handle_due(epoch, Watch::new(&self.epoll, index));
            self.enqueue(index);
        }
        self.called = called;
    }

    /// Calls members whose sockets are ready; whether there were any.
    fn call_ready(&mut self, epoch: Epoch) -> bool {
        let mut events = [EpollEvent::empty(); 64];
        let Ok(count) = self.epoll.wait(&mut events, PollTimeout::ZERO) else { return false };
        for event in &events[..count] {
            let index = event.data() as usize;
            self.members[index].1.handle_ready(epoch, Watch::new(&self.epoll, index));
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
