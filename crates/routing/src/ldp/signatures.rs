//! Counts of TCP segments with missing or wrong MD5 signatures. The kernel drops them silently, so that a
//! peer with a different key only appears not to answer. The kernel's counters of the namespace reveal the
//! cause.

use netstage_host::netns::Namespace;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

/// TCP segments dropped for their MD5 signatures (RFC 2385).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signatures {
    /// Unsigned segments, although a key is configured.
    pub missing: u64,
    /// Signed segments, although no key is configured.
    pub unexpected: u64,
    /// Segments signed with a different key.
    pub wrong: u64,
}

impl Signatures {
    /// Returns the total number of segments.
    pub fn count(self) -> u64 {
        self.missing + self.unexpected + self.wrong
    }

    fn since(self, before: Signatures) -> Signatures {
        Signatures {
            missing: self.missing.saturating_sub(before.missing),
            unexpected: self.unexpected.saturating_sub(before.unexpected),
            wrong: self.wrong.saturating_sub(before.wrong),
        }
    }
}

/// Reader of the kernel's counters of a namespace.
pub(super) struct SignatureCounters {
    file: File,
    before: Signatures,
}

impl SignatureCounters {
    /// Starts to count.
    pub(super) fn new(namespace: &Namespace) -> io::Result<SignatureCounters> {
        // An open file keeps referring to the namespace it was opened in.
        let file = namespace.run(|| File::open("/proc/thread-self/net/netstat")).flatten()?;
        let mut watch = SignatureCounters { file, before: Signatures::default() };
        watch.take();
        Ok(watch)
    }

    /// Returns the segments dropped since the last call.
    pub(super) fn take(&mut self) -> Signatures {
        let mut text = String::new();
        let read = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.read_to_string(&mut text));
        let Ok(_) = read else { return Signatures::default() };
        let now = in_netstat(&text);
        now.since(std::mem::replace(&mut self.before, now))
    }
}

/// Parses the lines of names and values; counters that the kernel lacks are zero.
fn in_netstat(text: &str) -> Signatures {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return Signatures::default() };
    let mut found = Signatures::default();
    for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
        let count = match name {
            "TCPMD5NotFound" => &mut found.missing,
            "TCPMD5Unexpected" => &mut found.unexpected,
            "TCPMD5Failure" => &mut found.wrong,
            _ => continue,
        };
        *count = value.parse().unwrap_or(0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "TcpExt: SyncookiesSent TCPMD5NotFound TCPMD5Unexpected X TCPMD5Failure\n\
                    TcpExt: 1 2 3 4 5\nIpExt: InNoRoutes TCPMD5Failure\nIpExt: 0 9\n";
        assert_eq!(in_netstat(text), Signatures { missing: 2, unexpected: 3, wrong: 5 });
        assert_eq!(in_netstat("IpExt: A\nIpExt: 1\n"), Signatures::default());
    }
}
