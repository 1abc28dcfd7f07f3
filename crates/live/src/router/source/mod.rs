//! Where routes and labels come from.
//!
//! - [`file`]: lines of a text file.
//! - [`route`]: messages about routes, as the kernel has them; [`kernel`]: the kernel's own.

pub mod file;
pub mod kernel;
pub mod route;

use super::fib::{Change, Destination, Meaning, Prefix};
use netstage_wire::mpls::Label;
use std::collections::BTreeMap;

/// Routes to the same prefix by how much they are preferred, the least first (the kernel's metric), of
/// which one counts; and labels, of which there is one each.
#[derive(Debug, Default)]
pub struct Ranked {
    routes: BTreeMap<Prefix, BTreeMap<u32, Destination>>,
    labels: BTreeMap<Label, Meaning>,
}

impl Ranked {
    /// A source tells of a route of some rank; what that changes, if anything.
    pub fn route(&mut self, prefix: Prefix, rank: u32, to: Option<Destination>) -> Option<Change> {
        let ranks = self.routes.entry(prefix).or_default();
        let best = |ranks: &BTreeMap<u32, Destination>| ranks.values().next().cloned();
        let before = best(ranks);
        match to {
            Some(to) => drop(ranks.insert(rank, to)),
            None => drop(ranks.remove(&rank)),
        }
        let after = best(ranks);
        if ranks.is_empty() {
            self.routes.remove(&prefix);
        }
        (before != after).then_some(Change::Route(prefix, after))
    }

    /// A source tells of a label; what that changes, if anything.
    pub fn label(&mut self, label: Label, meaning: Option<Meaning>) -> Option<Change> {
        let before = match meaning.clone() {
            Some(meaning) => self.labels.insert(label, meaning),
            None => self.labels.remove(&label),
        };
        (before != meaning).then_some(Change::Label(label, meaning))
    }

    /// What is to be changed where a source tells everything anew: `fresh` is all it has.
    pub fn replace(&mut self, fresh: Ranked) -> Vec<Change> {
        let before = std::mem::replace(self, fresh);
        let best = |ranks: &BTreeMap<u32, Destination>| ranks.values().next().cloned();
        let mut changes = Vec::new();
        for (prefix, ranks) in &self.routes {
            let to = best(ranks);
            if before.routes.get(prefix).and_then(best) != to {
                changes.push(Change::Route(*prefix, to));
            }
        }
        for (label, meaning) in &self.labels {
            if before.labels.get(label) != Some(meaning) {
                changes.push(Change::Label(*label, Some(meaning.clone())));
            }
        }
        // What is gone goes last: meanwhile packets find what holds them less closely.
        let gone = before.routes.keys().filter(|prefix| !self.routes.contains_key(prefix));
        changes.extend(gone.map(|prefix| Change::Route(*prefix, None)));
        let gone = before.labels.keys().filter(|label| !self.labels.contains_key(label));
        changes.extend(gone.map(|label| Change::Label(*label, None)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const PREFIX: Prefix = (0, (std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8));
    const LOCAL: Option<Destination> = Some(Destination::Local);
    const DISCARD: Option<Destination> = Some(Destination::Discard);

    #[test]
    fn the_route_of_least_rank_counts() {
        let mut ranked = Ranked::default();
        assert_eq!(ranked.route(PREFIX, 20, LOCAL), Some(Change::Route(PREFIX, LOCAL)));
        assert_eq!(ranked.route(PREFIX, 30, DISCARD), None);
        assert_eq!(ranked.route(PREFIX, 10, DISCARD), Some(Change::Route(PREFIX, DISCARD)));
        assert_eq!(ranked.route(PREFIX, 20, None), None);
        assert_eq!(ranked.route(PREFIX, 10, None), None, "the next one is the same");
        assert_eq!(ranked.route(PREFIX, 30, None), Some(Change::Route(PREFIX, None)));
        assert_eq!(ranked.route(PREFIX, 30, None), None);
        assert!(ranked.routes.is_empty());
    }

    #[test]
    fn all_that_is_told_anew_replaces_what_was() {
        let label = Label::new(300).unwrap();
        let other = (0, (std::net::IpAddr::V4(Ipv4Addr::new(11, 0, 0, 0)), 8));
        let pop = Meaning::Pop { table: 0 };
        let mut ranked = Ranked::default();
        ranked.route(PREFIX, 0, LOCAL);
        ranked.route(other, 0, LOCAL);
        ranked.label(label, Some(pop.clone()));
        let mut fresh = Ranked::default();
        fresh.route(PREFIX, 5, LOCAL);
        fresh.label(label, Some(Meaning::Pop { table: 1 }));
        let changes = ranked.replace(fresh);
        let pop = Change::Label(label, Some(Meaning::Pop { table: 1 }));
        assert_eq!(changes, [pop, Change::Route(other, None)]);
        let gone = ranked.replace(Ranked::default());
        assert_eq!(gone, [Change::Route(PREFIX, None), Change::Label(label, None)]);
    }
}
