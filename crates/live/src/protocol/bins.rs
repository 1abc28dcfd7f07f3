//! Bins as the messages carry them.

use super::generated as wire;
use crate::results::{Counts, EndedBin, TcpSample, Travel};

impl From<EndedBin> for wire::FinishedBin {
    fn from(ended: EndedBin) -> wire::FinishedBin {
        let EndedBin { flow, sends, bin, counts, tcp, travel } = ended;
        wire::FinishedBin {
            flow,
            sends,
            bin,
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            offered_bytes: counts.offered_bytes,
            received: counts.received,
            received_bytes: counts.received_bytes,
            lost: counts.lost,
            duplicated: counts.duplicated,
            reordered: counts.reordered,
            corrupted: counts.corrupted,
            bit_errors: counts.bit_errors,
            tcp: tcp.map(|tcp| wire::TcpState {
                window: tcp.window,
                slow_start_threshold: tcp.slow_start_threshold,
                round_trip_ns: tcp.round_trip_ns,
                min_round_trip_ns: tcp.min_round_trip_ns,
                retransmissions: tcp.retransmissions,
                peer_window: tcp.peer_window,
                delivery_rate_bps: tcp.delivery_rate_bps,
                peer_window_limited_ns: tcp.peer_window_limited_ns,
                send_buffer_limited_ns: tcp.send_buffer_limited_ns,
                busy_ns: tcp.busy_ns,
            }),
            travel: travel.map(|travel| wire::Travel {
                count: travel.count,
                sum_ns: travel.sum_ns,
                min_ns: travel.min_ns,
                max_ns: travel.max_ns,
                variation_count: travel.variation_count,
                variation_sum_ns: travel.variation_sum_ns,
                jitter_ns: travel.jitter_ns,
            }),
        }
    }
}

impl From<wire::FinishedBin> for EndedBin {
    fn from(told: wire::FinishedBin) -> EndedBin {
        EndedBin {
            flow: told.flow,
            sends: told.sends,
            bin: told.bin,
            counts: Counts {
                sent: told.sent,
                sent_bytes: told.sent_bytes,
                offered_bytes: told.offered_bytes,
                received: told.received,
                received_bytes: told.received_bytes,
                lost: told.lost,
                duplicated: told.duplicated,
                reordered: told.reordered,
                corrupted: told.corrupted,
                bit_errors: told.bit_errors,
            },
            tcp: told.tcp.map(|tcp| TcpSample {
                window: tcp.window,
                slow_start_threshold: tcp.slow_start_threshold,
                round_trip_ns: tcp.round_trip_ns,
                min_round_trip_ns: tcp.min_round_trip_ns,
                retransmissions: tcp.retransmissions,
                peer_window: tcp.peer_window,
                delivery_rate_bps: tcp.delivery_rate_bps,
                peer_window_limited_ns: tcp.peer_window_limited_ns,
                send_buffer_limited_ns: tcp.send_buffer_limited_ns,
                busy_ns: tcp.busy_ns,
            }),
            travel: told.travel.map(|travel| Travel {
                count: travel.count,
                sum_ns: travel.sum_ns,
                min_ns: travel.min_ns,
                max_ns: travel.max_ns,
                variation_count: travel.variation_count,
                variation_sum_ns: travel.variation_sum_ns,
                jitter_ns: travel.jitter_ns,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_travels_unchanged() {
        let counts = Counts {
            sent: 1,
            sent_bytes: 2,
            offered_bytes: 3,
            received: 4,
            received_bytes: 5,
            lost: 6,
            duplicated: 7,
            reordered: 8,
            corrupted: 9,
            bit_errors: 10,
        };
        let tcp = TcpSample {
            window: 1,
            slow_start_threshold: 2,
            round_trip_ns: 3,
            min_round_trip_ns: 4,
            retransmissions: 5,
            peer_window: 6,
            delivery_rate_bps: 7,
            peer_window_limited_ns: 8,
            send_buffer_limited_ns: 9,
            busy_ns: 10,
        };
        let travel = Travel {
            count: 1,
            sum_ns: 2,
            min_ns: 3,
            max_ns: 4,
            variation_count: 5,
            variation_sum_ns: 6,
            jitter_ns: 7,
        };
        let full = EndedBin { flow: 1, sends: true, bin: 2, counts, tcp: Some(tcp), travel: Some(travel) };
        let bare = EndedBin { sends: false, tcp: None, travel: None, ..full };
        for ended in [full, bare] {
            assert_eq!(EndedBin::from(wire::FinishedBin::from(ended)), ended);
        }
    }
}
