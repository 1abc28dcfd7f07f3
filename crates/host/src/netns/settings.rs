//! Settings of a namespace (sysctl(8)) that are changed for a while.

use super::Namespace;
use std::io;

/// What was changed, and how it was before. Dropped, it is put back.
#[derive(Debug)]
pub struct Settings {
    namespace: Namespace,
    before: Vec<(String, String)>,
}

impl Settings {
    /// Nothing is changed yet.
    pub fn of(namespace: Namespace) -> Settings {
        Settings::changed_before(namespace, Vec::new())
    }

    /// These were changed by somebody who could not put them back: names, and how they were.
    pub fn changed_before(namespace: Namespace, before: Vec<(String, String)>) -> Settings {
        Settings { namespace, before }
    }

    /// Changes one, by its path below /proc/sys. One that this kernel does not have needs no change.
    pub fn set(&mut self, name: &str, value: &str) -> io::Result<()> {
        let before = match self.namespace.sysctl_value(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            before => before?,
        };
        self.namespace.sysctl(name, value)?;
        if !self.before.iter().any(|(known, _)| known == name) {
            self.before.push((name.into(), before));
        }
        Ok(())
    }

    /// Leaves them as they are, for good.
    pub fn keep(&mut self) {
        self.before.clear();
    }

    /// What is changed at present, and how it was before.
    pub fn before(&self) -> &[(String, String)] {
        &self.before
    }

    /// Puts those back that are meant, those that were changed last first; the names of those that are still
    /// there.
    pub fn put_back(&mut self, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let (meant, others) = self.before.drain(..).partition(|(name, _)| is_meant(name));
        self.before = others;
        let meant: Vec<(String, String)> = meant;
        // An interface that is gone has none any more.
        let put_back =
            meant.into_iter().rev().filter(|(name, value)| self.namespace.sysctl(name, value).is_ok());
        put_back.map(|(name, _)| name).collect()
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        self.put_back(|_| true);
    }
}
