//! Transfers of the search: a measurement with a limited receive window, or an upload with a limited send window.

use super::Arguments;
use crate::cmd::measure::failure;
use crate::cmd::tcp::refused;
use crate::exit::Failure;
use netstage_agent::controller::ControllerError;
use netstage_agent::measure::{
    FlowOutcome, MeasurementDirection, MeasurementOutcome, MeasurementParameters, Method, OpenError,
    PreparedMeasurement, Upload, UploadError, UploadResult, UploadServer,
};
use netstage_agent_api::protocol::OrderRefusalKind;
use netstage_agent_api::results::TcpSample;
use netstage_agent_api::task::TcpOptions;
use netstage_core::measure::tune::{Setting, TransferSample};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::shared_key::PresharedKey;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

/// Sampling interval of the sender's TCP state.
pub const BIN: Duration = Duration::from_millis(100);
/// Maximum attempts at a transfer that is void.
const ATTEMPTS: u32 = 3;
/// Maximum wait while the server is busy, since it needs time to finish the previous transfer.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Interval between attempts to open a session.
const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// Counterpart of the transfers at the other host.
pub enum There {
    /// `netstage measure serve` with this key.
    Agent(PresharedKey),
    /// Server that only reads.
    Sink(UploadServer),
}

/// Transfers between this host and another.
pub struct Transfers<'a> {
    arguments: &'a Arguments,
    target: SocketAddr,
    there: There,
    own: Cell<Option<IpAddr>>,
}

impl<'a> Transfers<'a> {
    /// Creates the context for transfers.
    pub fn new(arguments: &'a Arguments, target: SocketAddr, there: There) -> Transfers<'a> {
        Transfers { arguments, target, there, own: Cell::new(None) }
    }

    /// Returns the local address of the transfers, once one was made.
    pub fn own(&self) -> Option<IpAddr> {
        self.own.get()
    }

    /// Makes a transfer and returns its sample, with a reason if all attempts were void. Returns `None` if interrupted.
    pub fn make(
        &self,
        setting: Setting,
        interrupted: &AtomicBool,
    ) -> Result<Option<(TransferSample, Option<String>)>, Failure> {
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
                let agent = if loss.agent == "there" { "the server" } else { "the local agent" };
                return Err(Failure::run(format!("lost {agent}: {}", loss.reason)));
            }
            if outcome.interrupted {
                return Ok(None);
            }
            let flow = outcome.flows.first().ok_or_else(|| Failure::run("the transfer has no result"))?;
            if let Some(error) = flow.errors().next() {
                return Err(Failure::run(format!("the transfer failed: {error}")));
            }
            let sample = self.sample_of(flow, &outcome);
            match outcome.void.first() {
                None => return Ok(Some((sample, None))),
                Some(reason) => last = Some((sample, Some(reason.to_string()))),
            }
        }
        Ok(last)
    }

    fn upload(
        &self,
        sink: &UploadServer,
        Setting { control, window }: Setting,
        interrupted: &AtomicBool,
    ) -> Result<Option<(TransferSample, Option<String>)>, Failure> {
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
                obstacle.message = format!("cannot limit the window at this host: {}", obstacle.message);
                refused(obstacle)
            }
            UploadError::CongestionControl(message) => Failure::missing(message),
            UploadError::Failed(message) => Failure::run(message),
        })?;
        let Some(UploadResult { own, acknowledged, measured, checks: looks }) = uploaded else {
            return Ok(None);
        };
        self.own.set(Some(own.ip()));
        let retransmissions = looks.last().map_or(0, |look| look.retransmissions);
        Ok(Some((self.sample(&looks, acknowledged, measured, retransmissions), None)))
    }

    fn open(
        &self,
        order: &MeasurementParameters,
        key: &PresharedKey,
    ) -> Result<PreparedMeasurement, Failure> {
        let deadline = std::time::Instant::now() + BUSY_TIMEOUT;
        loop {
            match PreparedMeasurement::open(order.clone(), self.target, Some(key.clone())) {
                Err(OpenError::Agents(ControllerError::Refused(refusals)))
                    if refusals[0].1.kind == OrderRefusalKind::Busy
                        && std::time::Instant::now() < deadline =>
                {
                    std::thread::sleep(RETRY);
                }
                opened => return opened.map_err(failure),
            }
        }
    }

    fn order(&self, Setting { control, window }: Setting) -> MeasurementParameters {
        let arguments = self.arguments;
        let tcp = TcpOptions {
            congestion_control: arguments.congestion.get(control).cloned(),
            window,
            ..TcpOptions::default()
        };
        MeasurementParameters {
            method: Method::Tcp(tcp),
            directions: if arguments.reverse {
                MeasurementDirection::Reverse
            } else {
                MeasurementDirection::Forward
            },
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

    fn sample_of(&self, flow: &FlowOutcome, outcome: &MeasurementOutcome) -> TransferSample {
        let samples = flow.sent.as_ref().map_or(&[][..], |sent| &sent.tcp);
        let retransmissions = flow.retransmissions.unwrap_or(0);
        self.sample(samples, flow.counts.received_bytes, outcome.measured, retransmissions)
    }

    /// Returns the sample for the search, without the omitted beginning of the transfer.
    fn sample(
        &self,
        samples: &[TcpSample],
        arrived: u64,
        measured: Duration,
        retransmissions: u64,
    ) -> TransferSample {
        let known = |time: u64| (time > 0).then_some(time);
        let first = (self.arguments.omit.0 / BIN.0) as usize;
        let settled = || samples.iter().skip(first).filter_map(|sample| known(sample.round_trip_ns));
        let (count, sum) = settled().fold((0, 0), |(count, sum), time| (count + 1, sum + time));
        let min = samples.iter().filter_map(|sample| known(sample.min_round_trip_ns)).min();
        TransferSample {
            goodput: arrived as f64 * 8.0 / measured.as_secs_f64().max(1e-9),
            min_round_trip: Duration(min.unwrap_or(0)),
            mean_round_trip: Duration(sum / u64::max(count, 1)),
            max_round_trip: Duration(settled().max().unwrap_or(0)),
            retransmissions,
        }
    }
}
