use super::*;
use crate::trace::{FORMAT, TraceHead, TraceWriter, VERSION};
use netstage_core::edge::{EdgeRecorder, TICK};
use netstage_core::fair::{Egress, IngressTransmit, Query};
use netstage_core::packet::Ecn;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;
use std::io::Cursor;

const CONFIGURATION: &str = r#"
[pe]
core = ["core"]

[peer.far]
trusted = true
tunnel = { kind = "mpls", next_hop = "192.0.2.2" }

[reference.gold]
number = 1
flow = { vpn = "blue", peer = "far" }

[vpn.blue.peer.far]
send = 100
receive = 100
weight = 1.5
maximum = "3 Mbit/s"
control = { kind = "i2vfc", decrease = 0.5 }

[vpn.green.peer.far]
send = 101
receive = 101
weight = 1.5
maximum = "3 Mbit/s"
silent_after = "3 s"
when_silent = "closed"
control = { kind = "i2vfc", pacing = false, report_within = "10 ms" }

[vpn.grey.peer.far]
send = 102
receive = 102
weight = 1.5
maximum = "3 Mbit/s"
control = { kind = "i2vfc", reference = "gold" }
classes = [
  { dscp = [46], buffer = "20 packets", queue = { kind = "fq-codel", flows = 16 } },
  { dscp = [46], buffer = "20 packets", queue = { kind = "fq-codel", flows = 16 } },
]

[vpn.red.peer.far]
send = 103
receive = 103
weight = 1.5
maximum = "3 Mbit/s"
control = "none"

[vpn.slow.peer.far]
send = 104
receive = 104
weight = 1.5
maximum = "3 Mbit/s"
control = { kind = "fixed-rate", rate = "1 Mbit/s", queue = "30 packets" }
"#;

