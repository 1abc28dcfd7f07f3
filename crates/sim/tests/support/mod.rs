//! Plans built in code or from the text of a scenario.
#![allow(dead_code)]

use netstage_core::edge::VpnFlowSettings;
use netstage_core::fair::VpnControl;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_core::{link, tcp};
use netstage_scenario::plan::*;
use netstage_scenario::{LoadOptions, parse};
use netstage_wire::Encapsulation;

/// Returns the plan of the only cell of a scenario.
pub fn plan_of(text: &str) -> Plan {
    match parse("test.toml", text, None, &LoadOptions::default()) {
        Ok(scenario) => scenario.cells[0].plan.clone(),
        Err(errors) => panic!("{errors}"),
    }
}

/// Returns the default TCP configuration of netstage.
pub fn tcp_config() -> tcp::TcpConfig {
    tcp::TcpConfig {
        stack: tcp::Stack::Rfc,
        algorithm: tcp::Algorithm::NewReno,
        slow_start: tcp::SlowStart::Standard,
        sack: true,
        loss_detection: tcp::LossDetection::DuplicateAcks,
        ecn: false,
        timestamps: true,
        max_segment_size: 1448,
        window: 65_536,
        initial_window: 10,
        ack_every: 2,
        delayed_ack: Duration::from_millis(200),
        min_rto: Duration::from_secs(1),
        initial_rto: Duration::from_secs(1),
        limited_transmit: true,
        handshake: true,
    }
}

/// Returns a drop-tail link without impairments.
pub fn plain_link(rate: u64, delay: Duration, packets: u32) -> link::LinkDirectionConfig {
    link::LinkDirectionConfig::plain(BitRate(rate), delay, Capacity::Packets(packets))
}

/// Single bottleneck of the I2VFC paper, section 3.1.
pub struct Dumbbell {
    /// One-way delay between ingress PE and core, per VPN.
    pub delays_ms: Vec<u64>,
    /// Weight of each VPN.
    pub weights: Vec<f64>,
    /// Number of TCP flows per VPN.
    pub flows: usize,
    /// Bottleneck rate, bit/s.
    pub rate: u64,
    /// Rate of access links, bit/s.
    pub access_rate: u64,
    /// Bottleneck buffer, packets.
    pub buffer: u32,
    /// Share of the bottleneck used by Poisson background traffic; 0 for none.
    pub background: f64,
    /// Control of a VPN by its index.
    pub control: fn(usize) -> VpnControl,
    /// TCP configuration of every flow.
    pub tcp: tcp::TcpConfig,
    /// Duration of the run, seconds.
    pub seconds: u64,
}

impl Default for Dumbbell {
    fn default() -> Dumbbell {
        Dumbbell {
            delays_ms: vec![50, 25, 75, 50, 25],
            weights: vec![1.0, 2.0, 2.0, 3.0, 4.0],
            flows: 30,
            rate: 50_000_000,
            access_rate: 1_000_000_000,
            buffer: 50,
            background: 0.3,
            control: |_| VpnControl::None,
            tcp: tcp_config(),
            seconds: 50,
        }
    }
}

