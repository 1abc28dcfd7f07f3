use super::*;
use crate::table::NamedTables;

/// Returns how many tables were decoded anew for `now`.
fn decoded<T>(before: &NamedTables<T>, now: &NamedTables<T>) -> usize {
    let is_same = |(a, b): &(&Option<Rc<T>>, &Option<Rc<T>>)| match (a, b) {
        (Some(a), Some(b)) => Rc::ptr_eq(a, b),
        _ => false,
    };
    let pairs = before.0.iter().map(|member| &member.value).zip(now.0.iter().map(|member| &member.value));
    pairs.filter(|pair| !is_same(pair)).count()
}

/// Builds the cells of a sweep of a large file. Returns for each after the first how many nodes, links, VPNs and flows
/// were decoded for it, and whether its graph is new.
fn work(path: &str, values: &[&str]) -> Vec<([usize; 4], bool)> {
    let text = include_str!("../../../../scenarios/examples/provider-50-vpns.toml");
    let mut problems = Problems::default();
    problems.add_source("provider.toml", text);
    let mut root = parse_document(0, &mut problems);
    vary(&mut root, path, &values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>(), &mut problems);
    let (mut warnings, mut traces, mut last) = (BTreeSet::new(), TraceFiles::new(None), LastCell::default());
    let (file, _) = build(root.clone(), &mut problems, &mut warnings, &mut traces, &mut last);
    let file = file.unwrap();
    let mut before: Option<(ScenarioFile, Option<Rc<NodeGraph>>)> = None;
    let mut work = Vec::new();
    visit_cells(&root, &file, &mut problems, &mut |cell, problems| {
        let (file, plan) = build(cell.root, problems, &mut warnings, &mut traces, &mut last);
        assert!(plan.is_some());
        let file = file.unwrap();
        if let Some((before, graph)) = &before {
            let decoded = [
                decoded(&before.node, &file.node),
                decoded(&before.link, &file.link),
                decoded(&before.vpn, &file.vpn),
                decoded(&before.flow, &file.flow),
            ];
            let is_same = graph.as_ref().zip(last.graph.as_ref()).is_some_and(|(a, b)| Rc::ptr_eq(a, b));
            work.push((decoded, !is_same));
        }
        before = Some((file, last.graph.clone()));
    });
    assert!(problems.is_empty(), "{}", problems.into_errors());
    work
}

#[test]
fn a_cell_of_a_sweep_costs_what_it_changes() {
    let durations = work("scenario.duration", &["10 s", "20 s", "30 s"]);
    assert_eq!(durations, [([0, 0, 0, 0], false); 2]);
    let delays = work("link.sapporo-pe.delay", &["1 ms", "2 ms", "3 ms"]);
    assert_eq!(delays, [([0, 1, 0, 0], false); 2]);
    let windows = work("defaults.tcp.window", &["10 kB", "20 kB", "30 kB"]);
    assert_eq!(windows, [([0, 0, 0, 50], false); 2]);
    let ends =
        work("link.sapporo-pe.ends", &[r#"["sapporo-pe", "sapporo"]"#, r#"["sapporo", "sapporo-pe"]"#]);
    assert_eq!(ends, [([0, 1, 0, 0], true)]);
}
