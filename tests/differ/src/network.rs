//! Drawn scenarios and the scenario files that describe them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Scenario. Rates are in bit/s, times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Network {
    pub duration: u64,
    /// Width of a bin.
    pub interval: u64,
    pub nodes: Vec<Node>,
    pub links: Vec<Link>,
    pub vpns: Vec<Vpn>,
    pub flows: Vec<Flow>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub kind: &'static str,
    /// Rate and buffer of the network device of a host.
    pub device: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub struct Link {
    pub name: String,
    pub ends: [String; 2],
    /// From the first end to the second, and back.
    pub directions: [Direction; 2],
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Direction {
    pub rate: u64,
    pub delay: u64,
    pub buffer: Buffer,
    pub queue: Queue,
    pub overhead: u64,
    pub loss: f64,
    pub bit_errors: f64,
    pub jitter: Option<Jitter>,
    pub duplicate: f64,
    pub schedule: Vec<Change>,
}

impl Direction {
    /// Returns a direction without faults, with room for 1,000 packets.
    pub fn wire() -> Direction {
        Direction {
            rate: 100_000_000,
            delay: 0,
            buffer: Buffer::Packets(1_000),
            queue: Queue::DropTail,
            overhead: 0,
            loss: 0.0,
            bit_errors: 0.0,
            jitter: None,
            duplicate: 0.0,
            schedule: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Buffer {
    Packets(u64),
    Bytes(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Queue {
    DropTail,
    Red { min: f64, max: f64, probability: f64, ecn: bool },
    Codel { target: u64, interval: u64, ecn: bool },
    FqCodel { target: u64, interval: u64, ecn: bool },
    Drr { default_weight: f64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Jitter {
    pub amount: u64,
    pub exponential: bool,
    pub reorder: bool,
}

/// Change of a link during the run.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub at: u64,
    pub rate: Option<u64>,
    pub delay: Option<u64>,
    pub loss: Option<f64>,
    pub up: Option<bool>,
}

#[derive(Clone, Debug)]
pub struct Vpn {
    pub name: String,
    pub ingress: String,
    pub egress: String,
    pub weight: f64,
    pub control: Control,
    pub encapsulation: &'static str,
}

#[derive(Clone, Debug)]
pub enum Control {
    None,
    /// Value of the field `control`.
    Written(String),
    FixedRate {
        rate: u64,
        queue: u64,
    },
    I2vfc {
        increase: f64,
        decrease: f64,
        initial_window: u64,
        pacing: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Flow {
    pub name: String,
    pub from: String,
    pub to: String,
    pub vpn: Option<String>,
    pub transport: Transport,
    pub traffic: Traffic,
    pub count: u64,
    pub start: u64,
    pub stagger: u64,
    pub stop: Option<u64>,
    pub background: bool,
    /// Index of the flow of which this one is a copy under another name.
    pub twin: Option<usize>,
}

#[derive(Clone, Debug)]
pub enum Transport {
    Tcp(Tcp),
    Udp,
    IcmpEcho,
    UdpUnreachable,
}

#[derive(Clone, Debug)]
pub struct Tcp {
    pub stack: &'static str,
    pub algorithm: &'static str,
    pub slow_start: &'static str,
    pub sack: bool,
    pub rack: bool,
    pub ecn: bool,
    pub timestamps: bool,
    /// Maximum payload of a segment.
    pub segment: u64,
    pub window: u64,
    pub initial_window: u64,
    pub ack_every: u64,
    pub delayed_ack: u64,
    pub timeout: u64,
    pub limited_transmit: bool,
    pub handshake: bool,
}

#[derive(Clone, Debug)]
pub enum Traffic {
    Bulk {
        size: Option<u64>,
    },
    Cbr {
        rate: u64,
        packet: u64,
    },
    Poisson {
        rate: u64,
        packet: u64,
    },
    OnOff {
        rate: u64,
        packet: u64,
        on: u64,
        off: u64,
    },
    Pareto {
        rate: u64,
        packet: u64,
        on: u64,
        off: u64,
    },
    Mmpp {
        states: [(u64, u64); 2],
        packet: u64,
    },
    /// Application with its default settings, except for these fields.
    Application(&'static str, &'static str),
}

impl Traffic {
    /// Returns the payload per packet of a pattern of packets.
    pub fn packet(&self) -> Option<u64> {
        match *self {
            Traffic::Cbr { packet, .. }
            | Traffic::Poisson { packet, .. }
            | Traffic::OnOff { packet, .. }
            | Traffic::Pareto { packet, .. }
            | Traffic::Mmpp { packet, .. } => Some(packet),
            Traffic::Bulk { .. } | Traffic::Application(..) => None,
        }
    }

    fn scale(&mut self, factor: u64) {
        match self {
            Traffic::Bulk { .. } | Traffic::Application(..) => {}
            Traffic::Cbr { rate, .. } | Traffic::Poisson { rate, .. } => *rate *= factor,
            Traffic::OnOff { rate, on, off, .. } | Traffic::Pareto { rate, on, off, .. } => {
                *rate *= factor;
                *on /= factor;
                *off /= factor;
            }
            Traffic::Mmpp { states, .. } => {
                for (rate, mean) in states {
                    *rate *= factor;
                    *mean /= factor;
                }
            }
        }
    }
}

impl Network {
    /// Returns the link direction from one node to a neighbor.
    pub fn direction(&self, from: &str, to: &str) -> Option<(&Link, usize)> {
        self.links.iter().find_map(|link| {
            let [a, b] = &link.ends;
            let index = if a == from && b == to { 0 } else { usize::from(b == from && a == to) };
            (a == from && b == to || b == from && a == to).then_some((link, index))
        })
    }

    /// Returns the nodes of the shortest path, found by breadth-first search. Drawn networks have one shortest path.
    pub fn path(&self, from: &str, to: &str) -> Vec<String> {
        let mut paths = vec![vec![from.to_owned()]];
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            let last = path.last().expect("a path begins at its sender");
            if last == to {
                return path;
            }
            let forwards =
                path.len() == 1 || self.nodes.iter().any(|node| node.name == *last && node.kind != "host");
            for link in self.links.iter().filter(|_| forwards) {
                let other = match &link.ends {
                    [a, b] if a == last => b,
                    [a, b] if b == last => a,
                    _ => continue,
                };
                if !path.contains(other) {
                    paths.push([&path[..], std::slice::from_ref(other)].concat());
                }
            }
            next += 1;
        }
        Vec::new()
    }

    /// Returns the link directions of a flow's path.
    pub fn hops(&self, flow: &Flow) -> Vec<(&Link, usize)> {
        let path = self.path(&flow.from, &flow.to);
        path.windows(2).filter_map(|pair| self.direction(&pair[0], &pair[1])).collect()
    }

    /// Returns the same network with other names.
    pub fn renamed(&self, rename: impl Fn(&str) -> String) -> Network {
        let mut network = self.clone();
        for node in &mut network.nodes {
            node.name = rename(&node.name);
        }
        for link in &mut network.links {
            link.name = rename(&link.name);
            link.ends = link.ends.each_ref().map(|end| rename(end));
        }
        for vpn in &mut network.vpns {
            for name in [&mut vpn.name, &mut vpn.ingress, &mut vpn.egress] {
                *name = rename(name);
            }
        }
        for flow in &mut network.flows {
            for name in [&mut flow.name, &mut flow.from, &mut flow.to].into_iter().chain(&mut flow.vpn) {
                *name = rename(name);
            }
        }
        network
    }

    /// Returns the network with all rates multiplied and all times divided by `factor`.
    pub fn scaled(&self, factor: u64) -> Network {
        let mut network = self.clone();
        network.duration /= factor;
        network.interval /= factor;
        for node in &mut network.nodes {
            node.device = node.device.map(|(rate, buffer)| (rate * factor, buffer));
        }
        for direction in network.links.iter_mut().flat_map(|link| &mut link.directions) {
            direction.rate *= factor;
            direction.delay /= factor;
            if let Queue::Codel { target, interval, .. } | Queue::FqCodel { target, interval, .. } =
                &mut direction.queue
            {
                *target /= factor;
                *interval /= factor;
            }
            if let Some(jitter) = &mut direction.jitter {
                jitter.amount /= factor;
            }
            for change in &mut direction.schedule {
                change.at /= factor;
                change.rate = change.rate.map(|rate| rate * factor);
                change.delay = change.delay.map(|delay| delay / factor);
            }
        }
        for vpn in &mut network.vpns {
            if let Control::FixedRate { rate, .. } = &mut vpn.control {
                *rate *= factor;
            }
        }
        for flow in &mut network.flows {
            flow.start /= factor;
            flow.stagger /= factor;
            flow.stop = flow.stop.map(|stop| stop / factor);
            flow.traffic.scale(factor);
            if let Transport::Tcp(tcp) = &mut flow.transport {
                tcp.delayed_ack /= factor;
                tcp.timeout /= factor;
            }
        }
        network
    }

    /// Returns the tables of the scenario file, in any order a valid file.
    pub fn tables(&self) -> Vec<String> {
        let mut tables = vec![
            format!("[scenario]\ntitle = \"drawn\"\nduration = \"{} ns\"\n", self.duration),
            format!("[measure]\ninterval = \"{} ns\"\nflow_detail = true\ndelay = true\n", self.interval),
        ];
        tables.extend(self.nodes.iter().map(Node::table));
        tables.extend(self.links.iter().map(Link::table));
        tables.extend(self.vpns.iter().map(Vpn::table));
        tables.extend(self.flows.iter().map(Flow::table));
        tables
    }

    /// Returns the scenario file.
    pub fn file(&self) -> String {
        self.tables().join("\n")
    }

    /// Returns the names of all parts, each with a new name.
    pub fn names(&self, mut new: impl FnMut(&str) -> String) -> BTreeMap<String, String> {
        let nodes = self.nodes.iter().map(|node| &node.name);
        let links = self.links.iter().map(|link| &link.name);
        let vpns = self.vpns.iter().map(|vpn| &vpn.name);
        let flows = self.flows.iter().map(|flow| &flow.name);
        let all = nodes.chain(links).chain(vpns).chain(flows);
        all.map(|name| (name.clone(), new(name))).collect()
    }
}

impl Node {
    fn table(&self) -> String {
        let mut text = format!("[node.{}]\nkind = \"{}\"\n", self.name, self.kind);
        if let Some((rate, buffer)) = self.device {
            let _ = writeln!(text, "device = {{ rate = \"{rate} bit/s\", buffer = \"{buffer} B\" }}");
        }
        text
    }
}

impl Link {
    fn table(&self) -> String {
        let [forward, reverse] = self.directions.each_ref().map(Direction::fields);
        let mut text = format!("[link.{}]\nends = [\"{}\", \"{}\"]\n", self.name, self.ends[0], self.ends[1]);
        for (name, value) in forward {
            let _ = writeln!(text, "{name} = {value}");
        }
        let reverse: Vec<String> = reverse.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = writeln!(text, "reverse = {{ {} }}", reverse.join(", "));
        text
    }
}

impl Direction {
    fn fields(&self) -> Vec<(&'static str, String)> {
        let buffer = match self.buffer {
            Buffer::Packets(packets) => format!("\"{packets} packets\""),
            Buffer::Bytes(bytes) => format!("\"{bytes} B\""),
        };
        let mut fields = vec![
            ("rate", format!("\"{} bit/s\"", self.rate)),
            ("delay", format!("\"{} ns\"", self.delay)),
            ("buffer", buffer),
            ("queue", self.queue.value()),
            ("overhead", format!("\"{} B\"", self.overhead)),
            ("loss", format!("{:?}", self.loss)),
            ("ber", format!("{:?}", self.bit_errors)),
            ("duplicate", format!("{:?}", self.duplicate)),
        ];
        // Without one of its own, the reverse direction would have the jitter of the forward direction.
        let none = Jitter { amount: 0, exponential: false, reorder: false };
        let Jitter { amount, exponential, reorder } = self.jitter.unwrap_or(none);
        let distribution = if exponential { "exponential" } else { "uniform" };
        let value =
            format!("{{ amount = \"{amount} ns\", distribution = \"{distribution}\", reorder = {reorder} }}");
        fields.push(("jitter", value));
        let schedule: Vec<String> = self.schedule.iter().map(Change::value).collect();
        fields.push(("schedule", format!("[{}]", schedule.join(", "))));
        fields
    }
}

impl Queue {
    fn value(self) -> String {
        match self {
            Queue::DropTail => "\"drop-tail\"".to_owned(),
            Queue::Red { min, max, probability, ecn } => format!(
                "{{ kind = \"red\", min_threshold = {min:?}, max_threshold = {max:?}, max_probability = {probability:?}, ecn = {ecn} }}"
            ),
            Queue::Codel { target, interval, ecn } => {
                format!(
                    "{{ kind = \"codel\", target = \"{target} ns\", interval = \"{interval} ns\", ecn = {ecn} }}"
                )
            }
            Queue::FqCodel { target, interval, ecn } => {
                format!(
                    "{{ kind = \"fq-codel\", target = \"{target} ns\", interval = \"{interval} ns\", ecn = {ecn} }}"
                )
            }
            Queue::Drr { default_weight } => {
                format!("{{ kind = \"drr\", default_weight = {default_weight:?} }}")
            }
        }
    }
}

impl Change {
    fn value(&self) -> String {
        let fields = [
            Some(format!("at = \"{} ns\"", self.at)),
            self.rate.map(|rate| format!("rate = \"{rate} bit/s\"")),
            self.delay.map(|delay| format!("delay = \"{delay} ns\"")),
            self.loss.map(|loss| format!("loss = {loss:?}")),
            self.up.map(|up| format!("up = {up}")),
        ];
        format!("{{ {} }}", fields.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl Vpn {
    fn table(&self) -> String {
        let control = match &self.control {
            Control::None => "\"none\"".to_owned(),
            Control::Written(value) => value.clone(),
            Control::FixedRate { rate, queue } => {
                format!("{{ kind = \"fixed-rate\", rate = \"{rate} bit/s\", queue = \"{queue} packets\" }}")
            }
            Control::I2vfc { increase, decrease, initial_window, pacing } => format!(
                "{{ kind = \"i2vfc\", increase = {increase:?}, decrease = {decrease:?}, initial_window = {initial_window}, pacing = {pacing} }}"
            ),
        };
        let Vpn { name, ingress, egress, weight, encapsulation, .. } = self;
        format!(
            "[vpn.{name}]\ningress = \"{ingress}\"\negress = \"{egress}\"\nweight = {weight:?}\ncontrol = {control}\nencapsulation = \"{encapsulation}\"\n"
        )
    }
}

impl Flow {
    fn table(&self) -> String {
        let Flow { name, from, to, start, stagger, count, background, .. } = self;
        let mut text = format!(
            "[flow.{name}]\nfrom = \"{from}\"\nto = \"{to}\"\nstart = \"{start} ns\"\nstagger = \"{stagger} ns\"\ncount = {count}\nbackground = {background}\n"
        );
        if let Some(vpn) = &self.vpn {
            let _ = writeln!(text, "vpn = \"{vpn}\"");
        }
        if let Some(stop) = self.stop {
            let _ = writeln!(text, "stop = \"{stop} ns\"");
        }
        let transport = match &self.transport {
            Transport::Tcp(tcp) => {
                let _ = writeln!(text, "tcp = {}", tcp.value());
                "tcp"
            }
            Transport::Udp => "udp",
            Transport::IcmpEcho => "icmp-echo",
            Transport::UdpUnreachable => "udp-unreachable",
        };
        let _ = writeln!(text, "transport = \"{transport}\"\ntraffic = {}", self.traffic.value());
        text
    }
}

impl Tcp {
    fn value(&self) -> String {
        let detection = if self.rack { "rack" } else { "duplicate-acks" };
        let Tcp { algorithm, sack, ecn, timestamps, window, initial_window, ack_every, delayed_ack, .. } =
            self;
        let Tcp { stack, slow_start, segment, timeout, limited_transmit, handshake, .. } = self;
        let aimd = if *algorithm == "aimd" { "increase = 1.5, decrease = 0.3, " } else { "" };
        format!(
            "{{ stack = \"{stack}\", algorithm = \"{algorithm}\", {aimd}slow_start = \"{slow_start}\", sack = {sack}, loss_detection = \"{detection}\", ecn = {ecn}, \
             timestamps = {timestamps}, max_segment_size = \"{segment} B\", window = \"{window} B\", initial_window = {initial_window}, \
             ack_every = {ack_every}, delayed_ack = \"{delayed_ack} ns\", min_rto = \"{timeout} ns\", \
             initial_rto = \"{timeout} ns\", limited_transmit = {limited_transmit}, handshake = {handshake} }}"
        )
    }
}

impl Traffic {
    fn value(&self) -> String {
        let fields = match self {
            Traffic::Bulk { size: None } => "model = \"bulk\"".to_owned(),
            Traffic::Bulk { size: Some(size) } => format!("model = \"bulk\", size = \"{size} B\""),
            Traffic::Cbr { rate, packet } => packets("cbr", *rate, *packet),
            Traffic::Poisson { rate, packet } => packets("poisson", *rate, *packet),
            Traffic::OnOff { rate, packet, on, off } => {
                format!("{}, on = \"{on} ns\", off = \"{off} ns\"", packets("on-off", *rate, *packet))
            }
            Traffic::Pareto { rate, packet, on, off } => {
                format!("{}, on = \"{on} ns\", off = \"{off} ns\"", packets("pareto", *rate, *packet))
            }
            Traffic::Mmpp { states, packet } => {
                let states =
                    states.map(|(rate, mean)| format!("{{ rate = \"{rate} bit/s\", mean = \"{mean} ns\" }}"));
                format!("model = \"mmpp\", packet = \"{packet} B\", states = [{}]", states.join(", "))
            }
            Traffic::Application(model, fields) => format!("model = \"{model}\"{fields}"),
        };
        format!("{{ {fields} }}")
    }
}

fn packets(model: &str, rate: u64, packet: u64) -> String {
    format!("model = \"{model}\", rate = \"{rate} bit/s\", packet = \"{packet} B\"")
}
