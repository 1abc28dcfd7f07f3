//! Chaos suite with real packets: all kinds of tests and flows over networks drawn at random, while agents, emulator and
//! controller are stopped and other programs compete for the processors. The truth follows from the parameters of the
//! network. Each answer is right within its interval, or void with a reason that has a time, share or size.

mod live;

use super::emulation::{ScenarioFolder, children_of, json, processes_of};
use crate::support::{output_text, within};
use netstage_core::rng::RandomStream;
use netstage_harness::{needs, seed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Kinds with few trials.
const SHORT: [&str; 10] = [
    "rfc2544-throughput",
    "loss",
    "udp",
    "tcp",
    "rfc2544-latency",
    "y1564",
    "y1564-services",
    "stamp",
    "bit-error-loss",
    "bit-error-payload",
];
/// Kinds with many trials, which only the long suite contains.
const LONG: [&str; 6] =
    ["rfc2544-frame-loss", "rfc6349", "rfc9004-back-to-back", "plateau", "mlrsearch", "steady-rate"];

/// Number of cases that run at once.
const WORKERS: u64 = 3;
/// Rate of the access link at the IP layer, bits per second. It is never the bottleneck.
const ACCESS: f64 = 100e6;
/// Lateness that the emulator allows before a run is void, seconds.
const EMULATOR_LATENESS: f64 = 1e-3;
/// Time in which any run ends, also if an agent no longer answers.
const LIMIT: Duration = Duration::from_secs(240);
/// Standard deviations beyond an interval at which an answer is wrong. With the interval itself, they are five: chance
/// exceeds them in one of a million cases.
const SIGMAS: f64 = 3.0;

/// Treatment of an agent during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Processes are stopped for 5 to 500 ms, several times.
    Stalls,
    /// Programs that use all processor time run for 50 to 1000 ms, several times.
    Hogs,
    /// An agent is stopped until the end of the run.
    Frozen,
    /// An agent is killed.
    Killed,
}

/// Answer of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Right,
    Void(String),
    /// The run failed, and named its agent.
    Failed(String),
    Wrong(String),
}

/// Stage of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Emu,
    /// Agents of a fleet; the line is a router with a token bucket of the kernel.
    Live,
}

/// Measurement over a line with a drop-tail queue and random faults.
#[derive(Clone, Debug)]
struct Case {
    stage: Stage,
    kind: &'static str,
    fault: Fault,
    /// Rate of the line at the IP layer, bits per second.
    rate: f64,
    /// Packets that wait, in addition to the one in transmission.
    buffer: u64,
    /// Propagation delay, seconds.
    delay: f64,
    /// Probability of loss, and of an error per bit.
    loss: f64,
    ber: f64,
    /// Bytes of an Ethernet frame of the measurement.
    frame: u64,
    /// Offered rate, or maximum rate of a search, at the IP layer, bits per second.
    offered: f64,
    /// Length of a trial, seconds.
    trial: f64,
}

impl Case {
    fn draw(stage: Stage, kind: &'static str, random: &mut RandomStream) -> Case {
        let fault = match random.below(10) {
            0..5 => Fault::Stalls,
            5..8 => Fault::Hogs,
            8 => Fault::Frozen,
            _ => Fault::Killed,
        };
        let mut between = |low: f64, high: f64| low + random.uniform() * (high - low);
        let is_tcp = ["tcp", "rfc6349"].contains(&kind);
        let rate = between(3e6, 12e6).round();
        let has_loss = ["loss", "udp", "stamp"].contains(&kind) && between(0.0, 1.0) < 0.5;
        let has_bit_errors = kind.starts_with("bit-error");
        let share = match kind {
            "rfc2544-latency" => between(0.3, 0.8),
            "loss" | "udp" if has_loss => between(0.3, 0.8),
            // Services fit together, or one alone exceeds the line.
            "loss" | "udp" | "y1564" | "y1564-services" => {
                if between(0.0, 1.0) < 0.5 {
                    between(0.3, 0.8)
                } else {
                    between(1.3, 1.6)
                }
            }
            _ if has_bit_errors => 0.6,
            "steady-rate" | "plateau" | "mlrsearch" => 2.0,
            _ => between(1.2, 1.8),
        };
        // A window of TCP fills the line if the buffer exceeds the product of rate and round trip.
        let (min_buffer, max_delay) = match (stage, is_tcp) {
            (Stage::Emu, false) => (5.0, 20.0),
            (Stage::Emu, true) => (30.0, 3.0),
            (Stage::Live, _) => (live::BURST as f64 + 10.0, 0.0),
        };
        Case {
            stage,
            kind,
            fault,
            rate,
            buffer: between(min_buffer, 60.0) as u64,
            delay: (between(0.0, max_delay) * 1e3).round() / 1e6,
            loss: if has_loss { between(0.005, 0.1) } else { 0.0 },
            ber: if has_bit_errors { between(1e-6, 1e-5) } else { 0.0 },
            frame: if is_tcp { 1518 } else { between(500.0, 1500.0) as u64 },
            offered: (rate * share).round(),
            trial: between(1.0, 1.6),
        }
    }

