//! Two BGP speakers on this host, over TCP.

#[path = "../../../tests/support/reports.rs"]
mod reports;

use netstage_core::time::Duration;
use netstage_harness::skip;
use netstage_routing::bgp::inject::SendOrder;
use netstage_routing::bgp::nlri::{BgpFamily, Nlri};
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::{AsPath, PathAttributes};
use netstage_routing::bgp::receive::{ExpectedNextHop, ReceivedRoutes};
use netstage_routing::bgp::session::{BgpEvent, BgpSettings};
use netstage_routing::bgp::speaker::{Endpoint, SpeakerCommand, SpeakerReport, run};
use netstage_routing::bgp::table::BgpTable;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn settings(number: u8, connects: bool) -> BgpSettings {
    BgpSettings {
        identity: OpenParameters {
            local_as: 65_000 + u32::from(number),
            peer_as: None,
            identifier: [192, 0, 2, number].into(),
            hold_time: Duration::from_secs(90),
            families: BgpFamily::ALL.to_vec(),
            four_octet_as: true,
        },
        connects,
        connect_retry: Duration::from_millis(50),
        restart: Some(Duration::from_millis(50)),
    }
}

/// The second speaker listens, the first one connects.
fn endpoints() -> [Endpoint; 2] {
    // A port that was free a moment ago.
    let port = StdListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port();
    let address = [127, 0, 0, 1].into();
    let endpoint = Endpoint {
        local: address,
        peer: address,
        peer_port: port,
        listen_port: None,
        md5_key: None,
        security_hops: None,
    };
    [endpoint.clone(), Endpoint { listen_port: Some(port), ..endpoint }]
}

type Reports = tokio::sync::mpsc::UnboundedReceiver<SpeakerReport>;

/// Starts a speaker; returns its command sender and its reports.
fn start(settings: BgpSettings, endpoint: Endpoint) -> (UnboundedSender<SpeakerCommand>, Reports) {
    let (commands, receiver) = unbounded_channel();
    let (sender, reports) = unbounded_channel();
    let epoch = std::time::Instant::now();
    tokio::spawn(run(settings, endpoint, epoch, receiver, move |_, report| {
        let _ = sender.send(report);
    }));
    (commands, reports)
}

/// Returns the first value that `select` extracts from a report.
async fn wait_for<T>(reports: &mut Reports, select: impl FnMut(SpeakerReport) -> Option<T>) -> T {
    reports::first(reports, PATIENCE, "a report", select).await
}

async fn established(reports: &mut Reports) {
    wait_for(reports, |report| {
        matches!(report, SpeakerReport::Session(BgpEvent::Established(_))).then_some(())
    })
    .await
}

fn table(count: u32) -> Arc<BgpTable> {
    let mut table = BgpTable::new();
    let path = PathAttributes::new([192, 0, 2, 1].into(), AsPath::default());
    let group = table.group(BgpFamily::Ipv4Unicast, path).unwrap();
    for number in 0..count {
        let prefix = "1.0.0.0/24"
            .parse::<netstage_routing::bgp::nlri::NlriPrefix>()
            .unwrap()
            .successor(number)
            .unwrap();
        table.push(group, &Nlri::unicast(prefix));
    }
    Arc::new(table)
}

#[tokio::main(flavor = "current_thread")]
async fn routes_are_announced_refreshed_and_withdrawn() {
    let [connecting, listening] = endpoints();
    let (collect, mut there) = start(settings(2, false), listening);
    let (inject, mut here) = start(settings(1, true), connecting);
    let table = table(30_000);
    inject.send(SpeakerCommand::Announce(table.clone(), SendOrder::Packed)).unwrap();
    let mut received = ReceivedRoutes::new();
    // The routes arrive, whether announced before or after the session was established.
    wait_for(&mut there, |report| match report {
        SpeakerReport::Session(BgpEvent::Update(update)) => {
            received.take(&update);
            (received.len() == table.len()).then_some(())
        }
        _ => None,
    })
    .await;
    let families = [BgpFamily::Ipv4Unicast];
    assert!(received.differences(&table, &families, ExpectedNextHop::AsListed).is_empty());
    let sent = wait_for(&mut here, |report| match report {
        SpeakerReport::Sent(written) if written.routes > 0 => Some(written),
        _ => None,
    })
    .await;
    assert_eq!(sent.routes, table.len());

    collect.send(SpeakerCommand::Refresh(BgpFamily::Ipv4Unicast)).unwrap();
    let mut again = ReceivedRoutes::new();
    wait_for(&mut there, |report| match report {
        SpeakerReport::Session(BgpEvent::Update(update)) => {
            again.take(&update);
            (again.len() == table.len()).then_some(())
        }
        _ => None,
    })
    .await;

    inject.send(SpeakerCommand::Withdraw(table.clone(), SendOrder::Packed)).unwrap();
    wait_for(&mut there, |report| match report {
        SpeakerReport::Session(BgpEvent::Update(update)) => {
            again.take(&update);
            again.is_empty().then_some(())
        }
        _ => None,
    })
    .await;

    inject.send(SpeakerCommand::Stop).unwrap();
    let down = wait_for(&mut there, |report| match report {
        SpeakerReport::Session(BgpEvent::Down(down)) => Some(down),
        _ => None,
    })
    .await;
    assert_eq!(down.to_string(), "received: administrative shutdown (6/2)");
}

#[tokio::main(flavor = "current_thread")]
async fn a_session_needs_the_same_md5_key() {
    let with_key = |endpoint: Endpoint, key: &[u8]| Endpoint { md5_key: Some(key.to_vec()), ..endpoint };
    let [connecting, listening] = endpoints();
    let probe = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let signed = netstage_host::ports::tcp_protection::sign_with_md5(
        std::os::fd::AsFd::as_fd(&probe),
        [127, 0, 0, 1].into(),
        b"secret",
    );
    if let Err(error) = signed {
        skip(format!("this kernel has no TCP_MD5SIG: {error}"));
    }
    let (_commands, mut there) = start(settings(2, false), with_key(listening, b"secret"));
    let (_other, mut other) = start(settings(1, true), with_key(connecting.clone(), b"wrong"));
    let attempt = Duration::from_millis(500);
    let nothing = tokio::time::timeout(std::time::Duration::from_nanos(attempt.0), established(&mut other));
    assert!(nothing.await.is_err(), "a different key prevents the session");
    let (_commands, mut here) = start(settings(1, true), with_key(connecting, b"secret"));
    established(&mut here).await;
    established(&mut there).await;
}

#[tokio::main(flavor = "current_thread")]
async fn ttl_security_rejects_packets_with_a_lower_ttl() {
    let adjacent = |endpoint: Endpoint| Endpoint { security_hops: Some(1), ..endpoint };
    let [connecting, listening] = endpoints();
    let (_there, mut there) = start(settings(2, false), adjacent(listening.clone()));
    // Packets of the default TTL, 64, are dropped.
    let (far, mut reports) = start(settings(1, true), connecting.clone());
    let nothing = tokio::time::timeout(std::time::Duration::from_millis(500), established(&mut reports));
    assert!(nothing.await.is_err());
    far.send(SpeakerCommand::Stop).unwrap();
    let (_here, mut here) = start(settings(1, true), adjacent(connecting));
    established(&mut here).await;
    established(&mut there).await;
}

netstage_harness::tests![
    routes_are_announced_refreshed_and_withdrawn,
    a_session_needs_the_same_md5_key,
    ttl_security_rejects_packets_with_a_lower_ttl,
];
netstage_harness::main![self];
