//! Verdicts of the tester about a forwarder whose faults are known.

use super::forwarder::{Fault, Forwarder, Hits, Victims};
use super::network::{TesterNetwork, trials};
use netstage_core::rng::RandomStream;
use netstage_harness::{needs, skip_busy};
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
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| forwarder.run(world, &over));
        let output = world.test(&configuration);
        over.store(true, Ordering::Relaxed);
        (output, running.join().unwrap())
    });
    world.remove_record_if_any();
    result
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
    let one_in = 1 + random.below(400);
    match random.below(5) {
        // A late packet is seen if the trial lasts until it arrives, and loss is not reported before the trials.
        _ if fault == Fault::Late => Victims::OneIn(20),
        3 if fault == Fault::Dropped => Victims::OneIn(50),
        0 => Victims::Network(random.below(NETWORKS) as u32),
        1 => Victims::Length(LENGTHS[random.below(2) as usize], one_in),
        2 => Victims::After(Duration::from_millis(500), one_in),
        3 => Victims::Before(Duration::from_millis(100), one_in),
        _ => Victims::OneIn(3_000),
    }
}

/// Draws the victims of each fault. The tester must name it, and no other fault.
fn every_fault_of_a_forwarder_is_named() {
    needs::namespaces();
    let world = TesterNetwork::new("tester-verdicts");
    let seed = netstage_harness::seed("faulty forwarder");
    let mut hit = 0;
    for (number, fault) in Fault::ALL.into_iter().enumerate() {
        let mut random = RandomStream::new(seed, &format!("fault.{number}"));
        let victims = victims(fault, &mut random);
        let forwarder = Forwarder { fault: Some((fault, victims)), seed: random.next_u64() };
        let (output, hits) = judged(&world, &forwarder);
        let about = format!("{fault:?} of {victims:?} hit {} packets", hits.packets);
        let kinds = reported(&output);
        let name = fault.name();
        if hits.packets > 0 {
            assert!(kinds.contains_key(name), "{about}: {kinds:?}");
            hit += 1;
        }
        let side_effects = [name, "lost", "not forwarded"];
        let others: Vec<_> = kinds.iter().filter(|(kind, _)| !side_effects.contains(&kind.as_str())).collect();
        assert!(others.is_empty(), "{about}: {others:?}");
        assert!(kinds.get(name).is_none_or(|packets| *packets <= hits.packets), "{about}: {kinds:?}");
        if let Victims::Network(number) = victims {
            let expected = format!("11.0.{}.0/24", number);
            let expected = if number < 256 { expected } else { format!("11.{}.{}.0/24", number >> 8, number & 255) };
            assert!(networks(&output, name).contains(&expected), "{about}: {kinds:?}");
        }
    }
    assert!(hit > Fault::ALL.len() / 2, "only {hit} faults hit a packet");
}

fn a_correct_forwarder_has_no_faults() {
    needs::namespaces();
    let world = TesterNetwork::new("tester-clean");
    let (output, _) = judged(&world, &Forwarder { fault: None, seed: 1 });
    let mut kinds = reported(&output);
    if let Some(lost) = kinds.remove("lost") {
        skip_busy(format!("the forwarder lost {lost} packets"));
    }
    assert_eq!(kinds, BTreeMap::new());
    assert!(!Path::new(&world.folder.join("out/incorrect.pcapng")).exists());
}

netstage_harness::tests![every_fault_of_a_forwarder_is_named, a_correct_forwarder_has_no_faults];
