//! Tests of every kind of port: frames pass in order with monotonic times, losses are counted, and a removed
//! interface is reported.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_harness::{TemporaryFolder, needs, skip};
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_host::ports::pcapng::{CapturingPort, ReplayPort};
use netstage_host::ports::tun::{Tun, TunLayer};
use netstage_host::ports::{FramePort, ring};
use netstage_wire::{ip, tcp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Test timeout, exceeded only by a broken program.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a frame of a protocol unknown to the kernel, so that only ports handle it.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let header = [&RIGHT_MAC[..], &LEFT_MAC, &[0x88, 0xb5]].concat();
    let payload = number.to_be_bytes().into_iter().cycle();
    header.into_iter().chain(payload).take(length).collect()
}

/// Returns frames of all lengths an Ethernet interface accepts.
fn frames(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number, 60 + (number as usize * 97) % 1455)).collect()
}

fn send_all(port: &mut dyn FramePort, frames: &[Vec<u8>]) {
    for frame in frames {
        if !port.send(frame).unwrap() {
            assert_eq!(port.flush().unwrap(), 0);
            assert!(port.send(frame).unwrap(), "a flushed port accepts a frame");
        }
    }
    assert_eq!(port.flush().unwrap(), 0);
}

/// Waits until the port is readable (true) or a timeout expires.
fn wait(port: &dyn FramePort) -> bool {
    let fd = port.fd().unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(100_u8)).unwrap() > 0
}

/// Receives `count` frames with their arrival times.
fn receive(port: &mut dyn FramePort, count: usize) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    let start = Instant::now();
    while all.len() < count {
        assert!(start.elapsed() < TIMEOUT, "only {} of {count} frames", all.len());
        wait(port);
        let limit = count - all.len();
        port.receive(limit, &mut |received| all.push((received.frame.to_vec(), received.at_ns))).unwrap();
    }
    all
}

/// Checks properties common to all connected ports.
fn frames_in_are_frames_out(from: &mut dyn FramePort, to: &mut dyn FramePort) {
    let sent = frames(500);
    let before = monotonic_ns();
    let mut received = Vec::new();
    for chunk in sent.chunks(100) {
        send_all(from, chunk);
        received.extend(receive(to, chunk.len()));
    }
    assert!(received.iter().map(|(frame, _)| frame).eq(&sent));
    let times: Vec<u64> = received.iter().map(|(_, at_ns)| *at_ns).collect();
    assert!(times.is_sorted(), "{times:?}");
    // Adjustment of the wall clock shifts kernel timestamps against the monotonic clock by less than this.
    assert!(times[0] + 1_000_000_000 > before && *times.last().unwrap() <= monotonic_ns());
    assert_eq!(to.missed(), 0);
    assert_eq!(to.receive(1, &mut |_| panic!("received a duplicate frame")).unwrap(), 0);
    // The arrival time does not depend on the time of reading.
    send_all(from, &sent[..1]);
    let start = Instant::now();
    while !wait(to) {
        assert!(start.elapsed() < TIMEOUT);
    }
    let read = monotonic_ns();
    assert!(receive(to, 1)[0].1 <= read);
}

/// Returns the error of a port that has lost its interface.
fn loss(port: &mut dyn FramePort) -> std::io::Error {
    for _ in 0..100 {
        wait(port);
        if let Err(error) = port.receive(64, &mut |_| {}) {
            return error;
        }
    }
    panic!("no error");
}

fn packet_ports(options: AfPacketOptions) -> (Pair, AfPacket, AfPacket) {
    let pair = Pair::new(Default::default());
    let (left, right) =
        (packet_port(&pair.left, "left0", options), packet_port(&pair.right, "right0", options));
    (pair, left, right)
}

fn packet_port(namespace: &Namespace, link: &str, options: AfPacketOptions) -> AfPacket {
    AfPacket::open(namespace, link, options).unwrap()
}

