//! Random runs of two speakers from a printed seed: noise with changes, then quiet, then an interruption.

use crate::link::{Link, LinkModel};
use netstage_core::bfd::{BfdAuthenticationConfig, BfdSessionConfig};
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;
use netstage_wire::bfd::{Diagnostic, DigestKind};

/// Time after which sessions are up on a link without loss: twice the detection time, and the first packets.
const SETTLED: Duration = Duration::from_secs(30);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn random_config(random: &mut RandomStream, authentication: &BfdAuthenticationConfig) -> BfdSessionConfig {
    let mut interval = || ms([20, 50, 100, 300, 1_000][random.below(5) as usize]);
    BfdSessionConfig {
        desired_min_tx: interval(),
        required_min_rx: interval(),
        detect_multiplier: 1 + random.below(5) as u8,
        authentication: authentication.clone(),
        ..BfdSessionConfig::default()
    }
}

/// Returns whether sessions with these configurations stay up on a link without loss.
fn is_stable(configs: &[BfdSessionConfig; 2], spread: Duration) -> bool {
    [(0, 1), (1, 0)].iter().all(|(from, to)| {
        let interval = configs[*from].desired_min_tx.max(configs[*to].required_min_rx);
        let multiplier = u64::from(configs[*from].detect_multiplier);
        // With a multiplier of 1, intervals have at most 90 %.
        let longest = if multiplier == 1 { interval * 9 / 10 } else { interval };
        longest + spread < interval * multiplier
    })
}

fn stable_configs(
    random: &mut RandomStream,
    authentication: &BfdAuthenticationConfig,
    spread: Duration,
) -> [BfdSessionConfig; 2] {
    loop {
        let configs = [random_config(random, authentication), random_config(random, authentication)];
        if is_stable(&configs, spread) {
            return configs;
        }
    }
}

struct RandomRun {
    random: RandomStream,
    authentication: BfdAuthenticationConfig,
    link: Link,
}

impl RandomRun {
    fn new(seed: u64) -> RandomRun {
        let mut random = RandomStream::new(seed, "bfd simulation");
        let authentication = match random.below(4) {
            0 => BfdAuthenticationConfig::Digest { kind: DigestKind::Sha1, key: 1 },
            1 => BfdAuthenticationConfig::Digest { kind: DigestKind::MeticulousSha1, key: 1 },
            2 => BfdAuthenticationConfig::Password { key: 1, password: b"secret".to_vec() },
            _ => BfdAuthenticationConfig::None,
        };
        let spread = [ms(0), ms(1), ms(15), ms(60)][random.below(4) as usize];
        let model = LinkModel {
            delay: [ms(0), ms(1), ms(40)][random.below(3) as usize],
            spread,
            loss: 0.0,
            duplicates: if random.chance(0.5) { 0.2 } else { 0.0 },
            is_cut: false,
        };
        let configs = stable_configs(&mut random, &authentication, spread);
        RandomRun { link: Link::new(seed, configs, model), random, authentication }
    }

    fn change(&mut self) {
        let system = self.random.below(2) as usize;
        let link = &mut self.link;
        match self.random.below(8) {
            0 => link.restart(system),
            1 => link.model.is_cut ^= true,
            2 => link.stall(system, ms(self.random.below(2_000))),
            3 => {
                let is_enabled = !link.configs[system].is_enabled;
                link.configure(system, BfdSessionConfig { is_enabled, ..link.configs[system].clone() });
            }
            4 => {}
            _ => {
                let configs = stable_configs(&mut self.random, &self.authentication, link.model.spread);
                for (system, config) in configs.into_iter().enumerate() {
                    let is_enabled = link.configs[system].is_enabled;
                    link.configure(system, BfdSessionConfig { is_enabled, ..config });
                }
            }
        }
    }

    fn noise(&mut self) {
        self.link.model.loss = [0.0, 0.02, 0.2, 0.5][self.random.below(4) as usize];
        for _ in 0..6 {
            self.change();
            self.link.run(ms(self.random.below(4_000)));
        }
    }

