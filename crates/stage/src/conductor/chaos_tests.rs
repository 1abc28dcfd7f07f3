//! Chaos suite: tests in virtual time while sender and receiver stall at random. Departures, packet counts, outcome and
//! searches are those of a run with real packets; the forwarder is a model whose truth is known. Each answer is right
//! within its interval, or void.

use super::outcome::{Findings, outcome};
use crate::topology::assignments::{assignments, members_at};
use netstage_agent_api::results::{AgentReport, FlowResult, WatchedWindows};
use netstage_agent_api::task::{FlowSide, FlowTask};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_emulator::EmulatorReport;
use netstage_harness::seed;
use netstage_host::clock::Epoch;
use netstage_scenario::outcome::Metric;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::outcome::finding::Finding;
use netstage_scenario::plan::Plan;
use netstage_scenario::{LoadOptions, Scenario, parse};
use netstage_study::Performer;
use netstage_study::series::read_run;
use netstage_traffic::departures::Departures;
use netstage_traffic::emissions::Emissions;
use netstage_traffic::records::FlowLedger;
use netstage_traffic::{FlowPacket, PacketTracker};
use netstage_wire::probe::HEADER;
use netstage_wire::{IPV4_HEADER, UDP_HEADER};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

/// Device under test: a line with a drop-tail queue and random loss.
#[derive(Clone, Copy, Debug)]
struct Device {
    /// Rate at the IP layer, bits per second.
    rate: f64,
    /// Packets in the queue, including the one in transmission.
    buffer: u64,
    loss: f64,
    /// Propagation delay, nanoseconds.
    delay: u64,
    /// Share of packets that arrive with one wrong bit.
    damage: f64,
}

/// Periods in which a thread does not run.
struct Stalls(Vec<(u64, u64)>);

impl Stalls {
    /// Draws up to four stalls in a trial, or with a probability of `1 - chance` none.
    fn draw(random: &mut RandomStream, duration: Duration, chance: f64) -> Stalls {
        let count = if random.chance(chance) { random.next_u64() % 5 } else { 0 };
        let mut stalls: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let start = random.next_u64() % duration.0;
                (start, start + 5_000_000 + random.next_u64() % 495_000_000)
            })
            .collect();
        stalls.sort_unstable();
        Stalls(stalls)
    }

    /// Returns the time at which a thread that is due at `at` runs.
    fn runs_at(&self, at: u64) -> u64 {
        self.0.iter().fold(at, |at, &(start, end)| if (start..end).contains(&at) { end } else { at })
    }
}

/// Packet of a trial, times in nanoseconds.
struct SentPacket {
    number: u64,
    due: u64,
    /// Timestamp in the packet.
    stamped: u64,
    left: u64,
}

/// Packets of one trial.
#[derive(Clone, Copy, Debug, Default)]
struct TrialTruth {
    sent: u64,
    /// Packets that the device would drop if all that were sent had left on time.
    dropped: u64,
    /// Packets compared by the receiver, and wrong bits in them.
    compared: u64,
    wrong_bits: u64,
}

impl Device {
    /// Returns the arrival time of each packet at the receiver, `None` if it was dropped.
    fn forward(
        &self,
        seed: u64,
        bits: f64,
        departures: impl Iterator<Item = (u64, u64)>,
    ) -> Vec<Option<u64>> {
        let service = self.service(bits);
        let mut free_at = 0.0_f64;
        let mut arrivals = Vec::new();
        for (number, at) in departures {
            let at = at as f64;
            let is_queued = (free_at - at) / service < self.buffer as f64;
            if is_queued {
                free_at = free_at.max(at) + service;
            }
            let is_lost = RandomStream::new(seed, &format!("loss.{number}")).uniform() < self.loss;
            arrivals.push((is_queued && !is_lost).then_some(free_at as u64 + self.delay));
        }
        arrivals
    }

    /// Returns the transmission time of a packet of these bits, nanoseconds.
    fn service(&self, bits: f64) -> f64 {
        bits / self.rate * 1e9
    }

    /// Returns the wrong bits of a packet.
    fn bit_errors(&self, seed: u64, number: u64) -> u64 {
        u64::from(RandomStream::new(seed, &format!("damage.{number}")).uniform() < self.damage)
    }

