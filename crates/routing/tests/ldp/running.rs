//! Running speaker and its reports.

use crate::pair::Pair;
use crate::reports;
use netstage_core::ldp::{Binding, LdpConfig, LdpEvent, LdpSessionEnd};
use netstage_core::time::Instant;
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{LdpCommand, LdpInterface, LdpReport, LdpSnapshot, LdpSockets, run};
use netstage_wire::ldp::Identifier;
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;
use std::net::Ipv4Addr;
use std::time::Instant as Clock;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Addresses of the ends of the link.
pub const LEFT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
pub const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

pub struct Running {
    pub commands: UnboundedSender<LdpCommand>,
    pub reports: UnboundedReceiver<(Instant, LdpReport)>,
    pub task: JoinHandle<std::io::Result<()>>,
}

pub fn start(config: LdpConfig, place: LdpSockets) -> Running {
    let (commands, receiver) = unbounded_channel();
    let (sender, reports) = unbounded_channel();
    let task = run(config, place, Clock::now(), receiver, move |at, report| {
        let _ = sender.send((at, report));
    });
    Running { commands, reports, task: tokio::spawn(task) }
}

impl Running {
    pub fn tell(&self, command: LdpCommand) {
        self.commands.send(command).expect("the speaker is running");
    }

    /// Returns the first value that `select` extracts from a report.
    pub async fn told<T>(&mut self, what: &str, mut select: impl FnMut(LdpReport) -> Option<T>) -> T {
        reports::first(&mut self.reports, PATIENCE, what, |(_, report)| select(report)).await
    }

    pub async fn event<T>(&mut self, what: &str, mut select: impl FnMut(LdpEvent) -> Option<T>) -> T {
        self.told(what, |report| match report {
            LdpReport::Event(event) => select(event),
            LdpReport::Fault(fault) => panic!("{fault}"),
        })
        .await
    }

    pub async fn up(&mut self) -> Identifier {
        self.event("a session", |event| match event {
            LdpEvent::Up { peer } => Some(peer),
            _ => None,
        })
        .await
    }

    pub async fn down(&mut self) -> LdpSessionEnd {
        self.event("a session's end", |event| match event {
            LdpEvent::Down { reason: why, .. } => Some(why),
            _ => None,
        })
        .await
    }

    pub async fn snapshot(&self) -> LdpSnapshot {
        let (ask, answer) = oneshot::channel();
        self.tell(LdpCommand::Show(ask));
        answer.await.expect("the speaker is running")
    }

    pub async fn stop(self) {
        self.tell(LdpCommand::Stop);
        self.task.await.unwrap().unwrap();
    }
}

pub fn link(namespace: &Namespace, name: &str, address: Ipv4Addr) -> LdpSockets {
    LdpSockets {
        namespace: namespace.try_clone().unwrap(),
        interfaces: vec![LdpInterface { name: name.into(), address }],
        targets: vec![],
        md5_keys: vec![],
    }
}

pub fn left(pair: &Pair) -> LdpSockets {
    link(&pair.left, "left0", LEFT)
}

pub fn right(pair: &Pair) -> LdpSockets {
    link(&pair.right, "right0", RIGHT)
}

pub fn config(address: Ipv4Addr) -> LdpConfig {
    LdpConfig::new(address, address)
}

pub fn identifier(router: Ipv4Addr) -> Identifier {
    Identifier { router, space: 0 }
}

pub fn fec(number: u32) -> Fec {
    Fec::prefix(Ipv4Addr::from(0x0b00_0000 | number << 8).into(), 24).unwrap()
}

pub fn transit(number: u32, next_hop: Ipv4Addr) -> (Fec, Binding) {
    (
        fec(number),
        Binding::Transit { label: LabelValue::new(1000 + number).unwrap(), next_hops: vec![next_hop.into()] },
    )
}
