//! LSPs whose link has failed, and whose packets take a bypass: they last while their ingress wants them and the bypass is
//! established, and leave no state behind.

use crate::model::{Change, RandomRun, budget, explore, seeds, settle};
use crate::network::{Network, TunnelKey, config};
use netstage_core::rsvp::{RsvpConfig, TunnelRequest};
use netstage_core::time::Duration;
use netstage_wire::rsvp::route::RouteHop;

const REFRESH: Duration = Duration::from_secs(30);
/// Time after which all state is gone whose refreshes were lost before.
const CALM: Duration = Duration::from_secs(200);
/// Time in which a change reaches all routers.
const PROPAGATION: Duration = Duration::from_millis(200);
const KEY: TunnelKey = (0, 1);

/// A row of routers with two links between the second and the third one, the first of which is protected. A tunnel leads
/// through all routers; `route`: its hops, or `None` for strict ones over the protected link.
fn protected(routers: usize, reduces_refreshes: bool, route: Option<Vec<RouteHop>>) -> Network {
    let configs = (0..routers).map(|router| RsvpConfig { reduces_refreshes, ..config(router) }).collect();
    let mut links: Vec<_> = (1..routers).map(|router| (router - 1, router)).collect();
    links.insert(2, (1, 2));
    let mut network = Network::new(configs, &links, None);
    network.set_bypass(1, true);
    let route = route.unwrap_or_else(|| network.strict(&(0..routers).collect::<Vec<_>>()));
    let request = TunnelRequest { is_protected: true, ..network.request(routers - 1, route, 0) };
    network.set_tunnel(KEY, request);
    network.run(Duration::from_secs(1));
    assert!(network.is_up(KEY));
    network
}

/// The same after the failure of the protected link.
fn repaired(routers: usize, reduces_refreshes: bool, route: Option<Vec<RouteHop>>) -> Network {
    let mut network = protected(routers, reduces_refreshes, route);
    network.set_link(1, false);
    network
}

#[test]
fn a_repaired_lsp_carries_packets_until_another_one_does() {
    let mut network = repaired(3, true, Some(Vec::new()));
    for _ in 0..100 {
        network.check();
        assert!(network.is_up(KEY));
        network.run(Duration::from_millis(100));
    }
    assert_eq!((network.reports["repaired"], network.reports["up"], network.reports["down"]), (1, 2, 1));
    settle(&mut network);
}

#[test]
fn a_repaired_lsp_without_another_way_lasts() {
    for (routers, reduces_refreshes) in [(3, true), (3, false), (4, true), (4, false)] {
        let begin = || {
            let mut network = repaired(routers, reduces_refreshes, None);
            let lsps = network.lsps(KEY);
            for _ in 0..20 {
                network.run(REFRESH);
                network.check();
                assert_eq!((network.lsps(KEY), network.connected().len()), (lsps.clone(), 1));
            }
            (network, lsps)
        };
        // It returns to the link.
        let (mut network, lsps) = begin();
        network.set_link(1, true);
        assert_eq!(network.repaired(), 0);
        network.run(Duration::from_millis(50));
        assert_eq!((network.lsps(KEY), network.connected().len()), (lsps.clone(), 1));
        settle(&mut network);
        assert!(network.is_up(KEY));
        // The ingress removes it.
        let (mut network, lsps) = begin();
        network.remove_tunnel(KEY);
        network.run(PROPAGATION);
        assert!(!lsps.iter().any(|lsp| network.has(*lsp)));
        settle(&mut network);
        // The bypass ends.
        let (mut network, _) = begin();
        network.set_link(2, false);
        network.run(PROPAGATION);
        assert!(!network.is_up(KEY));
        network.run(CALM);
        assert_eq!(network.speakers[2].count(), 0, "state behind the failed links");
        network.set_link(2, true);
        network.set_link(1, true);
        settle(&mut network);
        // A link behind the merge point fails.
        if routers == 4 {
            let (mut network, _) = begin();
            network.set_link(3, false);
            network.run(PROPAGATION);
            assert!(!network.is_up(KEY));
            network.set_link(3, true);
            network.run(CALM);
            network.set_link(1, true);
            settle(&mut network);
            assert!(network.is_up(KEY));
        }
    }
}

