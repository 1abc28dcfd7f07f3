//! A hundred random scenarios have no finding: `make differ` draws 5,000.

use netstage_harness::needs;

fn a_hundred_random_scenarios_have_no_finding() {
    needs::time(10);
    let findings = netstage_differ::simulate(netstage_harness::seed("differ"), 100);
    assert!(findings.is_empty(), "{findings:#?}");
}

netstage_harness::tests![a_hundred_random_scenarios_have_no_finding];
netstage_harness::main![self];
