//! Sessions with an unmodified ldpd of FRR. These tests need no MPLS in the kernel: they check advertised,
//! received and released labels.

use crate::pair::Pair;
use crate::running::{LEFT, RIGHT, Running, config, fec, identifier, link, start};
use netstage_core::ldp::{Binding, LdpEvent, NextHop};
use netstage_harness::{TemporaryFolder, needs};
use netstage_host::netns::netlink::VethOptions;
use netstage_host::netns::{Namespace, spawn_in};
use netstage_routing::ldp;
use netstage_routing::ldp::counter::Counter;
use netstage_wire::ldp::message::Fec;
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of prefixes that each end advertises.
const MAPPINGS: u32 = 10_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a prefix that FRR advertises.
fn theirs(number: u32) -> Fec {
    Fec::prefix(Ipv4Addr::from(0x0c00_0000 | number << 8).into(), 24).unwrap()
}

/// FRR in a namespace, with a route to each of its prefixes.
struct Frr {
    process: Child,
    folder: TemporaryFolder,
}

impl Frr {
    fn start(namespace: &Namespace, link: &str, address: Ipv4Addr, neighbor: Ipv4Addr) -> Frr {
        let folder = TemporaryFolder::new(&format!("ldp-{address}"));
        let here = folder.display();
        let mut routes = String::new();
        for number in 0..MAPPINGS {
            let prefix = Ipv4Addr::from(0x0c00_0000 | number << 8);
            writeln!(routes, "route add {prefix}/24 via {neighbor}").unwrap();
        }
        std::fs::write(folder.join("routes"), routes).unwrap();
        let configuration = format!(
            "mpls ldp\n router-id {address}\n address-family ipv4\n  discovery transport-address {address}\n  \
             interface {link}\n exit-address-family\n"
        );
        std::fs::write(folder.join("ldpd.conf"), configuration).unwrap();
        // FRR's daemons run as root, which must be a member of the group that owns their sockets.
        let common = format!("-d -u root -g root -z {here}/zserv.api --vty_socket {here} -A 127.0.0.1 -P 0");
        let script = format!(
            "ip -batch {here}/routes
             sed 's/^\\(frrvty:.*:\\)[^:]*$/\\1root/' /etc/group > {here}/group
             mount --bind {here}/group /etc/group
             /usr/lib/frr/zebra {common} -f /dev/null -i {here}/zebra.pid
             /usr/lib/frr/ldpd {common} -f {here}/ldpd.conf -i {here}/ldpd.pid --ctl_socket {here}
             exec sleep infinity"
        );
        // The daemons end with the first process of their PID namespace.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", &script]);
        // The daemons log many errors about missing features such as MPLS in the kernel.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = spawn_in(namespace, command).unwrap();
        Frr { process, folder }
    }

    /// Returns the output of a vtysh command.
    async fn vtysh(&self, command: &str) -> String {
        let (folder, command) = (self.folder.to_path_buf(), command.to_string());
        tokio::task::spawn_blocking(move || {
            let mut vtysh = Command::new("vtysh");
            vtysh.arg("--vty_socket").arg(folder).args(["-c", &command]).stderr(Stdio::null());
            String::from_utf8_lossy(&vtysh.output().unwrap().stdout).into_owned()
        })
        .await
        .unwrap()
    }

