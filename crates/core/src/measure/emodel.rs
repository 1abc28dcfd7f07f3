//! E-model (ITU-T G.107): the rating R of a conversation and its mean opinion score, from the delay and loss
//! of the network and the codec.
//!
//! R = R₀ − Is − Id − Ie,eff + A. Parameters that cannot be measured on a network have the default values of
//! G.107. The model is a planning tool and no substitute for listening tests.

use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// Impairment by a codec without loss, and its robustness to loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecImpairment {
    /// Equipment impairment factor Ie.
    pub equipment: f64,
    /// Packet-loss robustness factor Bpl.
    pub robustness: f64,
}

impl CodecImpairment {
    /// G.711 without packet loss concealment (default of G.107; G.113 appendix I).
    pub const G711: CodecImpairment = CodecImpairment { equipment: 0.0, robustness: 4.3 };
    /// G.711 with the concealment of its Appendix I and packets of 10 ms (G.113 appendix I).
    pub const G711_CONCEALED: CodecImpairment = CodecImpairment { equipment: 0.0, robustness: 25.1 };
    /// G.729A with voice activity detection and packets of 20 ms (G.113 appendix I).
    pub const G729A: CodecImpairment = CodecImpairment { equipment: 11.0, robustness: 19.0 };
    /// Opus speech at 20 kbit/s or more with in-band loss concealment. G.113 has no narrowband value for
    /// Opus. This assumption of netstage takes the undistorted narrowband reference (Ie 0) and the
    /// concealment of G.711 Appendix I, so scores reflect delay and loss but not the better sound quality of
    /// Opus. State the assumption with every score.
    pub const OPUS_ASSUMED: CodecImpairment = CodecImpairment { equipment: 0.0, robustness: 25.1 };
}

/// Properties of a call that determine its rating.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Mouth-to-ear delay: network, packetization, jitter buffer and codec.
    pub one_way_delay: Duration,
    /// Share of packets lost or too late for the jitter buffer, 0 to 1.
    pub loss: f64,
    /// Burst ratio (BurstR): mean length of loss bursts divided by their mean length under independent loss;
    /// 1 for independent loss. G.107 is valid up to 2, and above 2 for loss up to 2 %.
    pub burst_ratio: f64,
    /// Codec.
    pub codec: CodecImpairment,
    /// Talker echo loudness rating (TELR), dB below the voice. The default of G.107 is 65. Infinite with echo
    /// cancellation or with headsets on both sides; then only the effect of delay on conversation remains.
    pub talker_echo: f64,
    /// Advantage factor A, the quality users give up for convenience: 0 for wired access, up to 5 in
    /// buildings, 10 on the move, 20 in hard-to-reach places.
    pub advantage: f64,
}

/// Rating of a call and its components.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rating {
    /// Transmission rating factor R, at most 100; above 93.2 only with an advantage factor.
    pub r: f64,
    /// Delay impairment factor Id.
    pub delay_impairment: f64,
    /// Effective equipment impairment factor Ie,eff: codec and loss.
    pub equipment_impairment: f64,
    /// Estimated conversational mean opinion score (MOS-CQE), 1 to 4.5 (annex B).
    pub mean_opinion_score: f64,
}

/// Converts a rating to a mean opinion score (G.107 annex B).
pub fn mean_opinion_score(r: f64) -> f64 {
    if r <= 0.0 {
        return 1.0;
    }
    if r >= 100.0 {
        return 4.5;
    }
    // The polynomial falls below 1 for R under 6.5; annex B clamps the score at 1.
    (1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6).max(1.0)
}

// Defaults of G.107.
const SEND_LOUDNESS: f64 = 8.0;
const RECEIVE_LOUDNESS: f64 = 2.0;
const SIDETONE_MASKING: f64 = 15.0;
const LISTENER_SIDETONE: f64 = 18.0;
const D_VALUE_SEND: f64 = 3.0;
const ECHO_PATH_LOSS: f64 = 110.0;
const QUANTIZING_UNITS: f64 = 1.0;
const CIRCUIT_NOISE: f64 = -70.0;
const NOISE_FLOOR: f64 = -64.0;
const ROOM_NOISE: f64 = 35.0;
/// Minimum perceivable delay (mT), milliseconds, and delay sensitivity (sT) of G.107's default class.
const DELAY_NOTICED: f64 = 100.0;
const DELAY_SENSITIVITY: f64 = 1.0;