    /// Returns the longest burst at this load, in packets per second, that a queue of this length absorbs.
    fn burst(&self, bits: f64, load: f64, buffer: f64, max: u64) -> u64 {
        let (service, gap) = (self.service(bits), 1e9 / load);
        let mut free_at = 0.0_f64;
        for packet in 0..max {
            let at = packet as f64 * gap;
            if (free_at - at) / service >= buffer {
                return packet;
            }
            free_at = free_at.max(at) + service;
        }
        max
    }
}

/// Runs the probe of a trial in virtual time, with stalls by this chance. A sender without an envelope takes all of its
/// packets for punctual, and sends the backlog of a stall in a burst.
fn trial(
    plan: &Plan,
    seed: u64,
    (device, chance): (Device, f64),
    truths: &Mutex<Vec<TrialTruth>>,
    has_envelope: bool,
) -> RunOutcome {
    let mut random = RandomStream::new(seed, "chaos");
    let members = members_at(plan, |_| ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())).unwrap();
    let tasks: Vec<FlowTask> =
        assignments(plan, &members, seed).into_values().flat_map(|assignment| assignment.flows).collect();
    let ledger = || FlowLedger::new(plan.measure.interval, plan.duration);
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for task in tasks.iter().filter(|task| task.side == FlowSide::Send) {
        let emissions = Emissions::new(task, seed, plan.duration).unwrap();
        let payload = emissions.largest_packet().unwrap();
        let bits = (payload as f64 + f64::from(IPV4_HEADER + UDP_HEADER)) * 8.0;
        let stalls = Stalls::draw(&mut random, plan.duration, chance);
        // A thread can also stop between the timestamp of a packet and its departure.
        let held = random
            .chance(chance / 8.0)
            .then(|| (random.next_u64() % 2_000, 5_000_000 + random.next_u64() % 495_000_000));
        let mut departures = Departures::new(emissions, 1, HEADER, ledger());
        let (mut sent, mut taken, mut clock) = (Vec::new(), VecDeque::new(), 0);
        while departures.due() != Instant::NEVER {
            let jitter = random.next_u64() % 40_000;
            clock = stalls.runs_at(departures.due().0.max(clock) + jitter);
            let now = if has_envelope { Instant(clock) } else { departures.due() };
            if now >= departures.stop() {
                departures.discard_rest(now);
                break;
            }
            while departures.take(now, &mut taken) > 0 {}
            for packet in taken.drain(..) {
                let hold =
                    held.filter(|(number, _)| *number == packet.number).map_or(2_000, |(_, hold)| hold);
                clock += hold;
                departures.record_sent(&packet, now, if has_envelope { Instant(clock) } else { now });
                sent.push(SentPacket {
                    number: packet.number,
                    due: packet.due.0,
                    stamped: now.0,
                    left: clock,
                });
            }
        }
        let arrivals = device.forward(seed, bits, sent.iter().map(|packet| (packet.number, packet.left)));
        let on_time = device.forward(seed, bits, sent.iter().map(|packet| (packet.number, packet.due)));
        let dropped = on_time.iter().filter(|arrival| arrival.is_none()).count() as u64;
        let mut truth = TrialTruth { sent: sent.len() as u64, dropped, ..TrialTruth::default() };
        let (_, schedule, gaps, bins) = departures.finish();
        let name = task.name.clone();
        senders.push(FlowResult {
            name,
            sends: true,
            gaps,
            schedule: Some(schedule),
            bins,
            ..Default::default()
        });
        let stalls = Stalls::draw(&mut random, plan.duration, chance);
        let capacity = 20 + random.next_u64() % 2000;
        let receiving =
            tasks.iter().find(|other| other.id == task.id && other.side == FlowSide::Receive).unwrap();
        let packets: Vec<FlowPacket> = sent
            .iter()
            .zip(&arrivals)
            .filter_map(|(packet, arrival)| {
                Some(FlowPacket {
                    number: packet.number,
                    bytes: payload,
                    at_ns: (*arrival)?,
                    sent_ns: Some(packet.stamped),
                    bit_errors: device.bit_errors(seed, packet.number),
                })
            })
            .collect();
        receivers.push(receive(receiving, ledger(), packets, (&stalls, capacity), &mut truth));
        truths.lock().unwrap().push(truth);
    }
    let report = |node: &str, flows| AgentReport { node: node.into(), flows, ..AgentReport::default() };
    outcome(&Findings {
        plan,
        members: &members,
        reports: &[report("a", senders), report("b", receivers)],
        emulator: &EmulatorReport::default(),
        is_real: true,
        clock_error: &|_, _| 0,
        services: &[],
        watched: &WatchedWindows::default(),
    })
}

