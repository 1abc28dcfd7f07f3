//! Setup, replacement, teardown and failure of an LSP over three routers.

use crate::row::{Router, request, row};
use netstage_core::quantity::BitRate;
use netstage_host::netns::Netlink;
use netstage_routing::rsvp::{RsvpCommand, RsvpConfig, RsvpEvent, RsvpReport};

async fn stop(routers: [Router; 3]) {
    for router in routers {
        router.stop().await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn an_lsp_is_set_up_replaced_and_torn_down() {
    let [mut first, middle, last] = row(|config| config);
    first.command(RsvpCommand::SetTunnel(1, request(600_000)));
    let label = first.up().await;
    let transit = middle.snapshot().await.lsps[0];
    assert_eq!(transit.incoming.map(|label| label.number()), Some(label));
    assert_eq!(transit.outgoing.map(|label| label.number()), Some(3), "implicit null");
    // The replacement fits only because it shares the bandwidth of the first LSP.
    first.command(RsvpCommand::SetTunnel(1, request(800_000)));
    assert_ne!(first.up().await, label);
    middle.has_lsps(1).await;
    assert_eq!(middle.snapshot().await.lsps[0].bandwidth, BitRate(800_000));
    // A Path message that the kernel of the router in the middle forwards would arrive with a foreign previous hop.
    let counters = last.snapshot().await.counters;
    assert!(counters.received > 0);
    assert_eq!((counters.wrong_hop, counters.malformed), (0, 0));
    first.command(RsvpCommand::RemoveTunnel(1));
    for router in [&first, &middle, &last] {
        router.has_lsps(0).await;
    }
    stop([first, middle, last]).await;
}

#[tokio::main(flavor = "current_thread")]
async fn refused_bandwidth_is_reported_to_the_ingress() {
    let [mut first, middle, last] = row(|config| RsvpConfig { reduces_refreshes: false, ..config });
    first.command(RsvpCommand::SetTunnel(1, request(600_000)));
    first.up().await;
    first.command(RsvpCommand::SetTunnel(2, request(600_000)));
    let error = first.event("a failure", |event| match event {
        RsvpEvent::Failed { tunnel: 2, error } => Some((error.code, error.value)),
        _ => None,
    });
    assert_eq!(error.await, (1, 2));
    stop([first, middle, last]).await;
}

#[tokio::main(flavor = "current_thread")]
async fn an_lsp_is_set_up_again_after_a_link_failure() {
    let [mut first, mut middle, last] = row(|config| config);
    first.command(RsvpCommand::SetTunnel(1, request(0)));
    first.up().await;
    Netlink::open(&middle.namespace).unwrap().set_down("bc").unwrap();
    let fault = middle.report("a fault", |report| match report {
        RsvpReport::Fault(fault) => Some(fault.interface),
        RsvpReport::Event(_) => None,
    });
    assert_eq!(fault.await, "bc");
    first.event("the end of the LSP", |event| matches!(event, RsvpEvent::Down { .. }).then_some(())).await;
    Netlink::open(&middle.namespace).unwrap().set_up("bc").unwrap();
    first.up().await;
    stop([first, middle, last]).await;
}

netstage_harness::tests![
    an_lsp_is_set_up_replaced_and_torn_down,
    refused_bandwidth_is_reported_to_the_ingress,
    an_lsp_is_set_up_again_after_a_link_failure,
];
