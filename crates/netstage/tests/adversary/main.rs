//! Adversary suite: a controller that speaks the raw agent protocol, and a member of the fleet that consents to
//! anything, try to make an agent send what its policy forbids. The agent is the program in a namespace with a random
//! policy; the packets that leave the namespace are counted by nftables on the other side of its links.

mod commander;
mod draw;
mod eve;
mod stage;
#[path = "../support/mod.rs"]
mod support;
mod truth;

use netstage_core::rng::RandomStream;
use netstage_harness::needs;
use stage::Stage;
use std::fmt::Write as _;
use std::thread;

/// Attempts under one policy, after which the agent is started with another.
const ATTEMPTS_PER_POLICY: u32 = 40;
/// Number of fleets that are attacked at the same time.
const FLEETS: u32 = 4;

/// Makes this many attempts in total, and fails with all violations.
fn attack(attempts: u32) {
    needs::root();
    needs::program("nft", "nftables");
    let seed = netstage_harness::seed("adversary");
    let policies = attempts.div_ceil(ATTEMPTS_PER_POLICY);
    let violations: Vec<String> = thread::scope(|scope| {
        let attacks = (0..FLEETS.min(policies)).map(|fleet| {
            let policies = (fleet..policies).step_by(FLEETS as usize);
            scope.spawn(move || attack_fleet(seed, fleet, policies, attempts.min(ATTEMPTS_PER_POLICY)))
        });
        let attacks: Vec<_> = attacks.collect();
        attacks.into_iter().flat_map(|attack| attack.join().expect("the suite does not panic")).collect()
    });
    assert!(violations.is_empty(), "{} violations\n{}", violations.len(), violations.join("\n"));
}

/// Attacks the agent of one fleet under several policies. Returns the violations.
fn attack_fleet(seed: u64, fleet: u32, policies: impl Iterator<Item = u32>, attempts: u32) -> Vec<String> {
    let mut stage = Stage::new(fleet as u8);
    let mut violations = Vec::new();
    let (mut accepted, mut made) = (0, 0);
    for number in policies {
        let mut random = RandomStream::new(seed, &format!("policy {number}"));
        let policy = draw::policy(&mut random);
        let mut trial = stage.trial(&policy);
        for attempt in 0..attempts {
            if attempt == attempts / 2 {
                trial = trial.restart(random.chance(0.5));
            }
            let case = draw::attempt(&mut random, &policy);
            let outcome = trial.attempt(&case);
            made += 1;
            accepted += u32::from(outcome.accepted);
            for violation in outcome.violations {
                let mut text = format!("policy {number}, attempt {attempt}: {violation}\n  {policy:?}\n  ");
                let _ = write!(text, "{}", String::from_utf8_lossy(&case.bytes()));
                eprintln!("{text}");
                violations.push(text);
            }
        }
    }
    eprintln!("fleet {fleet}: {made} attempts, {accepted} accepted, {} violations", violations.len());
    // A suite that is always refused would prove nothing.
    assert!(made < 100 || accepted * 20 > made, "{accepted} of {made} attempts were accepted");
    violations
}

fn no_byte_leaves_beyond_the_policy() {
    needs::time(60);
    attack(160);
}

fn no_byte_leaves_beyond_the_policy_in_ten_thousand_attempts() {
    attack(10_000);
}

netstage_harness::tests![
    no_byte_leaves_beyond_the_policy,
    #[ignore = "takes an hour"]
    no_byte_leaves_beyond_the_policy_in_ten_thousand_attempts,
];
netstage_harness::main![self];