/// Receives the packets through a socket buffer, which overflows during a long stall.
fn receive(
    task: &FlowTask,
    ledger: FlowLedger,
    packets: Vec<FlowPacket>,
    (stalls, capacity): (&Stalls, u64),
    truth: &mut TrialTruth,
) -> FlowResult {
    let mut tracker = PacketTracker::new(task, ledger);
    let (mut waiting, mut read_at, mut drops) = (0, 0, 0);
    for packet in packets {
        if packet.at_ns >= read_at {
            (waiting, read_at) = (0, stalls.runs_at(packet.at_ns));
        }
        waiting += 1;
        if waiting > capacity {
            drops += 1;
            continue;
        }
        truth.compared += 1;
        truth.wrong_bits += packet.bit_errors;
        tracker.handle_packet(Epoch(0), packet);
    }
    let result = tracker.finish(&task.name, &mut Vec::new());
    FlowResult { name: task.name.clone(), socket_drops: drops, ..result }
}

/// Kinds of tests and flows.
const KINDS: [&str; 12] = [
    "rfc2544-throughput",
    "rfc2544-latency",
    "rfc2544-frame-loss",
    "rfc9004-back-to-back",
    "mlrsearch",
    "plateau",
    "steady-rate",
    "loss",
    "bit-error-loss",
    "bit-error-payload",
    "y1564",
    "flow",
];

/// One case: a device, and a test or flow.
struct Case {
    kind: &'static str,
    device: Device,
    /// Bits of a packet at the IP layer.
    bits: f64,
    /// Offered rate, or maximum rate of a search, bits per second at the IP layer.
    rate: f64,
    /// Length of a trial, seconds.
    trial: f64,
    /// Probability of stalls in a trial; low for tests of many trials, most of which would be void otherwise.
    chance: f64,
    text: String,
}

