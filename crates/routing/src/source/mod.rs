//! Route sources of the MPLS router.
//!
//! - [`path`]: destinations of routes and labels.
//! - [`file`]: routes from a text file.
//! - [`route`]: netlink messages about routes; [`kernel`]: routes of the kernel; [`fpm`]: routes that a
//!   routing daemon sends to the router itself.

pub mod file;
pub mod fpm;
pub mod kernel;
pub mod path;
pub mod route;

use netstage_wire::mpls::LabelValue;
use path::{Destination, LabelAction, SourceChange, TablePrefix};
use route::Subject;
use std::collections::BTreeMap;
use std::fmt;

/// Object of a change: a prefix or a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKey {
    /// Route to a prefix.
    Route(TablePrefix),
    /// Label.
    Label(LabelValue),
}

impl From<&SourceChange> for SourceKey {
    fn from(change: &SourceChange) -> SourceKey {
        match change {
            SourceChange::Route(prefix, _) => SourceKey::Route(*prefix),
            SourceChange::Label(label, _) => SourceKey::Label(*label),
        }
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceKey::Route((_, (address, length))) => write!(f, "the route to {address}/{length}"),
            SourceKey::Label(label) => write!(f, "label {}", label.number()),
        }
    }
}

/// Routes and labels of one source. Of several routes to a prefix, the one with the lowest rank (the
/// kernel's metric) is used. Each label exists once.
#[derive(Debug, Default)]
pub struct RankedRoutes {
    routes: BTreeMap<(TablePrefix, u32), Destination>,
    labels: BTreeMap<LabelValue, LabelAction>,
}

/// Current routes and labels of all sources.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Routes from the file.
    pub file: &'a RankedRoutes,
    /// Labels of RSVP-TE and routes into its LSPs, if the router speaks it.
    pub rsvp: Option<&'a RankedRoutes>,
    /// Routes from a routing daemon (forwarding plane manager), if one is configured.
    pub manager: Option<&'a RankedRoutes>,
    /// Routes from the kernel, if they are used.
    pub kernel: Option<&'a RankedRoutes>,
}

impl Sources<'_> {
    /// Selects the destination of a prefix or label from the sources. The file takes precedence, then this
    /// host's own addresses in the kernel, then RSVP-TE, then the routing daemon, then the other routes of the kernel.
    /// The daemon precedes the kernel because it may know labels that the kernel does not.
    pub fn select(self, key: SourceKey) -> SourceChange {
        let Sources { file, rsvp, manager, kernel } = self;
        let is_own = |source: &&RankedRoutes| match key {
            SourceKey::Route(prefix) => source.best(&prefix) == Some(&Destination::Local),
            SourceKey::Label(_) => false,
        };
        let mut sources = [Some(file), kernel.filter(is_own), rsvp, manager, kernel].into_iter().flatten();
        match key {
            SourceKey::Route(prefix) => {
                SourceChange::Route(prefix, sources.find_map(|source| source.best(&prefix)).cloned())
            }
            SourceKey::Label(label) => {
                SourceChange::Label(label, sources.find_map(|source| source.labels.get(&label)).cloned())
            }
        }
    }
}

impl RankedRoutes {
    /// Builds a source from a list of changes; later changes to the same prefix or label replace earlier
    /// ones.
    pub fn of(changes: Vec<SourceChange>) -> RankedRoutes {
        let mut ranked = RankedRoutes::default();
        for change in changes {
            match change {
                SourceChange::Route(prefix, Some(to)) => drop(ranked.routes.insert((prefix, 0), to)),
                SourceChange::Label(label, Some(meaning)) => drop(ranked.labels.insert(label, meaning)),
                SourceChange::Route(prefix, None) => drop(ranked.routes.remove(&(prefix, 0))),
                SourceChange::Label(label, None) => drop(ranked.labels.remove(&label)),
            }
        }
        ranked
    }

    /// Returns the best route to a prefix.
    fn best(&self, prefix: &TablePrefix) -> Option<&Destination> {
        self.routes.range((*prefix, 0)..=(*prefix, u32::MAX)).next().map(|(_, to)| to)
    }

    /// Iterates over the best route to each prefix.
    fn best_routes(&self) -> impl Iterator<Item = (TablePrefix, &Destination)> {
        let mut last = None;
        let is_first =
            move |(prefix, _): &(TablePrefix, &Destination)| last.replace(*prefix) != Some(*prefix);
        self.routes.iter().map(|((prefix, _), to)| (*prefix, to)).filter(is_first)
    }

    /// Returns all prefixes and labels of the source.
    pub fn keys(&self) -> Vec<SourceKey> {
        let routes = self.best_routes().map(|(prefix, _)| SourceKey::Route(prefix));
        routes.chain(self.labels.keys().map(|label| SourceKey::Label(*label))).collect()
    }

    /// Sets or removes (`None`) a route of some rank, and returns the resulting change, if any.
    pub fn route(&mut self, prefix: TablePrefix, rank: u32, to: Option<Destination>) -> Option<SourceChange> {
        let before = self.best(&prefix).cloned();
        match to {
            Some(to) => drop(self.routes.insert((prefix, rank), to)),
            None => drop(self.routes.remove(&(prefix, rank))),
        }
        let after = self.best(&prefix);
        (before.as_ref() != after).then(|| SourceChange::Route(prefix, after.cloned()))
    }

    /// Sets or removes (`None`) a label, and returns the resulting change, if any.
    pub fn label(&mut self, label: LabelValue, meaning: Option<LabelAction>) -> Option<SourceChange> {
        let before = match meaning.clone() {
            Some(meaning) => self.labels.insert(label, meaning),
            None => self.labels.remove(&label),
        };
        (before != meaning).then_some(SourceChange::Label(label, meaning))
    }

