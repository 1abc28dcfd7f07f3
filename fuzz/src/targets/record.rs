//! record.json from arbitrary bytes: read, or rejected with an error; a record that was read is written back
//! unchanged.

use netstage_scenario::record::StudyRecord;

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match StudyRecord::from_json(&text) {
        Ok(record) => {
            let again = StudyRecord::from_json(&record.to_json()).expect("a written record is readable");
            assert_eq!(record.to_json(), again.to_json());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
