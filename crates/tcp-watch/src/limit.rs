//! Limits the windows of connections that run (bpf/limit.bpf.c), and puts them back.
//!
//! The kernel keeps a limit with the socket, so what was before is written down while it lasts: a process that
//! is killed leaves the file ([`super::note`]).

use super::filter::{Filter, Process};
use super::note::{Before, Note, Noted};
use super::reader::Reader;
use super::selection::{Selection, refused, types};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::{CgroupAttachMode, Iter, SockOps};
use aya::{Ebpf, Pod};
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

static OBJECT: &[u8] = include_bytes!("../../../bpf/limit.bpf.o");

/// Bytes of `struct standing`.
const STANDING: usize = 72;

/// What windows are limited to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The congestion window, segments.
    pub cwnd: Option<u32>,
    /// The window that is advertised to the peer, bytes.
    pub window: Option<u32>,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's; of a socket that listens, none in particular.
    pub remote: SocketAddr,
    /// Payload of a full segment.
    pub segment: u32,
    /// The congestion window, segments.
    pub cwnd: u32,
    /// What it is limited to.
    pub cwnd_limit: u32,
    /// The window its peer advertises, bytes.
    pub peer_window: u32,
    /// The window its peer sees, bytes.
    pub window: u32,
    /// What that is limited to.
    pub window_limit: u32,
    /// It waits for connections, which inherit its limits.
    pub listens: bool,
}

/// `struct order`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Order {
    cwnd: u32,
    window: u32,
    is_undo: u32,
    unused: u32,
}

impl From<Limits> for Order {
    fn from(Limits { cwnd, window }: Limits) -> Order {
        Order { cwnd: cwnd.unwrap_or(0), window: window.unwrap_or(0), ..Order::default() }
    }
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for Order {}

/// Limits in force; dropped, all is put back.
pub struct Limiter {
    limits: Limits,
    selection: Selection,
    kernel: Kernel,
    namespaces: Vec<Namespace>,
    note: Note,
}

impl Limiter {
    /// Limits nothing yet. `namespaces` are those in which connections are looked for.
    pub fn new(
        limits: Limits,
        filter: Filter,
        namespaces: Vec<Namespace>,
        folder: &Path,
    ) -> Result<Limiter, Obstacle> {
        let cgroups = filter.cgroups.clone();
        let (ebpf, selection) = Selection::load(OBJECT, &[], filter, &types()?)?;
        let numbers = namespaces.iter().filter_map(|namespace| namespace.number().ok()).collect();
        let note = Note::new(folder, "", numbers)
            .map_err(|error| Obstacle::system(format!("{}", folder.display()), &error))?;
        let mut kernel = Kernel::load(ebpf)?;
        kernel.limit_new(limits, &cgroups)?;
        Ok(Limiter { limits, selection, kernel, namespaces, note })
    }

    /// Limits what is not limited yet; how all of them stand, and the processes of which there is none. Call it
    /// a few times a second: new connections are found by it, and the kernel raises what it advertises with the
    /// receive buffer.
    pub fn apply(&mut self) -> Result<(Vec<Standing>, Vec<Process>), Obstacle> {
        let gone = self.selection.refresh(&mut self.kernel.ebpf);
        let bytes = self.kernel.order(self.limits.into(), &self.namespaces)?;
        let noted: Vec<Noted> = self
            .kernel
            .before()
            .into_iter()
            .map(|(cookie, before)| Noted::Connection(cookie, before))
            .collect();
        self.note.write(noted).map_err(|error| Obstacle::system("limits cannot be kept", &error))?;
        Ok((bytes.chunks_exact(STANDING).filter_map(standing).collect(), gone))
    }

    /// Puts back what was before; how many connections were limited.
    pub fn undo(&mut self) -> Result<usize, Obstacle> {
        let count = self.kernel.before().len();
        self.kernel.order(Order { is_undo: 1, ..Order::default() }, &self.namespaces)?;
        Ok(count)
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        if self.undo().is_ok() {
            self.note.remove();
        }
    }
}

/// Puts back what a killed process left limited in some namespaces.
pub(super) fn put_back(before: &[(u64, Before)], namespaces: &[Namespace]) -> Result<(), Obstacle> {
    let (ebpf, _) = Selection::load(OBJECT, &[], Filter::default(), &types()?)?;
    let mut kernel = Kernel::load(ebpf)?;
    kernel.remember(before)?;
    kernel.order(Order { is_undo: 1, ..Order::default() }, namespaces).map(drop)
}

/// The program in the kernel.
struct Kernel {
    ebpf: Ebpf,
}

impl Kernel {
    fn load(mut ebpf: Ebpf) -> Result<Kernel, Obstacle> {
        iterator(&mut ebpf).load("tcp", &types()?).map_err(refused)?;
        Ok(Kernel { ebpf })
    }