#[test]
fn a_repaired_lsp_ends_and_returns_in_every_order() {
    use Change::{Link, Remove, Restart};
    for reduces_refreshes in [false, true] {
        let network = protected(3, reduces_refreshes, None);
        for (changes, timeouts) in [
            (&[Link(1, false), Remove][..], 1),
            (&[Link(1, false), Link(1, true), Remove], 0),
            (&[Link(1, false), Link(2, false), Link(2, true), Link(1, true)], 1),
            (&[Link(1, false), Link(1, true), Link(1, false)], 0),
        ] {
            let faults = if reduces_refreshes { budget(0, 0, 0) } else { budget(1, 0, timeouts) };
            explore(&network, changes, faults);
        }
        for router in 0..3 {
            explore(&network, &[Link(1, false), Restart(router), Link(1, true)], budget(0, 0, 0));
        }
        let network = protected(4, reduces_refreshes, None);
        explore(&network, &[Link(1, false), Link(3, false), Link(3, true), Remove], budget(0, 0, 0));
    }
}

/// Checks of a random network whose faults have ended, but not all of its failures.
struct Calm<'a> {
    run: &'a mut RandomRun,
    /// Repaired LSPs that have lasted for more than ten refresh periods.
    lasting: usize,
}

impl Calm<'_> {
    fn check(&mut self) {
        self.run.network.run(CALM);
        self.last();
        self.tear();
        self.fail();
        self.heal();
    }

    /// No tunnel fails while nothing changes.
    fn last(&mut self) {
        let network = &mut self.run.network;
        let before = network.connected();
        let repaired = network.repaired();
        for _ in 0..12 {
            network.run(REFRESH);
            network.check();
            let lost: Vec<_> = before.difference(&network.connected()).copied().collect();
            assert!(lost.is_empty(), "lost {lost:?}");
        }
        self.lasting += repaired.min(network.repaired());
    }

    /// A tunnel that its ingress removes is gone everywhere.
    fn tear(&mut self) {
        let RandomRun { network, random, .. } = &mut *self.run;
        for key in network.connected().into_iter().filter(|_| random.chance(0.3)).collect::<Vec<_>>() {
            let lsps = network.lsps(key);
            network.remove_tunnel(key);
            network.run(PROPAGATION);
            network.check();
            assert!(!lsps.iter().any(|lsp| network.has(*lsp)), "{lsps:?} of {key:?}");
        }
    }

    /// Another link fails: no tunnel stays in use whose packets are lost.
    fn fail(&mut self) {
        let RandomRun { network, random, .. } = &mut *self.run;
        let before = network.connected();
        let link = random.below(network.links.len() as u64) as usize;
        if network.up[link] {
            network.set_link(link, false);
            network.run(PROPAGATION);
            network.check();
            let connected = network.connected();
            let blind = before.difference(&connected).find(|key| network.is_up(**key));
            assert_eq!(blind, None, "after the failure of link {link}");
        }
    }

    /// Tunnels stay in use while links return. Loose hops may take the link, which interrupts an LSP.
    fn heal(&mut self) {
        let RandomRun { network, random, .. } = &mut *self.run;
        let is_strict = |hop: &RouteHop| matches!(hop, RouteHop::Ipv4 { is_loose: false, .. });
        let mut down: Vec<usize> = (0..network.links.len()).filter(|link| !network.up[*link]).collect();
        while !down.is_empty() {
            let link = down.swap_remove(random.below(down.len() as u64) as usize);
            let mut before = network.connected();
            before.retain(|key| {
                let route = &network.requested[key].route;
                !route.is_empty() && route.iter().all(is_strict)
            });
            network.set_link(link, true);
            network.run(Duration(random.below(100_000_000_000)));
            network.check();
            let lost: Vec<_> = before.difference(&network.connected()).copied().collect();
            assert!(lost.is_empty(), "lost {lost:?} when link {link} came back");
        }
    }
}

#[test]
fn repaired_lsps_last_in_random_networks() {
    let first = netstage_harness::seed("RSVP-TE bypasses");
    let mut lasting = 0;
    for seed in 0..seeds() {
        let seed = first.wrapping_add(seed);
        println!("seed {seed}");
        let mut run = RandomRun::new(seed, true);
        run.run(15);
        let mut calm = Calm { run: &mut run, lasting: 0 };
        calm.check();
        lasting += calm.lasting;
        run.settle();
    }
    println!("{lasting} repaired LSPs lasted");
    assert!(lasting > 0 || seeds() < 200);
}