/// Frames pass unchanged in both directions.
fn frames_pass(left: &mut dyn FramePort, right: &mut dyn FramePort) {
    frames_in_are_frames_out(left, right);
    frames_in_are_frames_out(right, left);
}

fn ring_carries_frames() {
    let (mut left, mut right) = ring::pair(1000).unwrap();
    frames_pass(&mut left, &mut right);
    left.send_at(b"early", 7);
    left.flush().unwrap();
    assert_eq!(receive(&mut right, 1), [(b"early".to_vec(), 7)]);
    drop(left);
    assert_eq!(loss_without_wait(&mut right).kind(), ErrorKind::NotFound);
}

fn loss_without_wait(port: &mut dyn FramePort) -> std::io::Error {
    port.receive(1, &mut |_| {}).unwrap_err()
}

fn ring_counts_missed_frames() {
    let (mut left, mut right) = ring::pair(10).unwrap();
    send_all(&mut left, &frames(25));
    assert_eq!(receive(&mut right, 10).len(), 10);
    assert_eq!(right.missed(), 15);
}

fn af_packet_carries_frames() {
    let (_pair, mut left, mut right) = packet_ports(AfPacketOptions::default());
    frames_pass(&mut left, &mut right);
    // Twice around the ring.
    for _ in 0..50 {
        send_all(&mut left, &frames(100));
        assert_eq!(receive(&mut right, 100).len(), 100);
    }
}

fn af_packet_keeps_vlan_tags() {
    let (_pair, mut left, mut right) = packet_ports(AfPacketOptions::default());
    let mut tagged = frame(1, 200);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x05]);
    let mut twice = tagged.clone();
    twice.splice(12..12, [0x88, 0xa8, 0x00, 0x07]);
    let sent = [tagged, twice, frame(2, 100)];
    send_all(&mut left, &sent);
    let received = receive(&mut right, 3);
    assert!(received.iter().map(|(frame, _)| frame).eq(&sent), "{received:x?}");
}

fn af_packet_refuses_frames_of_invalid_length() {
    let (_pair, mut left, mut right) = packet_ports(AfPacketOptions::default());
    for unfit in [frame(0, 3000), frame(0, 1600), frame(0, 5)] {
        assert!(left.send(&unfit).unwrap());
    }
    assert!(left.send(&frame(1, 60)).unwrap());
    assert_eq!(left.flush().unwrap(), 3);
    assert_eq!(receive(&mut right, 1)[0].0, frame(1, 60));
}

fn af_packet_counts_missed_frames() {
    let (pair, mut left, mut right) = packet_ports(AfPacketOptions { receive_frames: 100 });
    let sent = frames(2000);
    send_all(&mut left, &sent);
    let taken = receive(&mut right, 100);
    assert!(taken.iter().map(|(frame, _)| frame).eq(&sent[..100]), "the oldest frames are kept");
    let mut count = 100;
    let mut netlink = Netlink::open(&pair.left).unwrap();
    let start = Instant::now();
    // On a busy machine, frames may still be in transit, or dropped and counted by the sender.
    while count + right.missed() + netlink.link("left0").unwrap().statistics.sent_dropped < 2000 {
        assert!(start.elapsed() < TIMEOUT, "{count} received, {} missed", right.missed());
        count += right.receive(64, &mut |_| {}).unwrap() as u64;
    }
    assert!(count < 2000);
    let missed = right.missed();
    assert_eq!(right.missed(), missed, "reading the counter does not change it");
}

