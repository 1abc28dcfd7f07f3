//! Alternates in a small network, from the responses of ospfd and ldpd 8.4 as they print them.

use super::*;

/// Router LSA of 10.0.0.`id` with links to neighbors and their costs. Link addresses are 10.1.`low``high`.`id`.
fn router(id: u8, links: &[(u8, u32)]) -> String {
    let mut text = format!(
        "{{ \"lsaAge\": 24, \"lsaFlags\": 6, \"lsaType\": \"router-LSA\", \"advertisingRouter\": \"10.0.0.{id}\", \
         \"routerLinks\": {{ \"own\": {{ \"linkType\": \"Stub Network\", \"networkAddress\": \"10.0.0.{id}\", \
         \"networkMask\": \"255.255.255.255\", \"numOfTosMetrics\": 0, \"tos0Metric\": 0 }}"
    );
    for (neighbor, cost) in links {
        text += &format!(
            ", \"link{neighbor}\": {{ \"linkType\": \"another Router (point-to-point)\", \
             \"neighborRouterId\": \"10.0.0.{neighbor}\", \"routerInterfaceAddress\": \"{}\", \
             \"numOfTosMetrics\": 0, \"tos0Metric\": {cost} }}",
            on_link(id, *neighbor)
        );
    }
    text + " } }"
}

/// Address of a router on the link to a neighbor.
fn on_link(id: u8, neighbor: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 10 * id.min(neighbor) + id.max(neighbor), id)
}

/// A ring of four routers, of which this one is the first, and 10.9.0.0/16 behind the third one.
struct Responses {
    routers: String,
    external: String,
    neighbors: String,
}

impl Responses {
    fn ring() -> Responses {
        let lsas = [
            router(1, &[(2, 10), (4, 15)]),
            router(2, &[(1, 10), (3, 10)]),
            router(3, &[(2, 10), (4, 10)]),
            router(4, &[(1, 15), (3, 10)]),
        ];
        let routers = format!(
            "{{ \"routerId\": \"10.0.0.1\", \"routerLinkStates\": {{ \"areas\": {{ \"0.0.0.0\": [ {} ] }} }} }}",
            lsas.join(", ")
        );
        let external = "{ \"asExternalLinkStates\": [ { \"lsaAge\": 27, \"linkStateId\": \"10.9.0.7\", \
             \"advertisingRouter\": \"10.0.0.3\", \"networkMask\": 16, \
             \"metricType\": \"E2 (Larger than any link state path)\", \"metric\": 20, \
             \"forwardAddress\": \"0.0.0.0\" } ] }";
        let neighbor = |id: u8| {
            let address = on_link(id, 1);
            format!(
                "\"10.0.0.{id}\": [ {{ \"state\": \"Full\\/-\", \"nbrState\": \"Full\\/-\", \"address\": \"{address}\", \
                 \"ifaceAddress\": \"{address}\", \"ifaceName\": \"eth{id}:{}\" }} ]",
                on_link(1, id)
            )
        };
        let neighbors = format!("{{ \"neighbors\": {{ {}, {} }} }}", neighbor(2), neighbor(4));
        Responses { routers, external: external.into(), neighbors }
    }

    fn read(&self) -> Result<LinkState, String> {
        let Responses { routers, external, neighbors } = self;
        LinkState::read(DatabaseText { routers, external, neighbors })
    }
}

fn hop(id: u8) -> NextHop {
    NextHop { interface: format!("eth{id}"), address: on_link(id, 1) }
}

/// Bindings of ldpd: prefix, neighbor, and its label.
fn bindings(all: &[(&str, u8, &str)]) -> LabelBindings {
    let binding = |(prefix, id, label): &(&str, u8, &str)| {
        format!(
            "{{ \"addressFamily\": \"ipv4\", \"prefix\": \"{prefix}\", \"neighborId\": \"10.0.0.{id}\", \
             \"localLabel\": \"16\", \"remoteLabel\": \"{label}\", \"inUse\": 0 }}"
        )
    };
    let adjacency = |id: u8| {
        format!(
            "{{ \"addressFamily\": \"ipv4\", \"neighborId\": \"10.0.0.{id}\", \"type\": \"link\", \
             \"interface\": \"eth{id}\", \"helloHoldtime\": 15 }}"
        )
    };
    let all: Vec<String> = all.iter().map(binding).collect();
    let targeted = "{ \"addressFamily\": \"ipv4\", \"neighborId\": \"10.0.0.3\", \"type\": \"targeted\", \
         \"peer\": \"10.0.0.3\", \"helloHoldtime\": 45 }";
    LabelBindings::read(
        &format!("{{ \"bindings\": [ {} ] }}", all.join(", ")),
        &format!("{{ \"adjacencies\": [ {}, {}, {targeted} ] }}", adjacency(2), adjacency(4)),
    )
    .unwrap()
}