    /// Bits of a packet at the IP layer.
    fn bits(&self) -> f64 {
        (self.frame - 18) as f64 * 8.0
    }

    /// Packets offered in a trial.
    fn packets(&self) -> f64 {
        self.offered * self.trial / self.bits()
    }

    fn scenario(&self) -> String {
        let (trial, offered, frame) = (format!("{:.3} s", self.trial), self.offered, self.frame);
        let length = format!("trial = \"{trial}\"\n");
        let at_rate = format!("{length}rate = \"{offered} bit/s\"\n");
        let up_to = format!("{length}max_rate = \"{offered} bit/s\"\n");
        // Rates of services count frames.
        let service = |name: &str, share: f64| {
            let committed = offered * share * frame as f64 / (frame - 18) as f64;
            format!(
                "[test.t.service.{name}]\nframe_size = \"{frame} B\"\ncommitted = \"{committed:.0} bit/s\"\n"
            )
        };
        let steps = format!("step = \"{trial}\"\nperformance = \"{trial}\"\n");
        let own = match self.kind {
            "rfc2544-throughput" => format!("{up_to}resolution = \"10 %\"\n"),
            "rfc2544-frame-loss" => format!("{up_to}step = \"50 %\"\n"),
            "rfc9004-back-to-back" => {
                format!("{up_to}resolution = \"5 %\"\nrepeats = 1\nmax_burst = \"1 s\"\n")
            }
            "mlrsearch" => format!("{up_to}initial_trial = \"500 ms\"\nresolution = \"5 %\"\n"),
            "plateau" => format!("{up_to}repeats = 1\n"),
            "steady-rate" => format!(
                "trial = \"2 s\"\nsearch = \"1 s\"\nmax_rate = \"{offered} bit/s\"\nstep = \"{0:.0} bit/s\"\n\
                 low = \"{0:.0} bit/s\"\n",
                self.rate * 0.1
            ),
            "bit-error-payload" => format!("by = \"payload\"\n{at_rate}"),
            "rfc2544-latency" => format!("{at_rate}repeats = 1\n"),
            "y1564" => format!("{steps}{}", service("s", 1.0)),
            "y1564-services" => format!("{steps}{}{}", service("s", 0.4), service("r", 0.6)),
            "stamp" => format!("{length}interval = \"10 ms\"\nframe_size = \"{frame} B\"\n"),
            "rfc6349" => {
                format!("trial = \"2 s\"\nsearch = \"500 ms\"\nmax_rate = \"{offered} bit/s\"\n")
            }
            _ => at_rate,
        };
        let name = if self.kind.starts_with("bit-error") { "bit-error" } else { self.kind };
        let name = name.strip_suffix("-services").unwrap_or(name);
        let sizes = match self.kind {
            "y1564" | "y1564-services" | "stamp" | "rfc6349" => String::new(),
            "bit-error-loss" => "frame_sizes = [\"300 B\", \"1500 B\"]\n".into(),
            _ => format!("frame_sizes = [\"{frame} B\"]\n"),
        };
        let ends = "from = \"a\"\nto = \"b\"\n";
        let measurement = match self.kind {
            "udp" => format!(
                "[flow.f]\n{ends}transport = \"udp\"\ntraffic = {{ model = \"cbr\", rate = \"{:.0} bit/s\", packet = \
                 \"{} B\" }}\n",
                offered * (frame - 46) as f64 / (frame - 18) as f64,
                frame - 46
            ),
            "tcp" => format!("[flow.f]\n{ends}"),
            _ => format!("[test.t]\nkind = \"{name}\"\n{ends}{sizes}drain = \"200 ms\"\n{own}"),
        };
        format!(
            "[scenario]\ntitle = \"Chaos\"\nduration = \"2500 ms\"\n[node.a]\n[node.b]\n[node.middle]\nkind = \"router\"\n\
             [link.access]\nends = [\"a\", \"middle\"]\nrate = \"{ACCESS} bit/s\"\nbuffer = \"100 packets\"\n[link.line]\n\
             ends = [\"middle\", \"b\"]\nrate = \"{} bit/s\"\ndelay = \"{:.0} us\"\nbuffer = \"{} packets\"\nloss = {:.5}\n\
             ber = {:.9}\n{measurement}[measure]\ninterval = \"100 ms\"\n",
            self.rate,
            self.delay * 1e6,
            self.buffer,
            self.loss,
            self.ber
        )
    }

