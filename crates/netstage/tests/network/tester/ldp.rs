//! Events of LDP at a model router: a forwarder in user space that forwards by the labels that the tester advertises to
//! its LDP speaker, and records every packet. Its record is the truth that the tester's results are compared with.

use super::labels::Distributor;
use super::network::{TesterNetwork, found, refusal, trials};
use netstage_core::ldp::{Binding, GracefulRestart, LdpEvent};
use netstage_core::time::Duration;
use netstage_harness::skip_busy;
use netstage_host::clock::monotonic_ns;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_routing::ldp::{Fec, LabelValue};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const NETWORKS: usize = 20;
/// Time between two packets to a network: 46 B at 1500 kbit/s.
const GAP_NS: u64 = NETWORKS as u64 * 46 * 8 * 1_000_000_000 / 1_500_000;
/// Limit of the differences between times of the tester and of the model, on a busy machine.
const TOLERANCE_S: f64 = 0.25;
/// Minimum number of packets of a trial with an event; probes have fewer.
const MIN_PACKETS: usize = 1_000;

/// Addresses of the tester's receiving ports, in the order of preference.
const NEXT_HOPS: [[u8; 4]; 2] = [[192, 0, 2, 6], [192, 0, 2, 10]];
/// MAC addresses of frames to them: of the tester's port and of the router's.
const MACS: [[u8; 12]; 2] = [[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 5]];

/// Packet at the model router.
#[derive(Clone, Copy, Debug)]
struct Passage {
    at_ns: u64,
    trial: u16,
    network: usize,
    /// Number of the receiving port; `None` for a packet dropped for lack of a label.
    to: Option<usize>,
}

/// Number of the receiving port and label, by incoming label.
type Labels = BTreeMap<u32, (usize, u32)>;

/// Model router.
#[derive(Default)]
struct Model {
    labels: Mutex<Labels>,
    /// Events of the LDP speaker, with their times.
    events: Mutex<Vec<(u64, LdpEvent)>>,
    passages: Mutex<Vec<Passage>>,
}

impl Model {
    fn handle_event(&self, event: LdpEvent) {
        if let LdpEvent::Outgoing { fec: Fec::Prefix { address: IpAddr::V4(end), .. }, to } = &event {
            let port = |address: IpAddr| NEXT_HOPS.iter().position(|hop| IpAddr::from(*hop) == address);
            let used = to.iter().find_map(|next| Some((port(next.address)?, next.label.number())));
            let incoming = incoming(end.octets()[3]);
            let mut labels = self.labels.lock().unwrap();
            match used {
                Some(used) => _ = labels.insert(incoming, used),
                None => _ = labels.remove(&incoming),
            }
        }
        self.events.lock().unwrap().push((monotonic_ns(), event));
    }

