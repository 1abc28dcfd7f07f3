use super::*;
use crate::figure::ReferenceLine;
use netstage_core::rng::RandomStream;

fn drawn(figure: &Figure) -> String {
    let mut text = String::new();
    draw(figure, &mut text).unwrap();
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    text
}

fn figure(kind: FigureKind) -> Figure {
    let y = vec![Some(1.0), None, Some(3.0), Some(2.5)];
    let interval = |d: f64| Some(y.iter().map(|v| v.map(|v| v + d)).collect());
    let series = |name: &str| FigureSeries {
        name: name.into(),
        y: y.clone(),
        low: interval(-0.5),
        high: interval(0.5),
        ..FigureSeries::default()
    };
    Figure {
        title: "Title & <more>".into(),
        caption: "Caption.".into(),
        claim: "It rises.".into(),
        kind,
        x: Axis { label: "time".into(), unit: "s".into(), ..Axis::default() },
        y: Axis { label: "vpn.throughput".into(), unit: "Mbit/s".into(), ..Axis::default() },
        series: vec![series("a"), series("b")],
        shared_x: Some(vec![1.0, 2.0, 10.0, 100.0]),
        categories: ["p", "q", "r", "s"].map(str::to_owned).to_vec(),
        y_categories: vec!["low".into(), "high".into()],
        cells: vec![y.clone(), vec![None; 4]],
        reference_lines: vec![ReferenceLine { value: 2.0, label: "bound".into() }],
        ..Figure::default()
    }
}

#[test]
fn every_kind_contains_its_texts() {
    for kind in [FigureKind::Line, FigureKind::Bar, FigureKind::Heatmap, FigureKind::Box] {
        let text = drawn(&figure(kind));
        for part in ["Title &amp; &lt;more&gt;", "Caption.", "Claim: It rises.", "Mbit/s"] {
            assert!(text.contains(part), "{kind:?}: {part}");
        }
    }
    assert!(drawn(&figure(FigureKind::Line)).contains("bound"));
    let mut log = figure(FigureKind::Line);
    log.x.scale = AxisScale::Log;
    drawn(&log);
    log.x.scale = AxisScale::Nines;
    let text = drawn(&log);
    assert!(text.contains("90 %") && text.contains("99 %"), "{text}");
}

#[test]
fn series_that_differ_only_by_dash_have_one_color() {
    let mut both = figure(FigureKind::Line);
    both.series.iter_mut().for_each(|s| s.group = "voice".into());
    both.series[1].dashed = true;
    assert_eq!(look(&both, 0), look(&both, 1));
    both.series[1].dashed = false;
    assert_ne!(look(&both, 0), look(&both, 1));
}

#[test]
fn figures_without_values_or_with_extreme_values_are_drawn() {
    for kind in [FigureKind::Line, FigureKind::Bar, FigureKind::Heatmap] {
        drawn(&Figure { kind, ..Figure::default() });
        let mut odd = figure(kind);
        odd.y.min = Some(5.0);
        odd.y.max = Some(5.0);
        drawn(&odd);
        for value in [0.0, -7.0, 1e300, 1e-300] {
            odd.series[0].y = vec![Some(value); 4];
            odd.cells = vec![vec![Some(value); 4]];
            odd.y = Axis::default();
            drawn(&odd);
        }
    }
}

#[test]
fn characters_invalid_in_xml_are_replaced() {
    let title = "one\u{1}two\u{1b}\u{ffff}".into();
    let text = svg(&Figure { title, ..figure(FigureKind::Line) });
    assert!(text.contains("one\u{fffd}two\u{fffd}\u{fffd}"));
}

#[test]
fn color_denotes_the_position_in_a_group() {
    let mut grouped = figure(FigureKind::Line);
    grouped.series = ["a", "a", "b", "b"]
        .map(|group| FigureSeries { group: group.into(), ..FigureSeries::default() })
        .to_vec();
    assert_eq!(look(&grouped, 0).0, look(&grouped, 2).0);
    assert_ne!(look(&grouped, 0).1, look(&grouped, 2).1);
    assert_ne!(look(&grouped, 0).0, look(&grouped, 1).0);
    // Groups of one series differ by color, like series without a group.
    grouped.series.iter_mut().zip("abcd".chars()).for_each(|(series, name)| series.group = name.into());
    assert_ne!(look(&grouped, 0).0, look(&grouped, 1).0);
}

/// Draws figures of many series, categories and missing values. Each name, bar and cell must be in the picture.
#[test]
fn pictures_leave_nothing_out() {
    let seed = netstage_harness::seed("pictures");
    for case in 0..200 {
        let mut random = RandomStream::new(seed, &format!("case.{case}"));
        let kind = [FigureKind::Line, FigureKind::Bar, FigureKind::Heatmap][random.below(3) as usize];
        let names = |prefix: &str, count| (0..count).map(|k| format!("{prefix}{k};")).collect::<Vec<_>>();
        let (columns, rows, lines) = (1 + random.below(12), 1 + random.below(40), 2 + random.below(100));
        let mut values = |_| -> Vec<Option<f64>> {
            (0..columns).map(|_| (!random.chance(0.2)).then(|| random.uniform())).collect()
        };
        let cells: Vec<_> = (0..rows).map(&mut values).collect();
        let series = |name| FigureSeries { y: values(0), name, ..FigureSeries::default() };
        let series: Vec<_> = names("s", lines).into_iter().map(series).collect();
        let bars = series.iter().flat_map(|series| &series.y).flatten().count();
        let text = drawn(&Figure {
            kind,
            series,
            cells,
            categories: names("x", columns),
            y_categories: names("y", rows),
            shared_x: Some((0..columns).map(|x| x as f64).collect()),
            ..Figure::default()
        });
        let (expected, shapes) = match kind {
            FigureKind::Line => (names("s", lines), 0),
            FigureKind::Bar => ([names("x", columns), names("s", lines)].concat(), bars + lines as usize),
            _ => ([names("x", columns), names("y", rows)].concat(), (columns * rows) as usize + 48),
        };
        let missing: Vec<_> = expected.iter().filter(|name| !text.contains(*name)).collect();
        assert!(missing.is_empty(), "case {case}: {missing:?} are not in {text}");
        // The first is the background.
        let drawn = text.matches("<rect").count() - 1;
        assert!(kind == FigureKind::Line || drawn == shapes, "case {case}: {drawn} of {shapes} in {text}");
    }
}
