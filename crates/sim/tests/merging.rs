//! Merged channels and attendants must not change any value, and every packet must be accounted for, on
//! random networks.

mod support;

use netstage_core::edge::VpnFlowSettings;
use netstage_core::fair::{Decrease, I2vfcConfig, VpnControl, WeightReference};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_core::{link, queue};
use netstage_harness::needs;
use netstage_scenario::outcome::{RunObserver, RunOutcome, RunTotals};
use netstage_scenario::plan::*;
use netstage_sim::{EventLoopOptions, run_with};
use netstage_wire::Encapsulation;
use std::cell::RefCell;
use support::*;

/// Returns a chain of routers with hosts attached; all parameters are random.
fn random_plan(stream: &mut RandomStream) -> Plan {
    let mut below = |n: u64| stream.next_u64() % n;
    let mut plan = empty("random", Duration::from_millis(2_500 + below(2_000)));
    plan.measure = MeasureConfig {
        interval: Duration::from_millis(100),
        flow_detail: below(2) == 0,
        tcp_events: below(2) == 0,
        delay: true,
    };
    let routers = 2 + below(3) as usize;
    let core: Vec<usize> = (0..routers).map(|k| plan.node(&format!("c{k}"), NodeKind::Router)).collect();
    for k in 1..routers {
        let mut config = plain_link(
            1_000_000 * (1 + below(20)),
            Duration::from_micros(below(30_000)),
            5 + below(40) as u32,
        );
        match below(8) {
            0 => config.loss = 0.01,
            1 => config.bit_error_rate = 1e-6,
            2 => {
                config.queue = queue::QueueConfig::Codel(queue::CodelConfig {
                    target: Duration::from_millis(5),
                    interval: Duration::from_millis(100),
                    ecn: false,
                });
            }
            3 => config.schedule.push((
                Instant(1_000_000_000),
                link::LinkChange { rate: Some(BitRate(2_000_000)), ..link::LinkChange::default() },
            )),
            4 => config.buffer = Capacity::Bytes(3_000 + below(30_000)),
            _ => (),
        }
        plan.link(&format!("t{k}"), [core[k - 1], core[k]], config);
    }
    for index in 0..2 + below(4) as usize {
        let from = below(routers as u64 - 1) as usize;
        let to = from + 1 + below((routers - from - 1) as u64) as usize;
        let access = plain_link(100_000_000, Duration::from_micros(below(5_000)), 20 + below(200) as u32);
        let kind = if below(2) == 0 { NodeKind::Pe } else { NodeKind::Router };
        let sender = plan.node(&format!("s{index}"), NodeKind::Host);
        let edge = plan.node(&format!("e{index}"), kind);
        let receiver = plan.node(&format!("r{index}"), NodeKind::Host);
        let a = plan.link(&format!("a{index}"), [sender, edge], access.clone());
        let b = plan.link(&format!("b{index}"), [edge, core[from]], access.clone());
        let c = plan.link(&format!("c{index}"), [core[to], receiver], access);
        let links: Vec<usize> = [a, b].into_iter().chain(from..to).chain([c]).collect();
        let udp = below(3) == 0;
        let transport = if udp { FlowTransport::Udp } else { FlowTransport::Tcp(tcp_config()) };
        let pattern = match (udp, below(2)) {
            (false, 0) => Pattern::Bulk { size: None },
            _ => Pattern::Poisson {
                rate: BitRate(500_000 + below(5_000_000)),
                packet: 200 + below(1200) as u32,
            },
        };
        plan.flow(&format!("f{index}"), transport, pattern, &links);
        let flow = plan.flows.last_mut().unwrap();
        flow.count = 1 + below(3) as usize;
        flow.stagger = Duration::from_millis(below(50));
        if below(4) == 0 {
            flow.stop = Instant(2_000_000_000);
        }
        if kind == NodeKind::Pe {
            let weight = 1.0 + below(4) as f64;
            let control = VpnControl::I2vfc(I2vfcConfig {
                decrease: if plan.vpns.is_empty() { Decrease::Fixed(0.1) } else { Decrease::FromWeight },
                reference: if plan.vpns.is_empty() {
                    I2vfcConfig::default().reference
                } else {
                    WeightReference::Vpn(0)
                },
                initial_window: 1.0 + below(50) as f64,
                pacing: below(2) == 0,
                ..I2vfcConfig::default()
            });
            plan.vpns.push(VpnPlan {
                name: format!("v{index}"),
                settings: VpnFlowSettings { weight, control, ..VpnFlowSettings::default() },
                ingress: edge,
                egress: receiver,
                encapsulation: [Encapsulation::None, Encapsulation::Mpls, Encapsulation::MplsInUdp]
                    [below(3) as usize],
                path: forward(&links[1..]),
                reverse: backward(&links[1..]),
                opposite: None,
            });
            plan.flows.last_mut().unwrap().vpn = Some(plan.vpns.len() - 1);
        }
    }
    plan
}