/// Rates a call. Loss and delay are those of one direction; the round trip is taken as twice the one-way
/// delay.
pub fn rate(call: &Call) -> Rating {
    let one_way = call.one_way_delay.as_secs_f64() * 1e3;
    let (signal, noise) = basic_ratio();
    let simultaneous = simultaneous_impairment(signal, noise, one_way, call.talker_echo);
    let delay_impairment = talker_echo(noise, one_way, call.talker_echo)
        + listener_echo(signal, 2.0 * one_way)
        + absolute_delay(one_way);
    let equipment_impairment = effective_equipment(call);
    let r = (signal - simultaneous - delay_impairment - equipment_impairment + call.advantage).min(100.0);
    Rating { r, delay_impairment, equipment_impairment, mean_opinion_score: mean_opinion_score(r) }
}

fn decibel(power: f64) -> f64 {
    10.0 * libm::log10(power)
}

fn power(decibel: f64) -> f64 {
    libm::pow(10.0, decibel / 10.0)
}

/// Returns the basic signal-to-noise ratio R₀ and the sum of noise, dBm0p (equations 7-2 to 7-7).
fn basic_ratio() -> (f64, f64) {
    let loudness = SEND_LOUDNESS + RECEIVE_LOUDNESS;
    let send_room = ROOM_NOISE - SEND_LOUDNESS - D_VALUE_SEND - 100.0
        + 0.004 * libm::pow(ROOM_NOISE - loudness - D_VALUE_SEND - 14.0, 2.0);
    let heard_room = ROOM_NOISE + decibel(1.0 + power(10.0 - LISTENER_SIDETONE));
    let receive_room = RECEIVE_LOUDNESS - 121.0 + heard_room + 0.008 * libm::pow(heard_room - 35.0, 2.0);
    let floor = NOISE_FLOOR + RECEIVE_LOUDNESS;
    let noise = decibel(power(CIRCUIT_NOISE) + power(send_room) + power(receive_room) + power(floor));
    (15.0 - 1.5 * (SEND_LOUDNESS + noise), noise)
}

/// Returns the simultaneous impairment factor Is: loudness, sidetone, quantizing (equations 7-8 to 7-16).
fn simultaneous_impairment(signal: f64, noise: f64, one_way: f64, echo: f64) -> f64 {
    let loudness = SEND_LOUDNESS + RECEIVE_LOUDNESS;
    let x = (loudness + 0.2 * (64.0 + noise - RECEIVE_LOUDNESS)) / 8.0;
    let low_loudness = 20.0 * (libm::pow(1.0 + libm::pow(x, 8.0), 0.125) - x);
    let echoed = power(-SIDETONE_MASKING) + libm::exp(-one_way / 4.0) * power(-echo);
    let masking = -decibel(echoed);
    let root = |base: f64, exponent: f64| libm::pow(1.0 + libm::pow(base, exponent), 1.0 / exponent);
    let sidetone = 12.0 * root((masking - 13.0) / 6.0, 8.0)
        - 28.0 * root((masking + 1.0) / 19.4, 35.0)
        - 13.0 * root((masking - 3.0) / 33.0, 13.0)
        + 29.0;
    let q = 37.0 - decibel(QUANTIZING_UNITS) * 1.5;
    let g = 1.07 + 0.258 * q + 0.0602 * q * q;
    let y = (signal - 100.0) / 15.0 + 46.0 / 8.4 - g / 9.0;
    let z = 46.0 / 30.0 - g / 40.0;
    let quantizing = 15.0 * libm::log10(1.0 + libm::pow(10.0, y) + libm::pow(10.0, z));
    low_loudness + sidetone + quantizing
}

/// Returns the impairment by talker echo, Idte (equations 7-18 to 7-22).
fn talker_echo(noise: f64, one_way: f64, echo: f64) -> f64 {
    if echo == f64::INFINITY {
        return 0.0;
    }
    let perceived = echo - 40.0 * libm::log10((1.0 + one_way / 10.0) / (1.0 + one_way / 150.0))
        + 6.0 * libm::exp(-0.3 * one_way * one_way);
    let received = 80.0 + 2.5 * (perceived - 14.0);
    let without = -1.5 * (noise - RECEIVE_LOUDNESS);
    let half = (without - received) / 2.0;
    (half + libm::sqrt(half * half + 100.0) - 1.0) * -libm::expm1(-one_way)
}

/// Returns the impairment by listener echo, Idle (equations 7-25 and 7-26).
fn listener_echo(signal: f64, round_trip: f64) -> f64 {
    let received = 10.5 * (ECHO_PATH_LOSS + 7.0) * libm::pow(round_trip + 1.0, -0.25);
    let half = (signal - received) / 2.0;
    half + libm::sqrt(half * half + 169.0)
}

