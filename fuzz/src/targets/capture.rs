//! Captures from arbitrary bytes: a model that can run, or an error.

use netstage_scenario::learned::ModelFile;
use netstage_traffic::learn::{learn, parse};

pub fn run(bytes: &[u8]) {
    if let Some((&link, frame)) = bytes.split_first() {
        let _ = parse(u16::from(link), frame);
    }
    match learn("fuzz.pcap", bytes, None) {
        Ok(lesson) => {
            let text = lesson.file.to_json();
            let again = ModelFile::from_json(&text).expect("a learned model is readable");
            assert_eq!(again.model, lesson.file.model);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
