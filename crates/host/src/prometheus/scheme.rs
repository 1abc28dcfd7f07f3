//! Naming scheme of metrics, as tests check pages and dashboards. It follows Prometheus' practices, and every
//! component prefixes its metrics with its name and exports its version and uptime.

use std::collections::BTreeSet;

/// Units that are not base units, which no name may have before `_total`.
const NOT_BASE: &[&str] =
    &["_ms", "_milliseconds", "_us", "_microseconds", "_ns", "_nanoseconds", "_kb", "_bits", "_percent"];

/// Checks the page of a component; returns the names of all metrics. Panics on a violation.
pub fn check(text: &str, component: &str) -> BTreeSet<String> {
    let (mut names, mut last) = (BTreeSet::new(), String::new());
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
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and its value");
            assert_eq!(name.split('{').next(), Some(last.as_str()), "a sample has its type before it");
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

    #[test]
    #[should_panic(expected = "only they, end with _total")]
    fn a_counter_must_end_with_total() {
        let mut page = Page::new("pe", Duration::ZERO);
        page.metric("netstage_pe_sent_bytes", "counter", "Bytes.", 1.0);
        check(&page.text(), "pe");
    }
}
