//! Clock comparison between two hosts by STAMP. A host that receives flows answers from the preparation of
//! the run on; a host that sends to it asks when the controller requests the comparison. Packets carry the
//! monotonic clocks, and are authenticated by a key that only the agents of the run have.

use netstage_agent_api::task::ClockTask;
use netstage_core::measure::ClockOffset;
use netstage_core::time::Duration;
use netstage_host::shared_key::PresharedKey;
use netstage_traffic::stamp::{self, HmacKey, Reflector, StampSessionConfig, Timescale};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

/// Packets sent to each host. The exchange with the shortest round trip determines the result.
const EXCHANGES: u32 = 16;
const INTERVAL: Duration = Duration::from_millis(3);
/// Time limit of an answer; hosts with a longer round trip are not compared.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Clock comparison of one run. It answers other hosts until it is dropped.
pub struct ClockResponder {
    task: ClockTask,
    key: HmacKey,
    /// Pipe whose closing ends the answering thread.
    end: Option<PipeWriter>,
    answering: Option<JoinHandle<()>>,
}

impl ClockResponder {
    /// Starts to answer. An address that cannot be bound is skipped; the hosts that ask there get no answer.
    pub fn start(task: &ClockTask) -> Option<ClockResponder> {
        let key = HmacKey::new(PresharedKey::parse(&task.key).ok()?.bytes());
        let bind = |at: &SocketAddr| Reflector::bind(*at, Some(key.clone()), Timescale::Monotonic).ok();
        let reflectors: Vec<Reflector> = task.answers.iter().filter_map(bind).collect();
        let (ended, end) = io::pipe().ok()?;
        let answering = thread::Builder::new().name("clocks".into());
        let answering = answering.spawn(move || answer(reflectors, &ended)).ok()?;
        Some(ClockResponder { task: task.clone(), key, end: Some(end), answering: Some(answering) })
    }

    /// Returns the prober for the other hosts.
    pub fn prober(&self) -> ClockProber {
        ClockProber { task: self.task.clone(), key: self.key.clone(), timeout: ANSWER_TIMEOUT }
    }
}

impl Drop for ClockResponder {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}

/// Probes the clocks of the other hosts of a run.
pub struct ClockProber {
    task: ClockTask,
    key: HmacKey,
    /// Time limit of an answer.
    timeout: Duration,
}

impl ClockProber {
    /// Probes all hosts at once. Returns the offset of each clock that answers, relative to the local clock.
    pub fn probe(&self) -> Vec<(SocketAddr, ClockOffset)> {
        let one = |(source, target): (SocketAddr, SocketAddr)| {
            let sending = StampSessionConfig {
                source: Some(source),
                target,
                key: Some(self.key.clone()),
                timescale: Timescale::Monotonic,
                traffic_class: 0,
                interval: INTERVAL,
                count: EXCHANGES,
                timeout: self.timeout,
                session: 0,
                padding: None,
                reflector_is_stateful: false,
            };
            let found = stamp::run(&sending, &AtomicBool::new(false), |_| {}).ok()?;
            found.clock_offset.map(|offset| (target, offset))
        };
        thread::scope(|scope| {
            let asked: Vec<_> = self.task.asks.iter().map(|&ask| scope.spawn(move || one(ask))).collect();
            asked.into_iter().filter_map(|answer| answer.join().ok()?).collect()
        })
    }
}

/// Answers at all addresses until the pipe is closed.
fn answer(mut reflectors: Vec<Reflector>, ended: &PipeReader) {
    loop {
        let mut waited: Vec<PollFd> = vec![PollFd::new(ended, PollFlags::IN)];
        waited.extend(reflectors.iter().map(|reflector| PollFd::new(reflector.socket(), PollFlags::IN)));
        match poll(&mut waited, None) {
            Ok(_) if !waited[0].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        drop(waited);
        reflectors.iter_mut().for_each(|reflector| reflector.handle_ready(|_, _, _| {}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(key: &PresharedKey, answers: &[SocketAddr], asks: &[SocketAddr]) -> ClockTask {
        let source: SocketAddr = "127.0.0.1:0".parse().unwrap();
        ClockTask {
            key: key.to_hexadecimal(),
            answers: answers.to_vec(),
            asks: asks.iter().map(|ask| (source, *ask)).collect(),
        }
    }

    #[test]
    fn a_clock_has_no_offset_to_itself_and_requests_with_another_key_are_not_answered() {
        let at: SocketAddr = "127.86.0.1:47041".parse().unwrap();
        let unbound: SocketAddr = "127.86.0.2:47041".parse().unwrap();
        let (key, other) = (PresharedKey::generate().unwrap(), PresharedKey::generate().unwrap());
        let answers = ClockResponder::start(&task(&key, &[at], &[])).unwrap();
        let asker = |key, asked| ClockResponder::start(&task(key, &[], &[asked])).unwrap().prober();
        let asks = asker(&key, at).probe();
        let [(answered, offset)] = asks[..] else { panic!("{asks:?}") };
        assert_eq!(answered, at);
        assert!(offset.may_be_zero() && !offset.same_clock, "{offset:?}");
        // These do not answer, whatever the timeout.
        for (key, asked) in [(&key, unbound), (&other, at)] {
            let asker = ClockProber { timeout: Duration::from_millis(100), ..asker(key, asked) };
            assert_eq!(asker.probe(), []);
        }
        drop(answers);
        // The address is free immediately, so that the next run can answer there.
        Reflector::bind(at, None, Timescale::Monotonic).unwrap();
    }
}
