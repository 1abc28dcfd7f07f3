//! Every kind of port: frames in are frames out, in order, with times that never go back;
//! what is lost is counted; what disappears is said.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_harness::{Folder, needs, skip};
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::ports::af_packet::{AfPacket, Options};
use netstage_host::ports::af_xdp::{self, AfXdp};
use netstage_host::ports::pcapng::{Captured, Replay};
use netstage_host::ports::tun::{Layer, Tun};
use netstage_host::ports::{Port, ring};
use netstage_wire::{ip, tcp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Generous: only a broken program takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A frame of a protocol the kernel does not know, which therefore only ports see.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let header = [&RIGHT_MAC[..], &LEFT_MAC, &[0x88, 0xb5]].concat();
    let payload = number.to_be_bytes().into_iter().cycle();
    header.into_iter().chain(payload).take(length).collect()
}

/// Frames of all lengths an Ethernet interface takes.
fn frames(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number, 60 + (number as usize * 97) % 1455)).collect()
}

fn send_all(port: &mut dyn Port, frames: &[Vec<u8>]) {
    for frame in frames {
        if !port.send(frame).unwrap() {
            assert_eq!(port.flush().unwrap(), 0);
            assert!(port.send(frame).unwrap(), "room after a flush");
        }
    }
    assert_eq!(port.flush().unwrap(), 0);
}

/// Waits until the port has something to say (true), or it is time to ask.
fn wait(port: &dyn Port) -> bool {
    let fd = port.fd().unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(100_u8)).unwrap() > 0
}

/// Receives `count` frames with their times.
fn receive(port: &mut dyn Port, count: usize) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    let start = Instant::now();
    while all.len() < count {
        assert!(start.elapsed() < PATIENCE, "only {} of {count} frames", all.len());
        wait(port);
        let limit = count - all.len();
        port.receive(limit, &mut |received| all.push((received.frame.to_vec(), received.at_ns))).unwrap();
    }
    all
}

/// What holds for all ports that are joined.
fn frames_in_are_frames_out(from: &mut dyn Port, to: &mut dyn Port) {
    let sent = frames(500);
    let before = monotonic_ns();
    let mut received = Vec::new();
    for part in sent.chunks(100) {
        send_all(from, part);
        received.extend(receive(to, part.len()));
    }
    assert!(received.iter().map(|(frame, _)| frame).eq(&sent));
    let times: Vec<u64> = received.iter().map(|(_, at_ns)| *at_ns).collect();
    assert!(times.is_sorted(), "{times:?}");
    // A wall clock being set right moves kernel timestamps against ours, by less than this.
    assert!(times[0] + 1_000_000_000 > before && *times.last().unwrap() <= monotonic_ns());
    assert_eq!(to.missed(), 0);
    assert_eq!(to.receive(1, &mut |_| panic!("no frame was sent twice")).unwrap(), 0);
    // A frame arrives when it arrives, not when somebody reads it.
    send_all(from, &sent[..1]);
    let start = Instant::now();
    while !wait(to) {
        assert!(start.elapsed() < PATIENCE);
    }
    let read = monotonic_ns();
    assert!(receive(to, 1)[0].1 <= read);
}

/// The error a port gives once it has lost its interface.
fn loss(port: &mut dyn Port) -> std::io::Error {
    for _ in 0..100 {
        wait(port);
        if let Err(error) = port.receive(64, &mut |_| {}) {
            return error;
        }
    }
    panic!("no error");
}

fn packet_ports(options: Options) -> (Pair, AfPacket, AfPacket) {
    let pair = Pair::new(Default::default());
    let (left, right) =
        (packet_port(&pair.left, "left0", options), packet_port(&pair.right, "right0", options));
    (pair, left, right)
}

fn packet_port(namespace: &Namespace, link: &str, options: Options) -> AfPacket {
    AfPacket::open(namespace, link, options).unwrap()
}

/// Frames pass unchanged both ways.
fn frames_pass(left: &mut dyn Port, right: &mut dyn Port) {
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

fn loss_without_wait(port: &mut dyn Port) -> std::io::Error {
    port.receive(1, &mut |_| {}).unwrap_err()
}

fn ring_counts_what_nobody_took() {
    let (mut left, mut right) = ring::pair(10).unwrap();
    send_all(&mut left, &frames(25));
    assert_eq!(receive(&mut right, 10).len(), 10);
    assert_eq!(right.missed(), 15);
}

fn af_packet_carries_frames() {
    let (_pair, mut left, mut right) = packet_ports(Options::default());
    frames_pass(&mut left, &mut right);
    // Twice around the ring.
    for _ in 0..50 {
        send_all(&mut left, &frames(100));
        assert_eq!(receive(&mut right, 100).len(), 100);
    }
}

fn af_packet_keeps_vlan_tags() {
    let (_pair, mut left, mut right) = packet_ports(Options::default());
    let mut tagged = frame(1, 200);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x05]);
    let mut twice = tagged.clone();
    twice.splice(12..12, [0x88, 0xa8, 0x00, 0x07]);
    let sent = [tagged, twice, frame(2, 100)];
    send_all(&mut left, &sent);
    let received = receive(&mut right, 3);
    assert!(received.iter().map(|(frame, _)| frame).eq(&sent), "{received:x?}");
}