    /// Checks that both sessions come up, stay up, and use the configured intervals.
    fn quiet(&mut self) {
        let link = &mut self.link;
        (link.model.loss, link.model.is_cut) = (0.0, false);
        for system in 0..2 {
            link.configure(system, BfdSessionConfig { is_enabled: true, ..link.configs[system].clone() });
        }
        link.run(SETTLED);
        assert!(link.are_both_up(), "not up after a quiet time");
        link.settle();
        let (ups, downs, overtaken) = (link.ups, link.downs.len(), link.overtaken);
        for system in 0..2 {
            let status = link.speakers[system].sessions().next().unwrap();
            assert_eq!(status.transmit_interval, Some(link.interval(system)));
            assert_eq!(status.detection_time, Some(link.detection_time(system)));
            assert_eq!(status.diagnostic, Diagnostic::NONE);
        }
        // Changed intervals do not interrupt the sessions.
        for (system, config) in
            stable_configs(&mut self.random, &self.authentication, link.model.spread).into_iter().enumerate()
        {
            let mut both = link.configs.clone();
            both[system] = config.clone();
            if is_stable(&both, link.model.spread) {
                link.configure(system, config);
            }
            link.run(ms(10_000));
            link.settle();
        }
        if link.overtaken == overtaken {
            assert_eq!((link.ups, link.downs.len()), (ups, downs), "down without a cause");
        }
    }

    /// Checks that both sessions detect an interruption in time.
    fn interruption(&mut self) {
        let link = &mut self.link;
        let bounds = [0, 1].map(|system| {
            link.detection_time(system) + link.interval(1 - system) + link.model.delay + link.model.spread
        });
        let (start, downs) = (link.now, link.downs.len());
        link.model.is_cut = true;
        link.run(bounds[0].max(bounds[1]));
        let found = &link.downs[downs..];
        assert_eq!(found.len(), 2, "both sessions are down: {found:?}");
        for (system, diagnostic, at) in found {
            assert_eq!(*diagnostic, Diagnostic::CONTROL_DETECTION_TIME_EXPIRED);
            assert!(*at <= start + bounds[*system], "down too late: {:?}", at.since(start));
        }
        link.model.is_cut = false;
    }
}

#[test]
fn random_runs_follow_the_truth() {
    let first = netstage_harness::seed("BFD sessions");
    let seeds = std::env::var("NETSTAGE_BFD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let (mut found, mut overtaken) = (std::collections::BTreeMap::new(), 0);
    for seed in (0..seeds).map(|case| first.wrapping_add(case)) {
        println!("seed {seed}");
        let mut run = RandomRun::new(seed);
        for _ in 0..3 {
            run.quiet();
            run.interruption();
            run.noise();
        }
        run.quiet();
        *found.entry("up".to_owned()).or_insert(0) += run.link.ups;
        overtaken += run.link.overtaken;
        for (_, diagnostic, _) in &run.link.downs {
            *found.entry(diagnostic.to_string()).or_insert(0) += 1;
        }
    }
    println!("{found:?}, {overtaken} by overtaken packets");
    let downs = found.iter().filter(|(event, _)| *event != "up").map(|(_, count)| count).sum::<usize>();
    if seeds >= 200 {
        assert!(overtaken * 20 <= downs, "{overtaken} of {downs} failures by overtaken packets");
        assert_eq!(found.len(), 4, "all kinds of events: {found:?}");
    }
}

#[test]
fn a_delayed_process_does_not_take_its_neighbor_down() {
    // The first system detects failures within 60 ms, the second one within 5 s.
    let fast = BfdSessionConfig {
        desired_min_tx: ms(1_000),
        required_min_rx: ms(20),
        ..BfdSessionConfig::default()
    };
    let slow = BfdSessionConfig {
        desired_min_tx: ms(20),
        required_min_rx: ms(1_000),
        detect_multiplier: 3,
        ..BfdSessionConfig::default()
    };
    let model = LinkModel { delay: ms(5), spread: ms(5), loss: 0.0, duplicates: 0.0, is_cut: false };
    let mut link = Link::new(1, [BfdSessionConfig { detect_multiplier: 5, ..fast }, slow], model);
    link.run(SETTLED);
    assert!(link.are_both_up() && link.detection_time(0) == ms(60));
    for stall in [50, 70, 500, 3_000] {
        link.stall(0, ms(stall));
        link.run(ms(stall + 5_000));
        assert_eq!(link.downs, []);
    }
}
