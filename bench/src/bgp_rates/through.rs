//! From one session to another, through a router or without one between.

use netstage_core::time::{Duration, Instant};
use netstage_routing::bgp::inject::Order;
use netstage_routing::bgp::machine::{Event, Settings};
use netstage_routing::bgp::nlri::{Family, RouteDistinguisher};
use netstage_routing::bgp::open::Identity;
use netstage_routing::bgp::path::AsPath;
use netstage_routing::bgp::receive::{ExpectedNextHop, Received};
use netstage_routing::bgp::speaker::{self, Command, Endpoint, Report};
use netstage_routing::bgp::table::{Pattern, Spread, Table};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// How long a router may take before it counts as stuck.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);
/// A router with nothing to do has this long to become idle.
const REST: std::time::Duration = std::time::Duration::from_secs(2);

#[derive(Debug)]
enum Happened {
    Injector(Instant, Report),
    SinkUp,
    SinkDown(String),
    /// The number of routes the sink has, whenever a message has changed it.
    SinkHas(Instant, usize),
    Compare(Box<Received>),
}

/// Prints one line of JSON. Each session is named by its own address and its peer's; where those are each
/// other's, the sink waits for the injector to connect.
pub fn run(injector: (&str, &str), sink: (&str, &str), count: &str, family: &str) {
    let end = |(local, peer): (&str, &str), number| End {
        local: local.parse().expect("an address"),
        peer: peer.parse().expect("an address"),
        number,
        direct: injector.1 == sink.0,
    };
    let (injector, sink) = (end(injector, INJECTOR), end(sink, SINK));
    let count: u32 = count.parse().expect("a number of routes");
    let table = Arc::new(table(family, injector.local, count));
    let family = table.families()[0];
    let epoch = std::time::Instant::now();
    let (happened, events) = channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("threads");
    let (inject, commands) = unbounded_channel();
    let teller = happened.clone();
    let injecting = speaker::run(injector.settings(family), injector.endpoint(), epoch, commands, {
        move |at, report| {
            let _ = teller.send(Happened::Injector(at, report));
        }
    });
    let injecting = runtime.spawn(injecting);
    let (collect, commands) = unbounded_channel();
    let receiving = sink_task(sink.settings(family), sink.endpoint(), epoch, commands, happened, count);
    let receiving = runtime.spawn(receiving);
    let outcome = measure(&inject, &events, &table, epoch);
    for commands in [&inject, &collect] {
        let _ = commands.send(Command::Stop);
    }
    runtime.block_on(async {
        let _ = injecting.await;
        let _ = receiving.await;
    });
    println!("{}", outcome.unwrap_or_else(|error| format!("{{\"error\": {error:?}}}")));
}

async fn sink_task(
    settings: Settings,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    commands: tokio::sync::mpsc::UnboundedReceiver<Command>,
    happened: Sender<Happened>,
    count: u32,
) -> std::io::Result<()> {
    let mut received = Received::new();
    speaker::run(settings, endpoint, epoch, commands, move |at, report| {
        let told = match report {
            Report::Session(Event::Established(_)) => Happened::SinkUp,
            Report::Session(Event::Down(down)) => Happened::SinkDown(down.to_string()),
            Report::Session(Event::Update(update)) => {
                let before = received.len();
                received.take(&update);
                if before < count as usize && received.len() >= count as usize {
                    let _ = happened.send(Happened::SinkHas(at, received.len()));
                    Happened::Compare(Box::new(received.clone()))
                } else {
                    Happened::SinkHas(at, received.len())
                }
            }
            _ => return,
        };
        let _ = happened.send(told);
    })
    .await
}

/// Waits for what `is_it` finds.
fn wait<T>(
    events: &Receiver<Happened>,
    what: &str,
    mut is_it: impl FnMut(Happened) -> Option<T>,
) -> Result<T, String> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(Happened::SinkDown(reason)) => return Err(format!("sink: {reason}")),
            Ok(Happened::Injector(_, Report::Session(Event::Down(down)))) => {
                return Err(format!("injector: {down}"));
            }
            Ok(happened) => {
                if let Some(found) = is_it(happened) {
                    return Ok(found);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(format!("no {what} within {} s", PATIENCE.as_secs()));
            }
        }
    }
}

