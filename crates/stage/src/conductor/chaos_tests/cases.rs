//! Cases of the chaos suite: a device, a test or flow, and what is wrong with its answer, if anything.

use super::connection::HEADERS;
use super::network::Device;
use super::tester::{Conditions, TrialTruth};
use netstage_core::measure::lateness::MAX_DELAY_ERROR;
use netstage_core::rng::RandomStream;
use netstage_scenario::outcome::Metric;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::outcome::finding::{Finding, TestOutcome};
use netstage_scenario::plan::FlowDirection;
use netstage_scenario::{LoadOptions, Scenario, parse};
use netstage_wire::{IPV4_HEADER, UDP_HEADER};

/// Kinds of tests and flows.
pub const KINDS: [&str; 16] = [
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
    "y1564-services",
    "stamp",
    "rfc6349",
    "flow",
    "tcp-flow",
];

/// One case: a device, and a test or flow.
pub struct Case {
    pub kind: &'static str,
    pub conditions: Conditions,
    /// Bits of a packet at the IP layer.
    bits: f64,
    /// Offered rate, or maximum rate of a search, bits per second at the IP layer.
    rate: f64,
    /// Length of a trial, seconds.
    trial: f64,
    /// Services of a service activation test, each with its share of the offered rate.
    services: Vec<f64>,
    /// Receive window of TCP, bytes.
    window: f64,
    text: String,
}

impl Case {
    pub fn draw(number: usize, random: &mut RandomStream, has_envelope: bool) -> Case {
        let kind = KINDS[number % KINDS.len()];
        let frame = match kind {
            "stamp" => 90,
            "rfc6349" => 500 + random.next_u64() % 1000,
            _ => 200 + random.next_u64() % 1300,
        };
        let bits = (frame - 18) as f64 * 8.0;
        // The packets of a session of 5 ms do not wait for each other.
        let slowest = if kind == "stamp" { 250.0 } else { 100.0 };
        let rate = ((slowest + random.uniform() * 900.0) * bits).round();
        let smallest = if kind == "y1564-services" { 8 } else { 2 };
        let mut device = Device {
            rate,
            buffer: smallest + random.next_u64() % if kind == "rfc9004-back-to-back" { 400 } else { 80 },
            loss: 0.0,
            delay: random.next_u64() % 20_000 * 1_000,
            damage: 0.0,
        };
        match kind {
            "loss" | "bit-error-loss" | "flow" | "stamp" => device.loss = random.uniform() * 0.1,
            "bit-error-payload" => device.damage = random.uniform() * 0.1,
            _ => {}
        }
        let trial = 1.0 + random.uniform();
        let offered = rate
            * match kind {
                "rfc2544-latency" => 0.3 + random.uniform() * 0.65,
                "loss" | "bit-error-loss" | "bit-error-payload" | "flow" | "y1564" | "y1564-services" => {
                    0.3 + random.uniform() * 1.2
                }
                "rfc2544-throughput" | "rfc2544-frame-loss" | "rfc9004-back-to-back" => {
                    1.2 + random.uniform()
                }
                _ => 3.0,
            };
        let services = match kind {
            "y1564" => vec![1.0],
            "y1564-services" => {
                let shares: Vec<f64> =
                    (0..2 + random.next_u64() % 2).map(|_| 0.2 + random.uniform()).collect();
                let sum: f64 = shares.iter().sum();
                shares.into_iter().map(|share| share / sum).collect()
            }
            _ => Vec::new(),
        };
        let segment = (frame - 18) as f64 - HEADERS as f64;
        // The queue holds the window, so that the connection has no losses.
        let round_trip =
            2.0 * device.delay as f64 + device.service(bits) + device.service(HEADERS as f64 * 8.0);
        let fitting = (round_trip / device.service(bits)).ceil();
        let window = segment * (1.0 + (random.uniform() * 1.5 * fitting).floor()).min(device.buffer as f64);
        let is_emulated = random.chance(0.5);
        let chance = match kind {
            "plateau" | "rfc9004-back-to-back" | "y1564" | "y1564-services" | "steady-rate" | "rfc6349" => {
                0.6 * random.uniform()
            }
            _ => random.uniform(),
        };
        let mut case = Case {
            kind,
            conditions: Conditions { device, is_emulated, chance, has_envelope },
            bits,
            rate: offered,
            trial,
            services,
            window,
            text: String::new(),
        };
        case.text = format!("{}{}", case.network(), case.table(frame, random));
        case
    }

