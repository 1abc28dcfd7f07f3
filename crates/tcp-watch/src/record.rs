//! Records of the BPF programs: `struct record` and `struct turn` of bpf/tcp.bpf.c, parsed from bytes.

use super::reader::BpfReader;
use netstage_core::quantity::BitRate;
use netstage_core::tcp::event::{CongestionState, FlowSnapshot};
use netstage_core::time::Duration;
use std::net::SocketAddr;

/// Size of a record in bytes; a stack follows a congestion state change.
pub(super) const RECORD: usize = 168;
const DEPTH: usize = 16;
/// The kernel's value for an unset threshold.
pub(super) const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A segment arrived at a sender and was not processed yet.
    Acknowledged,
    /// A segment was retransmitted.
    Retransmitted,
    /// Congestion control is about to change its state.
    Congestion {
        /// New state.
        to: CongestionState,
    },
    /// The connection was established.
    Established,
    /// The connection was closed.
    Closed,
}

/// Record of one event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRecord {
    /// Time in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The kernel's unique cookie of the socket.
    pub cookie: u64,
    /// Inode of the network namespace.
    pub namespace: u32,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Kind of the event.
    pub kind: RecordKind,
    /// State of the connection before the event.
    pub snapshot: FlowSnapshot,
    /// Segments known to have been marked by the network.
    pub marks: u32,
    /// Whether a tail-loss probe is outstanding.
    pub is_probing: bool,
    /// Whether a reduction may still be undone.
    pub may_undo: bool,
    /// Time in jiffies at which data was last sent.
    pub last_sent: u32,
    /// Time in jiffies at which the window last changed other than by growth.
    pub cwnd_changed: u32,
    /// Retransmission timeout in jiffies.
    pub timeout: u32,
}

