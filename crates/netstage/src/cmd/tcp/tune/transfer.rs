//! One transfer, as the search asks for it: a measurement with the receiver's window limited, or an upload with the
//! sender's.

use super::Arguments;
use crate::cmd::measure::failure;
use crate::cmd::tcp::refused;
use crate::exit::Failure;
use netstage_agent::controller::Error;
use netstage_agent::measure::{
    FlowOutcome, Method, OpenError, Order, Outcome, Session, Sink, Upload, UploadError, Uploaded, Ways,
};
use netstage_agent_api::protocol::RefusalKind;
use netstage_agent_api::results::TcpSample;
use netstage_agent_api::task::TcpOptions;
use netstage_core::measure::tune::{Sample, Setting};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::keyed::Key;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

/// How often the sender's TCP is looked at.
pub const BIN: Duration = Duration::from_millis(100);
/// A transfer that this program spoiled is made so often.
const ATTEMPTS: u32 = 3;
/// The server needs a moment to see that the transfer before is over.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// Who takes part at the other host.
pub enum There {
    /// `netstage measure serve`, which has this key.
    Agent(Key),
    /// A server that only reads.
    Sink(Sink),
}

/// Transfers between this host and another.
pub struct Transfers<'a> {
    arguments: &'a Arguments,
    target: SocketAddr,
    there: There,
    own: Cell<Option<IpAddr>>,
}

impl<'a> Transfers<'a> {
    /// None yet.
    pub fn new(arguments: &'a Arguments, target: SocketAddr, there: There) -> Transfers<'a> {
        Transfers { arguments, target, there, own: Cell::new(None) }
    }

    /// Our address on the way there, once it was gone.
    pub fn own(&self) -> Option<IpAddr> {
        self.own.get()
    }

    /// Makes one, and tells why it is void if it is, however often it is tried; `None` if it was interrupted.
    pub fn make(
        &self,
        setting: Setting,
        interrupted: &AtomicBool,
    ) -> Result<Option<(Sample, Option<String>)>, Failure> {
        let key = match &self.there {
            There::Agent(key) => key,
            There::Sink(sink) => return self.upload(sink, setting, interrupted),
        };
        let order = self.order(setting);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let session = self.open(&order, key)?;
            self.own.set(Some(session.own.ip()));
            let outcome =
                session.run(interrupted, |_| {}).map_err(|error| failure(OpenError::Agents(error)))?;
            if let Some(loss) = outcome.lost.first() {
                return Err(Failure::run(format!("the {} was lost: {}", loss.agent, loss.reason)));
            }
            if outcome.interrupted {
                return Ok(None);
            }
            let flow = outcome.flows.first().ok_or_else(|| Failure::run("the transfer told nothing"))?;
            if let Some(error) = flow.errors().next() {
                return Err(Failure::run(format!("the transfer failed: {error}")));
            }
            let sample = self.sample_of(flow, &outcome);
            match outcome.void.first() {
                None => return Ok(Some((sample, None))),
                Some(why) => last = Some((sample, Some(why.clone()))),
            }
        }
        Ok(last)
    }

    fn upload(
        &self,
        sink: &Sink,
        Setting { control, window }: Setting,
        interrupted: &AtomicBool,
    ) -> Result<Option<(Sample, Option<String>)>, Failure> {
        let Arguments { time, omit, congestion, .. } = self.arguments;
        let upload = Upload {
            target: self.target,
            sink,
            congestion_control: congestion.get(control).map(String::as_str),
            window,
            time: *time,
            omit: *omit,
            interval: BIN,
        };
        let uploaded = upload.run(interrupted).map_err(|error| match error {
            UploadError::Limit(mut obstacle) => {
                obstacle.message = format!("a window cannot be limited at this end: {}", obstacle.message);
                refused(obstacle)
            }
            UploadError::CongestionControl(message) => Failure::missing(message),
            UploadError::Failed(message) => Failure::run(message),
        })?;
        let Some(Uploaded { own, acknowledged, measured, looks }) = uploaded else { return Ok(None) };
        self.own.set(Some(own.ip()));
        let sent_again = looks.last().map_or(0, |look| look.retransmissions);
        Ok(Some((self.sample(&looks, acknowledged, measured, sent_again), None)))
    }

    fn open(&self, order: &Order, key: &Key) -> Result<Session, Failure> {
        let patience = std::time::Instant::now() + PATIENCE;
        loop {
            match Session::open(order.clone(), self.target, Some(key.clone())) {
                Err(OpenError::Agents(Error::Refused(refusals)))
                    if refusals[0].1.kind == RefusalKind::Busy && std::time::Instant::now() < patience =>
                {
                    std::thread::sleep(LOOK);
                }
                opened => return opened.map_err(failure),
            }
        }
    }

    fn order(&self, Setting { control, window }: Setting) -> Order {
        let arguments = self.arguments;
        let tcp = TcpOptions {
            congestion_control: arguments.congestion.get(control).cloned(),
            window,
            ..TcpOptions::default()
        };
        Order {
            method: Method::Tcp(tcp),
            ways: if arguments.reverse { Ways::Reverse } else { Ways::Forward },
            parallel: 1,
            traffic: Pattern::Bulk { size: None },
            time: arguments.time,
            omit: arguments.omit,
            interval: BIN,
            traffic_class: 0,
            first_port: arguments.data_port,
            seed: arguments.seed,
        }
    }

    fn sample_of(&self, flow: &FlowOutcome, outcome: &Outcome) -> Sample {
        let looks = flow.sent.as_ref().map_or(&[][..], |sent| &sent.tcp);
        let sent_again = flow.retransmissions.unwrap_or(0);
        self.sample(looks, flow.counts.received_bytes, outcome.measured, sent_again)
    }

    /// What the search learns of a transfer, whose first looks do not count.
    fn sample(&self, looks: &[TcpSample], arrived: u64, measured: Duration, retransmissions: u64) -> Sample {
        let known = |time: u64| (time > 0).then_some(time);
        let first = (self.arguments.omit.0 / BIN.0) as usize;
        let settled = || looks.iter().skip(first).filter_map(|look| known(look.round_trip_ns));
        let (count, sum) = settled().fold((0, 0), |(count, sum), time| (count + 1, sum + time));
        let least = looks.iter().filter_map(|look| known(look.min_round_trip_ns)).min();
        Sample {
            goodput: arrived as f64 * 8.0 / measured.as_secs_f64().max(1e-9),
            least_round_trip: Duration(least.unwrap_or(0)),
            mean_round_trip: Duration(sum / u64::max(count, 1)),
            longest_round_trip: Duration(settled().max().unwrap_or(0)),
            retransmissions,
        }
    }
}
