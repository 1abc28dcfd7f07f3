//! Model of flows, and its goodness of fit.

use super::flows::CapturedFlow;
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{
    CaptureModel, HEADER, LearnedExchange, LearnedPackets, LearnedRequests, MAX_CONCURRENT_CONNECTIONS,
    MAX_DATAGRAM_PAYLOAD, Quantiles, RecordedConnection, RecordedTurn, TransportKind,
};
use netstage_scenario::learned::GoodnessOfFit;

/// Points of a quantile table.
const POINTS: usize = 513;
/// Maximum number of recorded turns, or of packets in each direction, for a replay.
pub const MAX_RECORDED: usize = 20_000;
/// Mean number of packets per UDP flow above which flows are streams instead of requests.
const STREAM_PACKETS: u64 = 20;

/// Model and its fit to the flows.
pub struct FittedModel {
    /// Learned model.
    pub model: CaptureModel,
    /// Goodness of fit of each quantity.
    pub fit: Vec<GoodnessOfFit>,
    /// Number of messages shortened or padded to a valid size.
    pub clamped: u64,
    /// Set if the recording contains all messages.
    pub complete: bool,
}

/// Fits a model to the flows of a service. Returns `None` if they carry no payload.
pub fn fit_model(flows: &[&CapturedFlow]) -> Option<FittedModel> {
    let tcp = flows.first()?.tcp;
    let packets: u64 = flows.iter().map(|flow| flow.packets).sum();
    if tcp || packets / flows.len() as u64 <= STREAM_PACKETS {
        exchanges(flows, if tcp { TransportKind::Stream } else { TransportKind::Datagram })
    } else {
        one_way(flows)
    }
}

/// Range of valid message sizes.
struct Sizes {
    max: u64,
    clamped: u64,
}

impl Sizes {
    fn of(carriage: TransportKind) -> Sizes {
        let max = match carriage {
            TransportKind::Stream => u32::MAX,
            TransportKind::Datagram => MAX_DATAGRAM_PAYLOAD,
        };
        Sizes { max: max.into(), clamped: 0 }
    }

    fn clamp(&mut self, bytes: u64) -> u32 {
        let clamped = bytes.clamp(HEADER.into(), self.max);
        self.clamped += u64::from(clamped != bytes);
        clamped as u32
    }
}

fn exchanges(flows: &[&CapturedFlow], carriage: TransportKind) -> Option<FittedModel> {
    let mut sizes = Sizes::of(carriage);
    let mut connections: Vec<(u64, u64, Vec<RecordedTurn>)> = flows
        .iter()
        .map(|flow| (flow.start_ns, flow.end_ns, turns(flow, &mut sizes)))
        .filter(|(.., turns)| !turns.is_empty())
        .collect();
    connections.sort_by_key(|(start, ..)| *start);
    let all: Vec<RecordedTurn> = connections.iter().flat_map(|(.., turns)| turns).copied().collect();
    if all.is_empty() {
        return None;
    }
    let starts: Vec<u64> = connections.windows(2).map(|pair| (pair[1].0 - pair[0].0).max(1)).collect();
    // A single connection is repeated after its duration.
    let starts = if starts.is_empty() { vec![(connections[0].1 - connections[0].0).max(1)] } else { starts };
    let values = |field: fn(&RecordedTurn) -> u64| -> Vec<u64> { all.iter().map(field).collect() };
    let quantities = [
        ("request", "bytes", values(|turn| turn.request.into())),
        ("response", "bytes", values(|turn| turn.response.into())),
        ("think", "s", values(|turn| turn.think.0)),
        ("server", "s", values(|turn| turn.server.0)),
        ("turns", "", connections.iter().map(|(.., turns)| turns.len() as u64).collect()),
        ("starts", "s", starts),
    ];
    let fit = quantities.iter().map(|(name, unit, samples)| fit(name, unit, samples)).collect();
    let [request, response, think, server, turns, starts] =
        quantities.map(|(.., samples)| Quantiles::from_samples(samples, POINTS));
    let mut recorded = Vec::new();
    let (mut recorded_turns, mut previous_start) = (0, connections[0].0);
    for (start, _, turns) in &connections {
        if recorded_turns + turns.len() > MAX_RECORDED {
            break;
        }
        recorded_turns += turns.len();
        recorded.push(RecordedConnection { after: Duration(start - previous_start), turns: turns.clone() });
        previous_start = *start;
    }
    let complete = recorded.len() == connections.len();
    let concurrent = concurrent(&connections);
    let shape = LearnedExchange::Exchanges(LearnedRequests {
        request,
        response,
        think,
        server,
        turns,
        starts,
        concurrent,
        recorded,
    });
    Some(FittedModel { model: CaptureModel { carriage, shape }, fit, clamped: sizes.clamped, complete })
}

