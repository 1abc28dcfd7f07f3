//! Temporary changes of the settings of a namespace: sysctl(8), and rules of IPv6 routing.

use super::{Namespace, Netlink};
use std::io;

/// Prefix of the names of rules of [`TemporarySettings::drop_ipv6_transit`], before the name of the link.
const RULE: &str = "ip -6 rule iif ";

/// Changed settings with their previous values, which are restored on drop.
#[derive(Debug)]
pub struct TemporarySettings {
    namespace: Namespace,
    before: Vec<(String, String)>,
}

impl TemporarySettings {
    /// Starts without changes.
    pub fn new(namespace: Namespace) -> TemporarySettings {
        TemporarySettings::resume(namespace, Vec::new())
    }

    /// Resumes changes of a process that could not restore them, by names and previous values.
    pub fn resume(namespace: Namespace, before: Vec<(String, String)>) -> TemporarySettings {
        TemporarySettings { namespace, before }
    }

    /// Changes a setting, given by its path below /proc/sys. Ignores a setting that this kernel does not have.
    pub fn set(&mut self, name: &str, value: &str) -> io::Result<()> {
        let before = match self.namespace.sysctl_value(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            before => before?,
        };
        self.namespace.sysctl(name, value)?;
        if !self.before.iter().any(|(changed, _)| changed == name) {
            self.before.push((name.into(), before));
        }
        Ok(())
    }

    /// Makes the kernel drop IPv6 packets from a link that are not for this host.
    pub fn drop_ipv6_transit(&mut self, link: &str) -> io::Result<()> {
        Netlink::open(&self.namespace)
            .and_then(|mut netlink| netlink.drop_ipv6_transit(link))
            .map_err(|error| error.source)?;
        let name = ipv6_transit_rule(link);
        if !self.before.iter().any(|(changed, _)| *changed == name) {
            self.before.push((name, String::new()));
        }
        Ok(())
    }

    /// Makes the changes permanent.
    pub fn make_permanent(&mut self) {
        self.before.clear();
    }

    /// Returns the changed settings and their previous values.
    pub fn previous_values(&self) -> &[(String, String)] {
        &self.before
    }

    /// Restores the selected settings, last change first, and returns the names of those that still exist.
    pub fn restore(&mut self, is_selected: impl Fn(&str) -> bool) -> Vec<String> {
        let (selected, others) = self.before.drain(..).partition(|(name, _)| is_selected(name));
        self.before = others;
        let selected: Vec<(String, String)> = selected;
        // An interface that is gone has no settings.
        let restored = selected.into_iter().rev().filter(|(name, value)| match name.strip_prefix(RULE) {
            Some(link) => Netlink::open(&self.namespace)
                .and_then(|mut netlink| netlink.permit_ipv6_transit(link))
                .is_ok(),
            None => self.namespace.sysctl(name, value).is_ok(),
        });
        restored.map(|(name, _)| name).collect()
    }
}

/// Returns the name of the rule that drops IPv6 packets from a link.
pub fn ipv6_transit_rule(link: &str) -> String {
    format!("{RULE}{link}")
}

impl Drop for TemporarySettings {
    fn drop(&mut self) {
        self.restore(|_| true);
    }
}
