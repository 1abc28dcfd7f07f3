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
        Settings { namespace, before: Vec::new() }
    }

    /// Changes one, by its path below /proc/sys. One that this kernel does not have needs no change.
    pub fn set(&mut self, name: &str, value: &str) -> io::Result<()> {
        let before = match self.namespace.sysctl_value(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            before => before?,
        };
        self.namespace.sysctl(name, value)?;
        self.before.push((name.into(), before));
        Ok(())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (name, value) in self.before.drain(..).rev() {
            // An interface that is gone has none any more.
            let _ = self.namespace.sysctl(&name, &value);
        }
    }
}