fn af_packet_refuses_what_the_interface_does_not_carry() {
    let (_pair, mut left, mut right) = packet_ports(Options::default());
    for unfit in [frame(0, 3000), frame(0, 1600), frame(0, 5)] {
        assert!(left.send(&unfit).unwrap());
    }
    assert!(left.send(&frame(1, 60)).unwrap());
    assert_eq!(left.flush().unwrap(), 3);
    assert_eq!(receive(&mut right, 1)[0].0, frame(1, 60));
}

fn af_packet_counts_what_nobody_took() {
    let (pair, mut left, mut right) = packet_ports(Options { receive_frames: 100 });
    let sent = frames(2000);
    send_all(&mut left, &sent);
    let taken = receive(&mut right, 100);
    assert!(taken.iter().map(|(frame, _)| frame).eq(&sent[..100]), "the oldest were kept");
    let mut count = 100;
    let mut netlink = Netlink::open(&pair.left).unwrap();
    let start = Instant::now();
    // On a busy machine frames may still be on their way, or dropped there and counted.
    while count + right.missed() + netlink.link("left0").unwrap().statistics.sent_dropped < 2000 {
        assert!(start.elapsed() < PATIENCE, "{count} received, {} missed", right.missed());
        count += right.receive(64, &mut |_| {}).unwrap() as u64;
    }
    assert!(count < 2000);
    let missed = right.missed();
    assert_eq!(right.missed(), missed, "asking does not change it");
}

fn af_packet_says_that_its_interface_is_down_or_gone() {
    let (pair, mut left, mut right) = packet_ports(Options::default());
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
    assert_eq!(receive(&mut right, 1)[0].0, frame(1, 60), "it works again once the interface is up");
    netlink.delete_link("left0").unwrap();
    for port in [&mut left, &mut right] {
        let error = loss(port);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("gone"), "{error}");
        assert!(port.send(&frame(0, 60)).unwrap());
        assert!(port.flush().is_err());
    }
    let error = AfPacket::open(&pair.left, "left0", Options::default()).unwrap_err();
    assert!(error.to_string().contains("left0"), "{error}");
}

/// A port by AF_XDP; skips where this process or kernel cannot.
fn xdp_port(namespace: &Namespace, link: &str, options: af_xdp::Options) -> AfXdp {
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
    assert_eq!(left.flush().unwrap(), 1, "what is too long is refused");
}

fn af_xdp_and_af_packet_understand_each_other() {
    let pair = Pair::new(Default::default());
    let mut left = xdp_port(&pair.left, "left0", Default::default());
    let mut right = AfPacket::open(&pair.right, "right0", Options::default()).unwrap();
    frames_pass(&mut left, &mut right);
}

fn af_xdp_counts_what_nobody_took() {
    let pair = Pair::new(Default::default());
    let options = af_xdp::Options { receive_frames: 64, send_frames: 4096, receives: true };
    let mut right = xdp_port(&pair.right, "right0", options);
    let mut left = AfPacket::open(&pair.left, "left0", Options::default()).unwrap();
    // Fewer than the driver itself holds, so that it loses none.
    let sent = frames(200);
    send_all(&mut left, &sent);
    let start = Instant::now();
    while right.missed() < 136 {
        assert!(start.elapsed() < PATIENCE, "{} missed", right.missed());
        std::thread::sleep(Duration::from_millis(1));
    }
    let taken = receive(&mut right, 64);
    assert!(taken.iter().map(|(frame, _)| frame).eq(&sent[..64]), "the oldest were kept");
    assert_eq!(right.missed(), 136);
}

fn af_xdp_outlives_a_flood() {
    let pair = Pair::new(Default::default());
    let options = af_xdp::Options { receive_frames: 64, send_frames: 1024, receives: true };
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
        // Every chunk is on its way nearly all the time.
        let start = Instant::now();
        let mut taken = 0;
        while start.elapsed() < Duration::from_millis(500) {
            taken += right.receive(64, &mut |_| {}).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        assert!(taken > 64, "{taken} taken");
    });
    // What is left of it, and then all of them are there again.
    while wait(&right) && right.receive(64, &mut |_| {}).unwrap() > 0 {}
    send_all(&mut left, &frames(64));
    assert_eq!(receive(&mut right, 64).len(), 64);
}