    /// Forwards until stopped.
    fn forward(&self, world: &TesterNetwork, until: &AtomicBool) {
        let open = |link| AfPacket::open(&world.router, link, AfPacketOptions::default()).unwrap();
        let (mut from, mut to) = (open("eth0"), [open("eth1"), open("eth2")]);
        while !until.load(Ordering::Relaxed) {
            let mut arrived = Vec::new();
            from.receive(256, &mut |received| arrived.push(received.frame.to_vec())).unwrap();
            for mut frame in arrived.into_iter().filter(|frame| frame[12..14] == [0x88, 0x47]) {
                let label = u32::from_be_bytes(frame[14..18].try_into().unwrap()) >> 12;
                let used = self.labels.lock().unwrap().get(&label).copied();
                self.passages.lock().unwrap().push(Passage {
                    at_ns: monotonic_ns(),
                    trial: u16::from_ne_bytes([frame[48], frame[49]]),
                    network: usize::from(frame[36]),
                    to: used.map(|(port, _)| port),
                });
                let Some((port, label)) = used else { continue };
                frame[..12].copy_from_slice(&MACS[port]);
                let rest = u32::from(frame[16] & 0x0f) << 8 | u32::from(frame[17] - 1);
                frame[14..18].copy_from_slice(&(label << 12 | rest).to_be_bytes());
                while !to[port].send(&frame).unwrap() {
                    to[port].flush().unwrap();
                }
            }
            for port in &mut to {
                port.flush().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Returns the packets of each trial with an event.
    fn trials(&self) -> Vec<Vec<Passage>> {
        let passages = self.passages.lock().unwrap();
        let trials = passages.chunk_by(|one, next| one.trial == next.trial);
        trials.filter(|trial| trial.len() > MIN_PACKETS).map(<[Passage]>::to_vec).collect()
    }

    /// Returns the time of the first event of a kind by the first receiving port during a trial.
    fn event(&self, trial: &[Passage], is_right: impl Fn(&LdpEvent) -> bool) -> u64 {
        let span = trial[0].at_ns..trial[trial.len() - 1].at_ns;
        let events = self.events.lock().unwrap();
        let found = events.iter().find(|(at, event)| span.contains(at) && is_right(event));
        found.unwrap_or_else(|| panic!("no such event: {events:?}")).0
    }
}

/// Returns the label that the model advertises for the end of a path.
fn incoming(last: u8) -> u32 {
    4_100 + u32::from(last)
}

fn restart_support() -> GracefulRestart {
    GracefulRestart {
        reconnect: Duration::from_secs(60),
        recovery: Duration::from_secs(45),
        neighbor_liveness: Duration::from_secs(120),
        max_recovery: Duration::from_secs(120),
    }
}

/// Runs a test with the model router. Returns the model and the output.
fn run(
    world: &TesterNetwork,
    to: &str,
    events: &str,
    restart: Option<GracefulRestart>,
) -> (Arc<Model>, Output) {
    let head = format!("router = \"model\"\nready_within = \"20 s\"\nfrom = [\"west\"]\nto = [{to}]\n");
    let rest = format!(
        "[routes]\ncount = {NETWORKS}\n[labels]\nby = \"ldp\"\npush = 700\n[convergence]\nevents = [{events}\n\
         rate = \"1500 kbit/s\"\nbefore = \"300 ms\"\nafter = \"2500 ms\"\n"
    );
    let configuration = world.configure(&head, &rest);
    let model = Arc::new(Model::default());
    let end = |last: u8| Fec::Prefix { address: [198, 51, 100, last].into(), length: 32 };
    let next_hops = NEXT_HOPS.map(IpAddr::from).to_vec();
    let binding = |last: u8| {
        let label = LabelValue::new(incoming(last)).unwrap();
        (end(last), Binding::Transit { label, next_hops: next_hops.clone() })
    };
    let of_speaker = Arc::clone(&model);
    let configure = |config: &mut netstage_core::ldp::LdpConfig| {
        config.restart = restart;
        config.link_hold = Duration::from_secs(3);
    };
    let bindings = vec![binding(1), binding(2)];
    let _speaker = Distributor::start_with(&world.router, bindings, configure, move |event| {
        of_speaker.handle_event(event);
    });
    let over = AtomicBool::new(false);
    world.remove_record_if_any();
    let output = std::thread::scope(|scope| {
        let running = scope.spawn(|| model.forward(world, &over));
        let output = world.test(&configuration);
        over.store(true, Ordering::Relaxed);
        running.join().unwrap();
        output
    });
    (model, output)
}

/// Returns the events of a valid test, each with its packets at the model. Void trials and packets that did not reach the
/// model are the machine's.
fn checked(model: &Model, output: &Output) -> Vec<(String, Vec<Passage>)> {
    let cells = trials(output);
    let mut passages = model.trials();
    let count: usize = cells.iter().map(|(_, _, trials)| trials.len()).sum();
    if output.status.code() != Some(0) || passages.len() != count {
        skip_busy(format!("{} of {count} trials reached the model", passages.len()));
    }
    let mut checked = Vec::new();
    for (cell, (event, _, trials)) in cells.into_iter().enumerate() {
        // The last trial is valid; the model has passed those before it, too.
        let of_cell: Vec<Vec<Passage>> = passages.drain(..trials.len()).collect();
        let (trial, passages) = trials.iter().zip(of_cell).next_back().unwrap();
        let sent = trial["sent"].as_u64().unwrap();
        if sent != passages.len() as u64 {
            skip_busy(format!("{event}: {} of {sent} packets reached the model", passages.len()));
        }
        // Every packet lost, according to the tester, is one that the model has dropped.
        let dropped = passages.iter().filter(|passage| passage.to.is_none()).count();
        assert_eq!(found(output, cell, "test.lost"), Some(dropped as f64), "{event}: {output:?}");
        let outage = found(output, cell, "test.outage").unwrap();
        assert!((outage - dropped as f64 * 46.0 * 8.0 / 1.5e6).abs() < 1e-3, "{event}: {outage}");
        checked.push((event, passages));
    }
    checked
}

/// Returns the time from an event to the end of the first port's packets, and to the last network's first packet at a
/// port. Seconds.
fn truth(passages: &[Passage], event_ns: u64, port: usize) -> (f64, f64) {
    let since = |ns: u64| ns.saturating_sub(event_ns) as f64 / 1e9;
    let last = passages.iter().rev().find(|passage| passage.to == Some(0));
    let first = |network: usize| {
        let of_network = passages.iter().filter(|passage| passage.network == network);
        let mut at_port = of_network.filter(|passage| passage.to == Some(port) && passage.at_ns > event_ns);
        at_port.next().map_or(u64::MAX, |passage| passage.at_ns)
    };
    let first = (0..NETWORKS).map(first).max().unwrap();
    (since(last.map_or(0, |passage| passage.at_ns)), since(first))
}

/// Returns the longest time between two forwarded packets to a network, in seconds.
fn longest_gap(passages: &[Passage]) -> f64 {
    let gaps = (0..NETWORKS).map(|network| {
        let forwarded = passages.iter().filter(|passage| passage.network == network && passage.to.is_some());
        let times: Vec<u64> = forwarded.map(|passage| passage.at_ns).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    });
    gaps.max().unwrap() as f64 / 1e9
}

fn is_down(event: &LdpEvent) -> bool {
    matches!(event, LdpEvent::Down { .. })
}

/// Asserts that the tester's times of all events match those of the model.
fn assert_times(model: &Model, output: &Output, has_alternative: bool) {
    for (cell, (event, passages)) in checked(model, output).into_iter().enumerate() {
        let is_right = |other: &LdpEvent| match event.as_str() {
            "ldp-session-up" => matches!(other, LdpEvent::Up { .. }),
            "label-withdraw" => matches!(other, LdpEvent::Withdrawn { .. }),
            "label-mapping" => matches!(other, LdpEvent::Mapping { .. }),
            _ => is_down(other),
        };
        let event_ns = model.event(&passages, is_right);
        let ends = ["ldp-session-loss", "ldp-shutdown", "label-withdraw"].contains(&event.as_str());
        let port = usize::from(ends && has_alternative);
        let (last, first) = truth(&passages, event_ns, port);
        let expected = match event.as_str() {
            "ldp-restart" => longest_gap(&passages),
            _ if ends && !has_alternative => last,
            _ => first,
        };
        let measured =
            found(output, cell, "test.convergence").unwrap_or_else(|| panic!("{event}: {output:?}"));
        println!(
            "{event}, alternative {has_alternative}: measured {:.1} ms, model {:.1} ms",
            1e3 * measured,
            1e3 * expected
        );
        assert!((measured - expected).abs() < TOLERANCE_S, "{event}: {measured} instead of {expected}");
        // With an alternative, the model loses no packet: it changes the label between two packets.
        let dropped = passages.iter().filter(|passage| passage.to.is_none()).count();
        assert_eq!(dropped == 0, has_alternative, "{event}");
    }
}

const ALL: &str = "\"ldp-session-loss\", \"ldp-session-up\", \"ldp-shutdown\", \"label-mapping\", \"label-withdraw\", \
                   \"ldp-restart\"]\nrestart_after = \"500 ms\"";

fn times_and_losses_of_ldp_events_are_those_of_the_router() {
    let world = TesterNetwork::new("tester-ldp-events");
    for (to, has_alternative) in [("\"east\"", false), ("\"east\", \"south\"", true)] {
        let (model, output) = run(&world, to, ALL, None);
        assert_times(&model, &output, has_alternative);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("the router advertises no FT Session TLV"), "{text}");
        let labels = if has_alternative { 4 } else { 2 };
        let released = format!("the router released {labels} of {labels} withdrawn labels");
        assert!(text.contains(&released), "{text}");
    }
}

fn a_router_with_graceful_restart_keeps_forwarding_for_the_time_agreed() {
    let world = TesterNetwork::new("tester-ldp-restart");
    let events = "\"ldp-session-loss\", \"ldp-restart\"]\nrestart_after = \"500 ms\"";
    let (model, output) = run(&world, "\"east\"", events, Some(restart_support()));
    let results = checked(&model, &output);
    let dropped = |trial: usize| results[trial].1.iter().filter(|passage| passage.to.is_none()).count();
    // A session without the FT Session TLV of the tester ends the labels at once.
    assert!(dropped(0) > MIN_PACKETS);
    assert_eq!(dropped(1), 0);
    let gap = found(&output, 1, "test.convergence").unwrap();
    assert!(gap < TOLERANCE_S, "{gap}");
    let text = String::from_utf8_lossy(&output.stdout);
    let tlv = "the router advertises the FT Session TLV with reconnect timeout 60 s and recovery time 45 s";
    assert!(text.contains(tlv) && text.contains("the session was up again"), "{text}");

    // A speaker that does not come back: labels end with the reconnect time.
    let events = "\"ldp-restart\"]\nrestart_after = \"30 s\"\nreconnect_time = \"1 s\"";
    let (model, output) = run(&world, "\"east\"", events, Some(restart_support()));
    let (_, passages) = &checked(&model, &output)[0];
    let lost = model.event(passages, |event| matches!(event, LdpEvent::Restarting { .. }));
    let (last, _) = truth(passages, lost, 0);
    println!("labels kept for {last:.3} s of 1 s");
    assert!((1.0 - 2.0 * GAP_NS as f64 / 1e9..1.0 + TOLERANCE_S).contains(&last), "{last}");
    assert_eq!(found(&output, 0, "test.convergence"), None, "no network converges");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not up again at the end of the trial"), "{text}");
}

fn a_port_without_a_session_or_packets_is_named() {
    let world = TesterNetwork::new("tester-ldp-missing");
    let events = "events = [\"label-withdraw\"]\n";
    let head = "router = \"none\"\nready_within = \"1 s\"\nfrom = [\"west\"]\nto = [\"east\"]\n";
    let rest = format!("[routes]\ncount = 5\n[labels]\nby = \"ldp\"\n[convergence]\n{events}");
    let configuration = world.configure(head, &rest);
    let error = refusal(&world.test(&configuration));
    assert!(error.contains("label-withdraw: no LDP session with 192.0.2.5"), "{error}");
}

netstage_harness::tests![
    times_and_losses_of_ldp_events_are_those_of_the_router,
    a_router_with_graceful_restart_keeps_forwarding_for_the_time_agreed,
    a_port_without_a_session_or_packets_is_named,
];
