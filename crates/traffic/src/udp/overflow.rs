//! Packets dropped because a socket's buffer was full. A socket's drop counter (SO_RXQ_OVFL) also includes packets with
//! a wrong checksum, which count as lost on the path.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

/// Kernel counter of UDP packets dropped by full buffers, over all sockets of a network namespace.
#[derive(Debug)]
pub struct Overflow {
    file: File,
    ipv6: bool,
    before: u64,
}

impl Overflow {
    /// Starts counting in the namespace of the calling thread.
    pub fn start(ipv6: bool) -> io::Result<Overflow> {
        let name = if ipv6 { "snmp6" } else { "snmp" };
        // The open file remains bound to its namespace.
        let file = File::open(format!("/proc/thread-self/net/{name}"))?;
        let mut overflow = Overflow { file, ipv6, before: 0 };
        overflow.before = overflow.read()?;
        Ok(overflow)
    }

    /// Returns the number of packets dropped since the start.
    pub fn count(&mut self) -> io::Result<u64> {
        Ok(self.read()?.saturating_sub(self.before))
    }

    fn read(&mut self) -> io::Result<u64> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let count = if self.ipv6 { in_snmp6(&text) } else { in_snmp(&text) };
        count.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel has no UDP counters"))
    }
}

/// Packets dropped by a socket because its buffer was full.
#[derive(Debug)]
pub struct Drops {
    counted: u64,
    overflow: Option<Overflow>,
}

impl Drops {
    /// Starts counting for a socket in the namespace of the calling thread.
    pub fn start(ipv6: bool) -> Drops {
        Drops { counted: 0, overflow: Overflow::start(ipv6).ok() }
    }

    /// Updates the count from the socket's counter of 32 bits, which wraps around.
    pub fn update(&mut self, counter: Option<u32>) {
        if let Some(counter) = counter {
            self.counted += u64::from(counter.wrapping_sub(self.counted as u32));
        }
    }

    /// Returns the number of dropped packets. Drops in excess of the namespace's counter were damaged packets.
    pub fn finish(mut self) -> u64 {
        match self.overflow.as_mut().map(Overflow::count) {
            Some(Ok(max)) => self.counted.min(max),
            _ => self.counted,
        }
    }
}

/// Parses the counters of a line of names and a line of values.
fn in_snmp(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let counts = names.split_whitespace().zip(values.split_whitespace());
    sum(counts.filter(|(name, _)| matches!(*name, "RcvbufErrors" | "MemErrors")))
}

/// Parses one line for each counter.
fn in_snmp6(text: &str) -> Option<u64> {
    let counts = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    sum(counts.filter(|(name, _)| matches!(*name, "Udp6RcvbufErrors" | "Udp6MemErrors")))
}

fn sum<'a>(counts: impl Iterator<Item = (&'a str, &'a str)>) -> Option<u64> {
    let values: Vec<u64> = counts.filter_map(|(_, value)| value.trim().parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapping_counter_counts_on() {
        let mut drops = Drops { counted: u64::from(u32::MAX) - 1, overflow: None };
        for counter in [None, Some(u32::MAX), Some(2), None] {
            drops.update(counter);
        }
        assert_eq!(drops.finish(), u64::from(u32::MAX) + 3);
        let damaged = Drops { counted: 7, overflow: Overflow::start(false).ok() };
        assert_eq!(damaged.finish(), 0);
    }

    #[test]
    fn only_packets_dropped_by_full_buffers_count() {
        let snmp = "Tcp: InErrs\nTcp: 9\n\
                    Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors MemErrors\n\
                    Udp: 52712 8236 45 53206 4 1 40 1\nUdpLite: RcvbufErrors\nUdpLite: 7\n";
        assert_eq!(in_snmp(snmp), Some(5));
        assert_eq!(in_snmp6("Udp6RcvbufErrors  \t3\nUdp6InCsumErrors\t40\nUdp6MemErrors\t2\n"), Some(5));
        assert_eq!(in_snmp("Udp: InDatagrams\nUdp: 5\n"), None);
        assert_eq!(Overflow::start(false).unwrap().count().unwrap(), 0);
    }
}