    /// Returns the tables of the network.
    fn network(&self) -> String {
        let Device { rate, buffer, delay, .. } = self.conditions.device;
        let links = match self.conditions.is_emulated {
            // The emulator counts the packet in transmission apart.
            true => format!(
                "[node.r]\nkind = \"router\"\n\
                 [link.access]\nends = [\"a\", \"r\"]\nrate = \"1 Gbit/s\"\nbuffer = \"1000 packets\"\n\
                 [link.line]\nends = [\"r\", \"b\"]\nrate = \"{rate:.0} bit/s\"\ndelay = \"{} us\"\n\
                 buffer = \"{} packets\"\n",
                delay / 1_000,
                buffer - 1
            ),
            false => format!(
                "[link.line]\nends = [\"a\", \"b\"]\nrate = \"100 Mbit/s\"\nbuffer = \"{buffer} packets\"\n"
            ),
        };
        format!(
            "[scenario]\ntitle = \"chaos\"\nduration = \"{} s\"\n[node.a]\n[node.b]\n{links}",
            self.duration()
        )
    }

    /// Returns the duration of the flows, seconds.
    fn duration(&self) -> f64 {
        if self.kind == "tcp-flow" { 4.0 } else { 3.0 }
    }

    /// Returns the table of the test or flow.
    fn table(&self, frame: u64, random: &mut RandomStream) -> String {
        let (trial, offered) = (self.trial, self.rate);
        let Device { rate, delay, .. } = self.conditions.device;
        let length = format!("trial = \"{trial:.3} s\"\n");
        let max = format!("max_rate = \"{offered:.0} bit/s\"\n");
        let segment = frame - 18 - HEADERS;
        let tcp =
            format!("tcp = {{ max_segment_size = \"{segment} B\", window = \"{:.0} B\" }}\n", self.window);
        let own = match self.kind {
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
            "y1564" | "y1564-services" => self.services(frame, delay),
            "stamp" => format!("{length}interval = \"{} ms\"\n", 5 + random.next_u64() % 16),
            "rfc6349" => format!("trial = \"{:.3} s\"\nsearch = \"{trial:.3} s\"\n{max}{tcp}", 3.0 * trial),
            _ => format!("{length}rate = \"{offered:.0} bit/s\"\n"),
        };
        match self.kind {
            "flow" => format!(
                "[flow.f]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"\nstop = \"{trial:.3} s\"\n\
                 traffic = {{ model = \"cbr\", rate = \"{:.0} bit/s\", packet = \"{} B\" }}\n",
                offered * (frame - 46) as f64 / (frame - 18) as f64,
                frame - 46
            ),
            "tcp-flow" => format!("[flow.f]\nfrom = \"a\"\nto = \"b\"\n{tcp}"),
            kind => {
                let name = match kind {
                    "bit-error-loss" | "bit-error-payload" => "bit-error",
                    "y1564-services" => "y1564",
                    kind => kind,
                };
                let sizes = match kind {
                    "y1564" | "y1564-services" | "stamp" | "rfc6349" => String::new(),
                    _ => format!("frame_sizes = [\"{frame} B\"]\n"),
                };
                // A short drain is the harder case for a session of replies.
                let drain = if kind == "stamp" { 60 + random.next_u64() % 400 } else { 200 };
                format!(
                    "[test.t]\nkind = \"{name}\"\nfrom = \"a\"\nto = \"b\"\n{sizes}drain = \"{drain} ms\"\n{own}"
                )
            }
        }
    }