fn af_packet_reports_that_its_interface_is_down_or_gone() {
    let (pair, mut left, mut right) = packet_ports(AfPacketOptions::default());
    let mut netlink = Netlink::open(&pair.left).unwrap();
    netlink.set_down("left0").unwrap();
    let error = loss(&mut left);
    assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
    assert!(left.send(&frame(0, 60)).unwrap());
    let error = left.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
    netlink.set_up("left0").unwrap();
    netlink.wait_until_ready("left0").unwrap();
    send_all(&mut left, &[frame(1, 60)]);
    assert_eq!(receive(&mut right, 1)[0].0, frame(1, 60), "the port works again once the interface is up");
    netlink.delete_link("left0").unwrap();
    for port in [&mut left, &mut right] {
        let error = loss(port);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("gone"), "{error}");
        assert!(port.send(&frame(0, 60)).unwrap());
        assert!(port.flush().is_err());
    }
    let error = AfPacket::open(&pair.left, "left0", AfPacketOptions::default()).unwrap_err();
    assert!(error.to_string().contains("left0"), "{error}");
}

/// Opens an AF_XDP port; skips the test if this process or kernel cannot.
fn xdp_port(namespace: &Namespace, link: &str, options: af_xdp::AfXdpOptions) -> AfXdp {
    match AfXdp::open(namespace, link, options) {
        Ok(port) => port,
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
            skip(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

fn af_xdp_carries_frames() {
    let pair = Pair::new(Default::default());
    let mut left = xdp_port(&pair.left, "left0", Default::default());
    let mut right = xdp_port(&pair.right, "right0", Default::default());
    frames_pass(&mut left, &mut right);
    // Several times around the rings.
    for _ in 0..100 {
        send_all(&mut left, &frames(100));
        assert_eq!(receive(&mut right, 100).len(), 100);
    }
    assert!(left.send(&frame(0, 3000)).unwrap());
    assert_eq!(left.flush().unwrap(), 1, "a frame that is too long is refused");
}

fn af_xdp_and_af_packet_interoperate() {
    let pair = Pair::new(Default::default());
    let mut left = xdp_port(&pair.left, "left0", Default::default());
    let mut right = AfPacket::open(&pair.right, "right0", AfPacketOptions::default()).unwrap();
    frames_pass(&mut left, &mut right);
}

fn af_xdp_counts_missed_frames() {
    let pair = Pair::new(Default::default());
    let options = af_xdp::AfXdpOptions { receive_frames: 64, send_frames: 4096, receives: true };
    let mut right = xdp_port(&pair.right, "right0", options);
    let mut left = AfPacket::open(&pair.left, "left0", AfPacketOptions::default()).unwrap();
    // Fewer than the driver's capacity, so that the driver loses none.
    let sent = frames(200);
    send_all(&mut left, &sent);
    let start = Instant::now();
    while right.missed() < 136 {
        assert!(start.elapsed() < TIMEOUT, "{} missed", right.missed());
        std::thread::sleep(Duration::from_millis(1));
    }
    let taken = receive(&mut right, 64);
    assert!(taken.iter().map(|(frame, _)| frame).eq(&sent[..64]), "the oldest frames are kept");
    assert_eq!(right.missed(), 136);
}

fn af_xdp_survives_a_flood() {
    let pair = Pair::new(Default::default());
    let options = af_xdp::AfXdpOptions { receive_frames: 64, send_frames: 1024, receives: true };
    let mut left = xdp_port(&pair.left, "left0", options);
    let mut right = xdp_port(&pair.right, "right0", options);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flood = frame(7, 64);
            while !ended.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let _ = left.send(&flood).unwrap();
                }
                left.flush().unwrap();
            }
        });
        // Nearly all chunks are in use most of the time.
        let start = Instant::now();
        let mut taken = 0;
        while start.elapsed() < Duration::from_millis(500) {
            taken += right.receive(64, &mut |_| {}).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        assert!(taken > 64, "{taken} frames received");
    });
    // Drain the rest; then all chunks are available again.
    while wait(&right) && right.receive(64, &mut |_| {}).unwrap() > 0 {}
    send_all(&mut left, &frames(64));
    assert_eq!(receive(&mut right, 64).len(), 64);
}

