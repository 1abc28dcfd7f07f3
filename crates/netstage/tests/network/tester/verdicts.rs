//! Verdicts of the tester about a forwarder whose faults are known.

use super::forwarder::{Fault, Forwarder, Hits, Victims};
use super::network::{TesterNetwork, trials};
use netstage_core::rng::RandomStream;
use netstage_harness::needs;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NETWORKS: u64 = 2_000;
const LENGTHS: [u16; 2] = [46, 300];
const HEAD: &str = "trial = \"500 ms\"\nsearch = \"300 ms\"\nmax_rate = \"6 Mbit/s\"\nstep = \"3 Mbit/s\"\n\
     ready_within = \"2 s\"\nrouter = \"box\"\nfrom = [\"west\"]\nto = [\"east\"]\n\
     sizes = [\"46 B\", \"300 B\"]\noperations = [\"swap\"]\n";

/// Runs a test against a forwarder, and returns its output and the packets that the fault has hit.
fn judged(world: &TesterNetwork, forwarder: &Forwarder) -> (Output, Hits) {
    let configuration = world.configure(HEAD, &format!("[routes]\ncount = {NETWORKS}\n[labels]\n"));
    let over = AtomicBool::new(false);
    world.remove_record_if_any();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| forwarder.run(world, &over));
        let output = world.test(&configuration);
        over.store(true, Ordering::Relaxed);
        (output, running.join().unwrap())
    })
}

/// Returns the number of packets of each reported kind of fault.
fn reported(output: &Output) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for trial in trials(output).iter().flat_map(|(_, _, trials)| trials) {
        for fault in trial["faults"].as_array().into_iter().flatten() {
            let kind = fault["kind"].as_str().unwrap().to_owned();
            *kinds.entry(kind).or_default() += fault["packets"].as_u64().unwrap();
        }
    }
    kinds
}

fn networks(output: &Output, kind: &str) -> Vec<String> {
    let cells = trials(output);
    let all = cells.iter().flat_map(|(_, _, trials)| trials).flat_map(|trial| trial["faults"].as_array());
    let most = all.flatten().filter(|fault| fault["kind"] == kind).flat_map(|fault| fault["most"].as_array());
    most.flatten().map(|entry| entry[0].as_str().unwrap().to_owned()).collect()
}

/// Draws the packets that a fault hits.
fn victims(fault: Fault, random: &mut RandomStream) -> Victims {
    let one_in = 20 + random.below(400);
    match random.below(5) {
        // A late packet is seen if the trial lasts until it arrives.
        _ if fault == Fault::Late => Victims::OneIn(20),
        // Loss is not reported before the trials.
        3 if fault == Fault::Dropped => Victims::OneIn(50),
        0 => Victims::Network(random.below(NETWORKS) as u32),
        1 => Victims::Length(LENGTHS[random.below(2) as usize], one_in),
        2 => Victims::After(Duration::from_millis(500), one_in),
        3 => Victims::Before(Duration::from_millis(100), one_in),
        _ => Victims::OneIn(3_000),
    }
}

/// Returns how the report differs from the packets that a fault has hit, if it does.
fn difference(output: &Output, fault: Fault, victims: Victims, hits: &Hits) -> Option<String> {
    let (mut kinds, name) = (reported(output), fault.name());
    let about = format!("{fault:?} of {victims:?} hit {} packets: {kinds:?}", hits.packets);
    let found = kinds.remove(name).unwrap_or(0);
    // A forwarder on a busy machine loses packets, or holds them for longer than the tester waits.
    let lost: u64 = ["lost", "late"].iter().filter_map(|kind| kinds.remove(*kind)).sum();
    kinds.remove("not forwarded");
    let is_counted = match fault {
        _ if hits.packets == 0 => fault == Fault::Dropped || found == 0,
        // Loss before the trials is not reported: of a network, it may be most of its packets.
        Fault::Dropped if matches!(victims, Victims::Network(_)) => found > 0,
        Fault::Dropped => 2 * found >= hits.packets,
        Fault::Late => found > 0,
        _ => found <= hits.packets && found + lost >= hits.packets,
    };
    if !kinds.is_empty() || !is_counted {
        return Some(about);
    }
    let Victims::Network(number) = victims else { return None };
    let network = format!("11.{}.{}.0/24", number >> 8, number & 255);
    (hits.packets > 0 && !networks(output, name).contains(&network))
        .then(|| format!("{about}, not of {network}"))
}

/// Draws the victims of each fault. The tester must name and count it, and name no other fault.
fn name_faults(folder: &str, choose: impl Fn(&mut RandomStream) -> Vec<Fault>) {
    needs::namespaces();
    let world = TesterNetwork::new(folder);
    let seed = netstage_harness::seed("faulty forwarder");
    let faults = choose(&mut RandomStream::new(seed, "faults"));
    let (mut hit, mut differences) = (0, Vec::new());
    for (number, fault) in faults.iter().enumerate() {
        let mut random = RandomStream::new(seed, &format!("fault.{number}"));
        let victims = victims(*fault, &mut random);
        let forwarder = Forwarder { fault: Some((*fault, victims)), seed: random.next_u64() };
        let (output, hits) = judged(&world, &forwarder);
        differences.extend(difference(&output, *fault, victims, &hits));
        hit += usize::from(hits.packets > 0);
    }
    assert!(differences.is_empty(), "{differences:#?}");
    assert!(hit >= faults.len() / 2, "only {hit} faults hit a packet");
}

fn every_fault_of_a_forwarder_is_named() {
    name_faults("tester-verdicts", |_| Fault::ALL.to_vec());
}

fn some_faults_of_a_forwarder_are_named() {
    name_faults("tester-some-verdicts", |random| {
        (0..3).map(|_| Fault::ALL[random.below(Fault::ALL.len() as u64) as usize]).collect()
    });
}

/// Judges a correct forwarder, and returns the kinds of faults except for those that a busy machine causes.
fn judge_correct_forwarder(world: &TesterNetwork) -> BTreeMap<String, u64> {
    let (output, _) = judged(world, &Forwarder { fault: None, seed: 1 });
    let mut kinds = reported(&output);
    kinds.retain(|kind, _| !["lost", "late"].contains(&kind.as_str()));
    kinds
}

fn a_correct_forwarder_has_no_faults() {
    needs::namespaces();
    let world = TesterNetwork::new("tester-clean");
    assert_eq!(judge_correct_forwarder(&world), BTreeMap::new());
    assert!(!Path::new(&world.folder.join("out/incorrect.pcapng")).exists());
}

fn a_correct_forwarder_has_no_faults_in_200_tests() {
    needs::namespaces();
    let world = TesterNetwork::new("tester-clean-200");
    for number in 0..200 {
        assert_eq!(judge_correct_forwarder(&world), BTreeMap::new(), "test {number}");
    }
}

netstage_harness::tests![
    #[ignore = "takes some minutes: make test-full"]
    every_fault_of_a_forwarder_is_named,
    some_faults_of_a_forwarder_are_named,
    a_correct_forwarder_has_no_faults,
    #[ignore = "takes some tens of minutes: make test-full"]
    a_correct_forwarder_has_no_faults_in_200_tests,
];
