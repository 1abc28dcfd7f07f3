//! A hundred random scenarios have no finding: `make differ` draws 5,000. Random sweeps are checked like their cells.

use netstage_harness::needs;
use std::path::Path;

fn a_hundred_random_scenarios_have_no_finding() {
    needs::time(10);
    let findings = netstage_differ::simulate(netstage_harness::seed("differ"), 100);
    assert!(findings.is_empty(), "{findings:#?}");
}

fn the_check_of_a_sweep_is_that_of_each_cell() {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let first = netstage_harness::seed("sweeps");
    let seeds = first..first + u64::from(needs::cases(500));
    let has_faults = |seed| netstage_differ::sweep_difference(seed, &scenarios).unwrap();
    let (faulty, valid): (Vec<u64>, Vec<u64>) = seeds.partition(|seed| has_faults(*seed));
    assert!(
        faulty.len() > valid.len() / 9 && valid.len() > faulty.len() / 9,
        "{} of {}",
        faulty.len(),
        valid.len()
    );
}

netstage_harness::tests![
    a_hundred_random_scenarios_have_no_finding,
    the_check_of_a_sweep_is_that_of_each_cell
];
netstage_harness::main![self];