/// Returns the maximum number of concurrent connections, within the limits of a model.
fn concurrent(connections: &[(u64, u64, Vec<RecordedTurn>)]) -> u32 {
    let mut edges: Vec<(u64, i32)> =
        connections.iter().flat_map(|(start, end, _)| [(*start, 1), (*end, -1)]).collect();
    edges.sort_unstable();
    let (mut open, mut max_open) = (0, 1);
    for (_, change) in edges {
        open += change;
        max_open = max_open.max(open);
    }
    (max_open as u32).clamp(1, MAX_CONCURRENT_CONNECTIONS)
}

/// Returns the messages of a flow as requests and responses. A server message without a request becomes the response
/// to a request of the smallest size. A request without a response gets a response of zero bytes.
fn turns(flow: &CapturedFlow, sizes: &mut Sizes) -> Vec<RecordedTurn> {
    let mut turns = Vec::new();
    let mut pending: Option<(RecordedTurn, u64)> = None;
    let mut last_end = flow.start_ns;
    for message in &flow.messages {
        let since_last = message.first_ns.saturating_sub(last_end);
        if message.by_client {
            turns.extend(pending.take().map(|(turn, _)| turn));
            // The pause includes the round trip to the client, which is not think time.
            let think = Duration(since_last.saturating_sub(flow.to_client_ns));
            let request = sizes.clamp(message.bytes);
            pending =
                Some((RecordedTurn { think, request, server: Duration::ZERO, response: 0 }, message.last_ns));
        } else {
            let without_request = || {
                (
                    RecordedTurn {
                        think: Duration::ZERO,
                        request: HEADER,
                        server: Duration::ZERO,
                        response: 0,
                    },
                    last_end,
                )
            };
            let (turn, request_end) = pending.take().unwrap_or_else(without_request);
            let server = message.first_ns.saturating_sub(request_end).saturating_sub(flow.to_server_ns);
            turns.push(RecordedTurn {
                server: Duration(server),
                response: sizes.clamp(message.bytes),
                ..turn
            });
        }
        last_end = message.last_ns;
    }
    turns.extend(pending.map(|(turn, _)| turn));
    turns
}

fn one_way(flows: &[&CapturedFlow]) -> Option<FittedModel> {
    let mut sizes = Sizes::of(TransportKind::Datagram);
    let mut complete = flows.len() == 1;
    let mut fits = Vec::new();
    let longest = flows.iter().max_by_key(|flow| flow.packets)?;
    let mut direction = |by_client: bool, name: &str| -> Option<LearnedPackets> {
        let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
        for flow in flows {
            let packets: Vec<_> =
                flow.messages.iter().filter(|message| message.by_client == by_client).collect();
            bytes.extend(packets.iter().map(|message| u64::from(sizes.clamp(message.bytes))));
            gaps.extend(packets.windows(2).map(|pair| pair[1].first_ns - pair[0].first_ns));
        }
        // Packets that all have one timestamp give no gaps.
        if bytes.is_empty() || gaps.iter().all(|gap| *gap == 0) {
            return None;
        }
        let mut previous_ns = longest.start_ns;
        let mut recorded = Vec::new();
        for message in longest.messages.iter().filter(|message| message.by_client == by_client) {
            if recorded.len() == MAX_RECORDED {
                complete = false;
                break;
            }
            recorded.push((Duration(message.first_ns - previous_ns), sizes.clamp(message.bytes)));
            previous_ns = message.first_ns;
        }
        fits.push(fit(&format!("{name}.size"), "bytes", &bytes));
        fits.push(fit(&format!("{name}.gap"), "s", &gaps));
        let (size, gap) = (Quantiles::from_samples(bytes, POINTS), Quantiles::from_samples(gaps, POINTS));
        Some(LearnedPackets { size, gap, recorded })
    };
    let (up, down) = (direction(true, "up"), direction(false, "down"));
    if up.is_none() && down.is_none() {
        return None;
    }
    let model =
        CaptureModel { carriage: TransportKind::Datagram, shape: LearnedExchange::OneWay { up, down } };
    Some(FittedModel { model, fit: fits, clamped: sizes.clamped, complete })
}

