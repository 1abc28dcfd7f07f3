//! Frame filters of ports, as classic BPF programs (socket(7) of Linux, bpf(4) of the BSDs). Core interfaces
//! receive only tunneled packets, since all other frames there belong to the kernel. With several cores, each
//! port receives only frames of VPNs that its core forwards. A filter needs no privilege beyond that of the
//! port.

use netstage_wire::ethernet::ethertype;
use netstage_wire::mpls::{self, LabelValue};
use netstage_wire::mpls_in_udp;
use socket2::SockFilter;

/// Filter program that accepts or rejects a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterProgram(Vec<BpfInstruction>);

/// BPF instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BpfInstruction {
    code: u16,
    /// Jump offsets if the condition is true and if it is false.
    jumps: [u8; 2],
    value: u32,
}

impl FilterProgram {
    /// Returns the program in the kernel's format.
    pub fn filter(&self) -> Vec<SockFilter> {
        let step =
            |step: &BpfInstruction| SockFilter::new(step.code, step.jumps[0], step.jumps[1], step.value);
        self.0.iter().map(step).collect()
    }
}

/// Maximum number of instructions (BPF_MAXINSNS).
const MAX_INSTRUCTIONS: usize = 4096;
/// Label stack entries examined: tunnel, VPN, channel, and one spare.
const DEPTH: usize = 4;
/// Represents frames without a VLAN tag among VLAN identifiers.
pub(super) const UNTAGGED: u32 = 1 << 12;

/// Partition of label or VLAN numbers among cores. Each range extends from its first number to the start of
/// the next range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumberPartition {
    /// Core that owns the numbers before the first range.
    first: usize,
    pieces: Vec<(u32, usize)>,
}

/// Error: the numbers of one core form too many ranges for a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyRanges {
    /// Number of ranges.
    pub pieces: usize,
}

impl NumberPartition {
    /// Creates a partition from numbers and their cores. An unassigned number belongs to the core of the next
    /// lower one, so that adjacent numbers of one core form one range.
    pub fn new(first: usize, mut owners: Vec<(u32, usize)>) -> NumberPartition {
        owners.sort_unstable();
        let mut last = first;
        owners.retain(|(_, core)| std::mem::replace(&mut last, *core) != *core);
        NumberPartition { first, pieces: owners }
    }

    /// Returns whether `core` owns the numbers below the first boundary, and the boundaries at which its
    /// ownership changes.
    fn changes(&self, core: usize) -> (bool, Vec<u32>) {
        let before = self.first == core;
        let mut has = before;
        let changes = self.pieces.iter().filter(|(_, owner)| {
            let had = std::mem::replace(&mut has, *owner == core);
            had != has
        });
        (before, changes.map(|(number, _)| *number).collect())
    }

    /// Completes a program: accepts the frame if `core` owns the number in the accumulator.
    fn end(&self, core: usize, mut program: Vec<BpfInstruction>) -> Result<FilterProgram, TooManyRanges> {
        let (before, changes) = self.changes(core);
        search(before, &changes, &mut program);
        if program.len() > MAX_INSTRUCTIONS {
            return Err(TooManyRanges { pieces: changes.len().div_ceil(2) });
        }
        Ok(FilterProgram(program))
    }
}

/// Appends a binary search: the result is `before` below the first boundary, and flips at each.
fn search(before: bool, changes: &[u32], program: &mut Vec<BpfInstruction>) {
    let middle = changes.len() / 2;
    let Some(number) = changes.get(middle) else {
        return program.push(result(before));
    };
    // A conditional jump reaches 255 instructions; an unconditional jump reaches all.
    program.push(step(JUMP_AT_LEAST, 1, 0, *number));
    let jump = program.len();
    program.push(step(JUMP, 0, 0, 0));
    search(before ^ middle.is_multiple_of(2), &changes[middle + 1..], program);
    let below = program.len() - jump - 1;
    program[jump] = step(JUMP, 0, 0, below as u32);
    search(before, &changes[..middle], program);
}

fn step(code: u16, then: u8, otherwise: u8, value: u32) -> BpfInstruction {
    BpfInstruction { code, jumps: [then, otherwise], value }
}

fn result(accept: bool) -> BpfInstruction {
    step(RETURN, 0, 0, if accept { u32::MAX } else { 0 })
}

/// Returns a filter that accepts MPLS, MPLS-in-UDP, and UDP to the port for encrypted packets, if there is one.
pub(super) fn tunnels(encryption_port: Option<u16>) -> FilterProgram {
    let mut program = encryption_port.map_or(Vec::new(), udp_to);
    program.extend(label_stack());
    program.push(result(true));
    FilterProgram(program)
}

