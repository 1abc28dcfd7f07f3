//! What the programs in the kernel tell: `struct record` and `struct turn` of bpf/tcp.bpf.c, read from bytes.

use super::reader::Reader;
use netstage_core::quantity::BitRate;
use netstage_core::tcp::event::{Snapshot, State};
use netstage_core::time::Duration;
use std::net::SocketAddr;

/// Bytes of a record, and of the addresses that follow one of congestion control.
pub(super) const RECORD: usize = 168;
const DEPTH: usize = 16;
/// The kernel's "no threshold yet".
pub(super) const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A segment arrived at a sender; nothing of it was looked at yet.
    Acknowledged,
    /// A segment left again.
    Retransmitted,
    /// Congestion control is about to change its state.
    Congestion {
        /// The state it enters.
        to: State,
    },
    /// The connection was established.
    Established,
    /// The connection is no more.
    Closed,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// The kernel's number of the socket, never used twice.
    pub cookie: u64,
    /// Inode of its network namespace.
    pub namespace: u32,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// What happened.
    pub happened: Happened,
    /// How it stood, in the state it was in before.
    pub snapshot: Snapshot,
    /// Its congestion control follows a model of the path and not single losses, as BBR does.
    pub is_modelled: bool,
    /// Segments known to have been marked on the way.
    pub marks: u32,
    /// A tail-loss probe is out.
    pub is_probing: bool,
    /// A reduction could still be taken back.
    pub may_undo: bool,
    /// When data was last sent, when the window was last changed by other than growth, and the
    /// retransmission timeout: in jiffies.
    pub last_sent: u32,
    /// See `last_sent`.
    pub cwnd_changed: u32,
    /// See `last_sent`.
    pub timeout: u32,
}

/// A record, and whence congestion control was told, where that is what happened: the innermost call first.
pub(super) fn read(bytes: &[u8]) -> Option<(Record, [u64; DEPTH])> {
    let mut at = Reader::of(bytes);
    let (time_ns, cookie, acknowledged, pacing) = (at.u64()?, at.u64()?, at.u64()?, at.u64()?);
    let local = at.address()?;
    let remote = at.address()?;
    let namespace = at.u32()?;
    let local = SocketAddr::new(local, at.u16()?);
    let remote = SocketAddr::new(remote, at.u16()?);
    let [kind, old, _, new] = at.take::<4>()?;
    let is_modelled = at.u32()? != 0;
    let [segment, cwnd, ssthresh, peer_window, outstanding, unsent] = at.words()?;
    let [packets_out, sacked_out, lost_out, retrans_out] = at.words()?;
    let [smoothed_us, min_us, delivered, interval_us, retransmissions, marks] = at.words()?;
    let [probe, last_sent, cwnd_changed, timeout, undo_marker] = at.words()?;
    let happened = match (kind, new) {
        (0, _) => Happened::Acknowledged,
        (1, _) => Happened::Retransmitted,
        (2, to) => Happened::Congestion { to: state(to)? },
        (3, 1) => Happened::Established,
        (3, _) => Happened::Closed,
        _ => return None,
    };
    let bytes_of = |segments: u32| u64::from(segments) * u64::from(segment);
    let round_trip = |us: u32| (us > 0 && us < u32::MAX).then(|| Duration::from_micros(us.into()));
    let left_network = sacked_out.saturating_add(lost_out);
    let snapshot = Snapshot {
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
        pacing_rate: (pacing < u64::MAX && pacing > 0).then(|| BitRate(pacing.saturating_mul(8))),
        delivery_rate: (interval_us > 0)
            .then(|| BitRate(bytes_of(delivered).saturating_mul(8_000_000) / u64::from(interval_us))),
        acknowledged,
        retransmissions: retransmissions.into(),
    };
    let record = Record {
        time_ns,
        cookie,
        namespace,
        local,
        remote,
        happened,
        snapshot,
        is_modelled,
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

/// The kernel's `enum tcp_ca_state`.
pub(super) fn state(number: u8) -> Option<State> {
    Some(match number {
        0 => State::Open,
        1 => State::Disorder,
        2 => State::Reducing,
        3 => State::Recovery,
        4 => State::Loss,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_a_record() {
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
        let words = [
            0_u32,
            1_000,
            10,
            0x7fff_ffff,
            64_000,
            9_000,
            500, // windows
            9,
            2,
            1,
            1, // segments out, received out of order, lost, sent again
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
            0,
        ];
        bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        assert_eq!(bytes.len(), RECORD);
        bytes.extend([0xffff_u64, 0].into_iter().flat_map(u64::to_ne_bytes));
        let (record, stack) = read(&bytes).unwrap();
        assert_eq!(stack[..2], [0xffff, 0]);
        assert_eq!(record.local, "10.0.0.1:5000".parse().unwrap());
        assert_eq!(record.happened, Happened::Congestion { to: State::Recovery });
        let snapshot = record.snapshot;
        assert_eq!((snapshot.state, snapshot.cwnd, snapshot.ssthresh), (State::Disorder, 10_000, None));
        assert_eq!((snapshot.in_flight, snapshot.outstanding, snapshot.unsent), (7_000, 9_000, 500));
        assert_eq!(snapshot.delivery_rate, Some(BitRate(10_000_000)));
        assert_eq!(snapshot.pacing_rate, Some(BitRate(1_000_000)));
        assert_eq!(snapshot.smoothed_round_trip, Some(Duration::from_micros(1_500)));
        assert!(record.is_probing && record.may_undo && !record.is_modelled);
        for short in 0..RECORD - 4 {
            assert_eq!(read(&bytes[..short]), None);
        }
    }
}
