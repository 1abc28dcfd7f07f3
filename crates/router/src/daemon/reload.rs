//! Change of configuration and routes of a running router: checked completely, then applied at once.

use super::RouterError;
use super::forward::{RouterCommand, RouterCommandSender, RouterForwardingLoop};
use super::host::no_interface;
use super::state::RouterState;
use netstage_host::log::{Level, Log};
use netstage_host::memory;
use netstage_host::startup_error::StartupError;
use netstage_routing::source::{RankedRoutes, SourceKey, file};
use netstage_scenario::router::{self, InterfaceConfig, RouterConfig, RsvpSettings, RsvpTunnelSettings};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Configuration file, present configuration, and counts of applied and rejected ones.
pub(super) struct RouterConfigurationFile {
    path: PathBuf,
    log: Log,
    taken: Mutex<LoadedConfiguration>,
}

struct LoadedConfiguration {
    router: RouterConfig,
    configurations: u64,
    refused: u64,
    refusal: String,
}

impl fmt::Debug for RouterConfigurationFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RouterConfigurationFile {
    pub fn new(path: PathBuf, router: RouterConfig, log: Log) -> RouterConfigurationFile {
        let taken = LoadedConfiguration { router, configurations: 1, refused: 0, refusal: String::new() };
        RouterConfigurationFile { path, log, taken: Mutex::new(taken) }
    }

    fn taken(&self) -> MutexGuard<'_, LoadedConfiguration> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there is a table of that name.
    pub fn has_table(&self, name: &str) -> bool {
        self.taken().router.tables.iter().any(|table| table.name == name)
    }

    /// Adds fields the forwarding thread does not know.
    pub fn complete(&self, state: RouterState) -> RouterState {
        let taken = self.taken();
        RouterState {
            configurations: taken.configurations,
            refused_configurations: taken.refused,
            refusal: taken.refusal.clone(),
            ..state
        }
    }

    /// Rereads the files and applies them, or keeps the present configuration. Returns a description of each
    /// change.
    pub fn reload(&self, orders: &RouterCommandSender) -> Result<Vec<String>, RouterError> {
        let mut taken = self.taken();
        match self.take(&taken.router, orders) {
            Ok((router, changes)) => {
                *taken = LoadedConfiguration {
                    router,
                    configurations: taken.configurations + 1,
                    refusal: String::new(),
                    ..*taken
                };
                let what = if changes.is_empty() { "no changes".into() } else { changes.join("; ") };
                (self.log)(Level::Note, &format!("configuration applied: {what}"));
                Ok(changes)
            }
            Err(error) => {
                taken.refused += 1;
                taken.refusal = error.to_string();
                let why = taken.refusal.trim_end();
                (self.log)(
                    Level::Alarm,
                    &format!("configuration rejected, the previous one stays active:\n{why}"),
                );
                Err(error)
            }
        }
    }

    fn take(
        &self,
        old: &RouterConfig,
        orders: &RouterCommandSender,
    ) -> Result<(RouterConfig, Vec<String>), RouterError> {
        let mut new = router::load(&self.path).map_err(RouterError::Configuration)?;
        let tables = |router: &RouterConfig| -> Vec<String> {
            router.tables.iter().map(|table| table.name.clone()).collect()
        };
        for (what, is_same) in [
            ("[router] `control`", old.control == new.control),
            ("[router] `metrics`", old.metrics == new.metrics),
            ("[router] `fpm`", old.fpm == new.fpm),
            ("[router] `fast_path`", old.fast_path == new.fast_path),
            ("[router] `model`", old.model == new.model),
            ("[router] `v4_rows`", old.v4_rows == new.v4_rows),
            ("[router] `v6_rows`", old.v6_rows == new.v6_rows),
            ("[router] `next_hops`", old.next_hops == new.next_hops),
            ("[router] `count`", old.count == new.count),
            ("[router] `when_killed`", old.when_killed == new.when_killed),
            ("[router] `pins`", old.pins == new.pins),
            ("the set of VPNs", tables(old) == tables(&new)),
            ("[bfd]", old.bfd == new.bfd),
            ("[alternates]", old.alternates == new.alternates),
            ("[rsvp], except its tunnels,", without_tunnels(old) == without_tunnels(&new)),
        ] {
            if !is_same {
                let message = format!("{what} cannot be changed while the router runs");
                return Err(StartupError::new(message, "keep it, or restart the router").into());
            }
        }
        new.interfaces = numbered(&old.interfaces, new.interfaces);
        let file = read(&new)?;
        let changes = differences(old, &new);
        let answer = orders.ask(|to| RouterCommand::Replace(Box::new(new.clone()), file, to));
        let changed =
            answer.ok_or_else(|| StartupError::new("forwarding has ended", "restart the router"))??;
        let routes = match changed {
            0 => None,
            1 => Some("1 route or label changed".to_owned()),
            count => Some(format!("{count} routes and labels changed")),
        };
        Ok((new, changes.into_iter().chain(routes).collect()))
    }
}

