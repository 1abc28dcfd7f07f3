//! Routes from one session to another, through a router or directly.

use netstage_core::time::{Duration, Instant};
use netstage_routing::bgp::inject::SendOrder;
use netstage_routing::bgp::nlri::{BgpFamily, NlriPrefix, RouteDistinguisher};
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::AsPath;
use netstage_routing::bgp::receive::{ExpectedNextHop, ReceivedRoutes};
use netstage_routing::bgp::session::{BgpEvent, BgpSettings};
use netstage_routing::bgp::speaker::{self, Endpoint, SpeakerCommand, SpeakerReport};
use netstage_routing::bgp::table::{BgpTable, NextHopAssignment, Pattern};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Time after which a router counts as stuck.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);
/// Time for an idle router to settle.
const SETTLE: std::time::Duration = std::time::Duration::from_secs(2);

/// Command for a table.
type TableCommand = fn(Arc<BgpTable>, SendOrder) -> SpeakerCommand;

#[derive(Debug)]
enum BenchEvent {
    Injector(Instant, SpeakerReport),
    SinkUp,
    SinkDown(String),
    /// Number of routes in the sink after each message.
    SinkHas(Instant, usize),
    Compare(Box<ReceivedRoutes>),
}

/// Prints one line of JSON. Each session is given by its local and its peer's address; if these are those of
/// the other session, the sink waits for the injector to connect.
pub fn run(injectors: &[(&str, &str)], sink: (&str, &str), count: &str, family: &str) {
    let end = |(local, peer): (&str, &str), number| BgpEndpoint {
        local: local.parse().expect("an address"),
        peer: peer.parse().expect("an address"),
        number,
        direct: injectors[0].1 == sink.0,
    };
    let sink = end(sink, SINK);
    let count: u32 = count.parse().expect("a number of routes");
    let epoch = std::time::Instant::now();
    let (sender, events) = channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("threads");
    let (mut injecting, mut tasks, mut expected) = (Vec::new(), Vec::new(), BgpTable::new());
    for (index, &injector) in injectors.iter().enumerate() {
        let injector = end(injector, injector_number(index));
        // A route of its own, sent last, shows that the router has processed all routes of the injector.
        let own = (injectors.len() > 1).then_some(index as u32);
        let table = Arc::new(table(family, injector.local, count, own));
        append(&mut expected, family, injector.local, if index == 0 { count } else { 0 }, own, count);
        let (commands, received) = unbounded_channel();
        let reports = sender.clone();
        let settings = injector.settings(table.families()[0]);
        tasks.push(runtime.spawn(speaker::run(settings, injector.endpoint(), epoch, received, {
            move |at, report| {
                let _ = reports.send(BenchEvent::Injector(at, report));
            }
        })));
        injecting.push((commands, table));
    }
    let (collect, commands) = unbounded_channel();
    let settings = sink.settings(expected.families()[0]);
    let wanted = expected.len();
    tasks.push(runtime.spawn(sink_task(settings, sink.endpoint(), epoch, commands, sender, wanted)));
    let outcome = measure(&injecting, &events, &expected, epoch);
    for commands in injecting.iter().map(|(commands, _)| commands).chain([&collect]) {
        let _ = commands.send(SpeakerCommand::Stop);
    }
    runtime.block_on(async {
        for task in tasks {
            let _ = task.await;
        }
    });
    println!("{}", outcome.unwrap_or_else(|error| format!("{{\"error\": {error:?}}}")));
}

async fn sink_task(
    settings: BgpSettings,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    commands: tokio::sync::mpsc::UnboundedReceiver<SpeakerCommand>,
    sender: Sender<BenchEvent>,
    wanted: usize,
) -> std::io::Result<()> {
    let mut received = ReceivedRoutes::new();
    speaker::run(settings, endpoint, epoch, commands, move |at, report| {
        let event = match report {
            SpeakerReport::Session(BgpEvent::Established(_)) => BenchEvent::SinkUp,
            SpeakerReport::Session(BgpEvent::Down(down)) => BenchEvent::SinkDown(down.to_string()),
            SpeakerReport::Session(BgpEvent::Update(update)) => {
                let before = received.len();
                received.take(&update);
                if before < wanted && received.len() >= wanted {
                    let _ = sender.send(BenchEvent::SinkHas(at, received.len()));
                    BenchEvent::Compare(Box::new(received.clone()))
                } else {
                    BenchEvent::SinkHas(at, received.len())
                }
            }
            _ => return,
        };
        let _ = sender.send(event);
    })
    .await
}

/// Waits until `select` accepts an event.
fn wait<T>(
    events: &Receiver<BenchEvent>,
    what: &str,
    mut select: impl FnMut(BenchEvent) -> Option<T>,
) -> Result<T, String> {
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(BenchEvent::SinkDown(reason)) => return Err(format!("sink: {reason}")),
            Ok(BenchEvent::Injector(_, SpeakerReport::Session(BgpEvent::Down(down)))) => {
                return Err(format!("injector: {down}"));
            }
            Ok(happened) => {
                if let Some(found) = select(happened) {
                    return Ok(found);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(format!("no {what} within {} s", TIMEOUT.as_secs()));
            }
        }
    }
}

