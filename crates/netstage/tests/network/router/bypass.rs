//! Tests of packets that take bypass LSPs when a link fails. Two sites have a direct link between their routers, and a
//! third router on another way.

use crate::router::network::{DatagramStream, TIMEOUT, TunLink, counted, socket, state};
use crate::router::rsvp::{KEY, MIDDLE, Row};
use crate::support::{TestProcess, within};
use netstage_router::daemon::reload;
use std::process::Command;
use std::time::{Duration, Instant};

/// A row whose outer routers have a direct link, 198.51.100.1 and 198.51.100.2, protected in both directions.
struct Triangle {
    row: Row,
    link: TunLink,
}

impl Triangle {
    fn new(name: &str) -> Triangle {
        Triangle::with_keys(name, "")
    }

    /// `keys`: settings of each interface that speaks RSVP-TE.
    fn with_keys(name: &str, keys: &'static str) -> Triangle {
        let row = Row { keys, ..Row::new(name) };
        let link = row.world.join_by_tun("direct", "198.51.100");
        Triangle { row, link }
    }

    /// Writes the configuration of an outer router. `head`: further settings of [router]; `tables`: further tables;
    /// `routes`: further routes.
    fn configure(&self, site: usize, head: &str, tables: &str, routes: &str) {
        let (far, other) = (1 - site, 2 - site);
        let tables = format!(
            "{tables}[rsvp.tunnel.bypass]\nto = \"10.255.0.{far}\"\nroute = [\"10.1.{site}.2\", \"10.1.{far}.1\"]\n\
             protects = \"198.51.100.{other}\"\n\
             [bfd]\nneighbors = [\"198.51.100.{other}\"]\ninterval = \"10 ms\"\n"
        );
        // Labels on the direct link show that packets are in an LSP.
        self.row.configure(site, [&format!("fast_path = \"off\"\n{head}"), "egress = \"own\""], &tables);
        self.edit(&format!("router{site}.toml"), |text| text.replace("\"core0\"]", "\"core0\", \"direct\"]"));
        self.edit(&format!("fib{site}.txt"), |text| text + routes);
    }

    /// Changes a file.
    fn edit(&self, name: &str, edit: impl Fn(String) -> String) {
        let file = self.row.folder.join(name);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, edit(text)).unwrap();
    }

    /// Starts the routers, and waits until the direct link is protected.
    fn start(&self) -> [TestProcess; 3] {
        let routers = [0, 1, MIDDLE].map(|number| self.row.start(number));
        for site in 0..2 {
            let bypass = || self.row.tunnels(site).into_iter().find(|tunnel| tunnel.name == "bypass");
            assert!(within(TIMEOUT, || bypass().is_some_and(|tunnel| tunnel.lsp.is_some())));
            self.wait_for_session(site);
        }
        routers
    }

    fn wait_for_session(&self, site: usize) {
        assert!(within(TIMEOUT, || state(&self.row.folder, site).bfd[0].state == "up"));
    }
}

/// The direct link is cut while it stays up. Labeled packets take the bypass LSPs as soon as BFD is silent.
fn packets_take_a_bypass_lsp_when_bfd_is_silent() {
    let triangle = Triangle::new("router-bypass");
    let row = &triangle.row;
    for site in 0..2 {
        let far = 1 - site;
        let routes = format!(
            "10.0.{far}.0/24 via 198.51.100.{} dev direct push {}\nlabel {} pop\n",
            2 - site,
            300 + far,
            300 + site
        );
        triangle.configure(site, "mpls = [\"direct\"]", "", &routes);
    }
    row.configure(MIDDLE, ["fast_path = \"off\"", ""], "");
    let _routers = triangle.start();
    row.world.transfer();
    let through_middle = || counted(&state(&row.folder, MIDDLE), "program", "forwarded");
    let before = through_middle();
    let stream = DatagramStream::start(&row.world);
    assert!(within(TIMEOUT, || stream.sent() > 400));
    assert!(through_middle() < before + 100, "the direct link carries the stream");
    triangle.link.set_cut(true);
    let until = stream.sent() + 4_000;
    assert!(within(TIMEOUT, || stream.sent() > until));
    assert!(through_middle() > before + 1_000, "the bypass LSP carries the stream");
    row.world.transfer();
    triangle.link.set_cut(false);
    (0..2).for_each(|site| triangle.wait_for_session(site));
    let end = stream.end();
    end.print();
    // Long before the end of the stream, and long after a busy machine has handled the failure.
    assert!(end.lost.len() < 2_000, "{} of {}", end.lost.len(), end.sent);
    let carried = through_middle();
    row.world.transfer();
    assert!(through_middle() < carried + 100, "the repaired link carries packets again");
}