/// Compares the samples of the capture with samples drawn from the model's table.
fn fit(name: &str, unit: &str, samples: &[u64]) -> GoodnessOfFit {
    let table = Quantiles::from_samples(samples.to_vec(), POINTS);
    let mut stream = RandomStream::new(1, name);
    let count = samples.len().clamp(1_000, 100_000);
    let mut drawn: Vec<u64> = (0..count).map(|_| table.draw(&mut stream)).collect();
    let scale = if unit == "s" { 1e-9 } else { 1.0 };
    let (mean, variation) = moments(samples);
    let (mean_drawn, variation_drawn) = moments(&drawn);
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    drawn.sort_unstable();
    let (n, m) = (sorted.len() as f64, drawn.len() as f64);
    GoodnessOfFit {
        quantity: name.to_owned(),
        unit: unit.to_owned(),
        samples: samples.len() as u64,
        mean: mean * scale,
        mean_drawn: mean_drawn * scale,
        variation,
        variation_drawn,
        autocorrelation: autocorrelation(samples, mean),
        distance: distance(&sorted, &drawn),
        // Asymptotic quantile of the two-sample Kolmogorov-Smirnov statistic.
        distance_at_1_percent: (1.628 * ((n + m) / (n * m)).sqrt()).min(1.0),
    }
}

/// Returns the mean and the coefficient of variation.
fn moments(samples: &[u64]) -> (f64, f64) {
    let n = samples.len().max(1) as f64;
    let mean = samples.iter().map(|value| *value as f64).sum::<f64>() / n;
    let variance = samples.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / n;
    (mean, if mean > 0.0 { variance.sqrt() / mean } else { 0.0 })
}

/// Returns the correlation of each sample with the next.
fn autocorrelation(samples: &[u64], mean: f64) -> f64 {
    let deviation = |value: &u64| *value as f64 - mean;
    let variance: f64 = samples.iter().map(|value| deviation(value).powi(2)).sum();
    let covariance: f64 = samples.windows(2).map(|pair| deviation(&pair[0]) * deviation(&pair[1])).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

/// Returns the Kolmogorov-Smirnov distance of two sorted samples.
fn distance(one: &[u64], other: &[u64]) -> f64 {
    let (mut i, mut j, mut max) = (0, 0, 0.0_f64);
    while i < one.len() && j < other.len() {
        let value = one[i].min(other[j]);
        i += one[i..].iter().take_while(|sample| **sample <= value).count();
        j += other[j..].iter().take_while(|sample| **sample <= value).count();
        max = max.max((i as f64 / one.len() as f64 - j as f64 / other.len() as f64).abs());
    }
    max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_and_autocorrelation_match_known_values() {
        assert_eq!(distance(&[1, 2, 3, 4], &[1, 2, 3, 4]), 0.0);
        assert_eq!(distance(&[1, 2], &[3, 4]), 1.0);
        assert_eq!(distance(&[1, 2, 3, 4], &[3, 4, 5, 6]), 0.5);
        assert!((autocorrelation(&[1, 3, 1, 3, 1, 3], 2.0) + 5.0 / 6.0).abs() < 1e-12);
    }
}