    /// Maximum rate over a time, bits per second: that of the line, and the tokens of its bucket, if it has one.
    fn max_rate(&self, seconds: f64) -> f64 {
        let tokens = match self.stage {
            Stage::Emu => 0.0,
            Stage::Live => live::TOKENS as f64 * self.bits(),
        };
        self.rate * 1.01 + tokens / seconds
    }

    /// Longest burst at the offered rate that the queue absorbs, for this number of places.
    fn burst(&self, places: f64) -> f64 {
        places / (1.0 - self.rate / self.offered)
    }

    /// Range of the loss ratio at the offered rate. A valid sender may have skipped 1 % of the packets.
    fn loss_range(&self) -> (f64, f64) {
        let excess = |offered: f64, places: f64| {
            let packets = offered * self.trial / self.bits();
            (1.0 - (self.rate * self.trial / self.bits() + places) / packets).max(0.0)
        };
        let deviation = SIGMAS * (self.loss * (1.0 - self.loss) / self.packets()).sqrt();
        let low = excess(self.offered * 0.99, self.buffer as f64 + 2.0) + (self.loss - deviation).max(0.0);
        (low, excess(self.offered, self.buffer as f64 - 1.0) + self.loss + deviation)
    }

    /// Returns what is wrong with a valid result, if anything.
    fn error(&self, result: &Value) -> Option<String> {
        let cell = &result["record"]["cells"][0];
        let findings = cell["tests"][0]["findings"].as_array().cloned().unwrap_or_default();
        let of = |metric: &str, subject: &str| {
            findings
                .iter()
                .find(|finding| finding["metric"] == metric && finding["subject"] == subject)
                .cloned()
        };
        let finding = |metric: &str| findings.iter().find(|finding| finding["metric"] == metric).cloned();
        let summary = |metric: &str| {
            let rows = cell["summary"].as_array().unwrap();
            let row = rows.iter().find(|row| row["metric"] == metric && row["subject"] == "f");
            row.map_or(0.0, |row| row["mean"].as_f64().unwrap())
        };
        let verdicts = cell["tests"][0]["verdicts"].to_string();
        // An answer is right if its interval and the true range have a common value. Of a search that the tester ended, only
        // a lower bound may be known.
        let within = |finding: Option<Value>, low: f64, high: f64| {
            let Some(finding) = finding else {
                return Some(format!("no figure; the truth is {low} to {high}"));
            };
            let value = finding["value"].as_f64().unwrap();
            let is_lower_bound = finding["low"].is_f64() && verdicts.contains("the tester");
            let open = if is_lower_bound { f64::INFINITY } else { value };
            let is_right = finding["low"].as_f64().unwrap_or(value) <= high
                && finding["high"].as_f64().unwrap_or(open) >= low;
            (!is_right).then(|| format!("{finding}, the truth is {low} to {high}"))
        };
        let queued = (self.buffer as f64 + 2.0) * self.bits();
        let deviation = |ratio: f64, samples: f64| SIGMAS * (ratio * (1.0 - ratio) / samples).sqrt();
        let idle = match self.stage {
            Stage::Emu => self.delay + self.bits() / self.rate + self.bits() / ACCESS,
            // The bucket of an idle line has tokens.
            Stage::Live => 0.0,
        };
        let accepted = |services: &[&str], all: bool| {
            let values = services.iter().filter_map(|name| of("test.accepted", &format!("t[{name}]")));
            let values: Vec<f64> = values.map(|finding| finding["value"].as_f64().unwrap()).collect();
            let are_all = values.len() == services.len() && values.iter().all(|value| *value == 1.0);
            (are_all != all)
                .then(|| format!("accepted: {values:?}, at {} of {} bit/s", self.offered, self.rate))
        };
        match self.kind {
            // The queue hides an excess in a trial; packets skipped by a sender lower the rate by 1 %.
            "rfc2544-throughput" | "mlrsearch" => within(
                finding("test.throughput"),
                self.rate * 0.98,
                self.rate * 1.01 + queued / self.trial.min(0.5),
            ),
            "steady-rate" => within(finding("test.throughput"), self.rate * 0.88, self.rate * 1.01 + queued),
            "plateau" => within(finding("test.plateau"), self.rate * 0.98, self.max_rate(self.trial)),
            "rfc2544-latency" => {
                within(finding("test.latency"), idle * 0.99 - 1e-4, idle * 1.01 + EMULATOR_LATENESS)
            }
            "rfc9004-back-to-back" => {
                let max = self.offered / self.bits();
                let [low, high] = [-1.0, 2.0].map(|more| self.burst(self.buffer as f64 + more).min(max));
                // The resolution of the search is 5 % of the maximum.
                within(finding("test.back_to_back"), low - 0.06 * max - 2.0, high + 0.06 * max + 2.0)
            }
            "loss" | "rfc2544-frame-loss" => {
                let (low, high) = self.loss_range();
                within(finding("test.loss_ratio"), low, high)
            }
            "bit-error-payload" => {
                let sigma = deviation(self.ber, self.packets() * self.bits());
                within(finding("test.bit_error_rate"), self.ber - sigma, self.ber + sigma)
            }
            "bit-error-loss" => {
                // The estimate rests on the losses of two sizes.
                let lost = 1.0 - (1.0 - self.ber).powf(1482.0 * 8.0);
                let packets = self.offered * self.trial / (1482.0 * 8.0);
                let sigma = 2.0 * deviation(lost, packets) / (1200.0 * 8.0);
                within(finding("test.bit_error_rate"), self.ber - sigma, self.ber + sigma)
            }
            "y1564" => accepted(&["s"], self.offered < self.rate),
            "y1564-services" => accepted(&["r", "s"], self.offered < self.rate),
            "stamp" => {
                let sigma = deviation(self.loss, self.trial / 0.01) + 1e-9;
                ["forward", "backward"].into_iter().find_map(|direction| {
                    let subject = format!("t[{direction}]");
                    let loss = of("test.loss_ratio", &subject);
                    within(loss, self.loss - sigma, self.loss + sigma).or_else(|| {
                        within(
                            of("test.latency", &subject),
                            idle * 0.99 - 1e-4,
                            idle * 1.01 + EMULATOR_LATENESS,
                        )
                    })
                })
            }
            "rfc6349" => {
                let [low, high] = [0.7 * self.rate, self.max_rate(2.0)].map(|rate| rate * 1448.0 / 1500.0);
                within(finding("test.tcp_throughput"), low, high)
            }
            "udp" => {
                let (sent, lost) = (summary("flow.sent"), summary("flow.lost"));
                let (low, high) = Case { trial: 2.5, ..self.clone() }.loss_range();
                let payload = self.offered * (self.frame - 46) as f64 / (self.frame - 18) as f64;
                let (offered, ratio) = (summary("flow.offered"), lost / sent.max(1.0));
                let is_right = (low - 1e-9..=high + 1e-9).contains(&ratio) && offered >= 0.97 * payload;
                (!is_right).then(|| {
                    format!("{lost} of {sent} lost, the truth is {low} to {high}; {offered} of {payload}")
                })
            }
            _ => {
                let [low, high] = [0.8 * self.rate, self.max_rate(2.5)].map(|rate| rate * 1448.0 / 1500.0);
                let throughput = summary("flow.throughput");
                let is_right = (low..=high).contains(&throughput);
                (!is_right).then(|| format!("TCP {throughput}, the truth is {low} to {high}"))
            }
        }
    }

