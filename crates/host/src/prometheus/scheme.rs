//! How metrics are named, as tests hold pages and dashboards to it. Prometheus' own practices, and:
//! a component's name before all its metrics, what it is and since when told by each alike.

use std::collections::BTreeSet;

/// What a name may not end with before `_total`: units that are not base units.
const NOT_BASE: &[&str] =
    &["_ms", "_milliseconds", "_us", "_microseconds", "_ns", "_nanoseconds", "_kb", "_bits", "_percent"];

/// Holds the page of a component to the scheme; the names of all metrics. Panics where it does not keep to it.
pub fn check(text: &str, component: &str) -> BTreeSet<String> {
    let (mut named, mut last) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and its help");
            assert!(help.ends_with('.'), "{line}: no sentence");
            assert!(named.insert(name.to_owned()), "{name} is told twice");
            last = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and its type");
            assert_eq!(name, last, "a type has its help before it");
            check_name(name, kind, component);
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and its value");
            assert_eq!(name.split('{').next(), Some(last.as_str()), "a sample has its type before it");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}: no number");
        }
    }
    for every in ["info", "uptime_seconds"] {
        assert!(named.contains(&format!("netstage_{component}_{every}")), "{every} is missing");
    }
    named
}

fn check_name(name: &str, kind: &str, component: &str) {
    assert!(name.starts_with(&format!("netstage_{component}_")), "{name} is not of {component}");
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
    let counts = name.strip_suffix("_total");
    assert_eq!(kind == "counter", counts.is_some(), "{name}: counters, and only they, end with _total");
    let unit = counts.unwrap_or(name);
    assert!(NOT_BASE.iter().all(|not| !unit.ends_with(not)), "{name}: base units only");
}

/// Holds a dashboard to what a component tells: it asks for some of it, and for nothing else of it.
pub fn check_dashboard(dashboard: &str, component: &str, names: &BTreeSet<String>) {
    let prefix = format!("netstage_{component}_");
    let name = |(start, _): (usize, &str)| {
        let end = dashboard[start..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        dashboard[start..].split_at(end.unwrap_or(dashboard.len() - start)).0.to_owned()
    };
    let asked: BTreeSet<String> = dashboard.match_indices(&prefix).map(name).collect();
    assert!(!asked.is_empty(), "the dashboard asks for nothing of {component}");
    for name in &asked {
        assert!(names.contains(name), "the dashboard asks for {name}, which is not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Page;
    use std::time::Duration;

    #[test]
    fn a_page_tells_what_it_is_of_and_escapes_names() {
        let mut page = Page::new("pe", Duration::from_millis(1_500));
        page.head("netstage_pe_up", "gauge", "Whether it is up.");
        page.sample("netstage_pe_up", &[("name", "a\"b\\c\nd")], 1.0);
        let text = page.text();
        assert!(text.contains("netstage_pe_uptime_seconds 1.5\n"));
        assert!(text.contains(r#"netstage_pe_up{name="a\"b\\c\nd"} 1"#), "{text}");
        assert_eq!(check(&text, "pe").len(), 3);
    }

    #[test]
    #[should_panic(expected = "only they, end with _total")]
    fn a_counter_says_so() {
        let mut page = Page::new("pe", Duration::ZERO);
        page.one("netstage_pe_sent_bytes", "counter", "Bytes.", 1.0);
        check(&page.text(), "pe");
    }
}