/// Returns the impairment by absolute delay, Idd (equations 7-27 and 7-28).
fn absolute_delay(one_way: f64) -> f64 {
    if one_way <= DELAY_NOTICED {
        return 0.0;
    }
    let x = libm::log2(one_way / DELAY_NOTICED);
    let power = 6.0 * DELAY_SENSITIVITY;
    let root = |base: f64| libm::pow(1.0 + libm::pow(base, power), 1.0 / power);
    25.0 * (root(x) - 3.0 * root(x / 3.0) + 2.0)
}

/// Returns the effective equipment impairment, Ie,eff (equation 7-29).
fn effective_equipment(call: &Call) -> f64 {
    let percent = 100.0 * call.loss;
    let CodecImpairment { equipment, robustness } = call.codec;
    if percent <= 0.0 {
        return equipment;
    }
    equipment + (95.0 - equipment) * percent / (percent / call.burst_ratio + robustness)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(delay_ms: u64, loss: f64, codec: CodecImpairment) -> Call {
        Call {
            one_way_delay: Duration::from_millis(delay_ms),
            loss,
            burst_ratio: 1.0,
            codec,
            talker_echo: 65.0,
            advantage: 0.0,
        }
    }

    #[test]
    fn defaults_give_the_published_rating() {
        // G.107: with all defaults R = 93.2, which is MOS 4.41 by annex B.
        let rating = rate(&call(0, 0.0, CodecImpairment::G711));
        assert!((rating.r - 93.2).abs() < 0.05, "{rating:?}");
        assert!((rating.mean_opinion_score - 4.41).abs() < 0.005, "{rating:?}");
    }

    #[test]
    fn scores_match_annex_b() {
        // Table B.1 gives MOS 4.34, 4.03 (4.024 rounded up), 3.60, 3.10 and 2.58 for R 90, 80, 70, 60 and 50.
        for (r, score) in [(90.0, 4.34), (80.0, 4.03), (70.0, 3.60), (60.0, 3.10), (50.0, 2.58)] {
            assert!((mean_opinion_score(r) - score).abs() < 0.0061, "{r}: {}", mean_opinion_score(r));
        }
        assert_eq!((mean_opinion_score(-5.0), mean_opinion_score(100.0)), (1.0, 4.5));
        assert_eq!(mean_opinion_score(3.0), 1.0);
    }

    #[test]
    fn delay_impairment_follows_the_published_curve() {
        // Hand calculation of equation 7-27 for x = 1 and x = 2.
        for (delay, impairment) in [(100, 0.0), (200, 3.045), (400, 24.07)] {
            let found = absolute_delay(f64::from(delay));
            assert!((found - impairment).abs() < 0.01, "{delay} ms: {found}");
        }
        let headset = |ms| Call { talker_echo: f64::INFINITY, ..call(ms, 0.0, CodecImpairment::G711) };
        let ratings = [0, 100, 150, 200, 300, 400, 600].map(|ms| rate(&headset(ms)).r);
        assert!(ratings.is_sorted_by(|one, other| one >= other), "{ratings:?}");
        // G.114: most users are very satisfied below 150 ms; networks must not be planned for more than 400
        // ms.
        assert!(ratings[2] > 90.0 && ratings[5] < 70.0, "{ratings:?}");
    }

    #[test]
    fn loss_impairment_depends_on_codec_robustness() {
        // Hand calculation of equation 7-29: 2 % over 4.3 + 2, 19 + 2 and 25.1 + 2.
        let cost = |codec| rate(&call(0, 0.02, codec)).equipment_impairment;
        assert!((cost(CodecImpairment::G711) - 95.0 * 2.0 / 6.3).abs() < 1e-9);
        assert!((cost(CodecImpairment::G729A) - (11.0 + 84.0 * 2.0 / 21.0)).abs() < 1e-9);
        assert!((cost(CodecImpairment::G711_CONCEALED) - 95.0 * 2.0 / 27.1).abs() < 1e-9);
        let bursts = Call { burst_ratio: 2.0, ..call(0, 0.02, CodecImpairment::G711) };
        assert!((rate(&bursts).equipment_impairment - 95.0 * 2.0 / 5.3).abs() < 1e-9);
    }

    #[test]
    fn echo_impairment_grows_with_delay() {
        let with = |ms, echo| rate(&Call { talker_echo: echo, ..call(ms, 0.0, CodecImpairment::G711) }).r;
        assert!(with(150, 45.0) < with(50, 45.0) && with(150, 45.0) < with(150, 65.0));
        assert!(with(150, 65.0) < with(150, f64::INFINITY));
    }
}