impl Dumbbell {
    /// Builds the plan.
    pub fn plan(&self) -> Plan {
        let mut plan = empty("dumbbell", Duration::from_secs(self.seconds));
        let access = plain_link(self.access_rate, Duration::ZERO, 1000);
        let core = [plan.node("core1", NodeKind::Router), plan.node("core2", NodeKind::Router)];
        let bottleneck = plan.link("bottleneck", core, plain_link(self.rate, Duration::ZERO, self.buffer));
        for (index, delay) in self.delays_ms.iter().enumerate() {
            let k = index + 1;
            let sender = plan.node(&format!("s{k}"), NodeKind::Host);
            let ingress = plan.node(&format!("in{k}"), NodeKind::Pe);
            let egress = plan.node(&format!("out{k}"), NodeKind::Pe);
            let receiver = plan.node(&format!("r{k}"), NodeKind::Host);
            let s = plan.link(&format!("s{k}"), [sender, ingress], access.clone());
            let mut long = access.clone();
            long.delay = Duration::from_millis(*delay);
            let l = plan.link(&format!("L{k}"), [ingress, core[0]], long);
            let o = plan.link(&format!("out{k}"), [core[1], egress], access.clone());
            let r = plan.link(&format!("r{k}"), [egress, receiver], access.clone());
            plan.vpns.push(VpnPlan {
                name: format!("vpn{k}"),
                ingress,
                egress,
                settings: VpnFlowSettings {
                    weight: self.weights[index],
                    control: (self.control)(index),
                    ..VpnFlowSettings::default()
                },
                encapsulation: Encapsulation::None,
                path: forward(&[l, bottleneck, o]),
                reverse: backward(&[l, bottleneck, o]),
                opposite: None,
            });
            let tcp = FlowTransport::Tcp(self.tcp.clone());
            plan.flow(&format!("tcp{k}"), tcp, Pattern::Bulk { size: None }, &[s, l, bottleneck, o, r]);
            let group = plan.flows.last_mut().unwrap();
            group.vpn = Some(index);
            group.count = self.flows;
            group.start = Instant::ZERO + Duration::from_secs(5);
        }
        if self.background > 0.0 {
            let source = plan.node("background", NodeKind::Host);
            let sink = plan.node("sink", NodeKind::Host);
            let a = plan.link("background", [source, core[0]], access.clone());
            let b = plan.link("sink", [core[1], sink], access);
            let payload = self.background * self.rate as f64 * 1472.0 / 1500.0;
            let pattern = Pattern::Poisson { rate: BitRate(payload as u64), packet: 1472 };
            plan.flow("background", FlowTransport::Udp, pattern, &[a, bottleneck, b]);
            plan.flows.last_mut().unwrap().background = true;
        }
        plan
    }
}

/// Returns an empty plan with this duration.
pub fn empty(title: &str, duration: Duration) -> Plan {
    Plan {
        title: title.into(),
        duration,
        lease: None,
        nodes: Vec::new(),
        links: Vec::new(),
        vpns: Vec::new(),
        flows: Vec::new(),
        tests: Vec::new(),
        tunnels: Vec::new(),
        routing: None,
        route_server: None,
        measure: MeasureConfig {
            interval: Duration::from_secs(1),
            flow_detail: false,
            tcp_events: false,
            delay: false,
        },
    }
}

/// Returns the hops along links from their first to their second ends.
pub fn forward(links: &[usize]) -> Vec<Hop> {
    links.iter().map(|&link| Hop { link, direction: 0 }).collect()
}

/// Returns the hops along the same links in the reverse direction.
pub fn backward(links: &[usize]) -> Vec<Hop> {
    links.iter().rev().map(|&link| Hop { link, direction: 1 }).collect()
}

/// Adds nodes, links and flows to a plan.
pub trait PlanBuilder {
    /// Adds a node and returns its index.
    fn node(&mut self, name: &str, kind: NodeKind) -> usize;
    /// Adds a link with the same configuration in both directions and returns its index.
    fn link(&mut self, name: &str, ends: [usize; 2], config: link::LinkDirectionConfig) -> usize;
    /// Adds one flow along links from their first to their second ends.
    fn flow(&mut self, name: &str, transport: FlowTransport, traffic: Pattern, links: &[usize]);
}

impl PlanBuilder for Plan {
    fn node(&mut self, name: &str, kind: NodeKind) -> usize {
        self.nodes.push(NodePlan {
            name: name.into(),
            kind,
            device: None,
            arp_timeout: None,
            placement: None,
        });
        self.nodes.len() - 1
    }

    fn link(&mut self, name: &str, ends: [usize; 2], config: link::LinkDirectionConfig) -> usize {
        let (name, kind) = (name.into(), Default::default());
        self.links.push(LinkPlan { name, ends, kind, directions: [config.clone(), config] });
        self.links.len() - 1
    }