/// Returns a filter that accepts tunneled packets with a VPN label owned by `core`. A packet without a VPN
/// label goes to exactly one core: the owner of its tunnel label, or the first core.
pub(super) fn labels(division: &NumberPartition, core: usize) -> Result<FilterProgram, TooManyRanges> {
    let mut program = label_stack();
    // The VPN label is the last one other than the GAL.
    program.push(step(LOAD, 0, 0, 0));
    program.push(step(STORE, 0, 0, FOUND));
    const EACH: usize = 7;
    for entry in 0..DEPTH {
        let to_end = |from: usize| (EACH * (DEPTH - entry) - from - 1) as u8;
        program.extend([
            step(LOAD_WORD_INDEXED, 0, 0, (entry * mpls::ENTRY) as u32),
            step(STORE, 0, 0, ENTRY),
            step(SHIFT_RIGHT, 0, 0, 12),
            step(JUMP_EQUAL, to_end(3), 0, LabelValue::GENERIC_CHANNEL.number()),
            step(STORE, 0, 0, FOUND),
            step(LOAD_MEMORY, 0, 0, ENTRY),
            step(JUMP_ANY_SET, to_end(6), 0, 1 << 8),
        ]);
    }
    program.push(step(LOAD_MEMORY, 0, 0, FOUND));
    division.end(core, program)
}

/// Returns a filter that accepts frames with a VLAN owned by `core`; the outer VLAN if there are two.
pub(super) fn vlans(division: &NumberPartition, core: usize) -> Result<FilterProgram, TooManyRanges> {
    let program = vec![
        step(LOAD_WORD, 0, 0, VLAN_TAG_PRESENT),
        step(JUMP_EQUAL, 3, 0, 0),
        step(LOAD_WORD, 0, 0, VLAN_TAG),
        step(AND, 0, 0, 0xfff),
        step(JUMP, 0, 0, 1),
        step(LOAD, 0, 0, UNTAGGED),
    ];
    division.end(core, program)
}

/// Accepts UDP to this port, and leaves all other frames to the instructions that follow.
fn udp_to(port: u16) -> Vec<BpfInstruction> {
    vec![
        step(LOAD_HALF, 0, 0, 12),
        step(JUMP_EQUAL, 0, 7, ethertype::IPV4.into()),
        // IPv4: UDP, not a later fragment.
        step(LOAD_BYTE, 0, 0, 23),
        step(JUMP_EQUAL, 0, 11, 17),
        step(LOAD_HALF, 0, 0, 20),
        step(JUMP_ANY_SET, 9, 0, 0x1fff),
        step(INDEX_HEADER_LENGTH, 0, 0, 14),
        step(LOAD_HALF_INDEXED, 0, 0, 16),
        step(JUMP, 0, 0, 4),
        // IPv6: UDP without extension headers.
        step(JUMP_EQUAL, 0, 5, ethertype::IPV6.into()),
        step(LOAD_BYTE, 0, 0, 20),
        step(JUMP_EQUAL, 0, 3, 17),
        step(LOAD_HALF, 0, 0, 56),
        step(JUMP_EQUAL, 0, 1, port.into()),
        result(true),
    ]
}

/// Rejects everything except tunneled packets and leaves the offset of the label stack in the index register.
fn label_stack() -> Vec<BpfInstruction> {
    let port = u32::from(mpls_in_udp::PORT);
    vec![
        step(LOAD_HALF, 0, 0, 12),
        step(JUMP_EQUAL, 0, 2, ethertype::MPLS.into()),
        step(LOAD_INDEX, 0, 0, 14),
        step(JUMP, 0, 0, 20),
        step(JUMP_EQUAL, 0, 9, ethertype::IPV4.into()),
        // IPv4: UDP to the port, not a later fragment.
        step(LOAD_BYTE, 0, 0, 23),
        step(JUMP_EQUAL, 0, 16, 17),
        step(LOAD_HALF, 0, 0, 20),
        step(JUMP_ANY_SET, 14, 0, 0x1fff),
        step(INDEX_HEADER_LENGTH, 0, 0, 14),
        step(LOAD_HALF_INDEXED, 0, 0, 16),
        step(JUMP_EQUAL, 0, 11, port),
        step(FROM_INDEX, 0, 0, 0),
        step(JUMP, 0, 0, 6),
        // IPv6: UDP to the port, without extension headers.
        step(JUMP_EQUAL, 0, 8, ethertype::IPV6.into()),
        step(LOAD_BYTE, 0, 0, 20),
        step(JUMP_EQUAL, 0, 6, 17),
        step(LOAD_HALF, 0, 0, 56),
        step(JUMP_EQUAL, 0, 4, port),
        step(LOAD, 0, 0, 40),
        // Skips the Ethernet and UDP headers in addition to the IP header.
        step(ADD, 0, 0, 14 + 8),
        step(TO_INDEX, 0, 0, 0),
        step(JUMP, 0, 0, 1),
        result(false),
    ]
}