fn af_xdp_restores_its_interface() {
    let pair = Pair::new(Default::default());
    let port = xdp_port(&pair.right, "right0", Default::default());
    let second = AfXdp::open(&pair.right, "right0", Default::default()).unwrap_err();
    assert!(second.to_string().contains("right0"), "{second}");
    drop(port);
    let mut left = AfPacket::open(&pair.left, "left0", AfPacketOptions::default()).unwrap();
    let mut right = AfPacket::open(&pair.right, "right0", AfPacketOptions::default()).unwrap();
    frames_in_are_frames_out(&mut left, &mut right);
    let mut port = xdp_port(&pair.right, "right0", Default::default());
    Netlink::open(&pair.left).unwrap().delete_link("left0").unwrap();
    let error = loss(&mut port);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(port.send(&frame(0, 60)).unwrap());
    assert_eq!(port.flush().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Returns the frames of a TCP transfer captured at the right, and the number of packets that the left kernel
/// passed to its interface.
fn transfer(pair: &Pair, bytes: usize) -> (Vec<Vec<u8>>, u64) {
    let kernel_packets = || Netlink::open(&pair.left).unwrap().link("left0").unwrap().statistics.sent_packets;
    let mut port = AfPacket::open(&pair.right, "right0", AfPacketOptions::default()).unwrap();
    let before = kernel_packets();
    let listener = pair.right.run(|| TcpListener::bind("[fd00::1]:80")).unwrap().unwrap();
    let mut client = pair.left.run(|| TcpStream::connect("[fd00::1]:80")).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut frames = Vec::new();
    for part in vec![1; bytes].chunks(1 << 16) {
        client.write_all(part).unwrap();
        server.read_exact(&mut vec![0; part.len()]).unwrap();
        while port.receive(64, &mut |received| frames.push(received.frame.to_vec())).unwrap() > 0 {}
    }
    assert_eq!(port.missed(), 0);
    (frames, kernel_packets() - before)
}

fn af_packet_performs_the_offloads_of_its_peer() {
    needs::namespaces();
    const BYTES: usize = 1 << 20;
    let pair = Pair::new(Default::default());
    let (frames, kernel_packets) = transfer(&pair, BYTES);
    assert!(
        kernel_packets >= frames.len() as u64,
        "without offloads each frame is a packet: {kernel_packets}"
    );

    let features =
        ["tx-tcp6-segmentation", "tx-checksum-ip-generic", "tx-generic-segmentation", "tx-scatter-gather"];
    ethtool::enable_features(&pair.left, "left0", &features.map(String::from)).unwrap();
    let (frames, kernel_packets) = transfer(&pair, BYTES);
    assert!(kernel_packets < frames.len() as u64 / 2, "{kernel_packets} packets, {} frames", frames.len());
    let mut sequences = std::collections::BTreeSet::new();
    let mut payload = 0;
    for frame in &frames {
        assert!(frame.len() <= 1514, "{}", frame.len());
        let packet = ip::View::new(&frame[14..]).unwrap();
        let transport = packet.transport().unwrap();
        let length = transport.payload.len() as u32;
        let sum = ip::pseudo_header(packet.source(), packet.destination(), transport.protocol, length);
        assert_eq!(sum.bytes(transport.payload).folded(), 0xffff, "checksums are complete");
        if let Ok(segment) = tcp::View::new(transport.payload)
            && transport.protocol == ip::protocol::TCP
            && !segment.payload().is_empty()
            && sequences.insert(segment.sequence())
        {
            payload += segment.payload().len();
        }
    }
    assert_eq!(payload, BYTES);
}

/// Reflects datagrams sent to 10.9.0.2. Swapping addresses and ports leaves all checksums valid.
fn reflect_through(layer: TunLayer) {
    let namespace = Namespace::new().unwrap();
    let mut tun = Tun::create(&namespace, "tun0", layer).unwrap();
    let mut netlink = Netlink::open(&namespace).unwrap();
    netlink.set_up("tun0").unwrap();
    netlink.add_address("tun0", [10, 9, 0, 1].into(), 24).unwrap();
    if layer == TunLayer::Ethernet {
        netlink.add_neighbor("tun0", [10, 9, 0, 2].into(), LEFT_MAC).unwrap();
    }
    netlink.wait_until_ready("tun0").unwrap();
    let socket = namespace.run(|| UdpSocket::bind("10.9.0.1:9")).unwrap().unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for number in 0..20_u8 {
        socket.send_to(&[number; 10], "10.9.0.2:9").unwrap();
    }
    let mut count = 0;
    while count < 20 {
        for (mut frame, at_ns) in receive(&mut tun, 1) {
            assert!(at_ns <= monotonic_ns());
            // The kernel may send packets of its own (IGMP, MLD).
            if frame[12..14] != [8, 0] || frame[14 + 9] != 17 {
                continue;
            }
            for (one, other, length) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                (0..length).for_each(|byte| frame.swap(one + byte, other + byte));
            }
            send_all(&mut tun, &[frame]);
            count += 1;
        }
    }
    for number in 0..20_u8 {
        let mut bytes = [0; 64];
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], from.to_string().as_str()), (&[number; 10][..], "10.9.0.2:9"));
    }
    assert_eq!(tun.missed(), 0);
    (0..2000).for_each(|_| drop(socket.send_to(b"unread", "10.9.0.2:9")));
    assert!(tun.missed() > 0, "the queue of the interface is finite");
    netlink.delete_link("tun0").unwrap();
    let error = loss(&mut tun);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

