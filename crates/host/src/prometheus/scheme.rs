//! Naming scheme of metrics, as tests check pages and dashboards. It follows Prometheus' practices, and every
//! component prefixes its metrics with its name and exports its version and uptime.

use std::collections::BTreeSet;

/// Units that are not base units, which no name may have before `_total`.
const NOT_BASE: &[&str] =
    &["_ms", "_milliseconds", "_us", "_microseconds", "_ns", "_nanoseconds", "_kb", "_bits", "_percent"];

/// Checks the page of a component; returns the names of all metrics. Panics on a violation.
pub fn check(text: &str, component: &str) -> BTreeSet<String> {
    let (mut names, mut last, mut last_kind) = (BTreeSet::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and its help");
            assert!(help.ends_with('.'), "{line}: the help is not a sentence");
            assert!(names.insert(name.to_owned()), "{name} is defined twice");
            last = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and its type");
            assert_eq!(name, last, "a type has its help before it");
            check_name(name, kind, component);
            last_kind = kind.to_owned();
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and its value");
            let name = name.split('{').next().expect("the text before the first brace");
            if last_kind == "histogram" {
                let part = name.strip_prefix(&last);
                assert!(part.is_some_and(|part| ["_bucket", "_sum", "_count"].contains(&part)), "{line}");
                names.insert(name.to_owned());
            } else {
                assert_eq!(name, last, "a sample has its type before it");
            }
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}: the value is not a number");
        }
    }
    for required in ["info", "uptime_seconds"] {
        assert!(names.contains(&format!("netstage_{component}_{required}")), "{required} is missing");
    }
    names
}

fn check_name(name: &str, kind: &str, component: &str) {
    assert!(name.starts_with(&format!("netstage_{component}_")), "{name} lacks the prefix of {component}");
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
    let counter = name.strip_suffix("_total");
    assert_eq!(kind == "counter", counter.is_some(), "{name}: counters, and only they, end with _total");
    let unit = counter.unwrap_or(name);
    assert!(NOT_BASE.iter().all(|not| !unit.ends_with(not)), "{name}: base units only");
}

/// Checks that a dashboard uses metrics of a component, and only existing ones.
pub fn check_dashboard(dashboard: &str, component: &str, names: &BTreeSet<String>) {
    let prefix = format!("netstage_{component}_");
    let name = |(start, _): (usize, &str)| {
        let end = dashboard[start..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        dashboard[start..].split_at(end.unwrap_or(dashboard.len() - start)).0.to_owned()
    };
    let used: BTreeSet<String> = dashboard.match_indices(&prefix).map(name).collect();
    assert!(!used.is_empty(), "the dashboard uses no metric of {component}");
    for name in &used {
        assert!(names.contains(name), "the dashboard uses {name}, which is not exported");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Page;
    use netstage_core::measure::Histogram;
    use netstage_core::rng::RandomStream;
    use std::time::Duration;

    #[test]
    fn a_page_has_version_and_uptime_and_escapes_labels() {
        let mut page = Page::new("pe", Duration::from_millis(1_500));
        page.begin_metric("netstage_pe_up", "gauge", "Whether it is up.");
        page.sample("netstage_pe_up", &[("name", "a\"b\\c\nd")], 1.0);
        let text = page.text();
        assert!(text.contains("netstage_pe_uptime_seconds 1.5\n"));
        assert!(text.contains(r#"netstage_pe_up{name="a\"b\\c\nd"} 1"#), "{text}");
        assert_eq!(check(&text, "pe").len(), 3);
    }

    /// Draws times, and counts those up to each bound.
    #[test]
    fn a_histogram_counts_the_values_up_to_each_bound() {
        for seed in 0..50 {
            let mut stream = RandomStream::new(seed, "times");
            let values: Vec<u64> = (0..stream.below(500))
                .map(|_| stream.exponential(10f64.powi(3 + (seed % 9) as i32)) as u64)
                .collect();
            let mut times = Histogram::default();
            values.iter().for_each(|value| times.record(*value));
            let mut page = Page::new("agent", Duration::ZERO);
            page.begin_metric("netstage_agent_time_seconds", "histogram", "Times.");
            page.histogram("netstage_agent_time_seconds", &[("metric", "m")], &times);
            let text = page.text();
            check(&text, "agent");
            let samples = |part: &str| -> Vec<(String, f64)> {
                let prefix = format!("netstage_agent_time_seconds_{part}{{metric=\"m\"");
                let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.rsplit_once("} "));
                lines.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
            };
            let buckets = samples("bucket");
            assert_eq!(buckets.len(), 23, "{text}");
            for (label, count) in &buckets {
                let bound = label.strip_prefix(",le=\"").and_then(|label| label.strip_suffix('"')).unwrap();
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse::<f64>().unwrap() * 1e9 };
                let up_to = |bound: f64| values.iter().filter(|value| **value as f64 <= bound).count() as f64;
                let range = up_to(bound * 0.9995)..=up_to(bound * 1.0005);
                assert!(range.contains(count), "seed {seed}: {label}: {count} of {range:?}");
            }
            assert_eq!(samples("count")[0].1, values.len() as f64);
            let sum = values.iter().sum::<u64>() as f64 / 1e9;
            assert!((samples("sum")[0].1 - sum).abs() <= sum * 5e-4, "seed {seed}");
        }
    }

    #[test]
    #[should_panic(expected = "only they, end with _total")]
    fn a_counter_must_end_with_total() {
        let mut page = Page::new("pe", Duration::ZERO);
        page.metric("netstage_pe_sent_bytes", "counter", "Bytes.", 1.0);
        check(&page.text(), "pe");
    }
}
