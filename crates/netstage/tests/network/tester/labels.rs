//! Test of label distribution between the router and the tester by LDP.

use super::network::{TesterNetwork, assert_all_received, refusal, trials};
use netstage_core::ldp::{Binding, LdpConfig, LdpEvent, NullLabel};
use netstage_host::netns::Namespace;
use netstage_routing::ldp::{self, Fec, LabelValue};
use std::net::{IpAddr, Ipv4Addr};

/// LDP speaker of the router, in place of a routing daemon. Its bindings correspond to the router's file of routes.
pub struct Distributor {
    commands: tokio::sync::mpsc::UnboundedSender<ldp::LdpCommand>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Distributor {
    pub fn start(router: &Namespace, bindings: Vec<(Fec, Binding)>) -> Distributor {
        Distributor::start_with(router, bindings, |_| (), |_| ())
    }

    /// Starts a speaker with a changed configuration, whose events are reported.
    pub fn start_with(
        router: &Namespace,
        bindings: Vec<(Fec, Binding)>,
        configure: impl Fn(&mut LdpConfig),
        mut on_event: impl FnMut(LdpEvent) + Send + 'static,
    ) -> Distributor {
        let (commands, received) = tokio::sync::mpsc::unbounded_channel();
        let own: Ipv4Addr = [192, 0, 2, 1].into();
        let interface = |number: u8| ldp::LdpInterface {
            name: format!("eth{number}"),
            address: [192, 0, 2, 4 * number + 1].into(),
        };
        let place = ldp::LdpSockets {
            namespace: router.try_clone().unwrap(),
            interfaces: (0..3).map(interface).collect(),
            targets: Vec::new(),
            md5_keys: Vec::new(),
        };
        commands.send(ldp::LdpCommand::SetAddresses(vec![own.into()])).unwrap();
        commands.send(ldp::LdpCommand::Bind(bindings)).unwrap();
        let mut config = LdpConfig { null: NullLabel::Explicit, ..LdpConfig::new(own, own) };
        configure(&mut config);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let epoch = std::time::Instant::now();
            runtime
                .block_on(ldp::run(config, place, epoch, received, |_, report| match report {
                    ldp::LdpReport::Fault(fault) => println!("the router: {fault}"),
                    ldp::LdpReport::Event(event) => on_event(event),
                }))
                .unwrap();
        });
        Distributor { commands, thread: Some(thread) }
    }
}

/// Returns the binding of a label with which the router forwards packets to the end of a path at the tester's second
/// port.
pub fn transit(last: u8, label: u32) -> (Fec, Binding) {
    let end = Fec::Prefix { address: IpAddr::from([198, 51, 100, last]), length: 32 };
    let next_hops = vec![IpAddr::from([192, 0, 2, 6])];
    (end, Binding::Transit { label: LabelValue::new(label).unwrap(), next_hops })
}

impl Drop for Distributor {
    fn drop(&mut self) {
        let _ = self.commands.send(ldp::LdpCommand::Stop);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn the_tester_uses_the_labels_advertised_by_the_router() {
    let world = TesterNetwork::new("tester-ldp");
    let head = "router = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\n\
                operations = [\"push\", \"swap\", \"unlabeled\", \"pop\"]\n";
    let rest =
        "[routes]\ncount = 100\n[labels]\nby = \"ldp\"\npeers = 2\npush = 700\nloopback = \"198.51.100.1\"\n";
    let configuration = world.configure(head, rest);
    let error = refusal(&world.test(&configuration));
    assert!(
        error.contains("swap: no LDP session with 192.0.2.1 yet") || error.contains("none came back"),
        "{error}"
    );
    world.remove_record();
    let own = Fec::Prefix { address: [192, 0, 2, 1].into(), length: 32 };
    let bindings = vec![
        transit(1, 4100),
        transit(2, 555),
        transit(129, 91),
        transit(130, 90),
        (own, Binding::Egress { label: None }),
    ];
    let _distributor = Distributor::start(&world.router, bindings);
    let mut routes = String::from(
        "label 4100 swap 700 via 192.0.2.6 dev eth1\nlabel 555 swap 701 via 192.0.2.6 dev eth1\n\
         label 91 via 192.0.2.6 dev eth1\nlabel 90 via 192.0.2.6 dev eth1\n",
    );
    for network in 0..100 {
        routes += &format!("11.0.{network}.0/24 via 192.0.2.6 dev eth1 push {}\n", 700 + network % 2);
    }
    let router = world.start(&routes);
    // The interval of hellos is some seconds.
    let head = format!("ready_within = \"30 s\"\n{head}");
    let configuration = world.configure(&head.replace(", \"pop\"", ""), rest);
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 3);
    assert_all_received(&cells);
    drop(router);
    world.remove_record();
    // Explicit null is popped, and the inner packet is routed.
    let plain: String =
        (0..100).map(|network| format!("11.0.{network}.0/24 via 192.0.2.6 dev eth1\n")).collect();
    let _router = world.start(&plain);
    let configuration = world.configure(&head.replace("\"push\", \"swap\", \"unlabeled\", ", ""), rest);
    let cells = trials(&world.test(&configuration));
    assert_eq!(cells.len(), 1);
    assert_all_received(&cells);
}

fn lsps_are_set_up_by_rsvp_te_between_tester_and_router() {
    let world = TesterNetwork::new("tester-rsvp");
    let rest = "[routes]\ncount = 64\n[labels]\nby = \"rsvp-te\"\npeers = 2\nloopback = \"198.51.100.1\"\n";
    let head = |operations: &str| {
        format!(
            "router = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\nsizes = [\"46 B\"]\nready_within = \"15 s\"\n\
             operations = [{operations}]\n"
        )
    };
    for operations in ["\"push\", \"swap\", \"unlabeled\"", "\"ip\", \"pop\""] {
        let configuration = world.configure(&head(operations), rest);
        let routes = world.setup(&configuration, "netstage");
        let _router = world.start_with(&routes, &world.setup(&configuration, "netstage-rsvp"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(", ").count());
        assert_all_received(&cells);
        world.remove_record();
    }
    // Without RSVP-TE at the router, the reason is named.
    let configuration = world.configure(&head("\"swap\"").replace("15 s", "3 s"), rest);
    let _router = world.start("");
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("check that RSVP-TE is enabled on its interfaces"), "{error}");
}

netstage_harness::tests![
    lsps_are_set_up_by_rsvp_te_between_tester_and_router,
    #[ignore = "labels are tested with FRR in any case: make test-full"]
    the_tester_uses_the_labels_advertised_by_the_router,
];