fn tun_and_tap_reach_the_kernel() {
    needs::namespaces();
    needs::kernel("/dev/net/tun", std::path::Path::new("/dev/net/tun").exists());
    reflect_through(TunLayer::Ip);
    reflect_through(TunLayer::Ethernet);
}

fn mpls_packets_pass_an_interface_without_ethernet() {
    needs::namespaces();
    needs::kernel("/dev/net/tun", std::path::Path::new("/dev/net/tun").exists());
    let namespace = Namespace::new().unwrap();
    let mut tun = Tun::create(&namespace, "tun0", TunLayer::Ip).unwrap();
    Netlink::open(&namespace).unwrap().set_up("tun0").unwrap();
    let mut port = AfPacket::open(&namespace, "tun0", AfPacketOptions::default()).unwrap();
    // A packet whose first bits are not an IP version must pass, too.
    for (kind, first) in [([0x88, 0x47], 0), ([0x88, 0x47], 0x45), ([0x08, 0x00], 0x45), ([0x86, 0xdd], 0x60)]
    {
        let sent = [[&[0; 12][..], &kind, &[first], &[9; 1499]].concat()];
        send_all(&mut port, &sent);
        assert_eq!(of_kind(&mut tun, &kind), sent);
        send_all(&mut tun, &sent);
        assert_eq!(of_kind(&mut port, &kind), sent);
    }
}

/// Returns the next frame of this kind, skipping packets of the kernel.
fn of_kind(port: &mut impl FramePort, kind: &[u8; 2]) -> Vec<Vec<u8>> {
    loop {
        let frames = receive(port, 1).into_iter().map(|(frame, _)| frame);
        let ours: Vec<Vec<u8>> = frames.filter(|frame| frame[12..14] == *kind && frame[15] == 9).collect();
        if !ours.is_empty() {
            return ours;
        }
    }
}

