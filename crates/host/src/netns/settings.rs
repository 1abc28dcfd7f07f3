//! Temporary changes of the settings (sysctl(8)) of a namespace.

use super::Namespace;
use std::io;

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
        let restored =
            selected.into_iter().rev().filter(|(name, value)| self.namespace.sysctl(name, value).is_ok());
        restored.map(|(name, _)| name).collect()
    }
}

impl Drop for TemporarySettings {
    fn drop(&mut self) {
        self.restore(|_| true);
    }
}
