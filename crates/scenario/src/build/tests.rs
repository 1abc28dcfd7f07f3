//! Tests of a plan: path, packets, and load.

use super::flows::{FlowPath, PathFields, tcp_packets};
use super::vpns::PlacedVpn;
use super::{Builder, NodeGraph};
use crate::file::test::{
    self as table, Activation, RateSearchTable, Stamp, TestPackets, TestPath, TestTable as Table,
    TestTransport,
};
use crate::plan::{
    DatagramOptions, ErrorDetection, FlowGroup, FlowTransport, IpVersion, Method, RateSearchConfig, TestPlan,
    TransferConfig, TuneConfig,
};
use crate::scalar::{PositiveDuration, Probability};
use crate::table::Located;
use netstage_core::measure::mlrsearch::Goal;
use netstage_core::measure::rfc2544::ETHERNET_FRAME_SIZES;
use netstage_core::measure::trial::FrameSize;
use netstage_core::measure::y1564::{Acceptance, ServiceUnderTest};
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_wire as wire;

/// Ethernet header and frame check sequence.
const ETHERNET: u32 = 18;
/// Maximum packets of a STAMP session, whose delays are kept in memory.
const MAX_STAMP_PACKETS: u64 = 10_000_000;

impl<'a> From<&'a TestPath> for PathFields<'a> {
    fn from(probe: &'a TestPath) -> PathFields<'a> {
        PathFields::new([&probe.from, &probe.to], &probe.vpn, [&probe.via, &probe.reverse_via])
    }
}

impl Builder<'_, '_> {
    pub(super) fn tests(&mut self, network: &NodeGraph, vpns: &[Option<PlacedVpn>]) -> Vec<Option<TestPlan>> {
        let file = self.file;
        let tests = file.test.0.iter();
        tests.map(|test| self.test(&test.name, test.value.as_ref()?, network, vpns)).collect()
    }

    fn test(
        &mut self,
        name: &str,
        table: &Table,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
    ) -> Option<TestPlan> {
        let fields = table.path();
        let flow_path = self.flow_path(&PathFields::from(fields), network, vpns);
        let load = self.load_flows(fields);
        let method = self.method(table);
        let ip = &fields.ip;
        let (transport, frames, drain) = match table {
            Table::Transfer(table::TransferTable { tcp, .. }) | Table::Tune(table::TuneTable { tcp, .. }) => {
                let tcp = self.tcp(tcp.as_ref(), fields.from.place);
                let frames = tcp.as_ref().map(|config| vec![with_version(ip.value, full_packet(config))]);
                let drain = if let Table::Transfer(test) = table { test.drain } else { Duration::ZERO };
                (tcp.map(FlowTransport::Tcp), frames, drain)
            }
            Table::Activation(test) => {
                let services = test.service.0.iter().filter_map(|service| service.value.as_ref());
                let frames = services.map(|service| udp_frame(ip.value, service.frame_size.0 as u32));
                (Some(FlowTransport::Udp), Some(frames.collect()), test.drain)
            }
            Table::Stamp(test) => {
                let frames = self.padded(test).map(|frame| vec![frame]);
                (Some(FlowTransport::Stamp { interval: test.interval.0 }), frames, test.drain)
            }
            _ => {
                let packets = table.packets()?;
                (Some(probe_transport(packets.transport.value)), self.frames(packets), packets.drain)
            }
        };
        let frames = self.long_enough(ip, frames?);
        let mut probe = FlowGroup { family: ip.value, ..probe(name, flow_path?, transport?) };
        if let Table::Transfer(table::TransferTable { tcp, .. }) | Table::Tune(table::TuneTable { tcp, .. }) =
            table
        {
            probe.datagrams = tcp_packets(tcp.as_deref());
        }
        if let Table::BitError(test) = table
            && test.by.value == ErrorDetection::Payload
        {
            if test.packets.transport.value != TestTransport::Udp {
                let help = "use by = \"loss\" with other transports";
                let message = "payloads can be compared with transport \"udp\" only";
                self.problems.push_help(test.packets.transport.place, message, help);
                return None;
            }
            if ip.value == IpVersion::V6 {
                let message = "payloads cannot be compared over IPv6, whose UDP always carries a checksum";
                self.problems.push_help(test.by.place, message, "use by = \"loss\", or ip = \"v4\"");
                return None;
            }
            probe.datagrams = DatagramOptions { checksum: false, compare: true, ..probe.datagrams };
        }
        Some(TestPlan {
            name: name.to_owned(),
            method: method?,
            probe,
            frames: frames?,
            load: load?,
            warm_up: fields.warm_up,
            drain,
        })
    }