impl Case {
    fn draw(number: usize, random: &mut RandomStream) -> Case {
        let kind = KINDS[number % KINDS.len()];
        let frame = 200 + random.next_u64() % 1300;
        let bits = (frame - 18) as f64 * 8.0;
        let rate = (100.0 + random.uniform() * 900.0) * bits;
        let mut device = Device {
            rate,
            buffer: 2 + random.next_u64() % if kind == "rfc9004-back-to-back" { 400 } else { 80 },
            loss: 0.0,
            delay: random.next_u64() % 20_000_000,
            damage: 0.0,
        };
        match kind {
            "loss" | "bit-error-loss" | "flow" => device.loss = random.uniform() * 0.1,
            "bit-error-payload" => device.damage = random.uniform() * 0.1,
            _ => {}
        }
        let trial = 1.0 + random.uniform();
        let offered = rate
            * match kind {
                "rfc2544-latency" => 0.3 + random.uniform() * 0.65,
                "bit-error-loss" | "bit-error-payload" | "flow" | "y1564" => 0.3 + random.uniform() * 1.2,
                "loss" => 0.3 + random.uniform() * 1.2,
                "rfc2544-throughput" | "rfc2544-frame-loss" | "rfc9004-back-to-back" => {
                    1.2 + random.uniform()
                }
                _ => 3.0,
            };
        let length = format!("trial = \"{trial:.3} s\"\n");
        let max = format!("max_rate = \"{offered:.0} bit/s\"\n");
        let own = match kind {
            "rfc2544-throughput" => format!("{length}{max}resolution = \"1 %\"\n"),
            "rfc2544-latency" => format!("{length}rate = \"{offered:.0} bit/s\"\nrepeats = 3\n"),
            "rfc2544-frame-loss" => format!("{length}{max}step = \"20 %\"\n"),
            "rfc9004-back-to-back" => {
                format!("{length}{max}resolution = \"1 %\"\nrepeats = 1\nmax_burst = \"1500 ms\"\n")
            }
            "mlrsearch" => format!("{length}{max}initial_trial = \"500 ms\"\n"),
            "plateau" => format!("{length}{max}"),
            "steady-rate" => format!(
                "trial = \"3 s\"\nsearch = \"1 s\"\n{max}step = \"{0:.0} bit/s\"\nlow = \"{0:.0} bit/s\"\n",
                rate * 0.05
            ),
            "bit-error-payload" => format!("{length}by = \"payload\"\nrate = \"{offered:.0} bit/s\"\n"),
            "y1564" => format!(
                "step = \"{trial:.3} s\"\nperformance = \"{trial:.3} s\"\n[test.t.service.s]\nframe_size = \"{frame} B\"\n\
                 committed = \"{:.0} bit/s\"\ndelay = \"{:.0} us\"\n",
                offered * frame as f64 / (frame - 18) as f64,
                (device.delay as f64 + 4.0 * device.service(bits)) / 1e3
            ),
            _ => format!("{length}rate = \"{offered:.0} bit/s\"\n"),
        };
        let table = match kind {
            "flow" => format!(
                "[flow.f]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"\nstop = \"{trial:.3} s\"\n\
                 traffic = {{ model = \"cbr\", rate = \"{:.0} bit/s\", packet = \"{} B\" }}\n",
                offered * (frame - 46) as f64 / (frame - 18) as f64,
                frame - 46
            ),
            _ => {
                let name = if kind.starts_with("bit-error") { "bit-error" } else { kind };
                let sizes = match kind {
                    "y1564" => String::new(),
                    _ => format!("frame_sizes = [\"{frame} B\"]\n"),
                };
                format!(
                    "[test.t]\nkind = \"{name}\"\nfrom = \"a\"\nto = \"b\"\n{sizes}drain = \"200 ms\"\n{own}"
                )
            }
        };
        let text = format!(
            "[scenario]\ntitle = \"chaos\"\nduration = \"3 s\"\n[node.a]\n[node.b]\n\
             [link.line]\nends = [\"a\", \"b\"]\nrate = \"100 Mbit/s\"\nbuffer = \"{} packets\"\n{table}",
            device.buffer
        );
        let chance = match kind {
            "plateau" | "rfc9004-back-to-back" | "y1564" | "steady-rate" => 0.6 * random.uniform(),
            _ => 1.0,
        };
        Case { kind, device, bits, rate: offered, trial, chance, text }
    }

    fn scenario(&self) -> Scenario {
        parse("chaos.toml", &self.text, None, &LoadOptions::default())
            .unwrap_or_else(|error| panic!("{error}\n{}", self.text))
    }

