//! Mistakes in a configuration are found and named.

use super::super::{Error, setup};
use super::*;
use netstage_core::fair::Control;

/// A change, and what the error says of it.
type Mistake<'a> = (&'a dyn Fn(&mut Config), &'a str);

fn mistake(change: impl FnOnce(&mut Config)) -> (Error, String) {
    let mut config = config(0, Way::Mpls, 2);
    change(&mut config);
    let error = setup::state(&config).expect_err("it is refused");
    let text = error.to_string();
    (error, text)
}

#[test]
fn mistakes_are_named() {
    let taken = mistake(|config| config.vpns[1].flows[0].receive = label(1000));
    assert_eq!(
        taken.1,
        "VPN \"vpn1\" with peer \"far\": label 1000 is VPN \"vpn0\" with peer \"far\"'s; each VPN flow needs a label \
         of its own, so that the label alone tells VPN and sender"
    );
    let mistakes: [Mistake<'_>; 16] = [
        (&|config| config.vpns[0].flows[0].peer = "nobody".into(), "no peer \"nobody\""),
        (&|config| config.circuits[0].port = "core".into(), "not on the side of the customers"),
        (&|config| config.peers[0].port = "customers".into(), "not on the side of the core"),
        (&|config| config.circuits[1].name = "circuit0".into(), "two of circuit \"circuit0\""),
        (&|config| config.circuits[1].vlans = vec![100], "\"circuit0\" and \"circuit1\" take the same"),
        (&|config| config.circuits[1].vlans = vec![100, 1], "circuit \"circuit1\": up to two VLANs"),
        (&|config| config.circuits[1].vlans = vec![4095], "up to two VLANs"),
        (&|config| config.circuits[1].vlans = vec![1, 2, 3], "up to two VLANs"),
        (
            &|config| config.circuits[0].vpn = "vpn1".into(),
            "\"circuit0\" of its routes belongs to another VPN",
        ),
        (&|config| config.vpns[0].flows.clear(), "with which it has no flow"),
        (
            &|config| {
                config.vpns[0].flows = [config.vpns[0].flows.clone(), config.vpns[1].flows.clone()].concat()
            },
            "more than one flow",
        ),
        (&|config| config.vpns[0].routes.extend_from_within(..1), "two routes for 10.0.0.0/24"),
        (&|config| config.vpns[0].flows[0].send = label(13), "label 13 is reserved"),
        (&|config| config.vpns[0].flows[0].receive = label(3), "label 3 is reserved"),
        (&|config| config.peers[0].mtu = 1287, "leaves 1279 bytes"),
        (
            &|config| {
                config.peers[0].encapsulation = Encapsulation::MplsInUdp {
                    local: tunnel_address(Way::Udp4, 1),
                    remote: tunnel_address(Way::Udp6, 2),
                    has_checksum: true,
                };
            },
            "make them alike",
        ),
    ];
    for (change, expected) in mistakes {
        let (error, text) = mistake(change);
        assert!(text.contains(expected), "{error:?}: {text}");
    }
    let ports = Engine::<End>::new(&config(0, Way::Mpls, 1), vec![]).err();
    assert_eq!(ports, Some(Error::Ports { named: 2, given: 0 }));
}

#[test]
fn an_idle_flow_stays_below_a_kilobyte() {
    // What `netstage_core::edge` keeps of it is tested there: half of this at most.
    let (flow, vpn, circuit) =
        (size_of::<super::super::Flow>(), size_of::<super::super::Vpn>(), size_of::<super::super::Circuit>());
    assert!(flow + vpn + circuit <= 384, "{flow} {vpn} {circuit}");
}

#[test]
fn other_controls_pass_packets_too() {
    for control in
        [Control::None, Control::FixedRate { rate: netstage_core::quantity::BitRate(10_000_000), queue: 64 }]
    {
        let mut config = config(0, Way::Udp4, 1);
        config.vpns[0].flows[0].settings.control = control;
        let mut router = router(&config);
        let [_, out] = router.pass(CUSTOMERS, Instant(1), &frame(100, &packet(false, 0, 0, 1, 100)));
        assert_eq!(out.len(), 1);
        assert!(router.engine.flow(0).window().is_none());
        assert_eq!(router.engine.flow(0).sent(), (1, 100));
    }
}