    /// Returns the indices of the flows that run during a test.
    fn load_flows(&mut self, probe: &TestPath) -> Option<Vec<usize>> {
        let file = self.file;
        let found =
            probe.load.0.iter().map(|name| self.reference(&file.flow, &name.value, name.place, "flow"));
        let mut load = found.collect::<Vec<_>>().into_iter().collect::<Option<Vec<usize>>>()?;
        load.sort();
        load.dedup();
        Some(load)
    }

    fn frames(&mut self, packets: &TestPackets) -> Option<Vec<FrameSize>> {
        let Some(listed) = &packets.frame_sizes else {
            let sizes = match packets.probe.ip.value {
                IpVersion::V4 => ETHERNET_FRAME_SIZES,
                IpVersion::V6 => ETHERNET_FRAME_SIZES.map(|size| size.max(MIN_IPV6_FRAME)),
            };
            return Some(sizes.map(|size| udp_frame(packets.probe.ip.value, size)).into());
        };
        let mut sizes: Vec<u32> = listed.value.0.iter().map(|size| size.0 as u32).collect();
        sizes.sort();
        if sizes.windows(2).any(|pair| pair[0] == pair[1]) {
            self.problems.push(listed.place, "a frame size is listed twice");
            return None;
        }
        Some(sizes.into_iter().map(|size| udp_frame(packets.probe.ip.value, size)).collect())
    }

    /// Refuses frames that cannot contain a packet of their IP version.
    fn long_enough(&mut self, ip: &Located<IpVersion>, frames: Vec<FrameSize>) -> Option<Vec<FrameSize>> {
        let Some(short) =
            frames.iter().find(|frame| ip.value == IpVersion::V6 && frame.link < MIN_IPV6_FRAME)
        else {
            return Some(frames);
        };
        let message = format!("a frame of {} B is too short for UDP over IPv6", short.link);
        self.problems.push_help(ip.place, message, "use frame sizes of 84 B or more, or ip = \"v4\"");
        None
    }