fn measure(
    inject: &UnboundedSender<Command>,
    events: &Receiver<Happened>,
    table: &Arc<Table>,
    epoch: std::time::Instant,
) -> Result<String, String> {
    let (mut injector_up, mut sink_up) = (false, false);
    wait(events, "sessions", |happened| {
        injector_up |= matches!(happened, Happened::Injector(_, Report::Session(Event::Established(_))));
        sink_up |= matches!(happened, Happened::SinkUp);
        (injector_up && sink_up).then_some(())
    })?;
    std::thread::sleep(REST);
    while events.try_recv().is_ok() {}
    let mut parts = Vec::new();
    for (name, command, wanted) in [
        ("announce", Command::Announce(table.clone(), Order::Packed), table.len()),
        ("withdraw", Command::Withdraw(table.clone(), Order::Packed), 0),
    ] {
        let start = Instant(epoch.elapsed().as_nanos() as u64);
        inject.send(command).map_err(|_| "the injector is gone".to_string())?;
        let (mut sent, mut first, mut last) = (None, None, None);
        wait(events, name, |happened| {
            match happened {
                Happened::Injector(at, Report::Sent(_)) => sent = Some(at),
                Happened::SinkHas(at, has) => {
                    first.get_or_insert(at);
                    if has == wanted {
                        last = Some(at);
                    }
                }
                _ => {}
            }
            (sent.is_some() && last.is_some()).then_some(())
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
                Happened::Compare(received) => Some(received),
                _ => None,
            })?;
            let found = received.differences(table, &table.families(), ExpectedNextHop::Any);
            let hops: Vec<String> = received.next_hops().keys().map(|hop| format!("\"{hop}\"")).collect();
            parts.push(format!("\"differences\": {}", found.counts.iter().sum::<usize>()));
            parts.push(format!("\"updates\": {}", received.tally().updates));
            parts.push(format!("\"next_hops\": [{}]", hops.join(", ")));
        }
    }
    Ok(format!("{{\"routes\": {}, {}}}", table.len(), parts.join(", ")))
}

fn table(family: &str, next_hop: IpAddr, count: u32) -> Table {
    let (family, first) = match family {
        "ipv4" => (Family::Ipv4Unicast, "1.0.0.0/24"),
        "ipv6" => (Family::Ipv6Unicast, "2a00::/48"),
        "labelled" => (Family::Ipv4Labelled, "1.0.0.0/24"),
        "vpnv4" => (Family::Vpnv4, "1.0.0.0/24"),
        _ => panic!("no family: {family}"),
    };
    let pattern = Pattern {
        family,
        first: first.parse().expect("a prefix"),
        count,
        next_hops: vec![next_hop],
        spread: Spread::InTurn,
        as_path: AsPath::sequence(&[65_010]),
        first_label: family.is_labelled().then_some(16),
        distinguisher: (family == Family::Vpnv4)
            .then_some(RouteDistinguisher([0, 0, 0xfd, 0xea, 0, 0, 0, 1])),
    };
    let mut table = Table::new();
    pattern.append_to(&mut table).expect("there are as many prefixes");
    table
}

const INJECTOR: u8 = 1;
const SINK: u8 = 2;

/// One of the two sessions.
struct End {
    local: IpAddr,
    peer: IpAddr,
    number: u8,
    /// The peer is the other end, and no router.
    direct: bool,
}

impl End {
    fn listens(&self) -> bool {
        self.direct && self.number == SINK
    }

    fn settings(&self, family: Family) -> Settings {
        let identifier = match self.local {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => [198, 51, 100, self.number].into(),
        };
        let peer = if self.direct { INJECTOR + SINK - self.number } else { 0 };
        Settings {
            identity: Identity {
                local_as: 65_000 + u32::from(self.number),
                peer_as: Some(65_000 + u32::from(peer)),
                identifier,
                hold_time: Duration::from_secs(180),
                families: vec![family],
                four_octet_as: true,
            },
            connects: !self.listens(),
            connect_retry: Duration::from_secs(1),
            restart: Some(Duration::from_secs(1)),
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            local: self.local,
            peer: self.peer,
            peer_port: 179,
            listen_port: self.listens().then_some(179),
            md5_key: None,
            security_hops: None,
        }
    }
}
