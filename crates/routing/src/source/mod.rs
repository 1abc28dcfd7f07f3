//! Where routes and labels come from.
//!
//! - [`path`]: where routes and labels lead.
//! - [`file`]: lines of a text file.
//! - [`route`]: messages about routes, as the kernel has them; [`kernel`]: the kernel's own; [`fpm`]: those
//!   of a routing daemon, told to the router itself.

pub mod file;
pub mod fpm;
pub mod kernel;
pub mod path;
pub mod route;

use netstage_wire::mpls::Label;
use path::{Change, Destination, Meaning, Prefix};
use route::Subject;
use std::collections::BTreeMap;
use std::fmt;

/// What a source tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Where a prefix leads.
    Route(Prefix),
    /// What a label means.
    Label(Label),
}

impl From<&Change> for Key {
    fn from(change: &Change) -> Key {
        match change {
            Change::Route(prefix, _) => Key::Route(*prefix),
            Change::Label(label, _) => Key::Label(*label),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Route((_, (address, length))) => write!(f, "the route to {address}/{length}"),
            Key::Label(label) => write!(f, "label {}", label.number()),
        }
    }
}

/// Routes to the same prefix by how much they are preferred, the least first (the kernel's metric), of
/// which one counts; and labels, of which there is one each.
#[derive(Debug, Default)]
pub struct Ranked {
    routes: BTreeMap<(Prefix, u32), Destination>,
    labels: BTreeMap<Label, Meaning>,
}

/// What the router's sources have told; those that count.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The file of routes.
    pub file: &'a Ranked,
    /// A routing daemon, by its forwarding plane manager.
    pub manager: Option<&'a Ranked>,
    /// The kernel.
    pub kernel: Option<&'a Ranked>,
}

impl Sources<'_> {
    /// What a prefix or label leads to where several may have told of it. The file counts first. A routing
    /// daemon knows labels that the kernel may not, so what it tells counts before what the kernel does, but
    /// for this machine's own addresses.
    pub fn settled(self, key: Key) -> Change {
        let Sources { file, manager, kernel } = self;
        let is_own = |source: &&Ranked| match key {
            Key::Route(prefix) => source.best(&prefix) == Some(&Destination::Local),
            Key::Label(_) => false,
        };
        let mut sources = [Some(file), kernel.filter(is_own), manager, kernel].into_iter().flatten();
        match key {
            Key::Route(prefix) => {
                Change::Route(prefix, sources.find_map(|source| source.best(&prefix)).cloned())
            }
            Key::Label(label) => {
                Change::Label(label, sources.find_map(|source| source.labels.get(&label)).cloned())
            }
        }
    }
}

impl Ranked {
    /// A source that tells everything at once, each prefix and label as it is told last.
    pub fn of(changes: Vec<Change>) -> Ranked {
        let mut ranked = Ranked::default();
        for change in changes {
            match change {
                Change::Route(prefix, Some(to)) => drop(ranked.routes.insert((prefix, 0), to)),
                Change::Label(label, Some(meaning)) => drop(ranked.labels.insert(label, meaning)),
                Change::Route(prefix, None) => drop(ranked.routes.remove(&(prefix, 0))),
                Change::Label(label, None) => drop(ranked.labels.remove(&label)),
            }
        }
        ranked
    }

    /// Where a prefix leads.
    fn best(&self, prefix: &Prefix) -> Option<&Destination> {
        self.routes.range((*prefix, 0)..=(*prefix, u32::MAX)).next().map(|(_, to)| to)
    }

    /// Where each prefix leads.
    fn bests(&self) -> impl Iterator<Item = (Prefix, &Destination)> {
        let mut last = None;
        let is_first = move |(prefix, _): &(Prefix, &Destination)| last.replace(*prefix) != Some(*prefix);
        self.routes.iter().map(|((prefix, _), to)| (*prefix, to)).filter(is_first)
    }