fn af_xdp_leaves_its_interface_as_it_was() {
    let pair = Pair::new(Default::default());
    let port = xdp_port(&pair.right, "right0", Default::default());
    let second = AfXdp::open(&pair.right, "right0", Default::default()).unwrap_err();
    assert!(second.to_string().contains("right0"), "{second}");
    drop(port);
    let mut left = AfPacket::open(&pair.left, "left0", Options::default()).unwrap();
    let mut right = AfPacket::open(&pair.right, "right0", Options::default()).unwrap();
    frames_in_are_frames_out(&mut left, &mut right);
    let mut port = xdp_port(&pair.right, "right0", Default::default());
    Netlink::open(&pair.left).unwrap().delete_link("left0").unwrap();
    let error = loss(&mut port);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(port.send(&frame(0, 60)).unwrap());
    assert_eq!(port.flush().unwrap_err().kind(), ErrorKind::NotFound);
}

/// What a port at the right sees of a TCP transfer from the left: frames, and packets the left's
/// kernel handed to its interface meanwhile.
fn transfer(pair: &Pair, bytes: usize) -> (Vec<Vec<u8>>, u64) {
    let handed = || Netlink::open(&pair.left).unwrap().link("left0").unwrap().statistics.sent_packets;
    let mut port = AfPacket::open(&pair.right, "right0", Options::default()).unwrap();
    let before = handed();
    let listener = pair.right.run(|| TcpListener::bind("[fd00::1]:80")).unwrap().unwrap();
    let mut client = pair.left.run(|| TcpStream::connect("[fd00::1]:80")).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut frames = Vec::new();
    for part in vec![1; bytes].chunks(1 << 16) {
        client.write_all(part).unwrap();
        server.read_exact(&mut vec![0; part.len()]).unwrap();
        while port.receive(64, &mut |received| frames.push(received.frame.to_vec())).unwrap() > 0 {}
    }
    assert_eq!(port.missed(), 0);
    (frames, handed() - before)
}