    /// Returns what is wrong with an answer, if anything. `trials` are the true counts of each trial.
    fn fault(&self, outcome: &RunOutcome, trials: &[TrialTruth]) -> Option<String> {
        if self.kind == "flow" {
            return self.flow_fault(outcome, trials);
        }
        let test = &outcome.tests[0];
        let found = |metric: &str| test.findings.iter().find(|finding| finding.metric == metric);
        let bounds =
            |finding: &Finding| (finding.low.unwrap_or(finding.value), finding.high.unwrap_or(finding.value));
        let (device, rate) = (self.device, self.device.rate);
        let truth = *trials.last().expect("a trial");
        let has_verdict = |text: &str| test.verdicts.iter().any(|verdict| verdict.contains(text));
        match self.kind {
            "rfc2544-throughput" | "mlrsearch" | "steady-rate" => {
                let Some(throughput) = found("test.throughput") else {
                    return test.verdicts.is_empty().then(|| "neither a throughput nor a verdict".into());
                };
                let low = throughput.low.unwrap_or(throughput.value);
                let high = throughput.high.unwrap_or(f64::INFINITY);
                // The queue of the device hides an excess during a trial. The resolution of the search is 1 % of up to
                // 2.2 times the rate; a steady rate is found in steps of 5 %, with delays up to ten times that of the
                // idle device.
                let excess = match self.kind {
                    "steady-rate" => rate * 1.01 + f64::from(device.buffer as u32) * self.bits / 3.0,
                    _ => rate * 1.025,
                };
                let is_right = low <= excess && high >= rate * 0.99 && throughput.value <= excess;
                if !is_right {
                    return Some(format!("{throughput:?}, truth {rate:.0}"));
                }
                let denies = has_verdict("every trial had loss") || has_verdict("no rate was steady");
                denies.then(|| format!("no rate without loss, truth {rate:.0}"))
            }
            "plateau" => {
                let plateau = found("test.plateau")?;
                let (low, high) = bounds(plateau);
                let is_right = low <= rate * 1.005 && high >= rate * 0.98;
                (!is_right).then(|| format!("{plateau:?}, truth {rate:.0}"))
            }
            "rfc2544-latency" => {
                let Some(latency) = found("test.latency") else {
                    return Some("neither a latency nor void".into());
                };
                // A packet that is up to one gap late delays the next one by up to its own transmission time.
                let service = device.service(self.bits);
                let min = device.delay as f64 + service;
                let is_within = |seconds: f64, max: f64| {
                    let ns = seconds * 1e9;
                    ns >= min * 0.99 - 5e3 && ns <= max * 1.01 + 50e3
                };
                let (low, high) = bounds(latency);
                let is_right = is_within(low.max(0.0), min + 40e3) || (low * 1e9 <= min && high * 1e9 >= min);
                if !is_right {
                    return Some(format!("{latency:?}, truth {min:.0} ns"));
                }
                let wrong =
                    ["test.latency.least", "test.latency.p99", "test.latency.p999", "test.latency.most"]
                        .into_iter()
                        .filter_map(found)
                        .find(|finding| !is_within(finding.value, min + service));
                wrong.map(|finding| format!("{finding:?}, truth {min:.0} ns"))
            }
            "rfc9004-back-to-back" => {
                let Some(burst) = found("test.back_to_back") else {
                    return Some("neither a burst nor void".into());
                };
                let load = self.rate / self.bits;
                let limit = (load * 1.5) as u64;
                // Departures up to one gap late change the queue by one packet.
                let buffer = device.buffer as f64;
                let [low, high] = [buffer - 1.0, buffer + 1.0]
                    .map(|buffer| device.burst(self.bits, load, buffer, limit) as f64);
                (burst.value < low - 2.0 || burst.value > high + 2.0)
                    .then(|| format!("{burst:?}, truth {low} to {high}"))
            }
            "y1564" => {
                let accepted = found("test.accepted").map(|finding| finding.value);
                // The queue absorbs a small excess. Shortly below the rate it is empty, too.
                let excess = (buffer_rate(device.buffer, self.bits) / self.trial).max(rate * 0.01);
                let is_right = match accepted {
                    Some(1.0) => self.rate <= rate + excess,
                    Some(_) => self.rate >= rate * 0.97,
                    None => false,
                };
                (!is_right).then(|| {
                    format!("accepted: {accepted:?} at {:.0} of {rate:.0}; {:?}", self.rate, test.findings)
                })
            }
            "bit-error-payload" => {
                let Some(ratio) = found("test.bit_error_rate") else {
                    return Some("neither a bit error rate nor void".into());
                };
                let share = truth.wrong_bits as f64 / (truth.compared as f64 * (self.bits - 36.0 * 8.0));
                let (low, high) = bounds(ratio);
                (!(low - 1e-12..=high + 1e-12).contains(&share)).then(|| format!("{ratio:?}, truth {share}"))
            }
            kind => {
                // The first valid trial is that of the highest rate.
                let truth = match kind {
                    "rfc2544-frame-loss" => {
                        let first = test.trials.iter().position(|trial| trial.void.is_empty());
                        trials[first.expect("a valid trial")]
                    }
                    _ => truth,
                };
                let Some(loss) = found("test.loss_ratio") else {
                    return Some("neither a loss nor void".into());
                };
                let share = truth.dropped as f64 / truth.sent as f64;
                let (low, high) = bounds(loss);
                (!(low - 1e-9..=high + 1e-9).contains(&share))
                    .then(|| format!("{loss:?}, truth {share} of {truth:?}"))
            }
        }
    }

