//! The XDP program that redirects the frames of a queue to the port, and its attachment to the interface.
//! Written as instructions (RFC 9669), because it is too small for a compiler.
//!
//! It is detached with its link's descriptor: after kill -9, nothing is left on the interface.

use crate::ports::kernel::bpf_call;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Size in bytes of the arrival timestamp before a frame, in monotonic nanoseconds.
pub(super) const STAMP: usize = 8;

// Commands, types and flags of linux/bpf.h and linux/if_link.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Attached program, detached on drop.
#[derive(Debug)]
pub(super) struct XdpRedirect {
    _link: OwnedFd,
}

impl XdpRedirect {
    /// Redirects frames received on queue 0 of the interface to `socket`. Runs in the driver if supported,
    /// otherwise in the kernel's generic path. The interface index is that of the calling thread's namespace.
    pub(super) fn attach(index: u32, socket: BorrowedFd<'_>) -> io::Result<XdpRedirect> {
        let map =
            bpf(MAP_CREATE, &mut MapCreate { kind: MAP_TYPE_XSKMAP, key_len: 4, value_len: 4, entries: 1 })?;
        let (queue, value) = (0_u32, socket.as_raw_fd());
        let element = &mut MapElement {
            map: map.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        // SAFETY: key and value have the lengths of the map and outlive the call.
        unsafe { bpf_call(MAP_UPDATE_ELEM, element)? };
        let program = load(&instructions(map.as_raw_fd()))?;
        let attach = |flags| {
            let (program, target) = (program.as_raw_fd() as u32, index);
            bpf(LINK_CREATE, &mut LinkCreate { program, target, attach: ATTACH_TYPE_XDP, flags })
        };
        let link = attach(XDP_FLAGS_DRV_MODE).or_else(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => Err(error),
            _ => attach(XDP_FLAGS_SKB_MODE),
        })?;
        Ok(XdpRedirect { _link: link })
    }
}

/// Instruction: opcode, registers, offset, immediate.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Timestamps the frame if the driver leaves room for it, then redirects it; frames of a queue without a port
/// stay in the kernel.
fn instructions(map: libc::c_int) -> Vec<Instruction> {
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT_MAP: i32 = 51;
    const XDP_ADJUST_META: i32 = 54;
    // Offsets in struct xdp_md.
    const DATA: i16 = 0;
    const DATA_META: i16 = 8;
    const RX_QUEUE_INDEX: i16 = 16;
    let op = |code, destination: u8, source: u8, offset, immediate| Instruction {
        code,
        registers: destination | source << 4,
        offset,
        immediate,
    };
    let copy = |to, from| op(0xbf, to, from, 0, 0);
    let set = |to, value| op(0xb7, to, 0, 0, value);
    let load_word = |to, from, offset| op(0x61, to, from, offset, 0);
    let call = |function| op(0x85, 0, 0, 0, function);
    vec![
        copy(6, 1),
        set(2, -(STAMP as i32)),
        call(XDP_ADJUST_META),
        op(0x55, 0, 0, 7, 0), // if r0 != 0: no room, skip the stamp
        call(KTIME_GET_NS),
        load_word(2, 6, DATA_META),
        load_word(3, 6, DATA),
        copy(4, 2),
        op(0x07, 4, 0, 0, STAMP as i32), // r4 += STAMP
        op(0x2d, 4, 3, 1, 0),            // if r4 > r3: bounds check required by the verifier
        op(0x7b, 2, 0, 0, 0),            // *(u64 *)r2 = r0
        load_word(2, 6, RX_QUEUE_INDEX),
        op(0x18, 1, 1, 0, map), // r1 = map, in two instructions
        op(0, 0, 0, 0, 0),
        set(3, XDP_PASS),
        call(REDIRECT_MAP),
        op(0x95, 0, 0, 0, 0), // exit
    ]
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Dual BSD/GPL";
    let mut request = ProgramLoad {
        kind: PROG_TYPE_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        ..ProgramLoad::default()
    };
    // SAFETY: instructions and license outlive the call.
    unsafe { bpf_descriptor(PROG_LOAD, &mut request) }
}

// Members of union bpf_attr, each up to the last field used.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
}

/// Requests without pointers.
trait Flat {}
impl Flat for MapCreate {}
impl Flat for LinkCreate {}

fn bpf<T: Flat>(command: libc::c_long, request: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the request holds no pointers.
    unsafe { bpf_descriptor(command, request) }
}

/// # Safety
/// Pointers in `request` must be valid, and `command` must return a new descriptor.
unsafe fn bpf_descriptor<T>(command: libc::c_long, request: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as promised by the caller.
    let descriptor = unsafe { bpf_call(command, request)? };
    // SAFETY: the kernel has just created the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