    /// Waits until FRR's bindings fulfill a condition.
    async fn wait_for_bindings(&self, what: &str, is_fulfilled: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        while !is_fulfilled(&self.vtysh("show mpls ldp binding json").await) {
            assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        }
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn prefix(fec: Fec) -> String {
    let Fec::Prefix { address, length } = fec else { panic!("{fec:?}") };
    format!("{address}/{length}")
}

/// Returns the labels FRR received from this end, by prefix.
fn bindings(json: &str) -> BTreeMap<String, String> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let json: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let all = json["bindings"].as_array().into_iter().flatten();
    let all = all.map(|binding| (text(&binding["prefix"]), text(&binding["remoteLabel"])));
    all.filter(|(prefix, label)| prefix.starts_with("11.") && label != "-").collect()
}

async fn session(own: (&Namespace, &str, Ipv4Addr), its: (&Namespace, &str, Ipv4Addr)) -> Running {
    let frr = Frr::start(its.0, its.1, its.2, own.2);
    let peer = identifier(its.2);
    let mut here = start(config(own.2), link(own.0, own.1, own.2));
    here.tell(ldp::LdpCommand::SetAddresses(vec![own.2.into()]));
    let transit = |number, label| {
        (number, Binding::Transit { label: LabelValue::new(label).unwrap(), next_hops: vec![its.2.into()] })
    };
    let ours = (0..MAPPINGS).map(|number| transit(fec(number), 1000 + number));
    here.tell(ldp::LdpCommand::Bind(ours.chain([transit(theirs(5), 500)]).collect()));

    assert_eq!(here.up().await, peer);
    let begin = Instant::now();
    let since =
        |what: &str| println!("{what}: {:.3} s after the session was up", begin.elapsed().as_secs_f64());
    let (mut missing, mut outgoing) = ((0..MAPPINGS).map(theirs).collect::<BTreeSet<Fec>>(), vec![]);
    here.event("all of FRR's mappings", |event| {
        match event {
            LdpEvent::Mapping { fec, .. } => _ = missing.remove(&fec),
            LdpEvent::Outgoing { fec, to } if fec == theirs(5) => outgoing = to,
            _ => {}
        }
        missing.is_empty().then_some(())
    })
    .await;
    since("all of FRR's mappings here");
    let [NextHop { address, peer: next, .. }] = outgoing[..] else {
        panic!("no label from FRR for its prefix")
    };
    assert_eq!((address, next), (its.2.into(), peer));
    let expected: BTreeMap<String, String> =
        (0..MAPPINGS).map(|number| (prefix(fec(number)), (1000 + number).to_string())).collect();
    frr.wait_for_bindings("all mappings of this end", |known| bindings(known) == expected).await;
    since("all of this end's mappings in what FRR shows");

    here.tell(ldp::LdpCommand::Unbind((0..MAPPINGS).map(fec).collect()));
    let mut free = 0;
    here.event("all releases", |event| {
        free += u32::from(matches!(event, LdpEvent::Free { .. }));
        (free == MAPPINGS).then_some(())
    })
    .await;
    frr.wait_for_bindings("no bindings", |known| bindings(known).is_empty()).await;
    here.tell(ldp::LdpCommand::Bind(vec![(fec(7), Binding::Egress { label: None })]));
    frr.wait_for_bindings("penultimate-hop popping", |known| {
        bindings(known) == [(prefix(fec(7)), "imp-null".to_string())].into()
    })
    .await;

    frr.vtysh("clear mpls ldp neighbor").await;
    here.down().await;
    assert_eq!(here.up().await, peer);
    here
}

#[tokio::main(flavor = "current_thread")]
async fn the_session_is_opened_by_this_end() {
    needs::namespaces();
    needs::program("ldpd", "frr");
    let pair = Pair::new(VethOptions::default());
    let here = session((&pair.right, "right0", RIGHT), (&pair.left, "left0", LEFT)).await;
    let counters = here.snapshot().await.counters;
    assert!(counters.get(Counter::Connected) > 0 && counters.get(Counter::Accepted) == 0);
    here.stop().await;
}

#[tokio::main(flavor = "current_thread")]
async fn the_session_is_opened_by_frr() {
    needs::namespaces();
    needs::program("ldpd", "frr");
    let pair = Pair::new(VethOptions::default());
    let here = session((&pair.left, "left0", LEFT), (&pair.right, "right0", RIGHT)).await;
    let counters = here.snapshot().await.counters;
    assert!(counters.get(Counter::Connected) == 0 && counters.get(Counter::Accepted) > 0);
    here.stop().await;
}

netstage_harness::tests![the_session_is_opened_by_this_end, the_session_is_opened_by_frr];