    fn flow_fault(&self, outcome: &RunOutcome, trials: &[TrialTruth]) -> Option<String> {
        let sum = |metric| outcome.get(metric, "f").map_or(0.0, |series| series.values.iter().sum());
        let truth = trials.last().expect("a run");
        let (sent, drops, received): (f64, f64, f64) =
            (sum(Metric::FlowSent), sum(Metric::FlowReceiverDrops), sum(Metric::FlowThroughput));
        let payload = self.bits - f64::from(IPV4_HEADER + UDP_HEADER) * 8.0;
        let missing = sent - drops - (received * outcome.interval.as_secs_f64() / payload).round();
        let requested = self.rate / self.bits * self.trial;
        // Late packets are bursts of up to one packet.
        let is_right = (missing - truth.dropped as f64).abs() <= 0.01 * requested + 2.0
            && sent >= 0.98 * requested - 2.0;
        (!is_right).then(|| format!("{sent} of {requested:.0} sent, {missing} missing, truth {truth:?}"))
    }
}

/// Returns the rate at which a queue of this many packets fills within a second.
fn buffer_rate(packets: u64, bits: f64) -> f64 {
    (packets + 2) as f64 * bits
}

/// Wrong answers, and void ones of each kind.
#[derive(Default)]
struct Answers {
    wrong: Vec<(&'static str, String)>,
    void: BTreeMap<&'static str, usize>,
}

fn answers(cases: usize, has_envelope: bool) -> Answers {
    let seed = seed("chaos");
    let mut answers = Answers::default();
    for number in 0..cases {
        let mut random = RandomStream::new(seed, &format!("case.{number}"));
        let case = Case::draw(number, &mut random);
        let truths = Mutex::new(Vec::new());
        let performer = Performer {
            runner: &|plan, seed, _| Ok(trial(plan, seed, (case.device, case.chance), &truths, has_envelope)),
            retries: 2,
            stop: &|| false,
            on_activity: &|_| (),
            on_trial: &|_| (),
            on_progress: &|_, _| {},
            on_outcome: None,
        };
        let file = performer.perform(&case.scenario(), (0, random.next_u64() % 1_000_000)).unwrap().unwrap();
        let (_, _, outcome) = read_run(&file.into()).unwrap();
        let is_void = !outcome.void.is_empty() || outcome.tests.iter().any(|test| !test.void.is_empty());
        *answers.void.entry(case.kind).or_default() += usize::from(is_void);
        if is_void {
            continue;
        }
        if let Some(fault) = case.fault(&outcome, &truths.lock().unwrap()) {
            let verdicts = outcome.tests.first().map(|test| &test.verdicts);
            let text = format!("case {number}, {}: {:?}: {fault}; {verdicts:?}", case.kind, case.device);
            answers.wrong.push((case.kind, text));
        }
    }
    println!("{cases} cases: {} wrong, void: {:?}", answers.wrong.len(), answers.void);
    answers
}

#[test]
fn stalls_of_sender_and_receiver_give_right_answers_or_void_ones() {
    let cases = if cfg!(debug_assertions) { 120 } else { 2_500 };
    let Answers { wrong, void } = answers(cases, true);
    let texts: Vec<String> = wrong.into_iter().map(|(_, text)| text).collect();
    assert!(texts.is_empty(), "{} of {cases} answers are wrong:\n{}", texts.len(), texts.join("\n"));
    let each = cases / KINDS.len();
    assert!(void.values().all(|&void| void < each * 9 / 10), "void of {each} cases each: {void:?}");
}

#[test]
fn suite_finds_wrong_answers_without_the_envelope_of_the_sender() {
    let wrong: BTreeSet<&str> = answers(1_200, false).wrong.into_iter().map(|(kind, _)| kind).collect();
    println!("kinds with wrong answers: {wrong:?}");
    for kind in ["rfc2544-throughput", "rfc2544-latency", "flow"] {
        assert!(wrong.contains(kind), "{kind}: {wrong:?}");
    }
}