// Instructions of linux/bpf_common.h, ancillary data offsets of linux/filter.h, and scratch memory words.
const LOAD: u16 = 0x00;
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_INDEXED: u16 = 0x40;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_MEMORY: u16 = 0x60;
const LOAD_INDEX: u16 = 0x01;
const INDEX_HEADER_LENGTH: u16 = 0xb1;
const STORE: u16 = 0x02;
const ADD: u16 = 0x04;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const TO_INDEX: u16 = 0x07;
const FROM_INDEX: u16 = 0x87;
const VLAN_TAG: u32 = 0xffff_f000 + 44;
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
const FOUND: u32 = 0;
const ENTRY: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;
    use std::collections::BTreeMap;

    /// Interprets a program like the kernel.
    fn accepts(program: &FilterProgram, frame: &[u8], vlan: Option<u32>) -> bool {
        let (mut at, mut a, mut x, mut memory) = (0, 0u32, 0u32, [0u32; 16]);
        let load = |from: usize, length: usize| {
            let bytes = frame.get(from..from + length)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        loop {
            let step = program.0[at];
            at += 1;
            let k = step.value as usize;
            let far = |is: bool| usize::from(step.jumps[usize::from(!is)]);
            let loaded = match step.code {
                LOAD => Some(step.value),
                LOAD_WORD if step.value == VLAN_TAG => Some(vlan.unwrap_or_default()),
                LOAD_WORD if step.value == VLAN_TAG_PRESENT => Some(vlan.is_some().into()),
                LOAD_HALF => load(k, 2),
                LOAD_BYTE => load(k, 1),
                LOAD_WORD_INDEXED => load(x as usize + k, 4),
                LOAD_HALF_INDEXED => load(x as usize + k, 2),
                LOAD_MEMORY => Some(memory[k]),
                ADD => Some(a.wrapping_add(step.value)),
                AND => Some(a & step.value),
                SHIFT_RIGHT => Some(a >> step.value),
                FROM_INDEX => Some(x),
                other => {
                    match other {
                        LOAD_INDEX => x = step.value,
                        INDEX_HEADER_LENGTH => x = 4 * u32::from(frame[k] & 0xf),
                        TO_INDEX => x = a,
                        STORE => memory[k] = a,
                        JUMP => at += k,
                        JUMP_EQUAL => at += far(a == step.value),
                        JUMP_AT_LEAST => at += far(a >= step.value),
                        JUMP_ANY_SET => at += far(a & step.value != 0),
                        RETURN => return step.value != 0,
                        _ => panic!("unknown instruction: {other:#x}"),
                    }
                    Some(a)
                }
            };
            match loaded {
                Some(value) => a = value,
                // The kernel rejects a frame on access beyond its end.
                None => return false,
            }
        }
    }

    fn stack(labels: &[u32]) -> Vec<u8> {
        let entry = |(index, label): (usize, &u32)| {
            let bottom = u32::from(index + 1 == labels.len()) << 8;
            (label << 12 | bottom | 64).to_be_bytes()
        };
        labels.iter().enumerate().flat_map(entry).collect()
    }

    /// Returns frames with a label stack in each encapsulation.
    fn frames(labels: &[u32]) -> [Vec<u8>; 4] {
        let stack = stack(labels);
        let on = |kind: u16, header: &[u8]| {
            let mut frame = vec![0; 12];
            frame.extend(kind.to_be_bytes());
            frame.extend(header);
            frame.extend(&stack);
            frame.resize(frame.len() + 40, 0xa5);
            frame
        };
        let udp = [0xc0, 0, 0x19, 0xeb, 0, 0, 0, 0];
        let v4 = |words: u8| {
            let mut header = vec![0; usize::from(words) * 4];
            (header[0], header[9]) = (0x40 | words, 17);
            header.extend(udp);
            on(ethertype::IPV4, &header)
        };
        let mut v6 = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        v6.resize(40, 0);
        v6.extend(udp);
        [on(ethertype::MPLS, &[]), v4(5), v4(7), on(ethertype::IPV6, &v6)]
    }

    #[test]
    fn only_tunneled_packets_are_accepted() {
        let program = tunnels(None);
        let all = frames(&[1000]);
        assert!(all.iter().all(|frame| accepts(&program, frame, None)));
        let [_, udp, ..] = all;
        let changed = |at: usize, byte: u8| {
            let mut frame = udp.clone();
            frame[at] = byte;
            accepts(&program, &frame, None)
        };
        // Other EtherType, TCP, later fragment, other port.
        assert!(!changed(13, 6) && !changed(23, 6) && !changed(21, 1) && !changed(37, 0xea));
        assert!(!accepts(&program, &udp[..20], None));
    }

    #[test]
    fn encrypted_packets_are_accepted_beside_tunneled_ones() {
        let all = frames(&[1000]);
        for (port, accepted) in [(51_820_u16, true), (6635, true), (6636, false)] {
            for (mut frame, at) in all[1..].iter().cloned().zip([36, 44, 56]) {
                frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
                assert_eq!(accepts(&tunnels(Some(51_820)), &frame, None), accepted, "{port} {at}");
            }
        }
        assert!(accepts(&tunnels(Some(51_820)), &all[0], None));
    }

    #[test]
    fn each_label_belongs_to_exactly_one_core() {
        let mut random = RandomStream::new(7, "labels");
        for count in [0, 1, 5, 300] {
            let owner = |random: &mut RandomStream| (random.uniform() * 3.0) as usize;
            let owners: BTreeMap<u32, usize> =
                (0..count).map(|_| ((random.uniform() * 2e3) as u32 + 16, owner(&mut random))).collect();
            let division = NumberPartition::new(0, owners.clone().into_iter().collect());
            let programs: Vec<_> = (0..3).map(|core| labels(&division, core).unwrap()).collect();
            let takers = |frame: &[u8]| -> Vec<usize> {
                (0..3).filter(|core| accepts(&programs[*core], frame, None)).collect()
            };
            for label in (16..2_100).step_by(if count == 5 { 1 } else { 7 }).chain([1_048_575]) {
                let below = owners.range(..=label).next_back().map_or(0, |(_, core)| *core);
                for stack in [&[label][..], &[label, 13], &[0, label], &[777_777, label, 13]] {
                    for frame in frames(stack) {
                        assert_eq!(takers(&frame), [below], "{stack:?}");
                    }
                }
            }
            // Messages of the path itself, and invalid stacks.
            assert_eq!(takers(&frames(&[13])[1]), [0]);
            assert_eq!(takers(&frames(&[17, 18, 19, 20, 21, 22])[0]).len(), 1);
            assert_eq!(takers(&frames(&[20])[0][..16]).len(), 0);
        }
    }

    #[test]
    fn frames_are_selected_by_vlan() {
        let division = NumberPartition::new(1, vec![(10, 1), (11, 2), (12, 2), (20, 1), (UNTAGGED, 2)]);
        assert_eq!(division.pieces, [(11, 2), (20, 1), (UNTAGGED, 2)]);
        let taker = |vlan| -> Vec<usize> {
            (0..3).filter(|core| accepts(&vlans(&division, *core).unwrap(), &[0; 60], vlan)).collect()
        };
        // Priority bits are ignored.
        for (vlan, core) in [(Some(10), 1), (Some(0xe00b), 2), (Some(19), 2), (Some(20), 1), (None, 2)] {
            assert_eq!(taker(vlan), [core], "{vlan:?}");
        }
    }

    #[test]
    fn the_kernel_accepts_the_programs() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let scattered = NumberPartition::new(0, (0..2_000).map(|n| (16 + n, n as usize / 2 % 2)).collect());
        for program in [
            tunnels(None),
            tunnels(Some(51_820)),
            labels(&scattered, 0).unwrap(),
            vlans(&scattered, 1).unwrap(),
        ] {
            socket2::SockRef::from(&socket).attach_filter(&program.filter()).unwrap();
        }
    }

    #[test]
    fn too_many_ranges_are_rejected() {
        let scattered =
            |count| NumberPartition::new(0, (0..count).map(|n| (16 + n, n as usize % 2)).collect());
        assert!(labels(&scattered(1_300), 1).is_ok());
        assert_eq!(labels(&scattered(2_000), 1), Err(TooManyRanges { pieces: 1_000 }));
    }
}