fn af_packet_does_what_a_host_leaves_to_its_interface() {
    needs::namespaces();
    const BYTES: usize = 1 << 20;
    let pair = Pair::new(Default::default());
    let (frames, handed) = transfer(&pair, BYTES);
    assert!(handed >= frames.len() as u64, "without offloads each frame is a packet: {handed}");

    let features =
        ["tx-tcp6-segmentation", "tx-checksum-ip-generic", "tx-generic-segmentation", "tx-scatter-gather"];
    ethtool::switch_on(&pair.left, "left0", &features.map(String::from)).unwrap();
    let (frames, handed) = transfer(&pair, BYTES);
    assert!(handed < frames.len() as u64 / 2, "{handed} packets, {} frames", frames.len());
    let mut sequences = std::collections::BTreeSet::new();
    let mut payload = 0;
    for frame in &frames {
        assert!(frame.len() <= 1514, "{}", frame.len());
        let packet = ip::View::new(&frame[14..]).unwrap();
        let transport = packet.transport().unwrap();
        let length = transport.payload.len() as u32;
        let sum = ip::pseudo_header(packet.source(), packet.destination(), transport.protocol, length);
        assert_eq!(sum.bytes(transport.payload).folded(), 0xffff, "checksums are finished");
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

/// Sends back what a socket sends to 10.9.0.2, from there; by swapping addresses and ports,
/// which no checksum notices.
fn reflect_through(layer: Layer) {
    let namespace = Namespace::new().unwrap();
    let mut tun = Tun::create(&namespace, "tun0", layer).unwrap();
    let mut netlink = Netlink::open(&namespace).unwrap();
    netlink.set_up("tun0").unwrap();
    netlink.add_address("tun0", [10, 9, 0, 1].into(), 24).unwrap();
    if layer == Layer::Ethernet {
        netlink.add_neighbour("tun0", [10, 9, 0, 2].into(), LEFT_MAC).unwrap();
    }
    netlink.wait_until_ready("tun0").unwrap();
    let socket = namespace.run(|| UdpSocket::bind("10.9.0.1:9")).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..20_u8 {
        socket.send_to(&[number; 10], "10.9.0.2:9").unwrap();
    }
    let mut count = 0;
    while count < 20 {
        for (mut frame, at_ns) in receive(&mut tun, 1) {
            assert!(at_ns <= monotonic_ns());
            // The kernel may have to say something of its own (IGMP, MLD).
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
    assert!(tun.missed() > 0, "its queue is finite");
    netlink.delete_link("tun0").unwrap();
    let error = loss(&mut tun);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

fn tun_and_tap_reach_the_kernel() {
    needs::namespaces();
    needs::kernel("/dev/net/tun", std::path::Path::new("/dev/net/tun").exists());
    reflect_through(Layer::Ip);
    reflect_through(Layer::Ethernet);
}

fn labelled_packets_pass_an_interface_without_ethernet() {
    needs::namespaces();
    needs::kernel("/dev/net/tun", std::path::Path::new("/dev/net/tun").exists());
    let namespace = Namespace::new().unwrap();
    let mut tun = Tun::create(&namespace, "tun0", Layer::Ip).unwrap();
    Netlink::open(&namespace).unwrap().set_up("tun0").unwrap();
    let mut port = AfPacket::open(&namespace, "tun0", Options::default()).unwrap();
    // What is no packet of IP by its first bits is none for that.
    for (kind, first) in [([0x88, 0x47], 0), ([0x88, 0x47], 0x45), ([0x08, 0x00], 0x45), ([0x86, 0xdd], 0x60)]
    {
        let sent = [[&[0; 12][..], &kind, &[first], &[9; 1499]].concat()];
        send_all(&mut port, &sent);
        assert_eq!(of_kind(&mut tun, &kind), sent);
        send_all(&mut tun, &sent);
        assert_eq!(of_kind(&mut port, &kind), sent);
    }
}

/// The next frame of this kind; the kernel may have something of its own to say.
fn of_kind(port: &mut impl Port, kind: &[u8; 2]) -> Vec<Vec<u8>> {
    loop {
        let frames = receive(port, 1).into_iter().map(|(frame, _)| frame);
        let ours: Vec<Vec<u8>> = frames.filter(|frame| frame[12..14] == *kind && frame[15] == 9).collect();
        if !ours.is_empty() {
            return ours;
        }
    }
}

fn what_is_captured_is_replayed() {
    let folder = Folder::new("captured");
    let file = folder.join("captured.pcapng");
    let (mut left, right) = ring::pair(1000).unwrap();
    let mut captured = Captured::new(right, &file, "right0").unwrap();
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

    let mut replay = Replay::open(&file, 5_000).unwrap();
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
        Err(error) => skip(format!("tshark reading our pcapng: {error}")),
    }
}

fn replay_waits_until_frames_are_due() {
    let folder = Folder::new("due");
    let file = folder.join("due.pcapng");
    let (mut left, right) = ring::pair(10).unwrap();
    let mut captured = Captured::new(right, &file, "right0").unwrap();
    left.send_at(b"now", 1_000_000_000);
    left.send_at(b"in an hour", 3_601_000_000_000);
    left.flush().unwrap();
    receive(&mut captured, 2);
    captured.finish().unwrap();
    let mut replay = Replay::open(&file, monotonic_ns()).unwrap();
    let mut count = 0;
    replay.receive(10, &mut |received| count += usize::from(received.frame == b"now")).unwrap();
    assert_eq!((count, replay.has_ended()), (1, false));
    assert!(replay.send(b"nothing takes this").unwrap());
    assert_eq!(replay.flush().unwrap(), 1);
}

fn a_broken_capture_and_a_full_disk_are_said() {
    let folder = Folder::new("broken");
    let file = folder.join("broken.pcapng");
    std::fs::write(&file, b"\x0a\x0d\x0d\x0anot a capture, although it begins like one").unwrap();
    let error = Replay::open(&file, 0).err().unwrap();
    assert!(error.to_string().contains("broken.pcapng"), "{error}");
    let (mut left, right) = ring::pair(10_000).unwrap();
    let Ok(mut captured) = Captured::new(right, "/dev/full".as_ref(), "right0") else {
        skip("no /dev/full");
    };
    // More than is held back before it is written.
    let sent = frames(2000);
    send_all(&mut left, &sent);
    assert_eq!(receive(&mut captured, 2000).len(), 2000, "traffic goes on");
    let error = captured.finish().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

netstage_harness::tests![
    ring_carries_frames,
    ring_counts_what_nobody_took,
    af_packet_carries_frames,
    af_packet_keeps_vlan_tags,
    af_packet_refuses_what_the_interface_does_not_carry,
    af_packet_counts_what_nobody_took,
    af_packet_says_that_its_interface_is_down_or_gone,
    af_xdp_carries_frames,
    af_xdp_and_af_packet_understand_each_other,
    af_xdp_counts_what_nobody_took,
    af_xdp_outlives_a_flood,
    af_xdp_leaves_its_interface_as_it_was,
    af_packet_does_what_a_host_leaves_to_its_interface,
    tun_and_tap_reach_the_kernel,
    labelled_packets_pass_an_interface_without_ethernet,
    what_is_captured_is_replayed,
    replay_waits_until_frames_are_due,
    a_broken_capture_and_a_full_disk_are_said,
];
netstage_harness::main![self];
