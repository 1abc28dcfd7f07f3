//! Checks of the configuration against the host, and memory use.

use super::*;
use netstage_core::fair::VpnControl;

/// Returns the error for a host on which the router cannot run.
fn refused(change: impl FnOnce(&mut EngineConfig)) -> String {
    let mut config = config(0, CoreEncapsulation::Udp4, 2);
    change(&mut config);
    PreparedReplacement::new(&config.router, &config.machine)
        .map(drop)
        .expect_err("the configuration is rejected")
        .to_string()
}

#[test]
fn an_unsuitable_host_is_rejected_with_place_and_remedy() {
    let narrow = |config: &mut EngineConfig| config.machine.interfaces.get_mut("core").unwrap().mtu = 1311;
    assert_eq!(
        refused(narrow),
        "peer far: a core MTU of 1311 B leaves 1279 B for customer packets; 1280 B are needed; \
         raise the MTU of core"
    );
    assert_eq!(
        refused(|config| config.router.circuits[1].mtu = Some(1501)),
        "circuit circuit1: customers carries 1500 B, not 1501; leave `mtu` out, or: ip link set customers mtu 1501"
    );
    let mixed = |config: &mut EngineConfig| {
        let pe::PeerTunnel::MplsInUdp { from, .. } = &mut config.router.peers[0].tunnel else {
            unreachable!()
        };
        *from = None;
        config.machine.peers[0].source = Some(tunnel_address(CoreEncapsulation::Udp6, 1));
    };
    assert_eq!(
        refused(mixed),
        "peer far: source address 2001:db8::1 and tunnel destination 192.0.2.2 differ in IP version; \
         set `from` of the tunnel to an address of the same version"
    );
}

#[test]
#[should_panic(expected = "every interface has a port")]
fn an_engine_needs_all_ports() {
    let config = config(0, CoreEncapsulation::Mpls, 1);
    let _ = PeEngine::<RingPort>::new(&config.router, &config.machine, vec![]);
}

#[test]
fn an_idle_flow_stays_below_a_kilobyte() {
    // The part in `netstage_core::edge` is tested there; it takes at most half of this.
    let (flow, vpn, circuit) = (
        size_of::<super::super::EngineFlow>(),
        size_of::<super::super::EngineVpn>(),
        size_of::<super::super::EngineCircuit>(),
    );
    assert!(flow + vpn + circuit <= 384, "{flow} {vpn} {circuit}");
}

#[test]
fn other_controls_pass_packets_too() {
    for control in [
        VpnControl::None,
        VpnControl::FixedRate { rate: netstage_core::quantity::BitRate(10_000_000), queue: 64 },
    ] {
        let mut config = config(0, CoreEncapsulation::Udp4, 1);
        config.settings(0).control = control;
        let mut router = router(&config);
        let [_, out] = router.pass(CUSTOMERS, Instant(1), &frame(100, &packet(false, 0, 0, 1, 100)));
        assert_eq!(out.len(), 1);
        assert!(router.engine.flow(0).window().is_none());
        assert_eq!(router.engine.flow(0).sent(), (1, 100));
    }
}
