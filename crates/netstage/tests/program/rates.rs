//! Searches for a rate in the simulator: on random lines, queues and trials, no answer exceeds the line, and each interval
//! contains its rate.

use crate::support::{netstage, output_text, record};
use netstage_core::rng::RandomStream;
use netstage_harness::TemporaryFolder;

/// Numerical error of a rate, as a share.
const ROUNDING: f64 = 1e-5;
/// Share of the rate by which loads near it can lose packets: RED drops a packet before its queue is full, and a CBR of whole
/// packets has its own steps.
const STEP: f64 = 0.01;

/// A line and a search on it.
#[derive(Debug)]
struct Case {
    kind: &'static str,
    queue: &'static str,
    /// Buffer of the line, in packets.
    buffer: u64,
    /// Rate of the line, in bit/s.
    rate: u64,
    trial_ms: u64,
    frame: u64,
}

impl Case {
    fn draw(random: &mut RandomStream) -> Case {
        Case {
            kind: ["rfc2544-throughput", "mlrsearch", "steady-rate"][random.below(3) as usize],
            queue: ["drop-tail", "codel", "fq-codel", "red", "drr"][random.below(5) as usize],
            buffer: 32 + random.below(500),
            rate: 1_000_000 + random.below(8_000_000),
            trial_ms: 200 + random.below(2_000),
            frame: 100 + random.below(1_419),
        }
    }

    fn scenario(&self) -> String {
        let Case { kind, queue, buffer, rate, trial_ms, frame } = self;
        let more = match *kind {
            "mlrsearch" => format!("initial_trial = \"{trial_ms} ms\""),
            "steady-rate" => {
                format!("search = \"{trial_ms} ms\"\nstep = \"20 kbit/s\"\nlow = \"100 kbit/s\"")
            }
            _ => String::new(),
        };
        format!(
            r#"
            [scenario]
            title = "A rate"
            [node.a]
            [node.b]
            [node.r]
            kind = "router"
            [link.in]
            ends = ["a", "r"]
            rate = "100 Mbit/s"
            [link.line]
            ends = ["r", "b"]
            rate = "{rate} bit/s"
            delay = "10 ms"
            buffer = "{buffer} packets"
            queue = "{queue}"
            [test.t]
            kind = "{kind}"
            from = "a"
            to = "b"
            trial = "{trial_ms} ms"
            frame_sizes = ["{frame} B"]
            max_rate = "10 Mbit/s"
            {more}
            "#
        )
    }
}

fn no_rate_exceeds_the_line() {
    let seed = netstage_harness::seed("rates");
    let mut random = RandomStream::new(seed, "rates");
    for number in 0..netstage_harness::needs::cases(200) {
        let case = Case::draw(&mut random);
        let folder = TemporaryFolder::new(&format!("rates-{number}"));
        let file = folder.join("rate.toml");
        std::fs::write(&file, case.scenario()).unwrap();
        let out = folder.join("out");
        let paths = [&file, &out].map(|path| path.to_str().unwrap());
        let output = netstage(&["run", paths[0], "--out", paths[1]]).output().unwrap();
        assert!(output.status.success(), "{case:?}: {}", output_text(&output));
        let record = record(&out);
        let findings = record["cells"][0]["tests"][0]["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["metric"] == "test.throughput").unwrap();
        let [value, low, high] = ["value", "low", "high"].map(|bound| found[bound].as_f64());
        let value = value.unwrap();
        let rate = case.rate as f64;
        let about = format!("case {number}: {case:?}: {found}");
        assert!(value.max(low.unwrap_or(value)) <= rate * (1.0 + ROUNDING), "{about}");
        assert!(high.is_none_or(|high| high >= rate * (1.0 - STEP)), "{about}");
        assert!(value >= rate * 0.9, "{about}");
    }
}

netstage_harness::tests![no_rate_exceeds_the_line];