fn configured() -> PeConfig {
    pe::parse("pe.toml", CONFIGURATION).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Records 20 s of inputs and decisions. The core loses and delays packets and falls silent, the driver is
/// late, and the flow set includes all kinds of control.
fn recorded(seed: u64) -> Vec<EdgeEvent> {
    let mut rng = RandomStream::new(seed, "world");
    let configured = configured();
    let mut tape = EdgeRecorder::new(flows::edge(&configured, 7, TICK));
    tape.begin();
    let mut in_flight: VecDeque<(Instant, usize, Query, u64)> = VecDeque::new();
    let mut egress = vec![Egress::default(); configured.vpns.len()];
    let (mut events, mut now) = (Vec::new(), Instant::ZERO);
    while now < Instant::ZERO + Duration::from_secs(20) {
        for _ in 0..rng.below(4) {
            let flow = rng.below(configured.vpns.len() as u64) as usize;
            let packet = TracedPacket {
                size: 40 + rng.below(1_460) as u32,
                class: rng.below(2) as u16,
                inside: rng.below(5) as u32,
                ecn: Ecn::Capable,
            };
            let _ = tape.handle_packet(now, flow, packet);
        }
        while in_flight.front().is_some_and(|(at, ..)| *at <= now) {
            let (at, flow, query, received) = in_flight.pop_front().unwrap();
            let mut reply = Egress { packets: received, ..Egress::default() }
                .handle_query(query, Instant(query.sent_at.0));
            reply.residence_time = Duration::from_micros(rng.below(50));
            tape.handle_reply(at, flow, &reply);
        }
        if rng.below(500) == 0 {
            tape.wake(now, rng.below(configured.vpns.len() as u64) as usize);
        }
        if let Some(published) = tape.publish(now, 0).filter(|_| rng.below(200) == 0) {
            tape.handle_reference(0, published);
        }
        tape.handle_timeout(now);
        for _ in 0..8 {
            let Some((flow, transmit)) = tape.poll_transmit(now) else { break };
            let is_silent = (8..13).contains(&(now.0 / 1_000_000_000));
            match transmit {
                _ if is_silent => {}
                IngressTransmit::Data(packet) if rng.below(20) > 0 => {
                    egress[flow].handle_packet(packet.size, false)
                }
                IngressTransmit::Data(_) => {}
                IngressTransmit::Query(query) => {
                    in_flight.push_back((now + Duration::from_millis(12), flow, query, egress[flow].packets));
                }
            }
        }
        while tape.poll_dropped().is_some() {}
        if tape.recorded() > 100 {
            events.extend(tape.take());
        }
        let due = tape.poll_timeout().max(now + Duration(1_000)).min(now + Duration::from_millis(2));
        now = due + Duration::from_micros(rng.below(400));
    }
    events.extend(tape.take());
    events
}

fn no_reload(_: &str) -> Result<PeConfig, String> {
    Err("no configuration".into())
}

fn replayed(events: &[EdgeEvent]) -> Result<Replay, ReplayError> {
    let mut replay = Replay::new(configured(), 7);
    events.iter().try_for_each(|event| replay.step(event, no_reload))?;
    Ok(replay)
}

#[test]
fn reference_values_affect_decisions() {
    let events = recorded(1);
    let without: Vec<EdgeEvent> =
        events.iter().filter(|event| !matches!(event, EdgeEvent::Reference { .. })).cloned().collect();
    assert!(without.len() < events.len());
    assert!(matches!(replayed(&without), Err(ReplayError::Decision { .. })));
}

#[test]
fn a_replay_repeats_all_decisions() {
    for seed in 0..3 {
        let events = recorded(seed);
        let replay = replayed(&events).unwrap_or_else(|difference| panic!("{difference}"));
        assert!(replay.decisions() > 50_000, "{}", replay.decisions());
        let totals = replay.totals();
        assert!(totals.iter().all(|flow| flow.sent > 100), "{totals:?}");
        assert!(totals[..3].iter().all(|flow| flow.lost > 0 && flow.replies > 100), "{totals:?}");
        assert!(totals[1].refused > 0, "{totals:?}");
    }
}

#[test]
fn a_changed_decision_is_detected() {
    let events = recorded(1);
    let change = |which: &mut dyn FnMut(&mut EdgeEvent) -> bool| {
        let mut events = events.clone();
        assert!(events.iter_mut().skip(1_000).any(which));
        replayed(&events).err().map(|difference| difference.to_string()).unwrap_or_default()
    };
    let message = change(&mut |event| match event {
        EdgeEvent::Packet { taken, .. } => {
            *taken = !*taken;
            true
        }
        _ => false,
    });
    assert!(message.contains("a packet of VPN"), "{message}");
    let message = change(&mut |event| match event {
        EdgeEvent::Reply { window, .. } => {
            *window = window.next_up();
            true
        }
        _ => false,
    });
    assert!(message.contains("the window or rate of VPN"), "{message}");
    let message = change(&mut |event| match event {
        EdgeEvent::Turn { sent, .. } if !sent.is_empty() => {
            sent.remove(0);
            true
        }
        _ => false,
    });
    assert!(message.contains("transmission"), "{message}");
    // One more lost packet in the core changes a decision.
    let message = change(&mut |event| match event {
        EdgeEvent::Reply { received, .. } => {
            *received -= 1;
            true
        }
        _ => false,
    });
    assert!(message.contains("recorded"), "{message}");
    assert!(change(&mut |event| matches!(event, EdgeEvent::Turn { .. })).is_empty());
}

#[test]
fn impossible_events_are_rejected() {
    let mut replay = Replay::new(configured(), 7);
    let refused = |replay: &mut Replay, event| replay.step(&event, no_reload).unwrap_err().to_string();
    let message = refused(&mut replay, EdgeEvent::Wake { at: 5, flow: 9 });
    assert_eq!(message, "no VPN flow 9 in the configuration");
    let message = refused(&mut replay, EdgeEvent::Turn { at: 4, sent: Vec::new(), drained: true });
    assert_eq!(message, "time decreases");
    let message = refused(&mut replay, EdgeEvent::Reload { at: 6, configuration: "[pe]".into() });
    assert_eq!(message, "no configuration");
    let message = refused(
        &mut replay,
        EdgeEvent::Turn { at: 7, sent: vec![SentPacket::Data(77, 1500)], drained: true },
    );
    assert!(message.contains("recorded 1500 B of unknown VPN flow 77, replayed nothing"), "{message}");
}

#[test]
fn a_reload_keeps_flows_of_both_configurations() {
    let mut tape: EdgeRecorder<TracedPacket> = EdgeRecorder::new(flows::edge(&configured(), 7, TICK));
    tape.begin();
    let packet = TracedPacket { size: 1500, class: 0, inside: 1, ecn: Ecn::NotCapable };
    for _ in 0..300 {
        let _ = tape.handle_packet(Instant(1), 0, packet);
    }
    tape.handle_timeout(Instant(2));
    while tape.poll_transmit(Instant(2)).is_some() {}
    let mut events = tape.take();
    events.push(EdgeEvent::Reload { at: 3, configuration: "less".into() });
    let mut replay = Replay::new(configured(), 7);
    let fewer = |text: &str| {
        assert_eq!(text, "less");
        let mut router = configured();
        router.vpns.truncate(1);
        Ok(router)
    };
    events.iter().try_for_each(|event| replay.step(event, fewer)).unwrap();
    let [blue] = &replay.totals()[..] else { panic!("{:?}", replay.totals()) };
    assert_eq!((blue.vpn.as_str(), blue.packets, blue.refused), ("blue", 300, 300 - 128));
}

#[test]
fn a_written_trace_is_read_back() {
    let head = TraceHead {
        format: FORMAT.into(),
        version: VERSION,
        began_unix_ns: 1_795_255_703_000_000_000,
        seed: 7,
        configuration: "[pe]\ncore = [\"eth0\"]\n".into(),
    };
    let mut events = recorded(2);
    events.truncate(2_000);
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, &head).unwrap();
    events.chunks(70).for_each(|chunk| writer.write(chunk).unwrap());
    let read = |bytes: &[u8]| {
        let (head, mut reader) = TraceReader::new(Cursor::new(bytes.to_vec()))?;
        let mut events = Vec::new();
        while let Some(event) = reader.next_event()? {
            events.push(event);
        }
        Ok::<_, TraceFileError>((head, events, reader.is_cut()))
    };
    assert_eq!(read(&bytes).unwrap(), (head, events.clone(), false));
    // The router was killed.
    let (_, left, is_cut) = read(&bytes[..bytes.len() - 3]).unwrap();
    assert_eq!((left.len(), is_cut), (events.len() - 1, true));
    let text = String::from_utf8(bytes).unwrap();
    for (from, to, expected) in [
        ("netstage-pe-trace", "netstage-trace", "is not a provider edge router trace"),
        ("\"version\":1", "\"version\":2", "has trace version 2; this program reads version 1"),
        ("\"seed\":7", "\"sead\":7", "line 1: unknown field `sead`"),
        ("{\"turn\"", "{\"tern\"", "line "),
    ] {
        let message = read(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(read(b"").unwrap_err().to_string(), "is not a provider edge router trace");
}