fn label(number: u32) -> LabelValue {
    LabelValue::new(number).unwrap()
}

#[test]
fn labels_are_replaced_with_those_of_the_alternate() {
    let network = Responses::ring().read().unwrap();
    let known = [
        ("10.9.0.0/16", 2, "20"),
        ("10.9.0.0/16", 4, "40"),
        ("10.0.0.2/32", 2, "21"),
        ("10.0.0.2/32", 4, "41"),
    ];
    let expected =
        AlternatePath { to: hop(4), labels: vec![label(40)], protects_neighbor: true, needs_neighbor: false };
    let own = AlternatePath {
        labels: vec![label(41)],
        protects_neighbor: false,
        needs_neighbor: true,
        ..expected.clone()
    };
    let found = with_labels(&network, &bindings(&known));
    let path = |number| (hop(2), Some(label(number)));
    assert_eq!(found, [(path(20), expected.clone()), (path(21), own)].into());

    // The alternate is the last router but one, or has no label.
    let found = with_labels(&network, &bindings(&[known[0], ("10.9.0.0/16", 4, "imp-null")]));
    assert_eq!(found, [(path(20), AlternatePath { labels: vec![], ..expected })].into());
    assert!(with_labels(&network, &bindings(&[known[0]])).is_empty());
    assert!(with_labels(&network, &bindings(&[known[0], ("10.9.0.0/16", 4, "-")])).is_empty());

    // Packets without a label may have any label below it, and explicit null stands for two prefixes here.
    assert!(with_labels(&network, &bindings(&[("10.9.0.0/16", 2, "imp-null"), known[1]])).is_empty());
    let same = [("10.9.0.0/16", 2, "exp-null"), known[1], ("10.0.0.2/32", 2, "exp-null"), known[3]];
    assert!(with_labels(&network, &bindings(&same)).is_empty());
}

#[test]
fn packets_are_tunneled_where_no_neighbor_is_an_alternate() {
    // The way of the fourth router to the second one leads back here, but that of the third one does not.
    let mut ring = Responses::ring();
    ring.routers = ring.routers.replace("\"tos0Metric\": 15", "\"tos0Metric\": 5");
    let network = ring.read().unwrap();
    let known = [
        ("10.0.0.2/32", 2, "21"),
        ("10.0.0.2/32", 4, "41"),
        ("10.0.0.2/32", 3, "31"),
        ("10.0.0.3/32", 4, "42"),
    ];
    let expected = AlternatePath {
        to: hop(4),
        labels: vec![label(42), label(31)],
        protects_neighbor: false,
        needs_neighbor: true,
    };
    let path = (hop(2), Some(label(21)));
    let found = with_labels(&network, &bindings(&known));
    assert_eq!(found.get(&path), Some(&expected));
    // The third router is the last one but one.
    let implicit = bindings(&[known[0], known[1], ("10.0.0.2/32", 3, "imp-null"), known[3]]);
    let bare = AlternatePath { labels: vec![label(42)], ..expected };
    assert_eq!(with_labels(&network, &implicit).get(&path), Some(&bare));
    // The tunnel has no label, or the third router has none for the prefix.
    let none = [
        bindings(&[known[0], known[1], known[2], ("10.0.0.3/32", 4, "imp-null")]),
        bindings(&[known[0], known[1], known[3]]),
    ];
    for bindings in none {
        assert!(!with_labels(&network, &bindings).contains_key(&path));
    }
}

#[test]
fn without_labels_one_alternate_serves_all_prefixes_behind_a_neighbor() {
    let network = Responses::ring().read().unwrap();
    let found = without_labels(&network);
    let alternate =
        AlternatePath { to: hop(4), labels: vec![], protects_neighbor: true, needs_neighbor: false };
    let back = AlternatePath { to: hop(2), ..alternate.clone() };
    assert_eq!(found, [((hop(2), None), alternate), ((hop(4), None), back)].into());

    // The way of the fourth router to the second one leads back here, so it is no alternate for all prefixes.
    let mut far = Responses::ring();
    far.routers = far.routers.replace("\"tos0Metric\": 10", "\"tos0Metric\": 40");
    let found = without_labels(&far.read().unwrap());
    assert!(!found.contains_key(&(hop(2), None)), "{found:?}");
}

