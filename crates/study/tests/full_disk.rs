//! Test of a study on a full disk.

#[path = "../src/fixture.rs"]
#[allow(dead_code)]
mod fixture;

use fixture::{Scratch, options, runner, scenario};
use netstage_harness::needs;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_study::{RunFailure, StudyOptions, run};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn a_full_disk_is_reported_and_no_run_is_lost() {
    needs::root();
    let scratch = Scratch::new("full");
    let disk = scratch.join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&disk).output();
    let mounted = mount(&["-t", "tmpfs", "-o", "size=96k", "tmpfs"]).unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let out = disk.join("out");
    let mut scenario = scenario();
    scenario.repeat = 20;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let error = run(&scenario, &runner, &options(&out, 2), &mut (), &AtomicBool::new(false)).unwrap_err();
        let kept = fs::read_dir(out.join("runs")).unwrap().count();
        let is_grown = mount(&["-o", "remount,size=64m", "tmpfs"]).unwrap().status.success();
        let count = AtomicUsize::new(0);
        let counting = |plan: &Plan, seed: u64, stop: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
            count.fetch_add(1, Ordering::Relaxed);
            runner(plan, seed, stop)
        };
        let record = run(&scenario, &counting, &options(&out, 2), &mut (), &AtomicBool::new(false));
        (error, kept, is_grown, count.into_inner(), record.is_ok())
    }));
    let unmounted = Command::new("umount").arg(&disk).status();
    let (error, kept, is_grown, resumed, is_done) = outcome.unwrap();
    assert!(unmounted.is_ok_and(|s| s.success()));
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(kept > 0 && is_grown && is_done);
    assert_eq!(kept + resumed, 80);
}

netstage_harness::tests![a_full_disk_is_reported_and_no_run_is_lost];
netstage_harness::main![self];