fn a_capture_is_replayed() {
    let folder = TemporaryFolder::new("captured");
    let file = folder.join("captured.pcapng");
    let (mut left, right) = ring::pair(1000).unwrap();
    let mut captured = CapturingPort::new(right, &file, "right0").unwrap();
    let start = monotonic_ns();
    let sent = frames(200);
    for (number, frame) in sent.iter().enumerate() {
        left.send_at(frame, start + 1001 * number as u64);
    }
    left.flush().unwrap();
    assert_eq!(receive(&mut captured, 200).len(), 200);
    send_all(&mut captured, &sent[..50]);
    assert_eq!(receive(&mut left, 50).len(), 50);
    drop(captured.finish().unwrap());

    let mut replay = ReplayPort::open(&file, 5_000).unwrap();
    let mut replayed = Vec::new();
    while !replay.has_ended() {
        replay.receive(7, &mut |received| replayed.push((received.frame.to_vec(), received.at_ns))).unwrap();
    }
    let frames: Vec<&Vec<u8>> = replayed.iter().map(|(frame, _)| frame).collect();
    assert!(frames[..200].iter().copied().eq(&sent) && frames[200..].iter().copied().eq(&sent[..50]));
    let expected = (0..200).map(|number| 5_000 + 1001 * number);
    assert!(replayed[..200].iter().map(|(_, at_ns)| *at_ns).eq(expected));
    assert!(replayed.is_sorted_by_key(|(_, at_ns)| *at_ns));

    match Command::new("tshark")
        .args(["-r".as_ref(), file.as_os_str()])
        .args(["-T", "fields", "-e", "frame.len"])
        .output()
    {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lengths: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
            assert!(lengths.into_iter().eq(frames.iter().map(|frame| frame.len())));
        }
        Err(error) => skip(format!("cannot run tshark: {error}")),
    }
}

fn replay_waits_until_frames_are_due() {
    let folder = TemporaryFolder::new("due");
    let file = folder.join("due.pcapng");
    let (mut left, right) = ring::pair(10).unwrap();
    let mut captured = CapturingPort::new(right, &file, "right0").unwrap();
    left.send_at(b"now", 1_000_000_000);
    left.send_at(b"in an hour", 3_601_000_000_000);
    left.flush().unwrap();
    receive(&mut captured, 2);
    captured.finish().unwrap();
    let mut replay = ReplayPort::open(&file, monotonic_ns()).unwrap();
    let mut count = 0;
    replay.receive(10, &mut |received| count += usize::from(received.frame == b"now")).unwrap();
    assert_eq!((count, replay.has_ended()), (1, false));
    assert!(replay.send(b"refused").unwrap());
    assert_eq!(replay.flush().unwrap(), 1);
}

fn a_broken_capture_and_a_full_disk_are_reported() {
    let folder = TemporaryFolder::new("broken");
    let file = folder.join("broken.pcapng");
    std::fs::write(&file, b"\x0a\x0d\x0d\x0anot a capture, although it begins like one").unwrap();
    let error = ReplayPort::open(&file, 0).err().unwrap();
    assert!(error.to_string().contains("broken.pcapng"), "{error}");
    let (mut left, right) = ring::pair(10_000).unwrap();
    let Ok(mut captured) = CapturingPort::new(right, "/dev/full".as_ref(), "right0") else {
        skip("no /dev/full");
    };
    // More than the write buffer holds.
    let sent = frames(2000);
    send_all(&mut left, &sent);
    assert_eq!(receive(&mut captured, 2000).len(), 2000, "traffic continues");
    let error = captured.finish().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

netstage_harness::tests![
    ring_carries_frames,
    ring_counts_missed_frames,
    af_packet_carries_frames,
    af_packet_keeps_vlan_tags,
    af_packet_refuses_frames_of_invalid_length,
    af_packet_counts_missed_frames,
    af_packet_reports_that_its_interface_is_down_or_gone,
    af_xdp_carries_frames,
    af_xdp_and_af_packet_interoperate,
    af_xdp_counts_missed_frames,
    af_xdp_survives_a_flood,
    af_xdp_restores_its_interface,
    af_packet_performs_the_offloads_of_its_peer,
    tun_and_tap_reach_the_kernel,
    mpls_packets_pass_an_interface_without_ethernet,
    a_capture_is_replayed,
    replay_waits_until_frames_are_due,
    a_broken_capture_and_a_full_disk_are_reported,
];
netstage_harness::main![self];
