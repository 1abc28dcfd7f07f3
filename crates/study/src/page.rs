//! Report as a self-contained HTML page: the bundle of `web/` with the report's data.

use crate::report::ReportData;
use std::path::Path;
use std::{fs, io};

const PAGE: &str = include_str!("../../../web/dist/report.html");
const SCRIPT: &str = include_str!("../../../web/dist/report.js");
const STYLE: &str = include_str!("../../../web/dist/report.css");

/// File name of the page in a record's folder.
pub const NAME: &str = "report.html";

/// Writes the page.
pub fn write(path: &Path, data: &ReportData) -> io::Result<()> {
    fs::write(path, page(data))
}

/// Returns the page's HTML.
pub fn page(data: &ReportData) -> String {
    let json = serde_json::to_string(data).expect("a report holds only text and numbers");
    let parts = [
        ("NETSTAGE_TITLE", escape_text(&data.title)),
        ("/*NETSTAGE_CSS*/", STYLE.to_owned()),
        ("NETSTAGE_DATA", escape_script(&json)),
        ("/*NETSTAGE_JS*/", SCRIPT.to_owned()),
    ];
    // Placeholders are searched only in the rest of the template, never in inserted text.
    let mut page = String::with_capacity(PAGE.len() + SCRIPT.len() + STYLE.len() + json.len());
    let mut rest = PAGE;
    for (placeholder, text) in parts {
        let (before, after) =
            rest.split_once(placeholder).expect("the template has every placeholder, in this order");
        page.push_str(before);
        page.push_str(&text);
        rest = after;
    }
    page.push_str(rest);
    page
}

fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Escapes JSON so that it cannot end the enclosing script element or a line of it.
fn escape_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_script_element() {
        let title = "</script><script>alert(1)</script>\u{2028}NETSTAGE_DATA";
        let data = ReportData { title: title.into(), ..ReportData::default() };
        let page = page(&data);
        assert!(!page.contains("<script>alert"));
        let (_, rest) = page.split_once("id=\"netstage-data\">").unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        assert!(!json.contains('\u{2028}'));
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(read["title"], title);
        assert!(page.contains(SCRIPT) && page.contains(STYLE));
    }
}
