//! Labels that the neighbors of FRR's ldpd have bound to prefixes, from the JSON of its `show` commands.

use super::database::Prefix;
use netstage_wire::mpls::LabelValue;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Labels bound by neighbors.
#[derive(Clone, Debug, Default)]
pub struct LabelBindings {
    labels: BTreeMap<(Ipv4Addr, Prefix), LabelValue>,
    /// LDP identifiers of the neighbors on each interface.
    peers: BTreeMap<String, Vec<Ipv4Addr>>,
    /// LDP identifiers of the neighbors with targeted sessions.
    targeted: Vec<Ipv4Addr>,
}

#[derive(Deserialize)]
struct Bindings {
    #[serde(default)]
    bindings: Vec<Binding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    prefix: String,
    neighbor_id: Ipv4Addr,
    remote_label: String,
}

#[derive(Deserialize)]
struct Discovery {
    #[serde(default)]
    adjacencies: Vec<HelloAdjacency>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HelloAdjacency {
    neighbor_id: Ipv4Addr,
    /// `link` or `targeted`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    interface: String,
}

impl LabelBindings {
    /// Reads the responses to `show mpls ldp binding json` and `show mpls ldp discovery json`. Errors name what is
    /// unexpected.
    pub fn read(bindings: &str, discovery: &str) -> Result<LabelBindings, String> {
        let wrong =
            |what: &'static str| move |error: serde_json::Error| format!("unexpected {what}: {error}");
        let bindings: Bindings = serde_json::from_str(bindings).map_err(wrong("bindings"))?;
        let discovery: Discovery = serde_json::from_str(discovery).map_err(wrong("adjacencies"))?;
        let mut read = LabelBindings::default();
        for binding in bindings.bindings {
            if let (Some(prefix), Some(label)) = (prefix(&binding.prefix), label(&binding.remote_label)) {
                read.labels.insert((binding.neighbor_id, prefix), label);
            }
        }
        for HelloAdjacency { neighbor_id, kind, interface } in discovery.adjacencies {
            match kind.as_str() {
                "targeted" => read.targeted.push(neighbor_id),
                _ => read.peers.entry(interface).or_default().push(neighbor_id),
            }
        }
        Ok(read)
    }

    /// Returns the label of a neighbor for a prefix. The neighbor is the only one on its interface, or its LDP identifier
    /// is its router ID.
    pub fn label(&self, interface: &str, router: Ipv4Addr, prefix: Prefix) -> Option<LabelValue> {
        let peer = match self.peers.get(interface)?[..] {
            [only] => only,
            _ => router,
        };
        self.label_of(peer, prefix)
    }

    /// Returns the label of the router with an LDP identifier for a prefix.
    pub fn label_of(&self, peer: Ipv4Addr, prefix: Prefix) -> Option<LabelValue> {
        self.labels.get(&(peer, prefix)).copied()
    }

    /// Returns the LDP identifiers of the neighbors with targeted sessions.
    pub fn targeted(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.targeted.iter().copied()
    }
}

/// Returns the first command of a configuration of ldpd by which an access list selects labels or neighbors.
pub fn access_list(configuration: &str) -> Option<&str> {
    let has_list = |command: &&str| {
        let mut words = command.split(' ');
        matches!(words.next(), Some("label" | "discovery"))
            && words.any(|word| ["for", "from", "to"].contains(&word))
    };
    configuration.lines().map(str::trim).find(has_list)
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, length) = text.split_once('/')?;
    Some((address.parse().ok()?, length.parse().ok()?))
}

fn label(text: &str) -> Option<LabelValue> {
    match text {
        "imp-null" => Some(LabelValue::IMPLICIT_NULL),
        "exp-null" => Some(LabelValue::IPV4_EXPLICIT_NULL),
        number => number.parse().ok().and_then(LabelValue::new),
    }
}
