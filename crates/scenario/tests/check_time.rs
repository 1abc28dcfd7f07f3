//! Processor time of checks of large sweeps: an axis of 10,000 values of a file with counted VPNs takes at most a second.

use netstage_harness::{needs, skip_busy};
use netstage_scenario::{LoadOptions, parse_with};
use std::fs;
use std::path::Path;

const VALUES: u64 = 10_000;
const MAX_SECONDS: f64 = 1.0;
/// Maximum time that the thread waits for a processor, relative to its processor time. Beyond, other programs take turns
/// with it and replace its cache.
const MAX_WAITING: f64 = 0.05;

/// Returns the processor time of this thread, and the time it waited for a processor, seconds.
fn thread_times() -> [f64; 2] {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let mut times = times.split_whitespace().map(|time| time.parse::<f64>().unwrap() / 1e9);
    [(); 2].map(|()| times.next().unwrap())
}

/// Returns a file without its own cells.
fn without_study(text: &str) -> String {
    let of_cells = ["[expect.", "[plot.", "[variant.", "[sweep]"];
    let mut keeps = true;
    let keep = |line: &&str| {
        if line.starts_with('[') {
            keeps = !of_cells.iter().any(|header| line.starts_with(header));
        }
        keeps
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

fn an_axis_of_ten_thousand_values_is_checked_within_a_second() {
    needs::time(10);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/papers/i2vfc");
    let axes = [
        ("link.*.rate", "kbit/s"),
        ("link.*.delay", "us"),
        ("defaults.tcp.initial_rto", "ms"),
        ("flow.one.stagger", "us"),
    ];
    let mut slow = Vec::new();
    for name in ["fig11.toml", "fig12.toml"] {
        let text = without_study(&fs::read_to_string(folder.join(name)).unwrap());
        for (path, unit) in axes {
            // Above the minimum of every path.
            let values = (1_000..1_000 + VALUES).map(|value| format!("{value} {unit}")).collect();
            let vary = vec![(path.to_owned(), values)];
            let options = LoadOptions { vary, repeat: Some(1), ..LoadOptions::default() };
            let before = thread_times();
            let checked = parse_with(name, &text, Some(&folder), &options, |cell| cell.settings);
            let after = thread_times();
            let [seconds, waiting] = [0, 1].map(|index| after[index] - before[index]);
            assert_eq!(
                checked.map(|checked| checked.cells.len()).map_err(|errors| errors.problems),
                Ok(10_000)
            );
            println!("{path} of {name}: {seconds:.2} s, waited {waiting:.2} s");
            if seconds > MAX_SECONDS && waiting > MAX_WAITING * seconds {
                skip_busy(format!("{path} of {name}: {seconds:.2} s, waited {waiting:.2} s for a processor"));
            }
            if seconds > MAX_SECONDS {
                slow.push(format!("{path} of {name}: {seconds:.2} s"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

netstage_harness::tests![an_axis_of_ten_thousand_values_is_checked_within_a_second];
netstage_harness::main![self];