/// Compares series bit by bit; NaN equals NaN.
fn assert_same(left: &RunOutcome, right: &RunOutcome, case: u64) {
    assert_eq!(left.series.len(), right.series.len(), "case {case}");
    for (a, b) in left.series.iter().zip(&right.series) {
        let same = a.values.iter().zip(&b.values).all(|(x, y)| x.to_bits() == y.to_bits());
        assert!(
            same && a.metric == b.metric && a.subject == b.subject,
            "case {case}: {:?} of {}\n{:?}\n{:?}",
            a.metric,
            a.subject,
            a.values,
            b.values
        );
    }
    let counts = |totals: RunTotals| RunTotals { events: 0, ..totals };
    assert_eq!(counts(left.totals), counts(right.totals), "case {case}");
}

fn merging_does_not_change_results_and_packets_are_conserved() {
    needs::time(3);
    let cases = 300;
    for case in 0..cases {
        let plan = random_plan(&mut RandomStream::new(case, "random networks"));
        let merged = run_with(&plan, case, EventLoopOptions { merge: true }, &|| false).unwrap();
        let plain = run_with(&plan, case, EventLoopOptions { merge: false }, &|| false).unwrap();
        assert_same(&merged, &plain, case);
        let totals = merged.totals;
        assert_eq!(totals.sent, totals.delivered + totals.lost + totals.in_flight, "case {case}");
        assert!(totals.delivered > 0, "case {case}: nothing arrived");
        // With encapsulation, it may be impossible to merge any channel with the previous one.
        let encapsulates = plan.vpns.iter().any(|vpn| vpn.encapsulation != Encapsulation::None);
        let saved = merged.totals.events < plain.totals.events;
        assert!(saved || encapsulates, "case {case}: merging saved no event");
    }
}

/// Records the partial outcome at every tenth bin.
#[derive(Default)]
struct PartialOutcomes(RefCell<Vec<RunOutcome>>);

impl RunObserver for PartialOutcomes {
    fn stop(&self) -> bool {
        false
    }

    fn wants_bins(&self) -> bool {
        true
    }

    fn bins_ended(&self, so_far: &mut dyn FnMut() -> RunOutcome) {
        let outcome = so_far();
        if outcome.bins.is_multiple_of(10) {
            self.0.borrow_mut().push(outcome);
        }
    }
}

fn partial_outcomes_match_the_final_one_and_do_not_change_it() {
    needs::time(2);
    for case in 0..60 {
        let plan = random_plan(&mut RandomStream::new(case, "random networks"));
        let listener = PartialOutcomes::default();
        let attended = netstage_sim::run(&plan, case, &listener).unwrap();
        assert_same(&attended, &netstage_sim::run(&plan, case, &|| false).unwrap(), case);
        let partial = listener.0.into_inner();
        assert_eq!(partial.len(), (attended.bins - 1) / 10, "case {case}");
        for earlier in partial {
            let mut expected = attended.clone();
            expected.truncate(earlier.bins);
            assert_same(&RunOutcome { totals: attended.totals, ..earlier }, &expected, case);
        }
    }
}

fn outcome_depends_only_on_the_seed() {
    let plan = Dumbbell { seconds: 8, ..Dumbbell::default() }.plan();
    let run = |seed| netstage_sim::run(&plan, seed, &|| false).unwrap();
    assert_same(&run(1), &run(1), 1);
    assert_ne!(run(1).totals, run(2).totals);
}

fn additional_flow_does_not_change_random_draws_of_others() {
    let plan = Dumbbell { seconds: 3, ..Dumbbell::default() }.plan();
    let mut more = plan.clone();
    let links: Vec<usize> = vec![0];
    more.flow(
        "extra",
        FlowTransport::Udp,
        Pattern::Poisson { rate: BitRate(1_000_000), packet: 500 },
        &links,
    );
    let offered = |plan: &Plan| {
        let outcome = netstage_sim::run(plan, 7, &|| false).unwrap();
        outcome.get(netstage_scenario::outcome::Metric::FlowOffered, "background").unwrap().values.clone()
    };
    assert_eq!(offered(&plan), offered(&more));
}

fn interrupt_ends_a_run() {
    let plan = Dumbbell::default().plan();
    assert_eq!(netstage_sim::run(&plan, 1, &|| true), Err(netstage_sim::Interrupted));
}

netstage_harness::tests![
    merging_does_not_change_results_and_packets_are_conserved,
    partial_outcomes_match_the_final_one_and_do_not_change_it,
    outcome_depends_only_on_the_seed,
    additional_flow_does_not_change_random_draws_of_others,
    interrupt_ends_a_run,
];
netstage_harness::main![self];
