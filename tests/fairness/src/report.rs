//! Report: goals and their verdicts, a table of the controls, and heat maps.

use crate::draw::Features;
use crate::judge::Measures;
use crate::record::{CaseRecord, Records};
use netstage_study::figure::{Axis, Figure, FigureKind};
use netstage_study::svg::svg;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Largest ratio of the same quantity in two runs that counts as equal.
const NOISE: f64 = 0.01;

/// Cases of which each has a run of the control.
struct View<'a> {
    control: &'a str,
    cases: Vec<(&'a CaseRecord, &'a Measures)>,
}

impl<'a> View<'a> {
    fn new(records: &'a Records, control: &'a str, select: impl Fn(&CaseRecord) -> bool) -> View<'a> {
        let of_case = |case: &'a CaseRecord| Some((case, &case.runs.get(control)?.measures));
        View {
            control,
            cases: records.cases.values().filter(|case| select(case)).filter_map(of_case).collect(),
        }
    }

    fn values(&self, value: impl Fn(&Measures) -> f64) -> Vec<f64> {
        self.cases.iter().map(|(_, measures)| value(measures)).collect()
    }

    /// Returns the share of the cases that meet a condition on the run, and on the run of the other control.
    fn against(&self, other: &str, holds: impl Fn(&Measures, &Measures) -> bool) -> Option<f64> {
        let pairs = self.cases.iter().filter_map(|(case, own)| Some((*own, &case.runs.get(other)?.measures)));
        share(pairs.map(|(own, other)| holds(own, other)))
    }

    /// Returns the share of the changes after which the rates are right in time.
    fn right_within(&self, limit: f64) -> Option<f64> {
        share(
            self.cases.iter().flat_map(|(_, own)| {
                own.right_after.iter().skip(1).map(move |time| is_right(own, *time, limit))
            }),
        )
    }

    fn median(&self, value: impl Fn(&Measures) -> f64) -> Option<f64> {
        quantile(self.values(value), 0.5)
    }
}

/// Returns whether the rates were right within a time, or within one bin if that is longer.
fn is_right(own: &Measures, time: Option<f64>, limit: f64) -> bool {
    time.is_some_and(|time| time <= limit.max(own.bin))
}

fn share(values: impl Iterator<Item = bool>) -> Option<f64> {
    let (mut all, mut holding) = (0.0, 0.0);
    for holds in values {
        all += 1.0;
        holding += f64::from(u8::from(holds));
    }
    (all > 0.0).then_some(holding / all)
}

/// Returns the smallest value that is not exceeded by this share of the values.
fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

