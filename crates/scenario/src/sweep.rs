//! Cells: the base file and its variants, each multiplied by the sweep.

use crate::error::{Problems, SourceRange};
use crate::file::ScenarioFile;
use crate::file::root_kind;
use crate::file::study::{Assignment, SweptValues, VariantTable};
use crate::set::assign;
use crate::tree::TomlNode;
use std::collections::BTreeSet;

pub(crate) struct CellTree {
    pub label: CellLabel,
    pub root: TomlNode,
}

/// Variant and swept values of a cell.
#[derive(Clone, Debug)]
pub(crate) struct CellLabel {
    pub variant: String,
    pub settings: Vec<(String, String)>,
}

/// Maximum number of cells; a larger number is more likely a mistake than a study.
const MAX_CELLS: usize = 10_000;

/// Variant, or the base file: the values it sets, and whether it is swept.
struct CellGroup<'a> {
    name: &'a str,
    set: &'a [Assignment],
    swept: bool,
}

/// Visits all cells: variants by name, each multiplied by the sweep. The last swept path changes fastest. The tree of a
/// cell exists during its visit only.
pub(crate) fn visit_cells(
    root: &TomlNode,
    file: &ScenarioFile,
    problems: &mut Problems,
    visit: &mut dyn FnMut(CellTree, &mut Problems),
) {
    let sweep = file.sweep.as_ref().and_then(|s| s.0.as_ref()).map_or(&[][..], |s| &s.0);
    let bases = bases(file);
    refuse_set_and_swept(sweep, &file.variant.0, problems);
    refuse_common(sweep, &file.variant.0, problems);
    sweep.iter().for_each(|swept| refuse_equal_values(swept, problems));
    let count = sweep.iter().try_fold(1usize, |count, swept| count.checked_mul(swept.values.len()));
    match (count, sweep.first()) {
        (Some(count), _) if count.saturating_mul(bases.len()) <= MAX_CELLS => {}
        (_, first) => {
            let place = first.map_or(SourceRange::new(0, 0..0), |s| s.place);
            let help = "sweep fewer paths, or fewer values of each";
            problems.push_help(place, format!("the sweep has more than {MAX_CELLS} cells"), help);
            return;
        }
    }
    // The tree of a cell needs no list of all values, which would make the time of a check quadratic.
    let mut common = root.clone();
    if let Some(table) = common.table_mut() {
        ["sweep", "variant", "expect", "plot"].iter().for_each(|name| table.remove(name));
    }
    for base in bases {
        let mut root = common.clone();
        for assignment in base.set {
            assign(&mut root, root_kind(), &assignment.path, assignment.place, &assignment.value, problems);
        }
        let sweep = if base.swept { sweep } else { &[] };
        expand(base.name, root, sweep, &mut Vec::new(), problems, visit);
    }
}

/// Returns whether every swept path and every variant of the file was decoded.
pub(crate) fn is_complete(root: &TomlNode, file: &ScenarioFile) -> bool {
    let written = root.get("sweep").and_then(TomlNode::table).map_or(0, |sweep| sweep.entries().len());
    let decoded = file.sweep.as_ref().and_then(|sweep| sweep.0.as_ref()).map_or(0, |sweep| sweep.0.len());
    let head_is_decoded = file.scenario.as_ref().is_none_or(|head| head.0.is_some());
    written == decoded && head_is_decoded && file.variant.0.iter().all(|variant| variant.value.is_some())
}

fn bases(file: &ScenarioFile) -> Vec<CellGroup<'_>> {
    let mut bases: Vec<CellGroup<'_>> = file
        .variant
        .0
        .iter()
        .filter_map(|member| {
            let variant = member.value.as_ref()?;
            Some(CellGroup { name: &member.name, set: &variant.set.0, swept: variant.sweep })
        })
        .collect();
    let with_base = file.scenario.as_ref().and_then(|s| s.0.as_ref()).is_none_or(|head| head.base);
    if file.variant.0.is_empty() {
        bases.push(CellGroup { name: "", set: &[], swept: true });
    } else if with_base && file.variant.index("base").is_none() {
        bases.push(CellGroup { name: "base", set: &[], swept: true });
        bases.sort_by(|a, b| a.name.cmp(b.name));
    }
    bases
}

fn refuse_set_and_swept(
    sweep: &[SweptValues],
    variants: &[crate::table::NamedTable<VariantTable>],
    problems: &mut Problems,
) {
    for variant in variants.iter().filter_map(|m| m.value.as_ref()).filter(|v| v.sweep) {
        for set in &variant.set.0 {
            if sweep.iter().any(|s| s.path == set.path) {
                let message = format!("`{}` is both set by this variant and swept", set.path);
                let help = "set `sweep = false` in the variant, or remove the path from one of the two";
                problems.push_help(set.place, message, help);
            }
        }
    }
}

/// Refuses settings of the whole study, which has one seed and one number of runs.
fn refuse_common(
    sweep: &[SweptValues],
    variants: &[crate::table::NamedTable<VariantTable>],
    problems: &mut Problems,
) {
    let set = variants.iter().filter_map(|m| m.value.as_ref()).flat_map(|variant| &variant.set.0);
    let paths = sweep.iter().map(|s| (&s.path, s.place)).chain(set.map(|set| (&set.path, set.place)));
    for (path, place) in paths.filter(|(path, _)| *path == "scenario.seed" || *path == "scenario.repeat") {
        let message = format!("`{path}` is the same for all cells");
        let help = "set it in [scenario]; `repeat` runs every cell with successive seeds";
        problems.push_help(place, message, help);
    }
}

/// Refuses equal values, which would give cells with the same label.
fn refuse_equal_values(swept: &SweptValues, problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for value in swept.values.iter().filter(|value| !seen.insert(value.label())) {
        let message = format!("duplicate value in the sweep of `{}`", swept.path);
        problems.push_help(value.place, message, "remove it; `repeat` runs every cell several times");
    }
}

fn expand(
    variant: &str,
    root: TomlNode,
    sweep: &[SweptValues],
    settings: &mut Vec<(String, String)>,
    problems: &mut Problems,
    visit: &mut dyn FnMut(CellTree, &mut Problems),
) {
    let Some((swept, rest)) = sweep.split_first() else {
        let label = CellLabel { variant: variant.to_owned(), settings: settings.clone() };
        visit(CellTree { label, root }, problems);
        return;
    };
    for value in &swept.values {
        let mut root = root.clone();
        assign(&mut root, root_kind(), &swept.path, swept.place, value, problems);
        settings.push((swept.path.clone(), value.label()));
        expand(variant, root, rest, settings, problems, visit);
        settings.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Decode;
    use crate::tree::parse_document;

    #[test]
    fn trees_of_cells_do_not_contain_the_sweep() {
        let text =
            "[scenario]\ntitle = \"t\"\nduration = \"1 s\"\n[node.a]\n[sweep]\n\"node.a.mtu\" = [1, 2, 3]\n";
        let mut problems = Problems::default();
        problems.add_source("sweep.toml", text);
        let root = parse_document(0, &mut problems);
        let file = ScenarioFile::decode(&root, &mut problems).unwrap();
        let mut count = 0;
        visit_cells(&root, &file, &mut problems, &mut |cell, _| {
            count += 1;
            assert!(cell.root.get("sweep").is_none() && cell.root.get("node").is_some());
        });
        assert_eq!(count, 3);
    }
}