    /// Has connections of some cgroups limited as they begin. That ends with this process, whatever ends it.
    fn limit_new(&mut self, limits: Limits, cgroups: &[PathBuf]) -> Result<(), Obstacle> {
        if cgroups.is_empty() {
            return Ok(());
        }
        self.give(limits.into())?;
        let program = self.ebpf.program_mut("limit_new").expect("it is in the object");
        let program: &mut SockOps = program.try_into().expect("it is of this kind");
        program.load().map_err(refused)?;
        for cgroup in cgroups {
            let failed = |error: &dyn std::fmt::Display| Obstacle {
                message: format!("no program can be put on the cgroup {}: {error}", cgroup.display()),
                remedy: "a cgroup of version 2, root, and Linux 5.7 or newer".into(),
                is_missing: true,
            };
            let folder = File::open(cgroup).map_err(|error| failed(&error))?;
            // A link allows others beside it, and takes no flag that says so.
            program.attach(folder, CgroupAttachMode::Single).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn give(&mut self, order: Order) -> Result<(), Obstacle> {
        let orders = self.ebpf.map_mut("orders").expect("it is in the object");
        let mut orders = Array::<_, Order>::try_from(orders).expect("it is of this kind");
        orders.set(0, order, 0).map_err(refused)
    }

    /// Has every connection of some namespaces looked at; what the program wrote of them.
    fn order(&mut self, order: Order, namespaces: &[Namespace]) -> Result<Vec<u8>, Obstacle> {
        self.give(order)?;
        let mut bytes = Vec::new();
        for namespace in namespaces {
            let program = iterator(&mut self.ebpf);
            let link = program.attach().and_then(|id| program.take_link(id)).map_err(refused)?;
            // An iterator looks at the namespace of whoever opens it.
            let read = namespace.run(|| -> io::Result<Vec<u8>> {
                let mut read = Vec::new();
                link.into_file().map_err(io::Error::other)?.read_to_end(&mut read)?;
                Ok(read)
            });
            let read = read.and_then(|read| read);
            bytes.extend(read.map_err(|error| Obstacle::system("connections cannot be limited", &error))?);
        }
        Ok(bytes)
    }

    /// Of each connection that is limited, by its cookie, what was before.
    fn before(&self) -> Vec<(u64, Before)> {
        let map = self.ebpf.map("limited").expect("it is in the object");
        let map = HashMap::<&MapData, u64, Before>::try_from(map).expect("it is of this kind");
        map.iter().filter_map(Result::ok).collect()
    }

    fn remember(&mut self, before: &[(u64, Before)]) -> Result<(), Obstacle> {
        let map = self.ebpf.map_mut("limited").expect("it is in the object");
        let mut map = HashMap::<_, u64, Before>::try_from(map).expect("it is of this kind");
        before.iter().try_for_each(|(cookie, before)| map.insert(cookie, before, 0)).map_err(refused)
    }
}

fn iterator(ebpf: &mut Ebpf) -> &mut Iter {
    let program = ebpf.program_mut("limit_tcp").expect("it is in the object");
    program.try_into().expect("it is of this kind")
}

/// `struct standing`, of connections that are established or listen.
fn standing(bytes: &[u8]) -> Option<Standing> {
    let mut at = Reader::of(bytes);
    let _cookie = at.u64()?;
    let (local, remote) = (at.address()?, at.address()?);
    let (local_port, remote_port) = (at.u16()?, at.u16()?);
    let [segment, cwnd, cwnd_limit, peer_window, window, window_limit, state] = at.words()?;
    const ESTABLISHED: u32 = 1;
    const CLOSE_WAIT: u32 = 8;
    const LISTEN: u32 = 10;
    [ESTABLISHED, CLOSE_WAIT, LISTEN].contains(&state).then(|| Standing {
        local: SocketAddr::new(local, local_port),
        remote: SocketAddr::new(remote, remote_port),
        segment,
        cwnd,
        cwnd_limit,
        peer_window,
        window,
        window_limit,
        listens: state == LISTEN,
    })
}