    fn method(&mut self, table: &Table) -> Option<Method> {
        Some(match table {
            Table::Throughput(test) => {
                Method::Throughput(self.search(&test.packets, &test.resolution, test.trial)?)
            }
            Table::Latency(test) => Method::Latency {
                rate: test.rate.as_ref().map(|rate| rate.value),
                search: self.search(&test.packets, &test.resolution, test.trial)?,
                repeats: test.repeats.0 as u32,
            },
            Table::FrameLoss(test) => Method::FrameLoss {
                max_rate: max_rate(&test.packets),
                trial: test.trial.0,
                step: self.above_zero(&test.step)?,
            },
            Table::BackToBack(test) => Method::BackToBack {
                search: self.search(&test.packets, &test.resolution, test.trial)?,
                max_burst: test.max_burst.value.0,
                repeats: test.repeats.0 as u32,
            },
            Table::Mlrsearch(test) => Method::Mlrsearch {
                max_rate: max_rate(&test.packets),
                goal: Goal {
                    loss_ratio: test.loss_tolerance.0,
                    exceed_ratio: test.exceed.0,
                    initial_trial_duration: test.initial_trial.0.min(test.trial.0),
                    final_trial_duration: test.trial.0,
                    duration_sum: test.trials_together.map_or(test.trial.0 * 2, |span| span.0),
                    width: self.above_zero(&test.resolution)?,
                },
            },
            Table::Plateau(test) => Method::Plateau {
                max_rate: max_rate(&test.packets),
                trial: test.trial.0,
                repeats: test.repeats.0 as u32,
            },
            Table::Steady(test) => Method::Steady {
                max_rate: max_rate(&test.packets),
                low: self.some_rate(&test.low)?,
                step: self.some_rate(&test.step)?,
                trial: test.trial.0,
                search: test.search.0.min(test.trial.0),
            },
            Table::BitError(test) => {
                Method::BitError { detection: test.by.value, rate: test.rate.value, trial: test.trial.0 }
            }
            Table::Transfer(test) => Method::Transfer(TransferConfig {
                size: test.size.map(|size| size.0),
                trial: test.trial.0,
                max_rate: test.max_rate.as_ref().map(|rate| rate.value),
                search: test.search.0,
            }),
            Table::Tune(test) => Method::Tune(self.tune(test)?),
            Table::Activation(test) => Method::Activation {
                services: self.activation_services(test)?,
                step: test.step.0,
                performance: test.performance.0,
            },
            Table::Stamp(test) => Method::Stamp { interval: test.interval.0, trial: self.session(test)? },
            Table::Loss(test) => {
                Method::Loss { rate: test.rate.value, trial: test.trial.0, repeats: test.repeats.0 as u32 }
            }
        })
    }

    fn tune(&mut self, test: &table::TuneTable) -> Option<TuneConfig> {
        let tcp = test.tcp.as_ref().map(|tcp| &*tcp.value);
        let listed = test.algorithms.iter().flat_map(|list| &list.value.0);
        let algorithms = listed.map(|named| self.algorithm(named, tcp)).collect::<Option<_>>()?;
        Some(TuneConfig {
            trial: test.trial.0,
            settle: test.settle,
            trials: test.trials.0 as usize,
            tolerance: self.above_zero(&test.tolerance)?,
            delay_bound: test.max_round_trip.map(|span| span.0),
            algorithms,
            max_window: test.largest.0,
        })
    }

    fn activation_services(&mut self, test: &Activation) -> Option<Vec<ServiceUnderTest>> {
        if test.service.0.is_empty() {
            let help = "add [test.NAME.service.SERVICE] with `frame_size` and `committed`";
            self.problems.push_help(test.probe.from.place, "this test has no service", help);
            return None;
        }
        let service = |member: &crate::table::NamedTable<_>| {
            let crate::file::test::ServiceAgreement {
                frame_size,
                committed,
                excess,
                policed,
                delay,
                delay_variation,
                loss_ratio,
            } = member.value.as_deref()?;
            Some(ServiceUnderTest {
                name: member.name.clone(),
                frame: udp_frame(test.probe.ip.value, frame_size.0 as u32),
                committed: *committed,
                excess: excess.unwrap_or(BitRate(0)),
                acceptance: Acceptance {
                    delay: delay.map(|delay| delay.0),
                    delay_variation: delay_variation.map(|variation| variation.0),
                    loss_ratio: loss_ratio.0,
                },
                policed: *policed,
            })
        };
        let services: Option<Vec<ServiceUnderTest>> = test.service.0.iter().map(service).collect();
        let services = services?;
        if let Some(zero) = services.iter().find(|service| service.committed.0 == 0) {
            let message = format!("`committed` of service `{}` must be above 0", zero.name);
            self.problems.push(test.probe.from.place, message);
            return None;
        }
        Some(services)
    }

    /// Returns the sending time of a STAMP session.
    fn session(&mut self, test: &Stamp) -> Option<Duration> {
        let packets = test.trial.value.0.0 / test.interval.0.0;
        if !(1..=MAX_STAMP_PACKETS).contains(&packets) {
            let message =
                format!("this session has {packets} packets; the range is 1 to {MAX_STAMP_PACKETS}");
            self.problems.push_help(test.trial.place, message, "change `trial` or `interval`");
            return None;
        }
        Some(test.trial.value.0)
    }

