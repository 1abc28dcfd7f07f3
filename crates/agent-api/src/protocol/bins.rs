//! Conversion of completed bins to and from protocol messages.

use super::generated as wire;
use crate::results::{
    BinCounts, CompletedBin, CompletedBins, CompletedVpn, CompletedWindow, ControlSample, TcpSample, Travel,
};
use netstage_core::tcp::history;
use netstage_core::time::Duration;

/// Converts field by field between a message and the type of the same meaning, in both directions.
macro_rules! convert {
    ($($wire:ident = $own:ty { $($field:ident),* $(,)? })*) => {$(
        impl From<$own> for wire::$wire {
            fn from(own: $own) -> wire::$wire {
                wire::$wire { $($field: own.$field),* }
            }
        }

        impl From<wire::$wire> for $own {
            fn from(message: wire::$wire) -> $own {
                Self { $($field: message.$field),* }
            }
        }
    )*};
}

convert! {
    TcpState = TcpSample {
        window, slow_start_threshold, round_trip_ns, min_round_trip_ns, retransmissions, peer_window,
        delivery_rate_bps, peer_window_limited_ns, send_buffer_limited_ns, busy_ns,
    }
    Travel = Travel { count, sum_ns, min_ns, max_ns, variation_count, variation_sum_ns, jitter_ns }
    VpnControl = ControlSample { window, increase, decrease, permitted_bps, loss, round_trip_ns, lost }
}

impl From<CompletedBin> for wire::FinishedBin {
    fn from(ended: CompletedBin) -> wire::FinishedBin {
        let CompletedBin { flow, sends, bin, counts, tcp, travel } = ended;
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
            tcp: tcp.map(Into::into),
            travel: travel.map(Into::into),
        }
    }
}

impl From<wire::FinishedBin> for CompletedBin {
    fn from(message: wire::FinishedBin) -> CompletedBin {
        CompletedBin {
            flow: message.flow,
            sends: message.sends,
            bin: message.bin,
            counts: BinCounts {
                sent: message.sent,
                sent_bytes: message.sent_bytes,
                offered_bytes: message.offered_bytes,
                received: message.received,
                received_bytes: message.received_bytes,
                lost: message.lost,
                duplicated: message.duplicated,
                reordered: message.reordered,
                corrupted: message.corrupted,
                bit_errors: message.bit_errors,
            },
            tcp: message.tcp.map(Into::into),
            travel: message.travel.map(Into::into),
        }
    }
}

impl From<CompletedWindow> for wire::FinishedWindow {
    fn from(ended: CompletedWindow) -> wire::FinishedWindow {
        let CompletedWindow { subject, bin, window } = ended;
        wire::FinishedWindow {
            subject,
            bin,
            peak: window.peak,
            usable: window.usable,
            causes: window.causes.to_vec(),
            limited_ns: window.limited.iter().map(|time| time.0).collect(),
        }
    }
}

impl From<wire::FinishedWindow> for CompletedWindow {
    fn from(message: wire::FinishedWindow) -> CompletedWindow {
        let mut window =
            history::Bin { peak: message.peak, usable: message.usable, ..history::Bin::default() };
        // Another version may send more or fewer elements.
        window.causes.iter_mut().zip(message.causes).for_each(|(own, message)| *own = message);
        window.limited.iter_mut().zip(message.limited_ns).for_each(|(own, message)| *own = Duration(message));
        CompletedWindow { subject: message.subject, bin: message.bin, window }
    }
}

impl From<CompletedVpn> for wire::FinishedVpn {
    fn from(ended: CompletedVpn) -> wire::FinishedVpn {
        let CompletedVpn { vpn, bin, queue, queue_drops, control } = ended;
        wire::FinishedVpn { vpn, bin, queue, queue_drops, control: control.map(Into::into) }
    }
}

impl From<wire::FinishedVpn> for CompletedVpn {
    fn from(message: wire::FinishedVpn) -> CompletedVpn {
        let wire::FinishedVpn { vpn, bin, queue, queue_drops, control } = message;
        CompletedVpn { vpn, bin, queue, queue_drops, control: control.map(Into::into) }
    }
}

impl CompletedBins {
    /// Moves the bins into a message.
    pub fn put(self, progress: &mut wire::Progress) {
        progress.bins = self.bins.into_iter().map(Into::into).collect();
        progress.windows = self.windows.into_iter().map(Into::into).collect();
        progress.vpns = self.vpns.into_iter().map(Into::into).collect();
    }

    /// Takes the bins out of a message.
    pub fn take(progress: &mut wire::Progress) -> CompletedBins {
        CompletedBins {
            bins: std::mem::take(&mut progress.bins).into_iter().map(Into::into).collect(),
            windows: std::mem::take(&mut progress.windows).into_iter().map(Into::into).collect(),
            vpns: std::mem::take(&mut progress.vpns).into_iter().map(Into::into).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_bins_survive_the_conversion() {
        let counts = BinCounts {
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
        let full =
            CompletedBin { flow: 1, sends: true, bin: 2, counts, tcp: Some(tcp), travel: Some(travel) };
        let bare = CompletedBin { sends: false, tcp: None, travel: None, ..full };
        let causes = std::array::from_fn(|cause| cause as u32 + 1);
        let limited = std::array::from_fn(|limit| Duration(limit as u64 + 1));
        let window = history::Bin { peak: Some(1.5), usable: None, causes, limited };
        let sample = ControlSample {
            window: 1.0,
            increase: 2.0,
            decrease: 3.0,
            permitted_bps: 7.0,
            loss: 4.0,
            round_trip_ns: 5,
            lost: 6,
        };
        let vpn = CompletedVpn { vpn: "v".into(), bin: 3, queue: 0.5, queue_drops: 4, control: Some(sample) };
        let ended = CompletedBins {
            bins: vec![full, bare],
            windows: vec![CompletedWindow { subject: "f".into(), bin: 2, window }],
            vpns: vec![CompletedVpn { control: None, ..vpn.clone() }, vpn],
        };
        let mut progress = wire::Progress::default();
        ended.clone().put(&mut progress);
        assert_eq!(CompletedBins::take(&mut progress), ended);
        assert_eq!(progress, wire::Progress::default());
    }
}
