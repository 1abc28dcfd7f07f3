//! Tests of LSPs that three routers in a row set up by RSVP-TE.

use crate::router::network::{
    DatagramStream, StreamEnd, TIMEOUT, TwoSites, counted, label, route, socket, start_in, state,
};
use crate::support::network::{address, join};
use crate::support::{TemporaryFolder, TestProcess, within};
use netstage_host::netns::{Namespace, Netlink};
use netstage_host::shared_key::PresharedKey;
use netstage_router::daemon::reload;
use netstage_router::daemon::state::{LspState, TunnelState};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Number of the router in the middle.
pub const MIDDLE: usize = 2;
pub const EAST: &str = "[rsvp.tunnel.east]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.2\", \"10.1.1.1\"]\n\
                    bandwidth = \"600 kbit/s\"\nprefixes = [\"10.0.1.0/24\"]\n";
const WEST: &str = "[rsvp.tunnel.west]\nto = \"10.255.0.0\"\nprefixes = [\"10.0.0.0/24\"]\n";

/// Two sites with a third router between their routers: 10.1.0.1 and 10.1.0.2, 10.1.1.2 and 10.1.1.1. Router IDs
/// are 10.255.0.0 to 10.255.0.2.
pub struct Row {
    pub world: TwoSites,
    pub middle: Namespace,
    pub folder: TemporaryFolder,
    /// Settings of each interface that speaks RSVP-TE.
    pub keys: &'static str,
}

/// A key of all routers, and one of the first router only.
pub const KEY: &str = "keys = [{ number = 1, file = \"right.key\" }]\n";
const OTHER_KEY: &str = "keys = [{ number = 1, file = \"wrong.key\" }]\n";

impl Row {
    pub fn new(name: &str) -> Row {
        let row = Row::without_middle(name);
        for site in 0..2 {
            let own = address(&format!("10.1.{site}.2"));
            Netlink::open(&row.middle).unwrap().add_address(&format!("site{site}"), own, 24).unwrap();
        }
        Netlink::open(&row.middle).unwrap().add_address("lo", address("10.255.0.2"), 32).unwrap();
        row
    }

    /// Creates the row with a namespace in the middle that has links but no addresses.
    pub fn without_middle(name: &str) -> Row {
        let row = Row {
            world: TwoSites::new(),
            middle: Namespace::new().unwrap(),
            folder: TemporaryFolder::new(name),
            keys: "",
        };
        for name in ["right", "wrong"] {
            let key = PresharedKey::generate().unwrap().to_hexadecimal();
            std::fs::write(row.folder.join(format!("{name}.key")), key).unwrap();
        }
        Netlink::open(&row.world.routers[0]).unwrap().delete_link("core0").unwrap();
        row.middle.loopback_up().unwrap();
        for site in 0..2 {
            let (router, name) = (&row.world.routers[site], format!("site{site}"));
            join((router, "core0", 4 + site as u8), (&row.middle, &name, 6 + site as u8));
            router.loopback_up().unwrap();
            let mut netlink = Netlink::open(router).unwrap();
            netlink.add_address("core0", address(&format!("10.1.{site}.1")), 24).unwrap();
            netlink.add_address("lo", address(&format!("10.255.0.{site}")), 32).unwrap();
        }
        Netlink::open(&row.middle).unwrap().wait_until_ready("site1").unwrap();
        row
    }

    /// Writes the configuration of a router. `head`: further settings of [router]; `settings`: of [rsvp]; `tables`:
    /// further tables.
    pub fn configure(&self, number: usize, [head, settings]: [&str; 2], tables: &str) {
        let keys = self.keys;
        let (interfaces, speaking) = match number {
            MIDDLE => (
                "\"site0\", \"site1\"",
                format!(
                    "[rsvp.interface.site0]\n{keys}[rsvp.interface.site1]\nbandwidth = \"1 Mbit/s\"\n{keys}"
                ),
            ),
            _ => ("\"edge0\", \"core0\"", format!("[rsvp.interface.core0]\n{keys}")),
        };
        // The routes for the loose hops to the other router IDs.
        let routes = match number {
            MIDDLE => {
                "10.255.0.0/32 via 10.1.0.1 dev site0\n10.255.0.1/32 via 10.1.1.1 dev site1\n".to_owned()
            }
            site => format!("10.255.0.0/16 via 10.1.{site}.2 dev core0\n"),
        };
        std::fs::write(self.folder.join(format!("fib{number}.txt")), routes).unwrap();
        let text = format!(
            "[router]\ninterfaces = [{interfaces}]\nroutes = \"fib{number}.txt\"\ncontrol = \"{}\"\nv6_rows = 64\n\
             {head}\n[rsvp]\nrouter_id = \"10.255.0.{number}\"\nhello = \"300 ms\"\nrefresh = \"2 s\"\n{settings}\n{speaking}{tables}",
            socket(&self.folder, number).display()
        );
        std::fs::write(self.folder.join(format!("router{number}.toml")), text).unwrap();
    }