/// Returns whether an oracle can share the case fairly and use it.
fn is_feasible(case: &CaseRecord) -> bool {
    let oracle = case.runs.get("oracle").map(|run| &run.measures);
    oracle.is_some_and(|oracle| oracle.fairness >= 0.95 && oracle.delivered >= 0.94)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Goal of a law, its bound, and the function that measures it.
type Goal = (&'static str, Bound, fn(&Records, &str) -> Option<f64>);

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

fn all<'a>(records: &'a Records, control: &'a str) -> View<'a> {
    View::new(records, control, |_| true)
}

const GOALS: &[Goal] = &[
    ("F ≥ oracle − 0.03", Bound::AtLeast(0.9), |records, control| {
        all(records, control).against("oracle", |own, oracle| own.fairness >= oracle.fairness - 0.03)
    }),
    ("F ≥ oracle − 0.10", Bound::AtLeast(0.98), |records, control| {
        all(records, control).against("oracle", |own, oracle| own.fairness >= oracle.fairness - 0.1)
    }),
    ("F ≥ 0.95, feasible, 5 flows or more per VPN", Bound::AtLeast(0.98), |records, control| {
        let select = |case: &CaseRecord| is_feasible(case) && case.features.flows >= 5;
        share(View::new(records, control, select).values(|own| own.fairness).iter().map(|f| *f >= 0.95))
    }),
    ("median F − that of DRR", Bound::AtLeast(0.0), |records, control| {
        let median = |control| all(records, control).median(|own| own.fairness);
        Some(median(control)? - median("drr")?)
    }),
    ("worst VPN ≥ 0.8 of oracle's", Bound::AtLeast(0.85), |records, control| {
        all(records, control).against("oracle", |own, oracle| own.worst >= 0.8 * oracle.worst)
    }),
    ("utilization ≥ 0.97 of oracle's", Bound::AtLeast(0.9), |records, control| {
        let is_used =
            |own: &Measures, oracle: &Measures| mean(&own.utilization) >= 0.97 * mean(&oracle.utilization);
        all(records, control).against("oracle", is_used)
    }),
    ("right again ≤ 3 s, all cases", Bound::AtLeast(0.85), |records, control| {
        all(records, control).right_within(3.0)
    }),
    ("right again ≤ 5 s, all cases", Bound::AtLeast(0.95), |records, control| {
        all(records, control).right_within(5.0)
    }),
    ("right again ≤ 3 s, feasible", Bound::AtLeast(0.85), |records, control| {
        View::new(records, control, is_feasible).right_within(3.0)
    }),
    ("right again ≤ 5 s, feasible", Bound::AtLeast(0.95), |records, control| {
        View::new(records, control, is_feasible).right_within(5.0)
    }),
    ("median core queue, ms", Bound::AtMost(10.0), |records, control| {
        all(records, control).median(|own| own.core_wait * 1e3)
    }),
    ("median 95 % wait at the PE, ms", Bound::AtMost(30.0), |records, control| {
        all(records, control).median(|own| own.edge_wait_p95 * 1e3)
    }),
    ("F inside no worse than without control", Bound::AtLeast(0.95), |records, control| {
        let view = View::new(records, control, |case| {
            case.runs.get("none").is_some_and(|run| run.measures.inside.is_some())
        });
        view.against("none", |own, none| own.inside >= none.inside.map(|inside| inside - NOISE))
    }),
    ("≥ 0.7 of no control's rate beside TCP", Bound::AtLeast(0.9), |records, control| {
        let view = View::new(records, control, |case| case.features.background == "tcp");
        view.against("none", |own, none| own.rate >= 0.7 * none.rate)
    }),
    ("median events per packet, × no control", Bound::AtMost(1.35), |records, control| {
        let ratio = |(case, own): &(&CaseRecord, &Measures)| {
            case.runs.get("none").map(|none| own.events / none.measures.events)
        };
        quantile(all(records, control).cases.iter().filter_map(ratio).collect(), 0.5)
    }),
];

/// Returns the names of all controls, the standard ones first.
fn controls(records: &Records) -> Vec<&str> {
    let names: BTreeSet<&str> =
        records.cases.values().flat_map(|case| case.runs.keys()).map(String::as_str).collect();
    let rank =
        |name: &str| ["none", "i2vfc", "oracle", "drr"].iter().position(|known| *known == name).unwrap_or(4);
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| (rank(name), *name));
    names
}

/// Returns the report as Markdown.
pub fn text(records: &Records) -> String {
    let controls = controls(records);
    let cases = records.cases.len();
    let lots = records.cases.values().filter(|case| case.features.bottlenecks > 1).count();
    let feasible = records.cases.values().filter(|case| is_feasible(case)).count();
    let mut text = format!(
        "{cases} cases, of which {lots} are parking lots and {feasible} are feasible.\n\n## Goals\n\n"
    );
    heading(&mut text, &[&["goal", "bound"], &controls[..]].concat());
    for (name, bound, measure) in GOALS {
        let (sign, value) = match bound {
            Bound::AtLeast(value) => ("≥", value),
            Bound::AtMost(value) => ("≤", value),
        };
        let _ = write!(text, "| {name} | {sign} {value} |");
        for control in &controls {
            let verdict = |found: f64| match bound {
                Bound::AtLeast(least) => found >= *least,
                Bound::AtMost(most) => found <= *most,
            };
            let _ = match measure(records, control) {
                Some(found) => {
                    write!(text, " {} {} |", number(found), if verdict(found) { "✓" } else { "✗" })
                }
                None => write!(text, " – |"),
            };
        }
        text.push('\n');
    }
    type Group = (&'static str, fn(&CaseRecord) -> bool);
    let groups: [Group; 4] = [
        ("Feasible cases with one bottleneck", |case| is_feasible(case) && case.features.bottlenecks == 1),
        ("Feasible parking lots", |case| is_feasible(case) && case.features.bottlenecks > 1),
        ("All cases with one bottleneck", |case| case.features.bottlenecks == 1),
        ("All parking lots", |case| case.features.bottlenecks > 1),
    ];
    for (title, select) in groups {
        let count = records.cases.values().filter(|case| select(case)).count();
        let _ = write!(text, "\n## {title} ({count})\n\n");
        table(&mut text, records, &controls, select);
    }
    for map in MAPS {
        for control in &controls {
            let _ = write!(text, "\n## Mean F by {}: {control}\n\n", map.title);
            let figure = heat_map(records, map, control);
            heading(&mut text, &[&[""][..], map.columns.0].concat());
            for (row, cells) in figure.y_categories.iter().zip(&figure.cells) {
                let _ = write!(text, "| {row} |");
                for cell in cells {
                    let _ = match cell {
                        Some(mean) => write!(text, " {} |", number(*mean)),
                        None => write!(text, " |"),
                    };
                }
                text.push('\n');
            }
        }
    }
    text
}

fn heading(text: &mut String, columns: &[&str]) {
    let _ = writeln!(text, "| {} |", columns.join(" | "));
    let _ = writeln!(text, "|{}", " --- |".repeat(columns.len()));
}

fn table(text: &mut String, records: &Records, controls: &[&str], select: fn(&CaseRecord) -> bool) {
    heading(
        text,
        &[
            "control",
            "F median / 5 %",
            "F ≥ 0.95",
            "F ≥ 0.90",
            "F over 5 s",
            "worst VPN",
            "utilization median / 5 %",
            "right ≤ 3 s: start, change",
            "core queue",
            "PE wait p95",
            "loss",
            "F inside",
            "events per packet",
        ],
    );
    for control in controls {
        let view = View::new(records, control, select);
        let fairness = view.values(|own| own.fairness);
        let used = view.values(|own| mean(&own.utilization));
        let at = |values: &[f64], part: f64| quantile(values.to_vec(), part).unwrap_or(f64::NAN);
        let median = |value: fn(&Measures) -> f64| view.median(value).unwrap_or(f64::NAN);
        let starts = view.cases.iter().map(|(_, own)| is_right(own, own.right_after[0], 3.0));
        let from_start = share(starts).unwrap_or(f64::NAN);
        let after_change = view.right_within(3.0).unwrap_or(f64::NAN);
        let inside: Vec<f64> = view.cases.iter().filter_map(|(_, own)| own.inside).collect();
        let of_fairness = |bound: f64| share(fairness.iter().map(|f| *f >= bound)).unwrap_or(f64::NAN);
        let _ = writeln!(
            text,
            "| {} | {} / {} | {} | {} | {} | {} | {} / {} | {}, {} | {} ms | {} ms | {} | {} | {} |",
            view.control,
            number(at(&fairness, 0.5)),
            number(at(&fairness, 0.05)),
            number(of_fairness(0.95)),
            number(of_fairness(0.9)),
            number(median(|own| own.fairness_5s)),
            number(median(|own| own.worst)),
            number(at(&used, 0.5)),
            number(at(&used, 0.05)),
            number(from_start),
            number(after_change),
            number(median(|own| own.core_wait * 1e3)),
            number(median(|own| own.edge_wait_p95 * 1e3)),
            number(median(|own| own.loss)),
            number(at(&inside, 0.5)),
            number(median(|own| own.events)),
        );
    }
}

/// Returns a number with three decimals, or fewer if it is large.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.is_nan() => "–".to_owned(),
        size if size < 10.0 => format!("{value:.3}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Classes of a feature: their names, and the function that returns the class of a case.
type Classes = (&'static [&'static str], fn(&Features) -> usize);

/// Heat map of mean F over the classes of two features.
struct Map {
    name: &'static str,
    title: &'static str,
    columns: Classes,
    rows: Classes,
    axes: [&'static str; 2],
}

/// Returns the class whose lower bounds are these.
fn class(value: f64, bounds: &[f64]) -> usize {
    bounds.iter().filter(|bound| value >= **bound).count()
}

const MAPS: &[Map] = &[
    Map {
        name: "rate-flows",
        title: "rate and smallest number of flows",
        columns: (&["< 10 Mbit/s", "< 100 Mbit/s", "< 1 Gbit/s", "≤ 10 Gbit/s"], |f| {
            class(f.rate, &[1e7, 1e8, 1e9])
        }),
        rows: (&["1", "2–4", "5–9", "10 or more"], |f| class(f.flows as f64, &[2.0, 5.0, 10.0])),
        axes: ["Rate", "Flows"],
    },
    Map {
        name: "buffer-queue",
        title: "buffer in bandwidth-delay products and queue",
        columns: (&["< 0.3", "< 1", "< 2", "≤ 4"], |f| class(f.buffer, &[0.3, 1.0, 2.0])),
        rows: (&["drop-tail", "red", "codel", "fq-codel"], |f| {
            ["drop-tail", "red", "codel", "fq-codel"].iter().position(|name| *name == f.queue).unwrap_or(0)
        }),
        axes: ["Buffer", "Queue"],
    },
    Map {
        name: "round-trip-loss",
        title: "median round trip and largest random loss",
        columns: (&["< 20 ms", "< 50 ms", "< 100 ms", "< 200 ms", "≤ 400 ms"], |f| {
            class(f.round_trip, &[0.02, 0.05, 0.1, 0.2])
        }),
        rows: (&["none", "< 0.1 %", "< 1 %", "≤ 5 %"], |f| class(f.loss, &[1e-9, 0.001, 0.01])),
        axes: ["Round trip", "Loss"],
    },
    Map {
        name: "vpns-weights",
        title: "number of VPNs and largest ratio of weights",
        columns: (&["2–3", "4–8", "9–20", "21–50"], |f| class(f.vpns as f64, &[4.0, 9.0, 21.0])),
        rows: (&["1", "≤ 4", "≤ 10", "≤ 20"], |f| class(f.weight_ratio, &[1.01, 4.01, 10.01])),
        axes: ["VPNs", "Ratio"],
    },
    Map {
        name: "bottlenecks-background",
        title: "bottlenecks and uncontrolled traffic",
        columns: (&["1", "2", "3"], |f| f.bottlenecks - 1),
        rows: (&["none", "udp", "tcp"], |f| {
            ["none", "udp", "tcp"].iter().position(|name| *name == f.background).unwrap_or(0)
        }),
        axes: ["Bottlenecks", "Beside"],
    },
];

fn heat_map(records: &Records, map: &Map, control: &str) -> Figure {
    let (columns, rows) = (map.columns.0.len(), map.rows.0.len());
    let mut values = vec![vec![Vec::new(); columns]; rows];
    for (case, own) in all(records, control).cases {
        values[(map.rows.1)(&case.features)][(map.columns.1)(&case.features)].push(own.fairness);
    }
    let cell = |values: &Vec<f64>| (!values.is_empty()).then(|| mean(values));
    let names = |classes: &Classes| classes.0.iter().map(|name| (*name).to_owned()).collect();
    let axis = |label: &str| Axis { label: label.to_owned(), ..Axis::default() };
    Figure {
        name: format!("{}-{control}", map.name),
        title: format!("Mean F by {}: {control}", map.title),
        kind: FigureKind::Heatmap,
        x: axis(map.axes[0]),
        y: axis(map.axes[1]),
        categories: names(&map.columns),
        y_categories: names(&map.rows),
        cells: values.iter().map(|row| row.iter().map(cell).collect()).collect(),
        value: Some(Axis { min: Some(0.0), max: Some(1.0), ..axis("F") }),
        ..Figure::default()
    }
}

/// Returns the heat maps of all controls as SVG, with their names.
pub fn heat_maps(records: &Records) -> Vec<(String, String)> {
    let controls = controls(records);
    let of_map = |map| controls.iter().map(move |control| heat_map(records, map, control));
    MAPS.iter().flat_map(of_map).map(|figure| (figure.name.clone(), svg(&figure))).collect()
}
