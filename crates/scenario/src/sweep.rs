//! Cells: the file as it stands and its variants, each times the sweep.

use crate::error::{Place, Problems};
use crate::file::File;
use crate::file::root_kind;
use crate::file::study::{Assignment, Swept, Variant};
use crate::set::assign;
use crate::tree::Node;
use std::collections::BTreeSet;

/// A cell before it is decoded.
pub(crate) struct CellTree {
    pub variant: String,
    pub settings: Vec<(String, String)>,
    pub root: Node,
}

/// More cells than this are a mistake more likely than a study.
const MOST_CELLS: usize = 10_000;

/// One kind of cell: the values it sets, and whether it is swept.
struct Base<'a> {
    name: &'a str,
    set: &'a [Assignment],
    swept: bool,
}

/// Every cell: variants by name, each times its sweep, the last swept path fastest.
pub(crate) fn cells(root: &Node, file: &File, problems: &mut Problems) -> Vec<CellTree> {
    let sweep = file.sweep.as_ref().and_then(|s| s.0.as_ref()).map_or(&[][..], |s| &s.0);
    let bases = bases(file);
    check(sweep, &file.variant.0, problems);
    sweep.iter().for_each(|swept| refuse_equal_values(swept, problems));
    let count = sweep.iter().try_fold(1usize, |count, swept| count.checked_mul(swept.values.len()));
    match (count, sweep.first()) {
        (Some(count), _) if count.saturating_mul(bases.len()) <= MOST_CELLS => {}
        (_, first) => {
            let place = first.map_or(Place::new(0, 0..0), |s| s.place);
            let help = "sweep fewer paths at once, or fewer values of each";
            problems.push_help(place, format!("this makes more than {MOST_CELLS} cells"), help);
            return Vec::new();
        }
    }
    let mut cells = Vec::new();
    for base in bases {
        let mut root = root.clone();
        for assignment in base.set {
            assign(&mut root, root_kind(), &assignment.path, assignment.place, &assignment.value, problems);
        }
        let sweep = if base.swept { sweep } else { &[] };
        expand(base.name, root, sweep, &mut Vec::new(), &mut cells, problems);
    }
    cells
}

fn bases(file: &File) -> Vec<Base<'_>> {
    let mut bases: Vec<Base<'_>> = file
        .variant
        .0
        .iter()
        .filter_map(|member| {
            let variant = member.value.as_ref()?;
            Some(Base { name: &member.name, set: &variant.set.0, swept: variant.sweep })
        })
        .collect();
    let asked = file.scenario.as_ref().and_then(|s| s.0.as_ref()).is_none_or(|head| head.base);
    if file.variant.0.is_empty() {
        bases.push(Base { name: "", set: &[], swept: true });
    } else if asked && file.variant.index("base").is_none() {
        bases.push(Base { name: "base", set: &[], swept: true });
        bases.sort_by(|a, b| a.name.cmp(b.name));
    }
    bases
}

fn check(sweep: &[Swept], variants: &[crate::table::Member<Variant>], problems: &mut Problems) {
    for variant in variants.iter().filter_map(|m| m.value.as_ref()).filter(|v| v.sweep) {
        for set in &variant.set.0 {
            if sweep.iter().any(|s| s.path == set.path) {
                let message = format!("`{}` is both set by this variant and swept", set.path);
                problems.push_help(
                    set.place,
                    message,
                    "write `sweep = false` in the variant, or sweep without it",
                );
            }
        }
    }
}

/// Equal values would make cells that nothing tells apart.
fn refuse_equal_values(swept: &Swept, problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for value in swept.values.iter().filter(|value| !seen.insert(value.label())) {
        let message = format!("`{}` is swept over this value twice", swept.path);
        problems.push_help(value.place, message, "more runs of the same are had with `repeat`");
    }
}

fn expand(
    variant: &str,
    root: Node,
    sweep: &[Swept],
    settings: &mut Vec<(String, String)>,
    cells: &mut Vec<CellTree>,
    problems: &mut Problems,
) {
    let Some((swept, rest)) = sweep.split_first() else {
        cells.push(CellTree { variant: variant.to_owned(), settings: settings.clone(), root });
        return;
    };
    for value in &swept.values {
        let mut root = root.clone();
        assign(&mut root, root_kind(), &swept.path, swept.place, value, problems);
        settings.push((swept.path.clone(), value.label()));
        expand(variant, root, rest, settings, cells, problems);
        settings.pop();
    }
}