    pub fn start(&self, number: usize) -> TestProcess {
        let namespace = if number == MIDDLE { &self.middle } else { &self.world.routers[number] };
        start_in(namespace, &self.folder, number, TIMEOUT)
    }

    pub fn tunnels(&self, number: usize) -> Vec<TunnelState> {
        state(&self.folder, number).tunnels
    }

    pub fn lsps(&self, number: usize) -> Vec<LspState> {
        state(&self.folder, number).lsps
    }

    /// Waits until the first tunnel of a router is up, with another LSP than before.
    pub fn wait_for_lsp(&self, number: usize, before: Option<u32>) -> u32 {
        let lsp =
            || self.tunnels(number).first().and_then(|tunnel| tunnel.lsp).filter(|lsp| Some(*lsp) != before);
        assert!(within(TIMEOUT, || lsp().is_some()), "{:?}", self.tunnels(number));
        lsp().unwrap()
    }

    fn to_far_site(&self) -> String {
        route(&self.folder, 0, "10.0.1.0/24").map_or_else(String::new, |route| route.to)
    }
}

fn test_row(fast_path: &str, egress: &str, keys: &'static str) {
    let mut row = Row::new(&format!("router-rsvp-{fast_path}"));
    row.keys = keys;
    let head = format!("fast_path = \"{fast_path}\"");
    row.configure(0, [&head, ""], EAST);
    row.configure(1, [&head, &format!("egress = \"{egress}\"")], WEST);
    row.configure(MIDDLE, [&head, ""], "");
    let [mut near, _far, _middle] = [0, 1, MIDDLE].map(|number| row.start(number));
    let first = row.wait_for_lsp(0, None);
    row.wait_for_lsp(1, None);
    let far = Ipv4Addr::new(10, 255, 0, 1);
    let passing = row.lsps(MIDDLE).into_iter().find(|lsp| lsp.to == far).unwrap();
    assert_eq!((passing.bandwidth_bps, passing.is_reserved), (600_000, true));
    let (incoming, outgoing) = (passing.incoming.unwrap(), passing.outgoing.unwrap());
    assert!(if egress == "own" { outgoing >= 524_288 } else { outgoing == 0 }, "{outgoing}");
    let swap = format!("via 10.1.1.1 dev site1 push {outgoing}");
    assert_eq!(label(&row.folder, MIDDLE, incoming).unwrap().to, swap);
    assert_eq!(row.to_far_site(), format!("via 10.1.0.2 dev core0 push {incoming}"));
    row.world.transfer();
    if fast_path == "auto" {
        let swapped = || counted(&state(&row.folder, MIDDLE), "kernel", "swapped");
        assert!(within(TIMEOUT, || {
            row.world.transfer();
            swapped() > 0
        }));
    }

    // Another bandwidth, which fits only because the new LSP shares that of the previous one. No packet is lost.
    let stream = DatagramStream::start(&row.world);
    assert!(within(TIMEOUT, || stream.sent() > 100));
    row.configure(0, [&head, ""], &EAST.replace("600", "800"));
    assert_eq!(reload(&socket(&row.folder, 0)).unwrap(), ["tunnel east changed"]);
    row.wait_for_lsp(0, Some(first));
    let until = stream.sent() + 100;
    assert!(within(TIMEOUT, || stream.sent() > until));
    let StreamEnd { sent, lost, .. } = stream.end();
    assert!(lost.is_empty(), "{lost:?} of {sent}");

    // A second tunnel does not fit.
    let more = format!(
        "{}[rsvp.tunnel.more]\nto = \"10.255.0.1\"\nbandwidth = \"300 kbit/s\"\n",
        EAST.replace("600", "800")
    );
    row.configure(0, [&head, ""], &more);
    assert_eq!(reload(&socket(&row.folder, 0)).unwrap(), ["tunnel more added"]);
    let failure = || {
        row.tunnels(0).iter().find(|tunnel| tunnel.name == "more").and_then(|tunnel| tunnel.failure.clone())
    };
    let reason = "the requested bandwidth is not available";
    assert!(
        within(TIMEOUT, || failure().is_some_and(|failure| failure.contains(reason))),
        "{:?}",
        row.tunnels(0)
    );

    // The link behind the middle fails and is repaired.
    Netlink::open(&row.middle).unwrap().set_down("site1").unwrap();
    assert!(within(TIMEOUT, || row.tunnels(0)[0].lsp.is_none()), "{:?}", row.tunnels(0));
    assert_eq!(row.to_far_site(), "");
    Netlink::open(&row.middle).unwrap().set_up("site1").unwrap();
    row.wait_for_lsp(0, None);
    row.wait_for_lsp(1, None);
    assert!(within(TIMEOUT, || row.world.reaches(100)));

    // A router that ends tears its LSPs down.
    near.signal("-TERM");
    let ended = String::from_utf8(near.output().stderr).unwrap();
    assert!(ended.contains("tunnel east is up") && ended.contains("tunnel east is down"), "{ended}");
    assert!(within(TIMEOUT, || row.lsps(MIDDLE).iter().all(|lsp| lsp.to != far)), "{:?}", row.lsps(MIDDLE));
    assert!(label(&row.folder, MIDDLE, incoming).is_none());
}

