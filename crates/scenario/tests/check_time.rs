//! Processor time of checks of large sweeps: the 10,000 values of an axis, of a file with counted VPNs, share most of the
//! work. A value costs 4 to 12 times as much as parsing the TOML of the file, a separate check about 50 times as much. The
//! comparison holds on machines of any speed.

use netstage_harness::{needs, skip_busy};
use netstage_scenario::{LoadOptions, parse_with};
use std::fs;
use std::path::Path;

const VALUES: u64 = 10_000;
/// Maximum time of a value, relative to that of parsing the TOML of the file.
const MAX_PARSES: f64 = 25.0;
/// Number of timed parses.
const PARSES: u64 = 500;
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

/// Returns the processor time of parsing the TOML of a file, seconds.
fn parse_time(text: &str) -> f64 {
    let before = thread_times()[0];
    for _ in 0..PARSES {
        assert!(!toml::de::DeTable::parse(text).unwrap().get_ref().is_empty());
    }
    (thread_times()[0] - before) / PARSES as f64
}

/// Checks these values of an axis, and returns the processor time and the time of waiting.
fn check(name: &str, text: &str, folder: &Path, path: &str, values: &[String]) -> [f64; 2] {
    let vary = vec![(path.to_owned(), values.to_vec())];
    let options = LoadOptions { vary, repeat: Some(1), ..LoadOptions::default() };
    let before = thread_times();
    let checked = parse_with(name, text, Some(folder), &options, |cell| cell.settings);
    let after = thread_times();
    let cells = checked.map(|checked| checked.cells.len()).map_err(|errors| errors.problems);
    assert_eq!(cells, Ok(values.len()));
    [0, 1].map(|index| after[index] - before[index])
}

fn ten_thousand_values_share_the_work_of_a_check() {
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
        let parse_seconds = parse_time(&text);
        for (path, unit) in axes {
            // Above the minimum of every path.
            let values: Vec<String> =
                (1_000..1_000 + VALUES).map(|value| format!("{value} {unit}")).collect();
            let [seconds, waiting] = check(name, &text, &folder, path, &values);
            let parses = seconds / VALUES as f64 / parse_seconds;
            let found = format!("{path} of {name}: {seconds:.2} s, {parses:.2} parses for each value");
            println!("{found}, waited {waiting:.2} s");
            if parses > MAX_PARSES && waiting > MAX_WAITING * seconds {
                skip_busy(format!("{found}, waited {waiting:.2} s for a processor"));
            }
            if parses > MAX_PARSES {
                slow.push(found);
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

netstage_harness::tests![ten_thousand_values_share_the_work_of_a_check];
netstage_harness::main![self];
