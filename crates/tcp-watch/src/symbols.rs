//! Lookup of the kernel functions that determine the cause of a window reduction.

use std::fs;
use std::io;

/// Functions of the kernel's TCP that each call congestion control for a single reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Passes a segment to IP.
    Transmit,
    /// Processes an ACK without a loss.
    TryToOpen,
    /// Processes the ACK of a tail-loss probe.
    ProcessProbeAck,
    /// Starts fast recovery.
    EnterRecovery,
    /// Starts recovery after a timeout.
    EnterLoss,
    /// Retransmits a segment that exceeded the path MTU.
    PathMtu,
}

/// Address range of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    end: u64,
    function: Function,
}

/// Addresses of the functions; empty if the kernel does not disclose them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    extents: Vec<Extent>,
}

impl Symbols {
    /// Reads the addresses of the running kernel, which may be disclosed to root only, or not at all
    /// (kernel.kptr_restrict).
    pub fn of_kernel() -> io::Result<Symbols> {
        Ok(Symbols::read(&fs::read_to_string("/proc/kallsyms")?))
    }

    fn read(text: &str) -> Symbols {
        let mut addresses = Vec::new();
        let mut found = Vec::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Some(address) = u64::from_str_radix(address, 16).ok().filter(|address| *address > 0) else {
                continue;
            };
            if !kind.eq_ignore_ascii_case("t") {
                continue;
            }
            addresses.push(address);
            found.extend(Function::named(name).map(|function| (address, function)));
        }
        addresses.sort_unstable();
        let extent = |(first, function)| {
            let after = addresses.partition_point(|address| *address <= first);
            let end = addresses.get(after).copied().unwrap_or(first + 4096);
            Extent { first, end, function }
        };
        Symbols { extents: found.into_iter().map(extent).collect() }
    }

    /// Returns whether no address is known.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns the innermost known function of a stack. Outer ones may belong to another connection: on a
    /// virtual link, one's transmission and the other's reception share a call stack.
    pub fn innermost(&self, stack: &[u64]) -> Option<Function> {
        stack.iter().find_map(|address| {
            let within = |extent: &&Extent| (extent.first..extent.end).contains(address);
            self.extents.iter().find(within).map(|extent| extent.function)
        })
    }
}

impl Function {
    /// Returns the function of a symbol name; the compiler may have split a function into numbered parts.
    pub(super) fn named(name: &str) -> Option<Function> {
        Some(match name.split('.').next()? {
            "__tcp_transmit_skb" | "tcp_transmit_skb" => Function::Transmit,
            "tcp_try_to_open" => Function::TryToOpen,
            "tcp_process_tlp_ack" => Function::ProcessProbeAck,
            "tcp_enter_recovery" => Function::EnterRecovery,
            "tcp_enter_loss" => Function::EnterLoss,
            "tcp_simple_retransmit" | "tcp_non_congestion_loss_retransmit" => Function::PathMtu,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_preceding_symbol() {
        let text = "ffffffff81000000 T _text\nffffffff82000200 t tcp_try_to_open\n\
            ffffffff82000100 t __tcp_transmit_skb\nffffffff82000180 d data\nffffffff82000300 T tcp_ack\n\
            ffffffff82000400 t tcp_process_tlp_ack.part.0\nnonsense\n";
        let symbols = Symbols::read(text);
        let inside = |stack: &[u64]| symbols.innermost(stack);
        assert_eq!(inside(&[0xffff_ffff_8200_01ff]), Some(Function::Transmit));
        assert_eq!(inside(&[0xffff_ffff_8200_0310, 0xffff_ffff_8200_0200]), Some(Function::TryToOpen));
        let nested = [0xffff_ffff_8200_0250, 0xffff_ffff_8200_0150];
        assert_eq!(inside(&nested), Some(Function::TryToOpen));
        assert_eq!(inside(&[0xffff_ffff_8200_0410]), Some(Function::ProcessProbeAck));
        assert_eq!(inside(&[0, 1]), None);
        // Output for an unprivileged user.
        assert!(Symbols::read("0000000000000000 t tcp_try_to_open\n").is_empty());
    }
}