    /// All it tells of.
    pub fn keys(&self) -> Vec<Key> {
        let routes = self.bests().map(|(prefix, _)| Key::Route(prefix));
        routes.chain(self.labels.keys().map(|label| Key::Label(*label))).collect()
    }

    /// A source tells of a route of some rank; what that changes, if anything.
    pub fn route(&mut self, prefix: Prefix, rank: u32, to: Option<Destination>) -> Option<Change> {
        let before = self.best(&prefix).cloned();
        match to {
            Some(to) => drop(self.routes.insert((prefix, rank), to)),
            None => drop(self.routes.remove(&(prefix, rank))),
        }
        let after = self.best(&prefix);
        (before.as_ref() != after).then(|| Change::Route(prefix, after.cloned()))
    }

    /// A source tells of a label; what that changes, if anything.
    pub fn label(&mut self, label: Label, meaning: Option<Meaning>) -> Option<Change> {
        let before = match meaning.clone() {
            Some(meaning) => self.labels.insert(label, meaning),
            None => self.labels.remove(&label),
        };
        (before != meaning).then_some(Change::Label(label, meaning))
    }

    /// All of them, in order: routes first.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let routes = self.routes.keys().map(|(prefix, rank)| Subject::Route(*prefix, *rank));
        routes.chain(self.labels.keys().copied().map(Subject::Label))
    }

    /// A source takes back what it told of something; what that changes, if anything.
    pub fn remove(&mut self, subject: Subject) -> Option<Change> {
        match subject {
            Subject::Route(prefix, rank) => self.route(prefix, rank, None),
            Subject::Label(label) => self.label(label, None),
        }
    }

    /// What is to be changed where a source tells everything anew: `fresh` is all it has.
    pub fn replace(&mut self, fresh: Ranked) -> Vec<Change> {
        let before = std::mem::replace(self, fresh);
        let mut changes = Vec::new();
        for (prefix, to) in self.bests() {
            if before.best(&prefix) != Some(to) {
                changes.push(Change::Route(prefix, Some(to.clone())));
            }
        }
        for (label, meaning) in &self.labels {
            if before.labels.get(label) != Some(meaning) {
                changes.push(Change::Label(*label, Some(meaning.clone())));
            }
        }
        // What is gone goes last: meanwhile packets find what holds them less closely.
        let gone = before.bests().filter(|(prefix, _)| self.best(prefix).is_none());
        changes.extend(gone.map(|(prefix, _)| Change::Route(prefix, None)));
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
    fn a_routing_daemon_counts_before_the_kernel_but_for_own_addresses() {
        let label = Label::new(300).unwrap();
        let told = |to: &Option<Destination>, table| {
            let meaning = Some(Meaning::Pop { table });
            Ranked::of(vec![Change::Route(PREFIX, to.clone()), Change::Label(label, meaning)])
        };
        let away = Some(Destination::Paths(vec![]));
        let nothing = Ranked::default();
        let (local, discard, leads_away) = (told(&LOCAL, 0), told(&DISCARD, 1), told(&away, 2));
        for (file, manager, kernel, to, table) in [
            (&nothing, None, None, None, None),
            (&nothing, None, Some(&discard), DISCARD, Some(1)),
            (&nothing, Some(&leads_away), Some(&discard), away.clone(), Some(2)),
            (&nothing, Some(&leads_away), Some(&local), LOCAL, Some(2)),
            (&discard, Some(&leads_away), Some(&local), DISCARD, Some(1)),
            (&nothing, Some(&nothing), Some(&discard), DISCARD, Some(1)),
        ] {
            let sources = Sources { file, manager, kernel };
            assert_eq!(sources.settled(Key::Route(PREFIX)), Change::Route(PREFIX, to));
            let meaning = table.map(|table| Meaning::Pop { table });
            assert_eq!(sources.settled(Key::Label(label)), Change::Label(label, meaning));
        }
        assert_eq!(local.keys(), [Key::Route(PREFIX), Key::Label(label)]);
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
