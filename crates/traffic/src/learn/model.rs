//! Model of flows.

use super::fit::{Quantity, parts};
use super::flows::CapturedFlow;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{
    CaptureModel, HEADER, LearnedExchange, LearnedPackets, LearnedRequests, MAX_CONCURRENT_CONNECTIONS,
    MAX_DATAGRAM_PAYLOAD, RecordedConnection, RecordedTurn, TransportKind,
};
use netstage_scenario::learned::GoodnessOfFit;

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

/// Times of the first and last packet of a connection in nanoseconds, and its turns.
type Connection = (u64, u64, Vec<RecordedTurn>);

fn exchanges(flows: &[&CapturedFlow], carriage: TransportKind) -> Option<FittedModel> {
    let mut sizes = Sizes::of(carriage);
    let mut connections: Vec<Connection> = flows
        .iter()
        .map(|flow| (flow.start_ns, flow.end_ns, turns(flow, &mut sizes)))
        .filter(|(.., turns)| !turns.is_empty())
        .collect();
    connections.sort_by_key(|(start, ..)| *start);
    if connections.is_empty() {
        return None;
    }
    let starts: Vec<u64> = connections.windows(2).map(|pair| (pair[1].0 - pair[0].0).max(1)).collect();
    // A single connection is repeated after its duration.
    let starts = if starts.is_empty() { vec![(connections[0].1 - connections[0].0).max(1)] } else { starts };
    let connection_parts = parts(&connections);
    let of_turns = |name, unit, field: fn(&RecordedTurn) -> u64| {
        let values = |part: &[Connection]| part.iter().flat_map(|(.., turns)| turns).map(field).collect();
        Quantity::new(name, unit, connection_parts.map(values))
    };
    let of_connections = |name, unit, field: fn(&[RecordedTurn]) -> u64| {
        let values = |part: &[Connection]| part.iter().map(|(.., turns)| field(turns)).collect();
        Quantity::new(name, unit, connection_parts.map(values))
    };
    let request = of_turns("request", "bytes", |turn| turn.request.into());
    let response = of_turns("response", "bytes", |turn| turn.response.into());
    let think = of_turns("think", "s", |turn| turn.think.0);
    let server = of_turns("server", "s", |turn| turn.server.0);
    let turns = of_connections("turns", "", |turns| turns.len() as u64);
    let starts = Quantity::new("starts", "s", parts(&starts).map(<[u64]>::to_vec));
    let bytes = of_connections("connection", "bytes", |turns| {
        turns.iter().map(|turn| u64::from(turn.request) + u64::from(turn.response)).sum()
    });
    let mut fit: Vec<_> =
        [&request, &response, &think, &server, &turns, &starts].map(Quantity::fit).into_iter().collect();
    fit.push(bytes.fit_connections(&turns, [&request, &response]));
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
        request: request.table(),
        response: response.table(),
        think: think.table(),
        server: server.table(),
        turns: turns.table(),
        starts: starts.table(),
        concurrent,
        recorded,
    });
    Some(FittedModel { model: CaptureModel { carriage, shape }, fit, clamped: sizes.clamped, complete })
}

/// Returns the maximum number of concurrent connections, within the limits of a model.
fn concurrent(connections: &[Connection]) -> u32 {
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
        let quantity = |what, unit, samples: &[u64]| {
            Quantity::new(&format!("{name}.{what}"), unit, parts(samples).map(<[u64]>::to_vec))
        };
        let (size, gap) = (quantity("size", "bytes", &bytes), quantity("gap", "s", &gaps));
        fits.extend([size.fit(), gap.fit()]);
        Some(LearnedPackets { size: size.table(), gap: gap.table(), recorded })
    };
    let (up, down) = (direction(true, "up"), direction(false, "down"));
    if up.is_none() && down.is_none() {
        return None;
    }
    let model =
        CaptureModel { carriage: TransportKind::Datagram, shape: LearnedExchange::OneWay { up, down } };
    Some(FittedModel { model, fit: fits, clamped: sizes.clamped, complete })
}
