//! Patterns compared with their definitions: exact times, distributions, long-run means, and golden values of
//! all sources.

use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;
use netstage_core::traffic::{Emission, Pattern, PatternError, PatternSource};
use std::sync::Arc;

fn source(pattern: &Pattern, name: &str) -> PatternSource {
    PatternSource::new(pattern, RandomStream::new(1, name))
}

fn gaps<const N: usize>(pattern: &Pattern, name: &str) -> [u64; N] {
    let mut source = source(pattern, name);
    core::array::from_fn(|_| source.next().expect("the pattern has no end").gap.0)
}

/// Returns the mean rate over a number of seconds.
fn measured_rate(pattern: &Pattern, seed: u64, seconds: f64) -> f64 {
    let mut source = PatternSource::new(pattern, RandomStream::new(seed, "rate"));
    let (mut time, mut bits) = (0.0, 0.0);
    while time < seconds {
        let Emission { gap, bytes } = source.next().expect("the pattern has no end");
        time += gap.as_secs_f64();
        bits += 8.0 * bytes as f64;
    }
    bits / time
}

#[test]
fn bulk_is_one_emission() {
    let mut endless = source(&Pattern::Bulk { size: None }, "bulk");
    assert_eq!(endless.next(), Some(Emission { gap: Duration::ZERO, bytes: u64::MAX }));
    assert_eq!(endless.next(), None);
    let mut sized = source(&Pattern::Bulk { size: Some(3_000_000) }, "bulk");
    assert_eq!(sized.next(), Some(Emission { gap: Duration::ZERO, bytes: 3_000_000 }));
    assert_eq!(sized.next(), None);
}

#[test]
fn cbr_does_not_drift() {
    for (rate, packet) in [(3_000_000, 1000), (999_999_937, 1473), (7, 1), (100_000_000_000, 64)] {
        let mut source = source(&Pattern::Cbr { rate: BitRate(rate), packet }, "cbr");
        let mut time = 0_u128;
        for k in 0..1_000_000_u128 {
            time += u128::from(source.next().unwrap().gap.0);
            assert_eq!(time, k * u128::from(packet) * 8_000_000_000 / u128::from(rate));
        }
    }
}

#[test]
fn poisson_gaps_pass_kolmogorov_smirnov() {
    let pattern = Pattern::Poisson { rate: BitRate(10_000_000), packet: 1250 };
    let mut source = source(&pattern, "kolmogorov");
    let n = 100_000;
    let mut gaps: Vec<f64> = (0..n).map(|_| source.next().unwrap().gap.as_secs_f64()).collect();
    gaps.sort_by(f64::total_cmp);
    let distance = gaps
        .iter()
        .enumerate()
        .map(|(index, gap)| {
            let cumulative = 1.0 - (-gap / 1e-3).exp();
            let below = cumulative - index as f64 / f64::from(n);
            let above = (index + 1) as f64 / f64::from(n) - cumulative;
            below.max(above)
        })
        .fold(0.0, f64::max);
    // Critical value at 1 %: 1.628 / √n.
    assert!(distance < 1.628 / f64::from(n).sqrt(), "D = {distance}");
}

#[test]
fn poisson_counts_have_the_variance_of_their_mean() {
    let pattern = Pattern::Poisson { rate: BitRate(10_000_000), packet: 1250 };
    let mut source = source(&pattern, "counts");
    let mut counts = vec![0.0_f64; 20_000];
    let mut time = 0.0;
    while let Some(bin) = counts.get_mut((time / 0.01) as usize) {
        *bin += 1.0;
        time += source.next().unwrap().gap.as_secs_f64();
    }
    let mean = counts.iter().sum::<f64>() / 20_000.0;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 19_999.0;
    assert!((mean - 10.0).abs() < 0.1 && (variance / mean - 1.0).abs() < 0.04, "{mean} {variance}");
}