    /// Runs the measurement with its fault. Returns its output, and whether an agent was killed or stopped for good.
    fn emulate(&self, random: &mut RandomStream) -> (Output, bool) {
        let place = ScenarioFolder::of(&format!("chaos-{}", self.kind), &self.scenario());
        let mut command = place.command("emu", "out");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let controller = child.id();
        // The output of a run exceeds the buffer of a pipe.
        let output = std::thread::spawn(|| child.wait_with_output().unwrap());
        let processes = || Processes {
            agents: processes_of(controller),
            others: children_of(controller).into_iter().chain([controller]).collect(),
        };
        let is_harmed = disturb(processes, || output.is_finished(), self.fault, random);
        let is_clean = within(Duration::from_secs(10), || processes_of(controller).is_empty());
        assert!(is_clean, "processes remain after the run: {:?}", processes_of(controller));
        (output.join().unwrap(), is_harmed)
    }

    /// Runs the measurement with its fault, and judges the answer.
    fn answer(&self, random: &mut RandomStream) -> Answer {
        let began = Instant::now();
        let (output, is_harmed) = match self.stage {
            Stage::Emu => self.emulate(random),
            Stage::Live => live::run(self, random),
        };
        let answer = judge(&json(&output), is_harmed, |result| self.error(result));
        let code = output.status.code();
        let expected = match &answer {
            Answer::Right | Answer::Wrong(_) => code == Some(0),
            Answer::Void(_) => code == Some(5),
            Answer::Failed(_) => code == Some(1),
        };
        if !expected {
            return Answer::Wrong(format!("exit code {code:?}: {answer:?}: {}", output_text(&output)));
        }
        if began.elapsed() > LIMIT {
            return Answer::Wrong(format!("the run took {:?}", began.elapsed()));
        }
        answer
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { stage, kind, fault, rate, buffer, delay, loss, ber, frame, offered, trial } = self;
        write!(
            f,
            "{stage:?}, {kind}, {fault:?}: {rate} bit/s, {buffer} packets, {delay} s, loss {loss:.4}, ber {ber:.1e}; {frame} B at \
             {offered} bit/s for {trial:.3} s"
        )
    }
}