/// A thousand LSPs from the middle lead through the first router and the direct link, with a prefix each. When the link is
/// cut, the first router sends the packets of all of them through one bypass LSP. They use the link again when it works.
fn a_thousand_lsps_take_a_bypass_lsp() {
    const LSPS: usize = 1_000;
    let triangle = Triangle::new("router-bypass-many");
    let row = &triangle.row;
    let destination = |number: usize| format!("10.65.{}.{}", number / 250, 1 + number % 250);
    // The far host has all addresses of the prefix.
    let mut everywhere = Command::new("ip");
    everywhere.args(["route", "add", "local", "10.65.0.0/16", "dev", "lo"]);
    assert!(row.world.hosts[1].run(move || everywhere.status()).unwrap().unwrap().success());
    let direct = "[rsvp.interface.direct]\n";
    triangle.configure(0, "", direct, "10.65.0.0/16 via 10.1.0.2 dev core0\n");
    triangle.configure(1, "", direct, "10.65.0.0/16 via 10.0.1.2 dev edge0\n");
    let tunnel = |number| {
        format!(
            "[rsvp.tunnel.t{number}]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.1\", \"198.51.100.2\"]\n\
             prefixes = [\"{}/32\"]\nlocal_protection = true\n",
            destination(number)
        )
    };
    let tunnels: String = (0..LSPS).map(tunnel).collect();
    row.configure(MIDDLE, ["fast_path = \"off\"", ""], &tunnels);
    let mut routers = triangle.start();
    for router in &mut routers {
        // The log has a line for each LSP, more than a pipe holds.
        let mut log = router.child().stderr.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    }
    let up = || row.tunnels(MIDDLE).iter().filter(|tunnel| tunnel.lsp.is_some()).count();
    assert!(within(TIMEOUT, || up() == LSPS), "{} of {:?}", up(), row.tunnels(MIDDLE).first());

    let destinations: Vec<String> = (0..LSPS).map(|number| format!("{}:7", destination(number))).collect();
    let stream = DatagramStream::start_to(&row.world, &destinations);
    assert!(within(TIMEOUT, || stream.sent() > 2 * LSPS as u32));
    let swapped = triangle.link.labeled();
    assert!(swapped > LSPS as u32, "the direct link carries the LSPs: {swapped}");
    triangle.link.set_cut(true);
    let until = stream.sent() + 10 * LSPS as u32;
    assert!(within(TIMEOUT, || stream.sent() > until));
    let repaired = || row.lsps(0).iter().filter(|lsp| lsp.is_repaired).count();
    assert_eq!(repaired(), LSPS);
    triangle.link.set_cut(false);
    assert!(within(TIMEOUT, || repaired() == 0), "{}", repaired());
    assert_eq!(up(), LSPS);
    // BFD may find later than RSVP-TE that the link works.
    let swapped = triangle.link.labeled();
    let is_used = || triangle.link.labeled() > swapped + LSPS as u32;
    assert!(within(TIMEOUT, is_used), "the direct link carries the LSPs again");
    let end = stream.end();
    end.print();
    // Without the bypass, the packets of seconds are lost. A busy machine handles the failure late.
    assert!(end.outage.as_secs() == 0 && end.lost.len() < 5 * LSPS, "{} of {}", end.lost.len(), end.sent);
}