#[test]
fn what_is_uncertain_gives_no_alternate() {
    let prefix = (Ipv4Addr::new(10, 9, 0, 0), 16);
    let ring = Responses::ring();
    assert!(ring.read().unwrap().prefixes.contains_key(&prefix));
    let change = |from: &str, to: &str| {
        let mut changed = Responses::ring();
        for text in [&mut changed.routers, &mut changed.external, &mut changed.neighbors] {
            *text = text.replace(from, to);
        }
        changed
    };
    // A route to elsewhere, an LSA that is being removed, and a router that no other one knows.
    for (from, to) in [
        ("\"forwardAddress\": \"0.0.0.0\"", "\"forwardAddress\": \"10.1.2.3\""),
        ("\"lsaAge\": 27", "\"lsaAge\": 3600"),
        (
            "\"advertisingRouter\": \"10.0.0.3\", \"networkMask\"",
            "\"advertisingRouter\": \"10.0.0.8\", \"networkMask\"",
        ),
    ] {
        let changed = change(from, to).read().unwrap();
        assert!(!changed.prefixes.contains_key(&prefix), "{from}");
    }
    // Neighbors that are not adjacent, and those of a release that omits the earlier names.
    let down = change("Full\\/-", "Init").read().unwrap();
    assert!(down.neighbors.is_empty() && down.adjacencies.is_empty());
    let later = change("\"state\": \"Full\\/-\", ", "");
    assert_eq!(later.read().unwrap().neighbors, ring.read().unwrap().neighbors);
    // Only one router advertises the link.
    let one_sided = change(
        "\"neighborRouterId\": \"10.0.0.1\", \"routerInterfaceAddress\": \"10.1.12.2\"",
        "\"neighborRouterId\": \"10.0.0.4\", \"routerInterfaceAddress\": \"10.1.12.2\"",
    );
    let network = one_sided.read().unwrap();
    let alternates = Alternates::new(&network.graph, network.here, network.adjacencies.clone(), &[]);
    let over = alternates.primaries(network.prefixes[&prefix]);
    assert_eq!(over.iter().map(|index| next_hop(&network, *index)).collect::<Vec<_>>(), [hop(4)]);

    let areas = change("\"0.0.0.0\": [", "\"0.0.0.1\": [ ], \"0.0.0.0\": [");
    assert_eq!(areas.read().unwrap_err(), "this router is in several OSPF areas");
    let unknown = change("\"routerId\": \"10.0.0.1\"", "\"routerId\": \"10.0.0.77\"");
    assert_eq!(unknown.read().unwrap_err(), "ospfd has no LSA of this router");
    let wrong = change("\"tos0Metric\": 15", "\"tos0Metric\": -15");
    assert!(wrong.read().unwrap_err().starts_with("unexpected router LSAs: "));
    let none = Responses { routers: "{ \"routerId\": \"10.0.0.1\" }".into(), ..Responses::ring() };
    assert_eq!(none.read().unwrap_err(), "ospfd has no LSA of this router");
}

#[test]
fn access_lists_of_ldpd_are_found() {
    let own = "mpls ldp\n router-id 10.0.0.1\n discovery hello interval 1\n !\n address-family ipv4\n  \
               label local advertise explicit-null\n  label local allocate host-routes\n  interface to-b\n  exit\n";
    assert_eq!(labels::access_list(own), None);
    for command in [
        "label local allocate for own",
        "label local advertise for own",
        "label local advertise to peers for own",
        "label local advertise explicit-null for own",
        "label remote accept from peers",
        "discovery targeted-hello accept from peers",
    ] {
        let configuration = own.replace("label local allocate host-routes", command);
        assert_eq!(labels::access_list(&configuration), Some(command));
    }
}

#[test]
fn daemons_are_asked_until_the_end_and_changes_are_reported() {
    use netstage_harness::TemporaryFolder;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;

    let folder = TemporaryFolder::new("lfa");
    let ospfd = folder.join("ospfd.vty");
    let (sender, reports) = channel();
    let sources = LfaSources { ospfd: ospfd.clone(), ldpd: None };
    let watcher = LfaWatcher::start(sources, move |report| drop(sender.send(report))).unwrap();
    let next = || reports.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(next().unwrap_err().contains("ospfd.vty"));

    let listener = UnixListener::bind(&ospfd).unwrap();
    let daemon = thread::spawn(move || {
        let Responses { routers, external, neighbors } = Responses::ring();
        let (mut stream, _) = listener.accept().unwrap();
        for response in [routers, external, neighbors] {
            let mut byte = [1];
            while byte[0] != 0 {
                stream.read_exact(&mut byte).unwrap();
            }
            stream.write_all(&[response.as_bytes(), &[0; 4]].concat()).unwrap();
        }
    });
    assert_eq!(next().unwrap(), without_labels(&Responses::ring().read().unwrap()));
    daemon.join().unwrap();
    // The daemon has ended.
    assert!(next().unwrap_err().contains("ospfd.vty"));
    drop(watcher);
    assert!(reports.recv().is_err(), "no thread is left");
}