fn lsps_by_rsvp_te_in_the_fast_path() {
    test_row("auto", "explicit-null", "");
}

fn lsps_by_rsvp_te_in_the_slow_path() {
    test_row("off", "own", KEY);
}

/// A router with another key sets up nothing. After it is started again with the right one, its LSP is up.
fn lsps_need_the_key_of_the_neighbors() {
    let mut row = Row::new("router-rsvp-keys");
    row.keys = KEY;
    row.configure(1, ["", ""], WEST);
    row.configure(MIDDLE, ["", ""], "");
    row.keys = OTHER_KEY;
    row.configure(0, ["", ""], EAST);
    let [mut near, _far, _middle] = [0, 1, MIDDLE].map(|number| row.start(number));
    let rejected = || counted(&state(&row.folder, MIDDLE), "rsvp", "wrong_digest");
    assert!(within(TIMEOUT, || rejected() > 3));
    let far = Ipv4Addr::new(10, 255, 0, 1);
    assert!(row.lsps(MIDDLE).iter().all(|lsp| lsp.to != far) && row.tunnels(0)[0].lsp.is_none());
    near.signal("-TERM");
    near.output();

    row.keys = KEY;
    row.configure(0, ["", ""], EAST);
    let _near = row.start(0);
    row.wait_for_lsp(0, None);
    row.wait_for_lsp(1, None);
    row.world.transfer();
    assert_eq!(counted(&state(&row.folder, 0), "rsvp", "unauthenticated"), 0);
}

/// The router in the middle does not run.
fn a_neighbor_that_does_not_answer_is_named() {
    const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
    let row = Row::new("router-rsvp-silent");
    row.configure(0, ["fast_path = \"off\"", ""], EAST);
    let _router = row.start(0);
    let failure = || row.tunnels(0)[0].failure.clone();
    assert!(within(SETUP_TIMEOUT + TIMEOUT, || failure().is_some()), "{:?}", row.tunnels(0));
    assert!(failure().unwrap().starts_with("10.1.0.2 has not reserved it"), "{:?}", failure());
}

/// All messages arrive at the first attempt, because a router sends them no faster than its neighbor handles them.
fn ten_thousand_lsps_are_set_up() {
    const LSPS: usize = 10_000;
    let row = Row::new("router-rsvp-many");
    row.configure(0, ["", ""], "");
    row.configure(MIDDLE, ["", ""], "");
    let [mut near, _middle] = [0, MIDDLE].map(|number| row.start(number));
    // The log has a line for each LSP, more than a pipe holds.
    let mut log = near.child().stderr.take().unwrap();
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    let tunnel = |number| {
        format!("[rsvp.tunnel.t{number}]\nto = \"10.255.0.{MIDDLE}\"\nroute = [\"10.1.0.{MIDDLE}\"]\n")
    };
    row.configure(0, ["", ""], &(0..LSPS).map(tunnel).collect::<String>());
    let begun = Instant::now();
    reload(&socket(&row.folder, 0)).unwrap();
    let up = || row.tunnels(0).iter().filter(|tunnel| tunnel.lsp.is_some()).count();
    assert!(within(TIMEOUT, || up() == LSPS), "{}", up());
    let state = state(&row.folder, 0);
    let [sent, repeated] = ["sent", "retransmitted"].map(|name| counted(&state, "rsvp", name));
    println!(
        "{LSPS} LSPs in {:.2} s: {sent} messages, {repeated} of them again",
        begun.elapsed().as_secs_f64()
    );
    assert!(repeated < LSPS as u64 / 10, "{repeated} of {sent}");
}

netstage_harness::tests![
    lsps_by_rsvp_te_in_the_fast_path,
    lsps_by_rsvp_te_in_the_slow_path,
    lsps_need_the_key_of_the_neighbors,
    a_neighbor_that_does_not_answer_is_named,
    ten_thousand_lsps_are_set_up,
];