    fn services(&self, frame: u64, delay: u64) -> String {
        let mut text = format!("step = \"{0:.3} s\"\nperformance = \"{0:.3} s\"\n", self.trial);
        let queue = 2.0 + 2.0 * self.services.len() as f64;
        let delay = delay as f64 + queue * self.conditions.device.service(self.bits);
        for (index, share) in self.services.iter().enumerate() {
            text += &format!(
                "[test.t.service.s{index}]\nframe_size = \"{frame} B\"\ncommitted = \"{:.0} bit/s\"\ndelay = \"{:.0} us\"\n",
                share * self.rate * frame as f64 / (frame - 18) as f64,
                delay / 1e3
            );
        }
        text
    }

    pub fn scenario(&self) -> Scenario {
        parse("chaos.toml", &self.text, None, &LoadOptions::default())
            .unwrap_or_else(|error| panic!("{error}\n{}", self.text))
    }

    /// Returns what is wrong with an answer, if anything. `trials` are the true counts of each trial and flow.
    pub fn fault(&self, outcome: &RunOutcome, trials: &[Vec<TrialTruth>]) -> Option<String> {
        match self.kind {
            "flow" => return self.flow_fault(outcome, trials),
            "tcp-flow" => {
                let series = outcome.get(Metric::FlowThroughput, "f").expect("a throughput");
                let mean = series.values.iter().sum::<f64>() / series.values.len() as f64;
                return self.tcp_fault(mean, self.duration());
            }
            _ => {}
        }
        let test = &outcome.tests[0];
        let truth = *trials.last().and_then(|flows| flows.first()).expect("a trial");
        match self.kind {
            "rfc2544-throughput" | "mlrsearch" | "steady-rate" => self.throughput_fault(test),
            "plateau" => self.plateau_fault(found(test, Metric::TestPlateau)?),
            "rfc2544-latency" => self.latency_fault(test),
            "rfc9004-back-to-back" => self.burst_fault(test),
            "y1564" | "y1564-services" => self.activation_fault(&test.findings, trials),
            "bit-error-payload" => {
                let Some(ratio) = found(test, Metric::TestBitErrorRate) else {
                    return Some("neither a bit error rate nor void".into());
                };
                let share = truth.wrong_bits as f64 / (truth.compared as f64 * (self.bits - 36.0 * 8.0));
                outside(ratio, share)
            }
            "stamp" => self.stamp_fault(&test.findings, truth),
            "rfc6349" => self.transfer_fault(test),
            kind => {
                // The first valid trial is that of the highest rate.
                let truth = match kind {
                    "rfc2544-frame-loss" => {
                        let first = test.trials.iter().position(|trial| trial.void.is_empty());
                        let first = first.expect("a valid trial");
                        if test.trials[first].requested_bps != test.trials[0].requested_bps {
                            return Some("the loss at a rate below the maximum".into());
                        }
                        trials[first][0]
                    }
                    _ => truth,
                };
                let Some(loss) = found(test, Metric::TestLossRatio) else {
                    return Some("neither a loss nor void".into());
                };
                outside(loss, truth.dropped as f64 / truth.sent as f64)
                    .map(|fault| format!("{fault} of {truth:?}"))
            }
        }
    }