    fn flow(&mut self, name: &str, transport: FlowTransport, traffic: Pattern, links: &[usize]) {
        let (first, last) = (links[0], links[links.len() - 1]);
        self.flows.push(FlowGroup {
            name: name.into(),
            from: self.links[first].ends[0],
            to: self.links[last].ends[1],
            vpn: None,
            transport,
            family: IpVersion::V4,
            any_version: false,
            datagrams: DatagramOptions::default(),
            branches: Vec::new(),
            program: None,
            exact: true,
            traffic: traffic.into(),
            count: 1,
            start: Instant::ZERO,
            stagger: Duration::ZERO,
            stop: Instant::NEVER,
            background: false,
            path: forward(links),
            reverse: backward(links),
        });
    }
}

/// Returns the parking lot of the I2VFC paper, section 3.2: VPN 1 crosses all three links, each other VPN one
/// link. Rates are in Mbit/s.
pub fn parking_lot(rates: [u64; 3], weights: [f64; 4], control: impl Fn(usize) -> VpnControl) -> Plan {
    let mut plan = empty("parking lot", Duration::from_secs(50));
    let access = plain_link(1_000_000_000, Duration::ZERO, 1000);
    let core: Vec<usize> = (1..=4).map(|k| plan.node(&format!("core{k}"), NodeKind::Router)).collect();
    let trunk: Vec<usize> = (0..3)
        .map(|k| {
            let config = plain_link(rates[k] * 1_000_000, Duration::ZERO, 200);
            plan.link(&format!("link{}", k + 1), [core[k], core[k + 1]], config)
        })
        .collect();
    for (index, &weight) in weights.iter().enumerate() {
        let k = index + 1;
        let across = if index == 0 { 0..3 } else { index - 1..index };
        let node = |plan: &mut Plan, kind, name: &str| plan.node(&format!("{name}{k}"), kind);
        let sender = node(&mut plan, NodeKind::Host, "s");
        let ingress = node(&mut plan, NodeKind::Pe, "in");
        let egress = node(&mut plan, NodeKind::Pe, "out");
        let receiver = node(&mut plan, NodeKind::Host, "r");
        let s = plan.link(&format!("s{k}"), [sender, ingress], access.clone());
        let l = plan.link(&format!("L{k}"), [ingress, core[across.start]], access.clone());
        let o = plan.link(&format!("out{k}"), [core[across.end], egress], access.clone());
        let r = plan.link(&format!("r{k}"), [egress, receiver], access.clone());
        let inner: Vec<usize> = [l].into_iter().chain(across.map(|j| trunk[j])).chain([o]).collect();
        plan.vpns.push(VpnPlan {
            name: format!("vpn{k}"),
            settings: VpnFlowSettings { weight, control: control(index), ..VpnFlowSettings::default() },
            ingress,
            egress,
            encapsulation: Encapsulation::None,
            path: forward(&inner),
            reverse: backward(&inner),
            opposite: None,
        });
        let whole: Vec<usize> = [s].into_iter().chain(inner).chain([r]).collect();
        plan.flow(&format!("tcp{k}"), FlowTransport::Tcp(tcp_config()), Pattern::Bulk { size: None }, &whole);
        let group = plan.flows.last_mut().unwrap();
        group.vpn = Some(index);
        group.count = 30;
        group.start = Instant::ZERO + Duration::from_secs(5);
    }
    for k in 0..3 {
        let source = plan.node(&format!("bg{k}"), NodeKind::Host);
        let sink = plan.node(&format!("sink{k}"), NodeKind::Host);
        let a = plan.link(&format!("bg{k}"), [source, core[k]], access.clone());
        let b = plan.link(&format!("sink{k}"), [core[k + 1], sink], access.clone());
        let payload = 0.3 * rates[k] as f64 * 1e6 * 1472.0 / 1500.0;
        let pattern = Pattern::Poisson { rate: BitRate(payload as u64), packet: 1472 };
        plan.flow(&format!("bg{k}"), FlowTransport::Udp, pattern, &[a, trunk[k], b]);
        plan.flows.last_mut().unwrap().background = true;
    }
    plan
}