#[test]
fn pareto_has_the_specified_mean_and_tail() {
    let mut rng = RandomStream::new(1, "tail");
    let (mean, shape, n) = (3.0, 2.5, 1_000_000);
    let samples: Vec<f64> = (0..n).map(|_| rng.pareto(mean, shape)).collect();
    let measured = samples.iter().sum::<f64>() / f64::from(n);
    assert!((measured / mean - 1.0).abs() < 0.01, "{measured}");
    let scale = mean * (shape - 1.0) / shape;
    assert!(samples.iter().all(|&sample| sample >= scale));
    for multiple in [1.5, 3.0, 10.0, 30.0] {
        let beyond = samples.iter().filter(|&&sample| sample > multiple * scale).count() as f64;
        let expected = f64::from(n) * f64::powf(multiple, -shape);
        assert!((beyond - expected).abs() < 4.0 * expected.sqrt(), "{multiple}: {beyond} {expected}");
    }
}

#[test]
fn phases_and_states_have_the_expected_long_run_rate() {
    let milliseconds = Duration::from_millis;
    let patterns = [
        Pattern::OnOff { rate: BitRate(2_000_000), packet: 500, on: milliseconds(20), off: milliseconds(30) },
        // Phases shorter than a packet time do not reduce the rate.
        Pattern::OnOff { rate: BitRate(100_000), packet: 1250, on: milliseconds(3), off: milliseconds(5) },
        Pattern::Pareto {
            rate: BitRate(1_000_000),
            packet: 200,
            on: milliseconds(10),
            off: milliseconds(30),
            shape: 2.5,
        },
        Pattern::Mmpp {
            states: vec![
                (BitRate(10_000_000), milliseconds(10)),
                (BitRate(0), milliseconds(30)),
                (BitRate(1_000_000), milliseconds(20)),
            ],
            packet: 1000,
        },
        Pattern::Mmpp { states: vec![(BitRate(5_000_000), milliseconds(1))], packet: 1000 },
    ];
    let expected = [800_000.0, 37_500.0, 250_000.0, 2_000_000.0, 5_000_000.0];
    for (pattern, expected) in patterns.iter().zip(expected) {
        assert!((pattern.mean_rate().unwrap() / expected - 1.0).abs() < 1e-12);
        let measured = measured_rate(pattern, 1, 4000.0);
        assert!((measured / expected - 1.0).abs() < 0.015, "{pattern:?}: {measured}");
    }
}

#[test]
fn off_phases_are_exponential_or_pareto() {
    // One packet per microsecond: a longer gap contains an off phase.
    let (rate, packet) = (BitRate(8_000_000_000), 1000);
    let (on, off) = (Duration::from_millis(1), Duration::from_millis(2));
    let off_phases = |pattern: &Pattern| -> Vec<f64> {
        let mut source = source(pattern, "phases");
        let gaps = (0..20_000_000).map(|_| source.next().unwrap().gap.0);
        gaps.filter(|&gap| gap > 1000).map(|gap| gap as f64 - 1000.0).collect()
    };
    let exponential = off_phases(&Pattern::OnOff { rate, packet, on, off });
    let pareto = off_phases(&Pattern::Pareto { rate, packet, on, off, shape: 1.5 });
    // 20 million packets with about 1000 per on phase.
    assert!((19_300..20_700).contains(&exponential.len()), "{}", exponential.len());
    let beyond = |phases: &[f64], limit| {
        phases.iter().filter(|&&phase| phase > limit).count() as f64 / phases.len() as f64
    };
    assert!((beyond(&exponential, 4e6) - (-2.0_f64).exp()).abs() < 0.01);
    // Pareto: scale 2/3 ms, so 4 ms is 6 scales.
    assert!((beyond(&pareto, 4e6) - f64::powf(6.0, -1.5)).abs() < 0.01);
}

#[test]
fn traces_end_or_repeat() {
    let packets: Arc<[(Duration, u32)]> = Arc::new([(Duration(5), 100), (Duration(0), 200)]);
    let mut once = source(&Pattern::Trace { packets: packets.clone(), repeat: false }, "trace");
    assert_eq!(once.next(), Some(Emission { gap: Duration(5), bytes: 100 }));
    assert_eq!(once.next(), Some(Emission { gap: Duration(0), bytes: 200 }));
    assert_eq!(once.next(), None);
    assert_eq!(once.next(), None);
    let repeated = Pattern::Trace { packets, repeat: true };
    assert_eq!(gaps::<5>(&repeated, "trace"), [5, 0, 5, 0, 5]);
    assert_eq!(repeated.mean_rate(), Some(2400.0 / 5e-9));
}