/// Judges a result. `is_harmed`: an agent was killed, or stopped for good.
fn judge(result: &Value, is_harmed: bool, error: impl FnOnce(&Value) -> Option<String>) -> Answer {
    if result["error"].is_object() {
        let message = result["error"]["message"].to_string();
        return if is_harmed && names_agent(&message) {
            Answer::Failed(message)
        } else {
            Answer::Wrong(message)
        };
    }
    let record = &result["record"];
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().into()).collect()
    };
    let (failures, reasons) = (texts(&record["failures"]), texts(&record["void"]));
    if let Some(failure) = failures.first() {
        return match is_harmed && failures.iter().any(|failure| names_agent(failure)) {
            true => Answer::Failed(failure.clone()),
            false => Answer::Wrong(format!("failures without a fault of an agent: {failures:?}")),
        };
    }
    if let Some(reason) = reasons.first() {
        // A reason has a time, or a number of packets.
        let has_size = reason.chars().any(|character| character.is_ascii_digit())
            && [" ms", " s", " us", " of ", " packets", " %"].iter().any(|unit| reason.contains(unit));
        return match has_size || is_harmed {
            true => Answer::Void(reason.clone()),
            false => Answer::Wrong(format!("void without a size: {reason}")),
        };
    }
    match error(result) {
        None => Answer::Right,
        Some(error) => Answer::Wrong(format!("{error}; warnings: {}", record["warnings"])),
    }
}

/// Returns whether a message names the agent that failed.
fn names_agent(message: &str) -> bool {
    ["agent ", "node."].iter().any(|name| message.contains(name))
}

/// Processes of a run that can be disturbed.
struct Processes {
    agents: Vec<u32>,
    /// Controller, and emulator if there is one.
    others: Vec<u32>,
}

