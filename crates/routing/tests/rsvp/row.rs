//! Three namespaces in a row with a speaker each: 10.0.1.0/24 and 10.0.2.0/24 between them, router IDs 10.255.0.1 to 3.

use crate::reports;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_harness::needs;
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_routing::rsvp::{
    RouteHop, RsvpCommand, RsvpConfig, RsvpEvent, RsvpPlace, RsvpReport, RsvpSnapshot, RsvpSockets,
    TunnelRequest, run,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant as Clock;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

pub struct Router {
    pub namespace: Namespace,
    pub commands: UnboundedSender<RsvpCommand>,
    reports: UnboundedReceiver<(Instant, RsvpReport)>,
    task: JoinHandle<std::io::Result<()>>,
}

pub fn router_id(router: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, router)
}

/// Creates the namespaces and starts their speakers.
pub fn row(change: impl Fn(RsvpConfig) -> RsvpConfig) -> [Router; 3] {
    needs::namespaces();
    let namespaces = [1, 2, 3].map(|_| Namespace::new().unwrap());
    for (link, names) in [(1_u8, ["ab", "ba"]), (2, ["bc", "cb"])] {
        let ends = [&namespaces[usize::from(link) - 1], &namespaces[usize::from(link)]];
        let mac = |end: u8| [2, 0, 0, 0, link, end];
        let [left, right] =
            [0, 1].map(|end| VethEnd { namespace: ends[end], name: names[end], mac: mac(end as u8) });
        create_veth(left, right, VethOptions { resolve_neighbors: true, ..VethOptions::default() }).unwrap();
        for (end, (namespace, name)) in ends.into_iter().zip(names).enumerate() {
            ethtool::disable_offloads(namespace, name).unwrap();
            let mut netlink = Netlink::open(namespace).unwrap();
            netlink.set_up(name).unwrap();
            netlink.add_address(name, Ipv4Addr::new(10, 0, link, 1 + end as u8).into(), 24).unwrap();
        }
    }
    let places =
        [vec![place("ab", 1, 1)], vec![place("ba", 1, 2), place("bc", 2, 1)], vec![place("cb", 2, 2)]];
    let mut router = 0;
    namespaces.map(|namespace| {
        router += 1;
        let id = router_id(router);
        namespace.loopback_up().unwrap();
        namespace.sysctl("net.ipv4.ip_forward", "1").unwrap();
        Netlink::open(&namespace).unwrap().add_address("lo", IpAddr::V4(id), 32).unwrap();
        let interfaces = places[usize::from(router) - 1].clone();
        let hello = Some(Duration::from_millis(300));
        // The first Path message may be lost before the next router listens; the refresh repeats it.
        let refresh = Duration::from_secs(1);
        start(
            namespace,
            interfaces,
            change(RsvpConfig { hello, refresh, ..RsvpConfig::new(id, 70 + u32::from(router)) }),
        )
    })
}

fn place(name: &str, link: u8, end: u8) -> RsvpPlace {
    let address = Ipv4Addr::new(10, 0, link, end);
    RsvpPlace {
        name: name.into(),
        address,
        length: 24,
        bandwidth: Some(BitRate(1_000_000)),
        keys: Vec::new(),
    }
}

fn start(namespace: Namespace, interfaces: Vec<RsvpPlace>, config: RsvpConfig) -> Router {
    let (commands, receiver) = unbounded_channel();
    let (sender, reports) = unbounded_channel();
    let sockets = RsvpSockets { namespace: namespace.try_clone().unwrap(), interfaces };
    let task = tokio::spawn(run(config, sockets, Clock::now(), receiver, move |at, reports| {
        reports.into_iter().for_each(|report| drop(sender.send((at, report))));
    }));
    Router { namespace, commands, reports, task }
}

/// Tunnel from the first to the last router.
pub fn request(bandwidth: u64) -> TunnelRequest {
    let route = [[10, 0, 1, 2], [10, 0, 2, 2]].map(|hop| RouteHop::strict(hop.into()));
    TunnelRequest {
        endpoint: router_id(3),
        route: route.into(),
        bandwidth: BitRate(bandwidth),
        name: b"test".to_vec(),
        is_protected: false,
    }
}

impl Router {
    pub fn command(&self, command: RsvpCommand) {
        self.commands.send(command).expect("the speaker is running");
    }

    /// Returns the first value that `select` extracts from a report.
    pub async fn report<T>(&mut self, what: &str, mut select: impl FnMut(RsvpReport) -> Option<T>) -> T {
        reports::first(&mut self.reports, PATIENCE, what, |(_, report)| select(report)).await
    }

    pub async fn event<T>(&mut self, what: &str, mut select: impl FnMut(RsvpEvent) -> Option<T>) -> T {
        self.report(what, |report| match report {
            RsvpReport::Event(event) => select(event),
            RsvpReport::Fault(_) => None,
        })
        .await
    }

    /// Waits until an LSP of the tunnel is established, and returns its label.
    pub async fn up(&mut self) -> u32 {
        self.event("an LSP", |event| match event {
            RsvpEvent::Up { to, .. } => Some(to.label.number()),
            _ => None,
        })
        .await
    }

    pub async fn snapshot(&self) -> RsvpSnapshot {
        let (sender, answer) = oneshot::channel();
        self.command(RsvpCommand::Show(sender));
        answer.await.expect("the speaker is running")
    }

    /// Waits until a router has a number of LSPs.
    pub async fn has_lsps(&self, count: usize) {
        let begin = Clock::now();
        while self.snapshot().await.lsps.len() != count {
            assert!(begin.elapsed() < PATIENCE, "not {count} LSPs");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub async fn stop(self) {
        self.command(RsvpCommand::Stop);
        self.task.await.unwrap().unwrap();
    }
}