    fn throughput_fault(&self, test: &TestOutcome) -> Option<String> {
        let (device, rate) = (self.conditions.device, self.conditions.device.rate);
        let has_verdict = |text: &str| test.verdicts.iter().any(|verdict| verdict.contains(text));
        let Some(throughput) = found(test, Metric::TestThroughput) else {
            return test.verdicts.is_empty().then(|| "neither a throughput nor a verdict".into());
        };
        let low = throughput.low.unwrap_or(throughput.value);
        let high = throughput.high.unwrap_or(f64::INFINITY);
        // The queue of the device hides an excess during a trial. The resolution of the search is 1 % of up to 2.2 times
        // the rate; a steady rate is found in steps of 5 %, with delays up to ten times that of the idle device.
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

    fn latency_fault(&self, test: &TestOutcome) -> Option<String> {
        let Some(latency) = found(test, Metric::TestLatency) else {
            return Some("neither a latency nor void".into());
        };
        let min = self.conditions.device.delay as f64 + self.conditions.device.service(self.bits);
        if !self.is_delay(bounds(latency), 0.0) {
            return Some(format!("{latency:?}, truth {min:.0} ns"));
        }
        self.delay_fault(
            &test.findings,
            &[Metric::TestLatencyMin, Metric::TestLatency99, Metric::TestLatency999, Metric::TestLatencyMax],
        )
    }

    fn burst_fault(&self, test: &TestOutcome) -> Option<String> {
        let Some(burst) = found(test, Metric::TestBackToBack) else {
            return Some("neither a burst nor void".into());
        };
        let device = self.conditions.device;
        let load = self.rate / self.bits;
        let limit = (load * 1.5) as u64;
        // Departures up to one gap late change the queue by one packet.
        let buffer = device.buffer as f64;
        let [low, high] =
            [buffer - 1.0, buffer + 1.0].map(|buffer| device.burst(self.bits, load, buffer, limit) as f64);
        // Of the packets, 1 % may be late on emulated links.
        let late = if self.conditions.is_emulated { 0.01 * burst.value } else { 0.0 };
        (burst.value < low - 2.0 - late || burst.value > high + 2.0 + late)
            .then(|| format!("{burst:?}, truth {low} to {high}"))
    }

    fn transfer_fault(&self, test: &TestOutcome) -> Option<String> {
        let round_trip = found(test, Metric::TestRoundTrip).map(|finding| finding.value * 1e9);
        let truth = self.round_trip();
        if !round_trip.is_some_and(|measured| measured >= truth * 0.99 && measured <= truth * 1.01 + 1e5) {
            return Some(format!("round trip {round_trip:?}, truth {truth:.0} ns; {:?}", test.verdicts));
        }
        let (Some(plateau), Some(throughput)) =
            (found(test, Metric::TestPlateau), found(test, Metric::TestTcpThroughput))
        else {
            return Some(format!("neither a throughput nor void: {:?}", test.verdicts));
        };
        self.plateau_fault(plateau).or_else(|| self.tcp_fault(throughput.value, 3.0 * self.trial))
    }

    /// Returns whether a delay is that of the device, or longer by at most `queue`. Lateness that an emulated link declares
    /// as on time is part of it.
    fn is_delay(&self, (low, high): (f64, f64), queue: f64) -> bool {
        let device = self.conditions.device;
        let min = device.delay as f64 + device.service(self.bits);
        let late = if self.conditions.is_emulated { MAX_DELAY_ERROR.0 as f64 } else { 0.0 };
        high * 1e9 >= min * 0.99 - 5e3 && low * 1e9 <= (min + queue) * 1.01 + 50e3 + late
    }

    /// Returns the first of these delays that is wrong. A packet that is up to one gap late delays the next one by up to
    /// its own transmission time.
    fn delay_fault(&self, findings: &[Finding], metrics: &[Metric]) -> Option<String> {
        let device = self.conditions.device;
        let is_wrong = |finding: &&Finding| {
            Metric::by_name(&finding.metric).is_some_and(|metric| metrics.contains(&metric))
                && !self.is_delay(bounds(finding), device.service(self.bits))
        };
        findings.iter().find(is_wrong).map(|finding| format!("{finding:?}, truth {device:?}"))
    }

    fn plateau_fault(&self, plateau: &Finding) -> Option<String> {
        let (low, high) = bounds(plateau);
        let rate = self.conditions.device.rate;
        let is_right = low <= rate * 1.005 && high >= rate * 0.98;
        (!is_right).then(|| format!("{plateau:?}, truth {rate:.0}"))
    }

    fn activation_fault(&self, findings: &[Finding], trials: &[Vec<TrialTruth>]) -> Option<String> {
        let device = self.conditions.device;
        // The queue absorbs a small excess. Shortly below the rate it is empty, too.
        let excess = ((device.buffer + 2) as f64 * self.bits / self.trial).max(device.rate * 0.01);
        for (index, _) in self.services.iter().enumerate() {
            let is_accepted = |finding: &&Finding| {
                Metric::by_name(&finding.metric) == Some(Metric::TestAccepted)
                    && finding.subject.ends_with(&format!("[s{index}]"))
            };
            let accepted = findings.iter().find(is_accepted).map(|finding| finding.value);
            // All services together fit, or this one has no losses, as the last step shows.
            let performed = trials.last().filter(|flows| flows.len() == self.services.len());
            let has_losses = performed.is_some_and(|flows| flows[index].dropped > 2);
            let is_right = match accepted {
                Some(1.0) => self.rate <= device.rate + excess || self.services.len() > 1 && !has_losses,
                Some(_) => self.rate >= device.rate * 0.97,
                None => false,
            };
            if !is_right {
                let rates = (self.rate, device.rate);
                return Some(format!("accepted: {accepted:?} at (offered, rate) {rates:.0?}; {findings:?}"));
            }
        }
        None
    }

    fn stamp_fault(&self, findings: &[Finding], truth: TrialTruth) -> Option<String> {
        let [forward, backward] = FlowDirection::BOTH.map(|direction| format!("[{}]", direction.name()));
        let passed = truth.sent - truth.dropped;
        for (part, sent, lost) in
            [(forward, truth.sent, truth.dropped), (backward, passed, truth.dropped_replies)]
        {
            let of_part: Vec<Finding> =
                findings.iter().filter(|finding| finding.subject.ends_with(&part)).cloned().collect();
            let is_loss =
                |finding: &&Finding| Metric::by_name(&finding.metric) == Some(Metric::TestLossRatio);
            let Some(loss) = of_part.iter().find(is_loss) else {
                return Some("neither a loss nor void".into());
            };
            let fault = outside(loss, lost as f64 / sent as f64).map(|fault| format!("{fault} of {truth:?}"));
            let fault = fault.or_else(|| {
                self.delay_fault(
                    &of_part,
                    &[
                        Metric::TestLatency,
                        Metric::TestLatencyMin,
                        Metric::TestLatencyMedian,
                        Metric::TestLatency99,
                        Metric::TestLatency999,
                        Metric::TestLatencyMax,
                    ],
                )
            });
            if fault.is_some() {
                return fault;
            }
        }
        None
    }

    /// Returns the round trip of the idle path, nanoseconds.
    fn round_trip(&self) -> f64 {
        let device = self.conditions.device;
        2.0 * device.delay as f64 + device.service(self.bits) + device.service(HEADERS as f64 * 8.0)
    }

    /// Returns what is wrong with the throughput of TCP over this time. Each of the three threads may be stopped for 5 % of
    /// it, and the receiver of a full window loses what it does not read.
    fn tcp_fault(&self, throughput: f64, seconds: f64) -> Option<String> {
        let device = self.conditions.device;
        let packet = self.bits / 8.0;
        let line = device.rate * (packet - HEADERS as f64) / packet;
        let truth = line.min(self.window * 8.0 / (self.round_trip() / 1e9));
        let start = self.round_trip() / 1e9 / seconds;
        let low = truth * (1.0 - 3.0 * 0.05 - start);
        let high = truth * 1.005 + self.window * 8.0 / seconds;
        (!(low..=high).contains(&throughput))
            .then(|| format!("TCP {throughput:.0}, truth {truth:.0} ({low:.0} to {high:.0})"))
    }

    fn flow_fault(&self, outcome: &RunOutcome, trials: &[Vec<TrialTruth>]) -> Option<String> {
        let sum = |metric| outcome.get(metric, "f").map_or(0.0, |series| series.values.iter().sum());
        let truth = trials.last().expect("a run")[0];
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

fn found(test: &TestOutcome, metric: Metric) -> Option<&Finding> {
    test.findings.iter().find(|finding| Metric::by_name(&finding.metric) == Some(metric))
}

fn bounds(finding: &Finding) -> (f64, f64) {
    (finding.low.unwrap_or(finding.value), finding.high.unwrap_or(finding.value))
}

/// Returns a description if the truth is outside the interval of a finding.
fn outside(finding: &Finding, truth: f64) -> Option<String> {
    let (low, high) = bounds(finding);
    (!(low - 1e-9..=high + 1e-9).contains(&truth)).then(|| format!("{finding:?}, truth {truth}"))
}
