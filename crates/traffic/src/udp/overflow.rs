//! Packets that found no room in a socket. A socket's own count of drops (SO_RXQ_OVFL) has
//! those with a wrong checksum in it, too, which the path damaged: they are its loss.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

/// The kernel's count of UDP packets without room, over all sockets of a network namespace.
#[derive(Debug)]
pub struct Overflow {
    file: File,
    ipv6: bool,
    before: u64,
}

impl Overflow {
    /// Counts from now on, in the namespace of the calling thread.
    pub fn watch(ipv6: bool) -> io::Result<Overflow> {
        let name = if ipv6 { "snmp6" } else { "snmp" };
        // An open file stays that of its namespace, whoever reads it.
        let file = File::open(format!("/proc/thread-self/net/{name}"))?;
        let mut overflow = Overflow { file, ipv6, before: 0 };
        overflow.before = overflow.read()?;
        Ok(overflow)
    }

    /// Packets without room since then.
    pub fn count(&mut self) -> io::Result<u64> {
        Ok(self.read()?.saturating_sub(self.before))
    }

    fn read(&mut self) -> io::Result<u64> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let count = if self.ipv6 { in_snmp6(&text) } else { in_snmp(&text) };
        count.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel counts no UDP packets"))
    }
}

/// Packets that reached a socket and found no room in it: nobody read them in time.
#[derive(Debug)]
pub struct Drops {
    counted: u64,
    overflow: Option<Overflow>,
}

impl Drops {
    /// None yet, for a socket of the calling thread's namespace.
    pub fn watch(ipv6: bool) -> Drops {
        Drops { counted: 0, overflow: Overflow::watch(ipv6).ok() }
    }

    /// The socket's counter, as a packet came with it: of 32 bits, it goes around.
    pub fn note(&mut self, counter: Option<u32>) {
        if let Some(counter) = counter {
            self.counted += u64::from(counter.wrapping_sub(self.counted as u32));
        }
    }

    /// How many. Where nothing in the namespace lacked room, all that the socket dropped was damaged.
    pub fn finish(mut self) -> u64 {
        match self.overflow.as_mut().map(Overflow::count) {
            Some(Ok(most)) => self.counted.min(most),
            _ => self.counted,
        }
    }
}

/// A line of names and a line of values.
fn in_snmp(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let counts = names.split_whitespace().zip(values.split_whitespace());
    sum(counts.filter(|(name, _)| matches!(*name, "RcvbufErrors" | "MemErrors")))
}

/// A line for each count.
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
    fn a_counter_that_goes_around_counts_on() {
        let mut drops = Drops { counted: u64::from(u32::MAX) - 1, overflow: None };
        for counter in [None, Some(u32::MAX), Some(2), None] {
            drops.note(counter);
        }
        assert_eq!(drops.finish(), u64::from(u32::MAX) + 3);
        let damaged = Drops { counted: 7, overflow: Overflow::watch(false).ok() };
        assert_eq!(damaged.finish(), 0);
    }

    #[test]
    fn only_packets_without_room_count() {
        let snmp = "Tcp: InErrs\nTcp: 9\n\
                    Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors MemErrors\n\
                    Udp: 52712 8236 45 53206 4 1 40 1\nUdpLite: RcvbufErrors\nUdpLite: 7\n";
        assert_eq!(in_snmp(snmp), Some(5));
        assert_eq!(in_snmp6("Udp6RcvbufErrors  \t3\nUdp6InCsumErrors\t40\nUdp6MemErrors\t2\n"), Some(5));
        assert_eq!(in_snmp("Udp: InDatagrams\nUdp: 5\n"), None);
        assert_eq!(Overflow::watch(false).unwrap().count().unwrap(), 0);
    }
}
