//! The clocks of two hosts beside each other, by STAMP between them: whoever receives in a run answers while
//! it is prepared and goes on, and whoever sends to it asks when the controller wants to know. Packets carry
//! the monotonic clocks, and the digest of a key that only agents of the run have.

use netstage_agent_api::task::ClockTask;
use netstage_core::measure::ClockOffset;
use netstage_core::time::Duration;
use netstage_host::keyed::Key;
use netstage_traffic::stamp::{self, HmacKey, Reflector, Sending, Timescale};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

/// Packets to each of whom is asked: the one that is there and back soonest counts.
const EXCHANGES: u32 = 16;
const INTERVAL: Duration = Duration::from_millis(3);
/// How long an answer may take. Nobody is asked who is farther away.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// A run's part in comparing clocks: others are answered until this is dropped.
pub struct Clocks {
    task: ClockTask,
    key: HmacKey,
    /// Closed, it ends the thread that answers.
    end: Option<PipeWriter>,
    answering: Option<JoinHandle<()>>,
}

impl Clocks {
    /// Begins to answer. Where it cannot listen, whoever asks finds out.
    pub fn begin(task: &ClockTask) -> Option<Clocks> {
        let key = HmacKey::new(Key::parse(&task.key).ok()?.bytes());
        let bind = |at: &SocketAddr| Reflector::bind(*at, Some(key.clone()), Timescale::Monotonic).ok();
        let reflectors: Vec<Reflector> = task.answers.iter().filter_map(bind).collect();
        let (ended, end) = io::pipe().ok()?;
        let answering = thread::Builder::new().name("clocks".into());
        let answering = answering.spawn(move || answer(reflectors, &ended)).ok()?;
        Some(Clocks { task: task.clone(), key, end: Some(end), answering: Some(answering) })
    }

    /// What asks the others.
    pub fn asker(&self) -> Asker {
        Asker { task: self.task.clone(), key: self.key.clone(), within: ANSWER_WITHIN }
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}

/// Asks the other hosts of a run.
pub struct Asker {
    task: ClockTask,
    key: HmacKey,
    /// How long answers are waited for.
    within: Duration,
}

impl Asker {
    /// Asks all at once, and waits for the answers: those clocks less ours, of those that answer.
    pub fn ask(&self) -> Vec<(SocketAddr, ClockOffset)> {
        let one = |(source, target): (SocketAddr, SocketAddr)| {
            let sending = Sending {
                source: Some(source),
                target,
                key: Some(self.key.clone()),
                timescale: Timescale::Monotonic,
                traffic_class: 0,
                interval: INTERVAL,
                count: EXCHANGES,
                timeout: self.within,
                session: 0,
                padding: None,
                reflector_is_stateful: false,
            };
            let found = stamp::run(&sending, &AtomicBool::new(false), |_| {}).ok()?;
            found.clock_offset().map(|offset| (target, offset))
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
        reflectors.iter_mut().for_each(|reflector| reflector.handle_ready(|_, _| {}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(key: &Key, answers: &[SocketAddr], asks: &[SocketAddr]) -> ClockTask {
        let source: SocketAddr = "127.0.0.1:0".parse().unwrap();
        ClockTask {
            key: key.to_hexadecimal(),
            answers: answers.to_vec(),
            asks: asks.iter().map(|ask| (source, *ask)).collect(),
        }
    }

    #[test]
    fn a_clock_beside_itself_is_none_ahead_and_strangers_are_not_answered() {
        let at: SocketAddr = "127.86.0.1:47041".parse().unwrap();
        let nobody: SocketAddr = "127.86.0.2:47041".parse().unwrap();
        let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        let answers = Clocks::begin(&task(&key, &[at], &[])).unwrap();
        let asker = |key, asked| Clocks::begin(&task(key, &[], &[asked])).unwrap().asker();
        let asks = asker(&key, at).ask();
        let [(answered, offset)] = asks[..] else { panic!("{asks:?}") };
        assert_eq!(answered, at);
        assert!(offset.may_be_none() && !offset.same_clock, "{offset:?}");
        // These do not answer, however long they are waited for.
        for (key, asked) in [(&key, nobody), (&other, at)] {
            let asker = Asker { within: Duration::from_millis(100), ..asker(key, asked) };
            assert_eq!(asker.ask(), []);
        }
        drop(answers);
        // The address is free at once: the next run answers there.
        Reflector::bind(at, None, Timescale::Monotonic).unwrap();
    }
}