fn measure(
    injecting: &[(UnboundedSender<SpeakerCommand>, Arc<BgpTable>)],
    events: &Receiver<BenchEvent>,
    table: &BgpTable,
    epoch: std::time::Instant,
) -> Result<String, String> {
    let (mut injectors_up, mut sink_up) = (0, false);
    wait(events, "sessions", |happened| {
        let is_up =
            matches!(happened, BenchEvent::Injector(_, SpeakerReport::Session(BgpEvent::Established(_))));
        injectors_up += usize::from(is_up);
        sink_up |= matches!(happened, BenchEvent::SinkUp);
        (injectors_up == injecting.len() && sink_up).then_some(())
    })?;
    std::thread::sleep(SETTLE);
    while events.try_recv().is_ok() {}
    let mut parts = Vec::new();
    let commands: [(&str, TableCommand, usize); 2] =
        [("announce", SpeakerCommand::Announce, table.len()), ("withdraw", SpeakerCommand::Withdraw, 0)];
    for (name, command, wanted) in commands {
        let start = Instant(epoch.elapsed().as_nanos() as u64);
        for (inject, table) in injecting {
            let sent = inject.send(command(table.clone(), SendOrder::Packed));
            sent.map_err(|_| "an injector has ended".to_string())?;
        }
        let (mut sent, mut first, mut last, mut pending) = (None, None, None, injecting.len());
        wait(events, name, |happened| {
            match happened {
                BenchEvent::Injector(at, SpeakerReport::Sent(_)) => {
                    (sent, pending) = (Some(at), pending - 1);
                }
                BenchEvent::SinkHas(at, count) => {
                    first.get_or_insert(at);
                    if count == wanted {
                        last = Some(at);
                    }
                }
                _ => {}
            }
            (pending == 0 && last.is_some()).then_some(())
        })?;
        let ms = |at: Option<Instant>| at.unwrap_or_default().since(start).as_secs_f64() * 1e3;
        parts.push(format!(
            "\"{name}\": {{\"sent_ms\": {:.2}, \"first_ms\": {:.2}, \"all_ms\": {:.2}}}",
            ms(sent),
            ms(first),
            ms(last)
        ));
        if name == "announce" {
            let received = wait(events, "table", |happened| match happened {
                BenchEvent::Compare(received) => Some(received),
                _ => None,
            })?;
            let differences = received.differences(table, &table.families(), ExpectedNextHop::Any);
            let hops: Vec<String> = received.next_hops().keys().map(|hop| format!("\"{hop}\"")).collect();
            parts.push(format!("\"differences\": {}", differences.counts.iter().sum::<usize>()));
            parts.push(format!("\"updates\": {}", received.update_counters().updates));
            parts.push(format!("\"next_hops\": [{}]", hops.join(", ")));
        }
    }
    Ok(format!("{{\"routes\": {}, {}}}", table.len(), parts.join(", ")))
}

/// Returns a table of `count` routes, and a further one for the injector with this index.
fn table(family: &str, next_hop: IpAddr, count: u32, own: Option<u32>) -> BgpTable {
    let mut table = BgpTable::new();
    append(&mut table, family, next_hop, count, own, count);
    table
}

/// Appends the first `common` routes of those that all injectors announce, `count` in number, and the own route of one.
fn append(table: &mut BgpTable, family: &str, next_hop: IpAddr, common: u32, own: Option<u32>, count: u32) {
    let (family, first) = match family {
        "ipv4" => (BgpFamily::Ipv4Unicast, "1.0.0.0/24"),
        "ipv6" => (BgpFamily::Ipv6Unicast, "2a00::/48"),
        "labeled" => (BgpFamily::Ipv4Labeled, "1.0.0.0/24"),
        "vpnv4" => (BgpFamily::Vpnv4, "1.0.0.0/24"),
        _ => panic!("unknown family {family}; use ipv4, ipv6, labeled or vpnv4"),
    };
    let first: NlriPrefix = first.parse().expect("a prefix");
    let own = own.map(|index| (count + index, 1));
    for (offset, count) in [(0, common)].into_iter().chain(own) {
        let pattern = Pattern {
            family,
            first: first.successor(offset).expect("the address space has enough prefixes"),
            count,
            next_hops: vec![next_hop],
            spread: NextHopAssignment::InTurn,
            as_path: AsPath::sequence(&[65_010]),
            first_label: family.is_labeled().then_some(16 + offset),
            distinguisher: (family == BgpFamily::Vpnv4)
                .then_some(RouteDistinguisher([0, 0, 0xfd, 0xea, 0, 0, 0, 1])),
        };
        pattern.append_to(table).expect("the address space has enough prefixes");
    }
}

/// Returns the number of an injector's session, the last digits of its AS number.
fn injector_number(index: usize) -> u8 {
    if index == 0 { INJECTOR } else { 10 + index as u8 }
}

const INJECTOR: u8 = 1;
const SINK: u8 = 2;

/// One of the two sessions.
struct BgpEndpoint {
    local: IpAddr,
    peer: IpAddr,
    number: u8,
    /// Whether the peer is the other session instead of a router.
    direct: bool,
}

impl BgpEndpoint {
    fn is_listener(&self) -> bool {
        self.direct && self.number == SINK
    }

    fn settings(&self, family: BgpFamily) -> BgpSettings {
        let identifier = match self.local {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => [198, 51, 100, self.number].into(),
        };
        let peer = if self.direct { INJECTOR + SINK - self.number } else { 0 };
        BgpSettings {
            identity: OpenParameters {
                local_as: 65_000 + u32::from(self.number),
                peer_as: Some(65_000 + u32::from(peer)),
                identifier,
                hold_time: Duration::from_secs(180),
                families: vec![family],
                four_octet_as: true,
            },
            connects: !self.is_listener(),
            connect_retry: Duration::from_secs(1),
            restart: Some(Duration::from_secs(1)),
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            local: self.local,
            peer: self.peer,
            peer_port: 179,
            listen_port: self.is_listener().then_some(179),
            md5_key: None,
            security_hops: None,
        }
    }
}