/// Returns the settings of RSVP-TE that cannot be changed.
fn without_tunnels(router: &RouterConfig) -> Option<RsvpSettings> {
    router.rsvp.clone().map(|settings| RsvpSettings { tunnels: Vec::new(), ..settings })
}

/// Reads the file of routes.
pub(super) fn read(router: &RouterConfig) -> Result<RankedRoutes, StartupError> {
    let Some(path) = &router.routes else { return Ok(RankedRoutes::default()) };
    let wrong = |why: &dyn fmt::Display| {
        StartupError::new(format!("{}: {why}", path.display()), "docs/router.md describes the format")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    // A number without an interface gets a name that no route can contain.
    let name = |interface: &InterfaceConfig| match interface.name.as_str() {
        "" => " ".to_owned(),
        name => name.to_owned(),
    };
    let interfaces: Vec<String> = router.interfaces.iter().map(name).collect();
    let tables: Vec<String> = router.tables.iter().map(|table| table.name.clone()).collect();
    let changes = file::read(&text, file::RouteFileNames { interfaces: &interfaces, tables: &tables });
    changes.map(RankedRoutes::of).map_err(|error| wrong(&error))
}

/// Assigns interfaces the numbers they had. A removed interface is replaced by a new one, or by one without a
/// name, which stands for none.
fn numbered(old: &[InterfaceConfig], new: Vec<InterfaceConfig>) -> Vec<InterfaceConfig> {
    let (mut known, fresh): (Vec<InterfaceConfig>, Vec<InterfaceConfig>) =
        new.into_iter().partition(|one| old.iter().any(|before| before.name == one.name));
    let mut fresh = fresh.into_iter();
    let mut numbered: Vec<InterfaceConfig> = old
        .iter()
        .map(|before| match known.iter().position(|one| one.name == before.name) {
            Some(place) if !before.name.is_empty() => known.swap_remove(place),
            _ => fresh.next().unwrap_or_else(vacant),
        })
        .collect();
    numbered.extend(fresh);
    numbered
}

fn vacant() -> InterfaceConfig {
    InterfaceConfig::new(String::new(), 0)
}

/// Returns a description of each change.
fn differences(old: &RouterConfig, new: &RouterConfig) -> Vec<String> {
    let interfaces = |router: &RouterConfig| -> Vec<InterfaceConfig> {
        router.interfaces.iter().filter(|interface| !interface.name.is_empty()).cloned().collect()
    };
    let tunnels = |router: &RouterConfig| -> Vec<RsvpTunnelSettings> {
        router.rsvp.as_ref().map_or_else(Vec::new, |rsvp| rsvp.tunnels.clone())
    };
    let mut changes = named_differences("interface", &interfaces(old), &interfaces(new), |one| &one.name);
    for (before, after) in old.tables.iter().zip(&new.tables) {
        if before != after {
            changes.push(format!("VPN {} changed", after.name));
        }
    }
    changes.extend(named_differences("tunnel", &tunnels(old), &tunnels(new), |one| &one.name));
    if old.follow_kernel != new.follow_kernel {
        changes.push("follow_kernel changed".into());
    }
    changes
}

/// Returns a description of each change of items with names.
fn named_differences<T: PartialEq>(
    what: &str,
    before: &[T],
    after: &[T],
    name: impl Fn(&T) -> &str,
) -> Vec<String> {
    let find = |all: &[T], wanted: &T| all.iter().position(|one| name(one) == name(wanted));
    let removed = before.iter().filter(|one| find(after, one).is_none()).map(|one| (one, "removed"));
    let others = after.iter().filter_map(|one| match find(before, one) {
        None => Some((one, "added")),
        Some(place) if before[place] != *one => Some((one, "changed")),
        Some(_) => None,
    });
    removed.chain(others).map(|(one, change)| format!("{what} {} {change}", name(one))).collect()
}

impl RouterForwardingLoop {
    /// Applies a checked configuration and the routes of its file. Returns the number of routes and labels of
    /// the file that changed.
    pub(super) fn replace(
        &mut self,
        router: RouterConfig,
        file: RankedRoutes,
    ) -> Result<usize, StartupError> {
        let before = |number: usize| self.router.interfaces.get(number);
        let named = router.interfaces.iter().enumerate().filter(|(_, interface)| !interface.name.is_empty());
        let is_new = |(number, interface): &(usize, &InterfaceConfig)| {
            before(*number).is_none_or(|before| before.name != interface.name)
        };
        let fresh: Vec<(usize, String)> =
            named.filter(is_new).map(|(number, interface)| (number, interface.name.clone())).collect();
        let seen = self
            .machine
            .interface_states(&router.interfaces)
            .map_err(|error| super::host::kernel_error(&error))?;
        let mut opened = Vec::with_capacity(fresh.len());
        for (number, name) in fresh {
            let seen = seen[number].clone().ok_or_else(|| no_interface(&name))?;
            opened.push((number, seen, self.machine.open(&name)?));
        }
        // From here on nothing can fail.
        let old = std::mem::replace(&mut self.router, router);
        let mut changes: Vec<SourceKey> = self.file.replace(file).iter().map(SourceKey::from).collect();
        let changed = changes.len();
        for (number, before) in old.interfaces.iter().enumerate() {
            if !before.name.is_empty() && self.router.interfaces[number].name != before.name {
                self.close(number as u32);
                self.restore(&before.name);
            }
        }
        let renumbered = !opened.is_empty() || old.interfaces.len() != self.router.interfaces.len();
        for (number, seen, port) in opened {
            self.open(number as u32, seen, port);
        }
        for number in 0..old.interfaces.len() {
            if old.interfaces[number] != self.router.interfaces[number] {
                self.configure(number as u32);
            }
            if old.interfaces[number].shaping != self.router.interfaces[number].shaping {
                self.shape(number as u32);
            }
        }
        if let Err(error) = self.open_delivery() {
            (self.log)(Level::Alarm, &error.to_string());
        }
        if renumbered || old.tables != self.router.tables || old.interfaces != self.router.interfaces {
            let interfaces = std::mem::take(&mut self.names.interfaces);
            self.names = self.machine.names(&self.router);
            self.names.interfaces = interfaces;
            match self.load() {
                Ok(news) => self.take(news),
                Err(error) => (self.log)(Level::Alarm, &error.to_string()),
            }
        }
        if old.follow_kernel != self.router.follow_kernel {
            changes.extend(self.kernel.ranked().keys());
        }
        if let (Some(rsvp), Some(settings)) = (&mut self.rsvp, &self.router.rsvp) {
            changes.extend(rsvp.set_tunnels(&settings.tunnels));
        }
        changes.into_iter().for_each(|key| self.apply(key));
        self.set_backups();
        memory::release_unused();
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(names: &[&str]) -> Vec<InterfaceConfig> {
        names.iter().map(|name| InterfaceConfig { name: (*name).into(), ..vacant() }).collect()
    }

    #[test]
    fn interfaces_keep_their_numbers() {
        let names = |old: &[&str], new: &[&str]| -> Vec<String> {
            numbered(&interfaces(old), interfaces(new)).into_iter().map(|one| one.name).collect()
        };
        assert_eq!(names(&["a", "b"], &["b", "a"]), ["a", "b"]);
        assert_eq!(names(&["a", "b"], &["c", "b", "a"]), ["a", "b", "c"]);
        assert_eq!(names(&["a", "b", "c"], &["c"]), ["", "", "c"]);
        assert_eq!(names(&["", "", "c"], &["d", "c"]), ["d", "", "c"]);
        assert_eq!(names(&["a"], &["b", "c"]), ["b", "c"]);
    }

    #[test]
    fn differences_are_named() {
        let router = |text: &str| {
            let text = format!("[router]\n{text}\n[vpn.red]\ninterfaces = [\"r\"]\n");
            router::parse("router.toml", &text).unwrap()
        };
        let old = router("interfaces = [\"a\", \"b\"]");
        let new = router("interfaces = [\"c\", \"b\"]\nmpls = [\"b\"]\nfollow_kernel = false");
        let expected =
            ["interface a removed", "interface c added", "interface b changed", "follow_kernel changed"];
        assert_eq!(differences(&old, &new), expected);
        assert!(differences(&old, &old).is_empty());
    }
}
