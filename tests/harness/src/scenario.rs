//! Scenario tables shared by tests.

/// Returns the tables of nodes, grouped by kind, and of links, each given as `name:end,end`.
///
/// ```
/// let text = netstage_harness::scenario::network(&[("host", "a b"), ("router", "r")], "left:a,r right:r,b");
/// assert!(text.starts_with("[node.a]\nkind = \"host\"\n[node.b]\n"));
/// assert!(text.ends_with("[link.right]\nends = [\"r\", \"b\"]\n"));
/// ```
pub fn network(nodes: &[(&str, &str)], links: &str) -> String {
    let nodes = nodes.iter().flat_map(|(kind, names)| {
        names.split_whitespace().map(move |name| format!("[node.{name}]\nkind = \"{kind}\"\n"))
    });
    let links = links.split_whitespace().map(|link| {
        let (name, ends) = link.split_once(':').expect("a link has a name");
        let (left, right) = ends.split_once(',').expect("a link has two ends");
        format!("[link.{name}]\nends = [\"{left}\", \"{right}\"]\n")
    });
    nodes.chain(links).collect()
}
