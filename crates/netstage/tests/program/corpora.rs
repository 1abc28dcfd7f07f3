//! Replay of the fuzzing corpora (fuzz/) through the fuzz targets.

#[path = "../../../../fuzz/src/targets/mod.rs"]
mod targets;

use std::panic::catch_unwind;
use std::path::Path;

fn no_corpus_entry_causes_a_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folders = std::fs::read_dir(&corpus).unwrap().count();
    assert_eq!(folders, targets::ALL.len(), "a folder for each target");
    for (name, target) in targets::ALL {
        let entries: Vec<_> =
            std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(!entries.is_empty(), "{name}");
        for entry in entries {
            let bytes = std::fs::read(entry.path()).unwrap();
            assert!(catch_unwind(|| target(&bytes)).is_ok(), "{}", entry.path().display());
        }
        target(&[]);
    }
}

netstage_harness::tests![no_corpus_entry_causes_a_panic];