/// Disturbs a run until it ends. Returns whether an agent was killed or stopped for good.
fn disturb(
    processes: impl Fn() -> Processes,
    is_over: impl Fn() -> bool,
    fault: Fault,
    random: &mut RandomStream,
) -> bool {
    let mut is_harmed = false;
    let began = Instant::now();
    while !is_over() {
        pause(random, 100, 900);
        assert!(began.elapsed() < LIMIT * 2, "the run does not end");
        let Processes { agents, others } = processes();
        if is_over() {
            break;
        }
        let mut choose = |from: &[u32]| Pid::from_raw(from[random.below(from.len() as u64) as usize] as i32);
        match fault {
            Fault::Stalls => {
                let process = choose(&[agents, others].concat());
                // The process may have ended in the meantime.
                if kill(process, Signal::SIGSTOP).is_ok() {
                    pause(random, 5, 495);
                    let _ = kill(process, Signal::SIGCONT);
                }
            }
            Fault::Hogs => drop(Hogs::start(1 + random.below(4), || pause(random, 50, 950))),
            Fault::Frozen | Fault::Killed if !is_harmed && !agents.is_empty() => {
                let signal = if fault == Fault::Killed { Signal::SIGKILL } else { Signal::SIGSTOP };
                is_harmed = kill(choose(&agents), signal).is_ok();
            }
            Fault::Frozen | Fault::Killed => {}
        }
    }
    is_harmed
}

fn pause(random: &mut RandomStream, min_ms: u64, more_ms: u64) {
    std::thread::sleep(Duration::from_millis(min_ms + random.below(more_ms)));
}

/// Programs that use all processor time.
struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts programs, which end after `pause`.
    fn start(count: u64, pause: impl FnOnce()) -> Hogs {
        let hog = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let hogs = Hogs((0..count).map(hog).collect());
        pause();
        hogs
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            hog.kill().unwrap();
            hog.wait().unwrap();
        }
    }
}

/// Runs cases of the kinds in turn, starting at a random one.
fn assert_right_or_void(stage: Stage, cases: u64, kinds: &[&'static str]) {
    needs::emulation();
    let seed = seed("chaos");
    let first = RandomStream::new(seed, "kind").below(kinds.len() as u64);
    let run = |number: u64| {
        let mut random = RandomStream::new(seed, &format!("case.{number}"));
        let case = Case::draw(stage, kinds[((first + number) % kinds.len() as u64) as usize], &mut random);
        let began = Instant::now();
        let answer = case.answer(&mut random);
        let text = format!("case {number}, {case}: {answer:?}");
        println!("{:.0} s, {text}", began.elapsed().as_secs_f64());
        (case.kind, answer, text)
    };
    let next = AtomicU64::new(0);
    let work = || {
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        numbers.take_while(|number| *number < cases).map(&run).collect::<Vec<_>>()
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("cases do not panic")).collect()
    });
    let (mut wrong, mut shares) = (Vec::new(), BTreeMap::<&str, [u32; 4]>::new());
    for (kind, answer, text) in answers {
        let column = match answer {
            Answer::Right => 0,
            Answer::Void(_) => 1,
            Answer::Failed(_) => 2,
            Answer::Wrong(_) => 3,
        };
        shares.entry(kind).or_default()[column] += 1;
        wrong.extend((column == 3).then_some(text));
    }
    println!("[right, void, failed, wrong] of {cases} cases: {shares:?}");
    assert!(wrong.is_empty(), "{} of {cases} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let right: u32 = shares.values().map(|counts| counts[0]).sum();
    assert!(u64::from(right) * 5 >= cases, "right answers: {right} of {cases}");
}

fn disturbed_measurements_are_right_or_void() {
    assert_right_or_void(Stage::Emu, 10, &SHORT);
}

fn many_disturbed_measurements_are_right_or_void() {
    let kinds: Vec<&str> = SHORT.into_iter().chain(LONG).collect();
    assert_right_or_void(Stage::Emu, 100, &kinds);
}

fn many_disturbed_fleets_measure_right_or_void() {
    needs::program("nft", "nftables");
    assert_right_or_void(Stage::Live, 40, &live::kinds());
}

netstage_harness::tests![
    disturbed_measurements_are_right_or_void,
    #[ignore = "takes half an hour"]
    many_disturbed_measurements_are_right_or_void,
    #[ignore = "takes half an hour"]
    many_disturbed_fleets_measure_right_or_void,
];