    /// Iterates over all routes, then over all labels, in order.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let routes = self.routes.keys().map(|(prefix, rank)| Subject::Route(*prefix, *rank));
        routes.chain(self.labels.keys().copied().map(Subject::Label))
    }

    /// Removes a route or label, and returns the resulting change, if any.
    pub fn remove(&mut self, subject: Subject) -> Option<SourceChange> {
        match subject {
            Subject::Route(prefix, rank) => self.route(prefix, rank, None),
            Subject::Label(label) => self.label(label, None),
        }
    }

    /// Replaces everything with `fresh` and returns the changes.
    pub fn replace(&mut self, fresh: RankedRoutes) -> Vec<SourceChange> {
        let before = std::mem::replace(self, fresh);
        let mut changes = Vec::new();
        for (prefix, to) in self.best_routes() {
            if before.best(&prefix) != Some(to) {
                changes.push(SourceChange::Route(prefix, Some(to.clone())));
            }
        }
        for (label, meaning) in &self.labels {
            if before.labels.get(label) != Some(meaning) {
                changes.push(SourceChange::Label(*label, Some(meaning.clone())));
            }
        }
        // Removals come last, so that new, less specific routes are in place before.
        let gone = before.best_routes().filter(|(prefix, _)| self.best(prefix).is_none());
        changes.extend(gone.map(|(prefix, _)| SourceChange::Route(prefix, None)));
        let gone = before.labels.keys().filter(|label| !self.labels.contains_key(label));
        changes.extend(gone.map(|label| SourceChange::Label(*label, None)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const PREFIX: TablePrefix = (0, (std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8));
    const LOCAL: Option<Destination> = Some(Destination::Local);
    const DISCARD: Option<Destination> = Some(Destination::Discard);

    #[test]
    fn the_route_of_lowest_rank_is_used() {
        let mut ranked = RankedRoutes::default();
        assert_eq!(ranked.route(PREFIX, 20, LOCAL), Some(SourceChange::Route(PREFIX, LOCAL)));
        assert_eq!(ranked.route(PREFIX, 30, DISCARD), None);
        assert_eq!(ranked.route(PREFIX, 10, DISCARD), Some(SourceChange::Route(PREFIX, DISCARD)));
        assert_eq!(ranked.route(PREFIX, 20, None), None);
        assert_eq!(ranked.route(PREFIX, 10, None), None, "the next route has the same destination");
        assert_eq!(ranked.route(PREFIX, 30, None), Some(SourceChange::Route(PREFIX, None)));
        assert_eq!(ranked.route(PREFIX, 30, None), None);
        assert!(ranked.routes.is_empty());
    }

    #[test]
    fn the_routing_daemon_precedes_the_kernel_except_for_own_addresses_and_follows_rsvp_te() {
        let label = LabelValue::new(300).unwrap();
        let source_of = |to: &Option<Destination>, table| {
            let meaning = Some(LabelAction::Pop { table });
            RankedRoutes::of(vec![
                SourceChange::Route(PREFIX, to.clone()),
                SourceChange::Label(label, meaning),
            ])
        };
        let away = Some(Destination::Paths(vec![]));
        let nothing = RankedRoutes::default();
        let (local, discard, leads_away) =
            (source_of(&LOCAL, 0), source_of(&DISCARD, 1), source_of(&away, 2));
        for (file, manager, kernel, to, table) in [
            (&nothing, None, None, None, None),
            (&nothing, None, Some(&discard), DISCARD, Some(1)),
            (&nothing, Some(&leads_away), Some(&discard), away.clone(), Some(2)),
            (&nothing, Some(&leads_away), Some(&local), LOCAL, Some(2)),
            (&discard, Some(&leads_away), Some(&local), DISCARD, Some(1)),
            (&nothing, Some(&nothing), Some(&discard), DISCARD, Some(1)),
        ] {
            let sources = Sources { file, rsvp: None, manager, kernel };
            assert_eq!(sources.select(SourceKey::Route(PREFIX)), SourceChange::Route(PREFIX, to));
            let meaning = table.map(|table| LabelAction::Pop { table });
            assert_eq!(sources.select(SourceKey::Label(label)), SourceChange::Label(label, meaning));
        }
        for (kernel, to) in [(&discard, away), (&local, LOCAL)] {
            let rsvp = Some(&leads_away);
            let sources = Sources { file: &nothing, rsvp, manager: Some(&discard), kernel: Some(kernel) };
            assert_eq!(sources.select(SourceKey::Route(PREFIX)), SourceChange::Route(PREFIX, to));
        }
        assert_eq!(local.keys(), [SourceKey::Route(PREFIX), SourceKey::Label(label)]);
    }

    #[test]
    fn a_full_reload_replaces_the_previous_routes() {
        let label = LabelValue::new(300).unwrap();
        let other = (0, (std::net::IpAddr::V4(Ipv4Addr::new(11, 0, 0, 0)), 8));
        let pop = LabelAction::Pop { table: 0 };
        let mut ranked = RankedRoutes::default();
        ranked.route(PREFIX, 0, LOCAL);
        ranked.route(other, 0, LOCAL);
        ranked.label(label, Some(pop.clone()));
        let mut fresh = RankedRoutes::default();
        fresh.route(PREFIX, 5, LOCAL);
        fresh.label(label, Some(LabelAction::Pop { table: 1 }));
        let changes = ranked.replace(fresh);
        let pop = SourceChange::Label(label, Some(LabelAction::Pop { table: 1 }));
        assert_eq!(changes, [pop, SourceChange::Route(other, None)]);
        let gone = ranked.replace(RankedRoutes::default());
        assert_eq!(gone, [SourceChange::Route(PREFIX, None), SourceChange::Label(label, None)]);
    }
}
