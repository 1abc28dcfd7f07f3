//! Peer in its own process, which may be killed or stopped.

use crate::pair::Pair;
use crate::running::{LEFT, PATIENCE, RIGHT, Running, config, left, link, start, transit};
use netstage_core::ldp::{LdpConfig, LdpEvent, LdpSessionEnd};
use netstage_core::time::Duration;
use netstage_harness::skip;
use netstage_host::netns::netlink::VethOptions;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_routing::ldp::LdpCommand;
use netstage_wire::ldp::LdpStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Stdio};
use std::time::Instant as Clock;

/// Environment variable that makes this program the peer of another one.
const PEER: &str = "NETSTAGE_LDP_PEER";

/// Remote end of the tests below, in its own process.
fn peer_process_main() {
    if std::env::var_os(PEER).is_none() {
        skip("a part of other tests");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let namespace = Namespace::of_this_thread().unwrap();
        let config = LdpConfig { link_hold: Duration::from_secs(3), ..config(RIGHT) };
        let mut running = start(config, link(&namespace, "right0", RIGHT));
        running.tell(LdpCommand::Bind(vec![transit(1, LEFT)]));
        while running.reports.recv().await.is_some() {}
    });
}

fn peer_process(pair: &Pair) -> Child {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::peer_process_main", "--ignored"]).env(PEER, "1").stdout(Stdio::null());
    spawn_in(&pair.right, command).unwrap()
}

/// Waits until no neighbor's hello is valid any more, and returns the time this took.
async fn wait_for_expiry(here: &Running) -> std::time::Duration {
    let start = Clock::now();
    while !here.snapshot().await.neighbors.is_empty() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    start.elapsed()
}

#[tokio::main(flavor = "current_thread")]
async fn a_killed_peer_is_lost_at_once_and_forgotten_when_its_last_hello_expires() {
    let pair = Pair::new(VethOptions::default());
    let mut here = start(config(LEFT), left(&pair));
    let mut peer = peer_process(&pair);
    here.up().await;
    peer.kill().unwrap();
    peer.wait().unwrap();
    // The kernel closes the connection.
    assert_eq!(here.down().await, LdpSessionEnd::Lost);
    let took = wait_for_expiry(&here).await;
    assert!(took <= std::time::Duration::from_millis(3500), "the peer's hold time is 3 s: {took:?}");
    // The peer advertises its labels again.
    let mut peer = peer_process(&pair);
    here.up().await;
    let label = here.event("a mapping", |event| match event {
        LdpEvent::Mapping { label, .. } => Some(label.number()),
        _ => None,
    });
    assert_eq!(label.await, 1001);
    here.stop().await;
    peer.kill().unwrap();
    peer.wait().unwrap();
}

#[tokio::main(flavor = "current_thread")]
async fn a_stopped_peer_is_dropped_after_the_hold_time() {
    let pair = Pair::new(VethOptions::default());
    let mut here = start(config(LEFT), left(&pair));
    let mut peer = peer_process(&pair);
    here.up().await;
    let start = Clock::now();
    kill(Pid::from_raw(peer.id() as i32), Signal::SIGSTOP).unwrap();
    assert_eq!(here.down().await, LdpSessionEnd::Sent(LdpStatus::HOLD_TIMER_EXPIRED));
    let took = start.elapsed();
    assert!(
        (1.5..4.0).contains(&took.as_secs_f64()),
        "the hold time is 3 s, with a hello every second: {took:?}"
    );
    here.stop().await;
    peer.kill().unwrap();
    peer.wait().unwrap();
}

netstage_harness::tests![
    #[ignore = "a part of other tests"]
    peer_process_main,
    a_killed_peer_is_lost_at_once_and_forgotten_when_its_last_hello_expires,
    a_stopped_peer_is_dropped_after_the_hold_time,
];
