//! Models learned from captures of known traffic, and errors of malformed captures.

use netstage_core::rng::RandomStream;
use netstage_core::traffic::application::{LearnedExchange, Quantiles, RecordedConnection, TransportKind};
use netstage_scenario::learned::{HeldOutFit, ModelFile};
use netstage_traffic::learn::{LearnError, LearnedApplication, learn};
use std::time::{Duration, SystemTime};

/// Pcap file under construction, of raw IPv4 packets without payload bytes.
struct Pcap(Vec<u8>);

const CLIENT: u32 = 0x0a00_0001;
const SERVER: u32 = 0x0a00_0002;
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

impl Pcap {
    fn new() -> Pcap {
        let mut file = Vec::new();
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 101] {
            file.extend(word.to_le_bytes());
        }
        Pcap(file)
    }

    fn packet(&mut self, ns: u64, packet: &[u8]) {
        for word in [
            (ns / 1_000_000_000) as u32,
            (ns % 1_000_000_000) as u32,
            packet.len() as u32,
            packet.len() as u32,
        ] {
            self.0.extend(word.to_le_bytes());
        }
        self.0.extend(packet);
    }

    fn ip(protocol: u8, from: u32, to: u32, length: usize) -> Vec<u8> {
        let mut header = vec![0x45, 0];
        header.extend((length as u16).to_be_bytes());
        header.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        header.extend(from.to_be_bytes());
        header.extend(to.to_be_bytes());
        header
    }

    fn tcp(&mut self, ns: u64, up: bool, port: u16, sequence: u32, flags: u8, payload: usize) {
        let (from, to) = if up { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let (source, destination) = if up { (port, 80) } else { (80, port) };
        let mut packet = Pcap::ip(6, from, to, 40 + payload);
        packet.extend(source.to_be_bytes());
        packet.extend(destination.to_be_bytes());
        packet.extend(sequence.to_be_bytes());
        packet.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        self.packet(ns, &packet);
    }

    fn udp(&mut self, ns: u64, up: bool, payload: usize) {
        let (from, to) = if up { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let (source, destination) = if up { (40_000u16, 5_004u16) } else { (5_004, 40_000) };
        let mut packet = Pcap::ip(17, from, to, 28 + payload);
        packet.extend(source.to_be_bytes());
        packet.extend(destination.to_be_bytes());
        packet.extend((8 + payload as u16).to_be_bytes());
        packet.extend([0, 0]);
        self.packet(ns, &packet);
    }
}

fn lesson(pcap: &Pcap) -> LearnedApplication {
    learn("test.pcap", &pcap.0[..], None).unwrap()
}

fn mean(table: &Quantiles) -> f64 {
    let mut stream = RandomStream::new(1, "mean");
    (0..20_000).map(|_| table.draw(&mut stream) as f64).sum::<f64>() / 20_000.0
}

/// Creates connections of four turns each: requests of 200 to 400 B, responses of 20,000 B in segments, a server time
/// of 31 ms, a round trip of 10 ms, exponential think times.
fn web(connections: u16) -> Pcap {
    let mut pcap = Pcap::new();
    let mut stream = RandomStream::new(1, "web");
    let ms = 1_000_000;
    for k in 0..connections {
        let mut now = 1_700_000_000_000_000_000 + u64::from(k) * 10_000 * ms;
        let port = 10_000 + k;
        // Sequence numbers that wrap during the connection.
        let (mut up, mut down) = (u32::MAX - 300, u32::MAX - 30_000);
        pcap.tcp(now, true, port, up, SYN, 0);
        pcap.tcp(now + 10 * ms, false, port, down, SYN | ACK, 0);
        pcap.tcp(now + 10 * ms, true, port, up.wrapping_add(1), ACK, 0);
        (up, down) = (up.wrapping_add(1), down.wrapping_add(1));
        now += 10 * ms;
        for _ in 0..4 {
            now += stream.exponential(50e6) as u64;
            let request = 200 + stream.below(201) as u32;
            pcap.tcp(now, true, port, up, ACK, request as usize);
            // A retransmission does not count.
            pcap.tcp(now + ms, true, port, up, ACK, request as usize);
            up = up.wrapping_add(request);
            now += 1 + 40 * ms + ms;
            for segment in 0..20 {
                pcap.tcp(now, false, port, down, ACK, 1_000);
                if segment == 3 {
                    pcap.tcp(now, false, port, down, ACK, 1_000);
                }
                down = down.wrapping_add(1_000);
                now += ms / 10;
            }
        }
    }
    pcap
}

#[test]
fn requests_and_responses_are_recovered() {
    let lesson = lesson(&web(60));
    let model = &lesson.file.model;
    assert_eq!((lesson.subject.as_str(), model.carriage), ("tcp port 80", TransportKind::Stream));
    let LearnedExchange::Exchanges(exchanges) = &model.shape else { panic!("{:?}", model.shape) };
    assert!((mean(&exchanges.request) - 300.0).abs() < 15.0, "{}", mean(&exchanges.request));
    assert_eq!(exchanges.response.0, [20_000; 240]);
    assert_eq!(exchanges.turns.0, [4; 60]);
    // 41 ms minus a round trip of 10 ms. The mean think time is 50 ms.
    assert!((mean(&exchanges.server) / 1e6 - 31.0).abs() < 0.01);
    assert!((mean(&exchanges.think) / 1e6 - 50.0).abs() < 10.0, "{}", mean(&exchanges.think));
    assert_eq!((exchanges.recorded.len(), lesson.file.read.complete), (60, true));
    assert_eq!(exchanges.concurrent, 1);
    for fit in &lesson.file.fit {
        assert!(matches!(fit.held_out, HeldOutFit::Tested { .. }) && !fit.held_out.differs(), "{fit:?}");
    }
    assert!(lesson.warnings.is_empty(), "{:?}", lesson.warnings);
    assert_eq!(ModelFile::from_json(&lesson.file.to_json()).unwrap(), lesson.file);
}

#[test]
fn fin_and_retransmissions_are_no_data() {
    let mut pcap = Pcap::new();
    let ms = 1_000_000;
    for connection in 0..50_u16 {
        let (port, start) = (20_000 + connection, u64::from(connection) * 10_000 * ms);
        let segment = |pcap: &mut Pcap, at: u64, up, sequence, flags, payload| {
            pcap.tcp(start + at * ms, up, port, sequence, flags, payload);
        };
        segment(&mut pcap, 0, true, 99, SYN, 0);
        segment(&mut pcap, 10, false, 999, SYN | ACK, 0);
        segment(&mut pcap, 10, true, 100, ACK, 0);
        segment(&mut pcap, 11, true, 100, ACK, 200);
        // Half of the response, a timeout of one second, the first segment again, and the rest.
        (0..5).for_each(|k| segment(&mut pcap, 40 + u64::from(k), false, 1000 + k * 1000, ACK, 1000));
        segment(&mut pcap, 1_050, false, 1000, ACK, 1000);
        (5..10).for_each(|k| segment(&mut pcap, 1_055 + u64::from(k), false, 1000 + k * 1000, ACK, 1000));
        segment(&mut pcap, 1_070, false, 11_000, FIN | ACK, 0);
        segment(&mut pcap, 1_071, true, 300, FIN | ACK, 0);
        segment(&mut pcap, 1_081, false, 11_001, ACK, 0);
        segment(&mut pcap, 1_082, true, 301, ACK, 0);
    }
    let model = lesson(&pcap).file.model;
    let LearnedExchange::Exchanges(exchanges) = &model.shape else { panic!("{:?}", model.shape) };
    assert_eq!((&exchanges.request.0, &exchanges.response.0), (&vec![200; 50], &vec![10_000; 50]));
    assert_eq!(exchanges.turns.0, [1; 50]);
}

/// How the responses of [`dialogues`] are drawn.
#[derive(Clone, Copy, PartialEq)]
enum Responses {
    /// Independently, from one distribution.
    Independent,
    /// Three times as large in the last third of the connections.
    Growing,
    /// Small or large in all turns of a connection.
    PerConnection,
}

/// Draws connections as they are captured at their senders: SYN, FIN and data are retransmitted after 30 ms or after a
/// timeout of 1 s, some several times, and ACKs have no data. Returns the capture and the requests and responses of each connection.
fn dialogues(seed: u64, connections: u64, responses: Responses) -> (Pcap, Vec<Vec<(u32, u32)>>) {
    const MS: u64 = 1_000_000;
    let mut stream = RandomStream::new(seed, "dialogues");
    let (mut packets, mut truth) = (Vec::new(), Vec::new());
    let mut start = 0;
    for connection in 0..connections {
        let port = 20_000 + connection as u16;
        start += stream.exponential(200e6) as u64;
        let mut now = start;
        let mut next = [stream.next_u64() as u32, stream.next_u64() as u32];
        let mut segment = |now: &mut u64, up: bool, flags: u8, bytes: u32, stream: &mut RandomStream| {
            let sequence = next[usize::from(!up)];
            packets.push((*now, up, port, sequence, flags, bytes));
            while (bytes > 0 || flags & (SYN | FIN) != 0) && stream.chance(0.05) {
                *now += if stream.chance(0.5) { 30 * MS } else { 1_000 * MS };
                packets.push((*now, up, port, sequence, flags, bytes));
            }
            next[usize::from(!up)] = sequence.wrapping_add(bytes + u32::from(flags & (SYN | FIN) != 0));
            *now += MS / 10;
        };
        segment(&mut now, true, SYN, 0, &mut stream);
        now += 10 * MS;
        segment(&mut now, false, SYN | ACK, 0, &mut stream);
        segment(&mut now, true, ACK, 0, &mut stream);
        let usual = if stream.chance(0.5) { 2_000 } else { 60_000 };
        let mut turns = Vec::new();
        for _ in 0..1 + stream.below(5) {
            let request = 40 + stream.below(1_000) as u32;
            let response = match responses {
                Responses::PerConnection => usual,
                Responses::Growing if connection * 3 > connections * 2 => 6_000 + stream.below(60_000) as u32,
                _ => 2_000 + stream.below(20_000) as u32,
            };
            now += stream.exponential(50e6) as u64;
            segment(&mut now, true, ACK, request, &mut stream);
            now += 10 * MS + stream.exponential(20e6) as u64;
            let mut left = response;
            while left > 0 {
                let bytes = left.min(1_448);
                left -= bytes;
                segment(&mut now, false, ACK, bytes, &mut stream);
                segment(&mut now, true, ACK, 0, &mut stream);
            }
            turns.push((request, response));
        }
        now += 2_000 * MS;
        let server_first = stream.chance(0.5);
        segment(&mut now, server_first, FIN | ACK, 0, &mut stream);
        segment(&mut now, !server_first, FIN | ACK, 0, &mut stream);
        segment(&mut now, server_first, ACK, 0, &mut stream);
        truth.push(turns);
    }
    // Connections overlap.
    packets.sort_by_key(|packet| packet.0);
    let mut pcap = Pcap::new();
    for (now, up, port, sequence, flags, bytes) in packets {
        pcap.tcp(now, up, port, sequence, flags, bytes as usize);
    }
    (pcap, truth)
}

#[test]
fn random_dialogues_are_recovered_and_fit() {
    let mut differing = Vec::new();
    for seed in 1..=30 {
        let (pcap, truth) = dialogues(seed, 200, Responses::Independent);
        let lesson = lesson(&pcap);
        let LearnedExchange::Exchanges(exchanges) = &lesson.file.model.shape else { panic!("seed {seed}") };
        let turns = |connection: &RecordedConnection| {
            connection.turns.iter().map(|turn| (turn.request, turn.response)).collect::<Vec<_>>()
        };
        let recorded: Vec<_> = exchanges.recorded.iter().map(turns).collect();
        assert_eq!(recorded, truth, "seed {seed}");
        for fit in &lesson.file.fit {
            assert!(matches!(fit.held_out, HeldOutFit::Tested { .. }), "seed {seed}: {fit:?}");
            if fit.held_out.differs() {
                differing.push((seed, fit.quantity.clone()));
            }
        }
    }
    // 99.9 % of the binomial distribution of 210 comparisons with 1 %.
    assert!(differing.len() <= 8, "{differing:?}");
}

#[test]
fn a_wrong_model_is_a_bad_fit() {
    for seed in 1..=10 {
        for (responses, quantity) in
            [(Responses::Growing, "response"), (Responses::PerConnection, "connection")]
        {
            let lesson = lesson(&dialogues(seed, 600, responses).0);
            let fit = lesson.file.fit.iter().find(|fit| fit.quantity == quantity).unwrap();
            assert!(fit.held_out.differs(), "seed {seed}: {fit:?}");
            let is_named = lesson
                .warnings
                .iter()
                .any(|warning| warning.starts_with("the model does not fit") && warning.contains(quantity));
            assert!(is_named, "seed {seed}: {:?}", lesson.warnings);
        }
    }
}

#[test]
fn few_connections_are_not_tested() {
    let lesson = lesson(&dialogues(1, 40, Responses::Independent).0);
    let turns = lesson.file.fit.iter().find(|fit| fit.quantity == "turns").unwrap();
    let HeldOutFit::NotTested { reason } = &turns.held_out else { panic!("{turns:?}") };
    assert_eq!(reason, "a fifth of the capture has 8 samples, 10 are needed");
}

#[test]
fn packets_in_each_direction_keep_their_sizes_and_gaps() {
    let mut pcap = Pcap::new();
    let mut stream = RandomStream::new(2, "call");
    let mut now = 0;
    for k in 0..3_000u64 {
        pcap.udp(k * 20_000_000, true, 172);
        now += stream.exponential(10e6) as u64;
        if k % 2 == 0 {
            pcap.udp(k * 20_000_000 + 1_000, false, 100 + stream.below(900) as usize);
        }
    }
    assert!(now > 0);
    let lesson = lesson(&pcap);
    let LearnedExchange::OneWay { up: Some(up), down: Some(down) } = &lesson.file.model.shape else {
        panic!()
    };
    assert!((mean(&up.gap) - 20e6).abs() < 1.0 && (mean(&up.size) - 172.0).abs() < 1e-9);
    assert!((mean(&down.gap) - 40e6).abs() < 1.0 && (mean(&down.size) - 549.5).abs() < 15.0);
    assert_eq!((up.recorded.len(), down.recorded.len()), (3_000, 1_500));
}

#[test]
fn short_udp_flows_are_requests_instead_of_streams() {
    let mut pcap = Pcap::new();
    for k in 0..20u64 {
        pcap.udp(k * 1_000_000_000, true, 45);
        pcap.udp(k * 1_000_000_000 + 8_000_000, false, 160);
    }
    // A flow of 40 packets counts as a stream, a flow of 20 packets does not.
    let mut half = Pcap::new();
    half.0 = pcap.0[..24 + 20 * (16 + 28)].to_vec();
    let lesson = lesson(&half);
    let LearnedExchange::Exchanges(exchanges) = &lesson.file.model.shape else { panic!() };
    assert_eq!((&exchanges.request.0[0], &exchanges.response.0[0]), (&45, &160));
}

#[test]
fn malformed_packets_are_skipped_and_counted() {
    let mut pcap = web(10);
    let whole = lesson(&pcap);
    pcap.packet(1_700_000_001_000_000_000, &[0x45, 0, 0, 3]);
    pcap.packet(1_700_000_001_000_000_000, &[0x46]);
    let lesson = lesson(&pcap);
    assert_eq!(lesson.file.model, whole.file.model);
    assert_eq!(lesson.file.read.broken, 2);
    let first = whole.file.read.packets + 1;
    let warning = format!("2 malformed packets skipped; the first is packet {first}");
    assert!(lesson.warnings.contains(&warning), "{:?}", lesson.warnings);
}

#[test]
fn a_capture_truncated_anywhere_gives_a_model_or_an_error() {
    let whole = web(2).0;
    let mut truncated = 0;
    for length in (0..whole.len()).step_by(7) {
        match learn("cut.pcap", &whole[..length], None) {
            Ok(lesson) => {
                truncated += usize::from(lesson.warnings.iter().any(|w| w.contains("ends within packet")))
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(truncated > 100, "{truncated}");
}

#[test]
fn errors_give_the_reason() {
    let error = |bytes: &[u8]| learn("x", bytes, None).unwrap_err().to_string();
    assert_eq!(error(b""), "this is neither a pcap nor a pcapng file");
    assert_eq!(error(b"GET / HTTP/1.1\r\n\r\n"), "this is neither a pcap nor a pcapng file");
    assert_eq!(error(&Pcap::new().0), "the capture holds no packets");
    let mut pcap = Pcap::new();
    pcap.0[20] = 147;
    pcap.packet(0, &[1, 2, 3]);
    let message = error(&pcap.0);
    assert!(message.contains("no TCP and no UDP") && message.contains("link type 147"), "{message}");
    let mut endless = Pcap::new();
    endless.0.extend([0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
    assert!(error(&endless.0).contains("packet 1 has an impossible length"));
    let filter = "udp port 9".parse().unwrap();
    let error = learn("x", &web(1).0[..], Some(&filter)).unwrap_err();
    assert!(
        matches!(&error, LearnError::NoMatchingFlow(flows) if flows.starts_with("tcp port 80")),
        "{error}"
    );
    for wrong in ["port", "port x", "host here", "sctp"] {
        assert!(wrong.parse::<netstage_traffic::learn::Filter>().is_err(), "{wrong}");
    }
}

/// Reads pcapng files with Ethernet frames and both byte orders, written by `pcap-file`.
#[test]
fn pcapng_files_give_the_same_model() {
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::{
        InterfaceDescriptionBlock, InterfaceDescriptionOption,
    };
    use pcap_file::{DataLink, Endianness};
    let plain = web(3);
    for endianness in [Endianness::Big, Endianness::Little] {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options = vec![InterfaceDescriptionOption::IfTsResol(9)];
        writer.write_pcapng_block(interface).unwrap();
        let mut at = 24;
        while at < plain.0.len() {
            let word = |at: usize| u32::from_le_bytes(plain.0[at..at + 4].try_into().unwrap());
            let (seconds, ns, length) = (word(at), word(at + 4), word(at + 8) as usize);
            let frame = [&[0; 12][..], &[8, 0], &plain.0[at + 16..at + 16 + length]].concat();
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::new(seconds.into(), ns),
                original_len: frame.len() as u32,
                data: frame.into(),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).unwrap();
            at += 16 + length;
        }
        let learned = learn("x", &writer.into_inner()[..], None).unwrap();
        assert_eq!(learned.file.model, lesson(&plain).file.model);
    }
    assert!(SystemTime::now() > SystemTime::UNIX_EPOCH);
}