#[test]
fn invalid_patterns_are_rejected_and_emit_nothing() {
    let (rate, packet, on, off) = (BitRate(1000), 100, Duration::from_millis(1), Duration::from_millis(1));
    let brief = Duration::from_micros(79);
    let zero = Duration::ZERO;
    let trace = |packets: &[(Duration, u32)], repeat| Pattern::Trace { packets: packets.into(), repeat };
    let invalid = [
        (Pattern::Cbr { rate: BitRate(0), packet }, PatternError::ZeroRate),
        (Pattern::Poisson { rate, packet: 0 }, PatternError::EmptyPacket),
        (Pattern::OnOff { rate, packet, on: zero, off }, PatternError::EmptyPhase),
        (Pattern::OnOff { rate, packet, on: brief, off }, PatternError::BriefPhase),
        (Pattern::Mmpp { states: vec![(rate, brief); 2], packet }, PatternError::BriefPhase),
        (Pattern::Pareto { rate, packet, on, off, shape: 1.0 }, PatternError::Shape),
        (Pattern::Pareto { rate, packet, on, off, shape: f64::NAN }, PatternError::Shape),
        (Pattern::Mmpp { states: vec![], packet }, PatternError::Empty),
        (Pattern::Mmpp { states: vec![(rate, on), (rate, zero)], packet }, PatternError::EmptyPhase),
        (Pattern::Mmpp { states: vec![(BitRate(0), on); 3], packet }, PatternError::ZeroRate),
        (trace(&[], false), PatternError::Empty),
        (trace(&[(zero, 100), (zero, 50)], true), PatternError::InstantTrace),
    ];
    for (pattern, error) in invalid {
        assert_eq!(pattern.check(), Err(error), "{pattern:?}");
        assert_eq!(source(&pattern, "invalid").next(), None, "{pattern:?}");
    }
    assert_eq!(trace(&[(zero, 100)], false).check(), Ok(()));
    let always_on = Pattern::OnOff { rate, packet, on, off: zero };
    assert_eq!(gaps::<8>(&always_on, "on"), gaps::<8>(&Pattern::Cbr { rate, packet }, "on"));
}

// Golden values from an independent implementation. Changing them changes all published figures.
#[test]
fn sources_match_golden_values() {
    let (on, off) = (Duration::from_millis(1), Duration::from_millis(1));
    let (rate, packet) = (BitRate(1_000_000), 100);
    let cbr = Pattern::Cbr { rate: BitRate(3_000_000), packet: 1000 };
    assert_eq!(gaps(&cbr, "cbr"), [0, 2666666, 2666667, 2666667, 2666666, 2666667]);
    let poisson = Pattern::Poisson { rate: BitRate(10_000_000), packet: 1250 };
    assert_eq!(gaps(&poisson, "poisson"), [429379, 613495, 2055444, 16563, 1487, 1015048]);
    let on_off = Pattern::OnOff { rate, packet, on, off };
    assert_eq!(gaps(&on_off, "on-off"), [0, 800000, 800000, 877676, 1436103, 800000]);
    let pareto = Pattern::Pareto { rate, packet, on, off, shape: 1.5 };
    assert_eq!(gaps(&pareto, "pareto"), [0, 800000, 800000, 800000, 1797411, 1256239]);
    let states = vec![
        (BitRate(10_000_000), Duration::from_millis(1)),
        (BitRate(0), Duration::from_millis(2)),
        (BitRate(1_000_000), Duration::from_millis(3)),
    ];
    let mmpp = Pattern::Mmpp { states, packet: 125 };
    assert_eq!(gaps(&mmpp, "mmpp"), [170329, 17768, 32592, 13147133, 193606, 24979]);
}