    /// Returns the packet of a STAMP session.
    fn padded(&mut self, test: &Stamp) -> Option<FrameSize> {
        let frame = udp_frame(test.probe.ip.value, test.frame_size.value.0 as u32);
        let padding = (frame.payload as usize).checked_sub(wire::stamp::UNAUTHENTICATED);
        if padding.is_none_or(|padding| (1..wire::stamp::tlv::HEADER).contains(&padding)) {
            let bare = if test.probe.ip.value == IpVersion::V4 { 90 } else { 110 };
            let help =
                format!("use {bare} B for no padding, or at least {} B", bare + wire::stamp::tlv::HEADER);
            let message = format!("a test packet takes {bare} B, and the header of its padding 4 B");
            self.problems.push_help(test.frame_size.place, message, help);
            return None;
        }
        Some(frame)
    }

    fn search(
        &mut self,
        packets: &RateSearchTable,
        resolution: &Located<Probability>,
        trial: PositiveDuration,
    ) -> Option<RateSearchConfig> {
        let resolution = self.above_zero(resolution)?;
        Some(RateSearchConfig { max_rate: max_rate(packets), resolution, trial: trial.0 })
    }

    fn some_rate(&mut self, rate: &Located<BitRate>) -> Option<BitRate> {
        if rate.value.0 == 0 {
            self.problems.push(rate.place, "expected a rate above 0, found 0");
            return None;
        }
        Some(rate.value)
    }

    fn above_zero(&mut self, share: &Located<Probability>) -> Option<f64> {
        if share.value.0 <= 0.0 {
            self.problems.push(share.place, "expected a number above 0, found 0");
            return None;
        }
        Some(share.value.0)
    }
}

fn max_rate(packets: &RateSearchTable) -> Option<BitRate> {
    packets.max_rate.as_ref().map(|rate| rate.value)
}

/// Length of the shortest frame with UDP over IPv6, whose payload is that of a frame of 64 B over IPv4.
const MIN_IPV6_FRAME: u32 = 84;

/// Returns the frame of this length with UDP.
fn udp_frame(version: IpVersion, link: u32) -> FrameSize {
    with_version(version, FrameSize::ethernet_udp(link))
}

/// Returns a frame of IPv4 with the header of an IP version.
fn with_version(version: IpVersion, frame: FrameSize) -> FrameSize {
    if version == IpVersion::V6 { frame.over_ipv6() } else { frame }
}

/// Returns the packet of a TCP segment of full size over IPv4.
fn full_packet(config: &tcp::TcpConfig) -> FrameSize {
    let options = if config.timestamps { wire::TCP_TIMESTAMPS } else { 0 };
    let ip = config.max_segment_size + wire::IPV4_HEADER + wire::TCP_HEADER + options;
    let frame = FrameSize::ethernet_udp(ip + ETHERNET);
    FrameSize { payload: config.max_segment_size, ..frame }
}

fn probe_transport(carrier: TestTransport) -> FlowTransport {
    match carrier {
        TestTransport::Udp => FlowTransport::Udp,
        TestTransport::IcmpEcho => FlowTransport::IcmpEcho,
        TestTransport::UdpUnreachable => FlowTransport::UdpUnreachable,
    }
}

/// Returns the flow of a test's trials. Its name contains a dot, and so differs from that of any flow of the file.
fn probe(name: &str, flow_path: FlowPath, transport: FlowTransport) -> FlowGroup {
    let FlowPath { from, to, vpn, path, reverse } = flow_path;
    FlowGroup {
        name: format!("test.{name}"),
        from,
        to,
        vpn,
        transport,
        family: IpVersion::V4,
        any_version: false,
        datagrams: DatagramOptions::default(),
        traffic: Pattern::Bulk { size: None }.into(),
        count: 1,
        start: Instant::ZERO,
        stagger: Duration::ZERO,
        stop: Instant::NEVER,
        background: false,
        path,
        reverse,
        branches: Vec::new(),
        program: None,
        exact: true,
    }
}