/// Parses a record and its call stack, innermost first, which is set for congestion state changes.
pub(super) fn read(bytes: &[u8]) -> Option<(TcpRecord, [u64; DEPTH])> {
    let mut reader = BpfReader::new(bytes);
    let (time_ns, cookie, acknowledged, pacing) =
        (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
    let local = reader.address()?;
    let remote = reader.address()?;
    let namespace = reader.u32()?;
    let local = SocketAddr::new(local, reader.u16()?);
    let remote = SocketAddr::new(remote, reader.u16()?);
    let [kind, old, _, new] = reader.take::<4>()?;
    let (is_modeled, waits_for_buffer) = (reader.u16()? != 0, reader.u16()? != 0);
    let [segment, cwnd, ssthresh, peer_window, outstanding, unsent] = reader.words()?;
    let [packets_out, sacked_out, lost_out, retrans_out] = reader.words()?;
    let [smoothed_us, min_us, delivered, interval_us, retransmissions, marks] = reader.words()?;
    let [probe, last_sent, cwnd_changed, timeout, undo_marker, latest_us] = reader.words()?;
    let happened = match (kind, new) {
        (0, _) => RecordKind::Acknowledged,
        (1, _) => RecordKind::Retransmitted,
        (2, to) => RecordKind::Congestion { to: state(to)? },
        (3, 1) => RecordKind::Established,
        (3, _) => RecordKind::Closed,
        _ => return None,
    };
    let bytes_of = |segments: u32| u64::from(segments) * u64::from(segment);
    let round_trip = |us: u32| (us > 0 && us < u32::MAX).then(|| Duration::from_micros(us.into()));
    let left_network = sacked_out.saturating_add(lost_out);
    let snapshot = FlowSnapshot {
        state: state(old)?,
        segment,
        cwnd: bytes_of(cwnd),
        ssthresh: (ssthresh < NO_THRESHOLD).then(|| bytes_of(ssthresh)),
        in_flight: bytes_of(packets_out.saturating_sub(left_network).saturating_add(retrans_out)),
        outstanding: outstanding.into(),
        unsent: unsent.into(),
        peer_window: peer_window.into(),
        smoothed_round_trip: round_trip(smoothed_us),
        min_round_trip: round_trip(min_us),
        latest_round_trip: round_trip(latest_us),
        pacing_rate: (pacing < u64::MAX && pacing > 0).then(|| BitRate(pacing.saturating_mul(8))),
        delivery_rate: (interval_us > 0)
            .then(|| BitRate(bytes_of(delivered).saturating_mul(8_000_000) / u64::from(interval_us))),
        acknowledged,
        retransmissions: retransmissions.into(),
        send_buffer_full: waits_for_buffer,
        model_based: is_modeled,
    };
    let record = TcpRecord {
        time_ns,
        cookie,
        namespace,
        local,
        remote,
        kind: happened,
        snapshot,
        marks,
        is_probing: probe != 0,
        may_undo: undo_marker != 0,
        last_sent,
        cwnd_changed,
        timeout,
    };
    let mut stack = [0; DEPTH];
    if let Some(rest) = bytes.get(RECORD..) {
        for (to, word) in stack.iter_mut().zip(rest.as_chunks::<8>().0) {
            *to = u64::from_ne_bytes(*word);
        }
    }
    Some((record, stack))
}

/// Converts the kernel's `enum tcp_ca_state`.
pub(super) fn state(number: u8) -> Option<CongestionState> {
    Some(match number {
        0 => CongestionState::Open,
        1 => CongestionState::Disorder,
        2 => CongestionState::Reducing,
        3 => CongestionState::Recovery,
        4 => CongestionState::Loss,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_parsed() {
        let mut bytes = Vec::new();
        for word in [5_000_u64, 7, 1 << 33, 125_000] {
            bytes.extend(word.to_ne_bytes());
        }
        for address in [[10, 0, 0, 1], [10, 0, 0, 2]] {
            bytes.extend([0; 10].into_iter().chain([0xff; 2]).chain(address));
        }
        bytes.extend(4026531840_u32.to_ne_bytes());
        bytes.extend(5_000_u16.to_ne_bytes().into_iter().chain(80_u16.to_ne_bytes()));
        bytes.extend([2, 1, 0, 3]);
        bytes.extend([0, 1].into_iter().flat_map(u16::to_ne_bytes));
        let words = [
            1_000_u32,
            10,
            0x7fff_ffff,
            64_000,
            9_000,
            500, // windows
            9,
            2,
            1,
            1, // segments out, received out of order, lost, retransmitted
            1_500,
            1_000,
            10,
            8_000,
            3,
            4, // round trips, delivery, retransmissions, marks
            1,
            100,
            90,
            50,
            1,
            1_200, // tail-loss probe, times, timeout, undo, latest round trip
        ];
        bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        assert_eq!(bytes.len(), RECORD);
        bytes.extend([0xffff_u64, 0].into_iter().flat_map(u64::to_ne_bytes));
        let (record, stack) = read(&bytes).unwrap();
        assert_eq!(stack[..2], [0xffff, 0]);
        assert_eq!(record.local, "10.0.0.1:5000".parse().unwrap());
        assert_eq!(record.kind, RecordKind::Congestion { to: CongestionState::Recovery });
        let snapshot = record.snapshot;
        assert_eq!(
            (snapshot.state, snapshot.cwnd, snapshot.ssthresh),
            (CongestionState::Disorder, 10_000, None)
        );
        assert_eq!((snapshot.in_flight, snapshot.outstanding, snapshot.unsent), (7_000, 9_000, 500));
        assert_eq!(snapshot.delivery_rate, Some(BitRate(10_000_000)));
        assert_eq!(snapshot.pacing_rate, Some(BitRate(1_000_000)));
        assert_eq!(snapshot.smoothed_round_trip, Some(Duration::from_micros(1_500)));
        assert_eq!(snapshot.latest_round_trip, Some(Duration::from_micros(1_200)));
        assert!(record.is_probing && record.may_undo && snapshot.send_buffer_full && !snapshot.model_based);
        for short in 0..RECORD {
            assert_eq!(read(&bytes[..short]), None);
        }
    }
}