/// The ingress in the middle requires the direct link. Its LSP takes the bypass LSP for more than ten refresh periods, until
/// the ingress removes it.
fn test_lasting(name: &str, keys: &'static str) {
    const REFRESH: Duration = Duration::from_secs(1);
    let triangle = Triangle::with_keys(name, keys);
    let row = &triangle.row;
    let direct = format!("[rsvp.interface.direct]\n{keys}");
    let tunnel = "[rsvp.tunnel.east]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.1\", \"198.51.100.2\"]\n\
                  prefixes = [\"10.0.1.2/32\"]\nlocal_protection = true\n";
    triangle.configure(0, "", &direct, "10.0.1.0/24 via 10.1.0.2 dev core0\n");
    triangle.configure(1, "", &direct, "");
    let configure_middle = |tunnels: &str| {
        row.configure(MIDDLE, ["fast_path = \"off\"", ""], tunnels);
        triangle.edit("router2.toml", |text| text.replace("refresh = \"2 s\"", "refresh = \"1 s\""));
    };
    configure_middle(tunnel);
    (0..2).for_each(|site| {
        triangle.edit(&format!("router{site}.toml"), |text| {
            text.replace("refresh = \"2 s\"", "refresh = \"1 s\"")
        });
    });
    let _routers = triangle.start();
    let lsp = row.wait_for_lsp(MIDDLE, None);
    let stream = DatagramStream::start(&row.world);
    assert!(within(TIMEOUT, || stream.sent() > 100));
    triangle.link.set_cut(true);
    let is_ours = |state: &netstage_router::daemon::state::LspState| state.from.octets()[3] == MIDDLE as u8;
    let repaired = || row.lsps(0).iter().any(|state| is_ours(state) && state.lsp == lsp && state.is_repaired);
    assert!(within(TIMEOUT, repaired));
    let since = Instant::now();
    let lasts = || {
        let is_kept = row.lsps(1).iter().any(|state| is_ours(state) && state.lsp == lsp && state.is_reserved);
        assert!(repaired() && is_kept, "after {:?}: {:?} {:?}", since.elapsed(), row.lsps(0), row.lsps(1));
        assert_eq!(row.tunnels(MIDDLE)[0].lsp, Some(lsp));
        since.elapsed() > REFRESH * 12
    };
    assert!(within(REFRESH * 20, lasts));
    let carried = triangle.link.labeled();
    let end = stream.end();
    end.print();
    assert!(end.outage < REFRESH && end.lost.len() < 2_000, "{} of {}", end.lost.len(), end.sent);
    assert_eq!(triangle.link.labeled(), carried, "the direct link is cut");

    configure_middle("");
    reload(&socket(&row.folder, MIDDLE)).unwrap();
    let left = || (0..2).flat_map(|site| row.lsps(site)).filter(is_ours).count();
    // Long before the state expires.
    assert!(within(REFRESH * 3, || left() == 0), "{:?} {:?}", row.lsps(0), row.lsps(1));
    for site in 0..2 {
        let state = state(&row.folder, site);
        assert_eq!(state.tunnels.iter().filter(|tunnel| tunnel.lsp.is_some()).count(), 1, "the bypass LSP");
        for name in ["wrong_backup", "unauthenticated", "wrong_digest", "replayed", "path_timeouts"] {
            assert_eq!(counted(&state, "rsvp", name), 0, "{name} at site {site}");
        }
    }
}

fn a_repaired_lsp_lasts_until_its_ingress_removes_it() {
    test_lasting("router-bypass-lasting", "");
}

fn a_repaired_lsp_is_signaled_with_keys() {
    test_lasting("router-bypass-keys", KEY);
}

netstage_harness::tests![
    packets_take_a_bypass_lsp_when_bfd_is_silent,
    a_thousand_lsps_take_a_bypass_lsp,
    a_repaired_lsp_lasts_until_its_ingress_removes_it,
    a_repaired_lsp_is_signaled_with_keys,
];
