//! Rates without sockets: building a table, encoding its messages, decoding them.

use netstage_core::time::{Duration, Instant};
use netstage_routing::bgp::inject::{Injection, InjectionAction, SendOrder, WriteCounts};
use netstage_routing::bgp::nlri::BgpFamily;
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::{AsPath, Encoding};
use netstage_routing::bgp::receive::{ExpectedNextHop, ReceivedRoutes};
use netstage_routing::bgp::session::{BgpEvent, BgpSession, BgpSettings, BgpTransmit, ConnectionOpener};
use netstage_routing::bgp::table::{BgpTable, NextHopAssignment, Pattern};
use std::hint::black_box;

const REPEATS: usize = 9;
const BUFFER: usize = 1 << 20;
const ENCODING: Encoding = Encoding { four_octet_as: true, prepend: Some(65_001), local_preference: None };

/// Prints the minimum and median of several repetitions, for 50,000 and for 1,000,000 /24 prefixes.
pub fn print_rates() {
    println!("{:>9}  {:<36} {:>9} {:>9}", "routes", "", "best ms", "median ms");
    for count in [50_000, 1_000_000] {
        let line = |what: &str, mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            println!("{count:>9}  {what:<36} {:>9.3} {:>9.3}", times[0], times[REPEATS / 2]);
        };
        line("table from a pattern", times(|| drop(black_box(table(count, 1)))));
        let one = table(count, 1);
        let many = table(count, 8);
        for (table, what) in [(&one, "one next hop"), (&many, "eight next hops in turn")] {
            let announce = times(|| write(table, InjectionAction::Announce, None));
            line(&format!("announce, {what}"), announce);
        }
        let withdraw = times(|| write(&one, InjectionAction::Withdraw, None));
        line("withdraw", withdraw);
        let mut all = Vec::new();
        write(&one, InjectionAction::Announce, Some(&mut all));
        let (mut machine, mut received) = (established(), ReceivedRoutes::new());
        line(
            "decode, from bytes to table",
            times(|| {
                received.clear();
                take(&mut machine, &mut received, &all);
            }),
        );
        line(
            "compare with the expected table",
            times(|| {
                let families = [BgpFamily::Ipv4Unicast];
                assert!(received.differences(&one, &families, ExpectedNextHop::AsListed).is_empty());
            }),
        );
    }
}

fn times(mut work: impl FnMut()) -> Vec<f64> {
    (0..REPEATS)
        .map(|_| {
            let start = std::time::Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect()
}

fn table(count: u32, hops: u8) -> BgpTable {
    let mut table = BgpTable::new();
    let pattern = Pattern {
        family: BgpFamily::Ipv4Unicast,
        first: "1.0.0.0/24".parse().expect("a prefix"),
        count,
        next_hops: (1..=hops).map(|last| [192, 0, 2, last].into()).collect(),
        spread: NextHopAssignment::InTurn,
        as_path: AsPath::sequence(&[65_010, 65_011]),
        first_label: None,
        distinguisher: None,
    };
    pattern.append_to(&mut table).expect("the address space has enough prefixes");
    table
}

/// Encodes into one buffer that is repeatedly emptied, as by a socket, and appends to `output` if given.
fn write(table: &BgpTable, action: InjectionAction, mut output: Option<&mut Vec<u8>>) {
    let mut injection = Injection::new(table, action, SendOrder::Packed, &[BgpFamily::Ipv4Unicast]);
    let (mut buffer, mut total) = (Vec::with_capacity(BUFFER + 4096), WriteCounts::default());
    loop {
        buffer.clear();
        let written = injection.fill(table, &ENCODING, BUFFER, &mut buffer);
        if written == WriteCounts::default() {
            assert_eq!(total.routes, table.len());
            return;
        }
        if let Some(output) = &mut output {
            output.extend_from_slice(black_box(&buffer));
        }
        total.messages += written.messages;
        total.routes += written.routes;
    }
}

fn take(machine: &mut BgpSession, received: &mut ReceivedRoutes, bytes: &[u8]) {
    for piece in bytes.chunks(256 << 10) {
        machine.handle_bytes(Instant::ZERO, ConnectionOpener::Local, piece);
        while let Some(event) = machine.poll_event() {
            if let BgpEvent::Update(update) = event {
                received.take(&update);
            }
        }
    }
}

/// Returns a machine with an established session to a second machine.
fn established() -> BgpSession {
    let settings = |number: u8| BgpSettings {
        identity: OpenParameters {
            local_as: 65_000 + u32::from(number),
            peer_as: None,
            identifier: [192, 0, 2, number].into(),
            hold_time: Duration::ZERO,
            families: vec![BgpFamily::Ipv4Unicast],
            four_octet_as: true,
        },
        connects: true,
        connect_retry: Duration::from_secs(1),
        restart: None,
    };
    let mut machines = [
        (BgpSession::new(settings(1)), ConnectionOpener::Local),
        (BgpSession::new(settings(2)), ConnectionOpener::Peer),
    ];
    for (machine, side) in &mut machines {
        machine.handle_start(Instant::ZERO);
        machine.handle_connected(Instant::ZERO, *side);
    }
    let [one, two] = &mut machines;
    for _ in 0..3 {
        carry(one, two);
        carry(two, one);
    }
    let [(mut machine, _), _] = machines;
    while machine.poll_event().is_some() {}
    assert!(machine.established().is_some());
    machine
}

fn carry(from: &mut (BgpSession, ConnectionOpener), to: &mut (BgpSession, ConnectionOpener)) {
    while let Some(transmit) = from.0.poll_transmit() {
        if let BgpTransmit::Bytes(_, bytes) = transmit {
            to.0.handle_bytes(Instant::ZERO, to.1, &bytes);
        }
    }
}
