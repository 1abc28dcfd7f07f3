//! Limits the windows of running connections (bpf/limit.bpf.c), and restores them.
//!
//! The kernel stores a limit in the socket, so the previous limits are written to a file while the limit lasts:
//! a killed process leaves the file ([`super::limit_file`]).

use super::filter::{Filter, ProcessFilter};
use super::limit_file::{LimitEntry, LimitFile, PreviousLimits};
use super::reader::BpfReader;
use super::selection::{Selection, program_error, types};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::{CgroupAttachMode, Iter, SockOps};
use aya::{Ebpf, Pod};
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

static OBJECT: &[u8] = include_bytes!("../../../bpf/limit.bpf.o");

/// Size of `struct standing` in bytes.
const STANDING: usize = 72;

/// Window limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Congestion window in segments.
    pub cwnd: Option<u32>,
    /// Window advertised to the peer, in bytes.
    pub window: Option<u32>,
}

/// Windows and limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionWindows {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer; unspecified for a listening socket.
    pub remote: SocketAddr,
    /// Payload of a full segment in bytes.
    pub segment: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Limit of the congestion window in segments.
    pub cwnd_limit: u32,
    /// Window advertised by the peer, in bytes.
    pub peer_window: u32,
    /// Window advertised to the peer, in bytes.
    pub window: u32,
    /// Limit of the advertised window in bytes.
    pub window_limit: u32,
    /// Whether the socket is listening; its connections inherit the limits.
    pub listens: bool,
}

/// `struct order`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LimitCommand {
    cwnd: u32,
    window: u32,
    is_undo: u32,
    unused: u32,
}

impl From<Limits> for LimitCommand {
    fn from(Limits { cwnd, window }: Limits) -> LimitCommand {
        LimitCommand { cwnd: cwnd.unwrap_or(0), window: window.unwrap_or(0), ..LimitCommand::default() }
    }
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for LimitCommand {}

/// Active limits, undone on drop.
pub struct Limiter {
    limits: Limits,
    selection: Selection,
    kernel: Kernel,
    namespaces: Vec<Namespace>,
    note: LimitFile,
}

impl Limiter {
    /// Starts without limits. Connections are searched in `namespaces`.
    pub fn new(
        limits: Limits,
        filter: Filter,
        namespaces: Vec<Namespace>,
        folder: &Path,
    ) -> Result<Limiter, StartupError> {
        let cgroups = filter.cgroups.clone();
        let (ebpf, selection) = Selection::load(OBJECT, &[], filter, &types()?)?;
        let numbers = namespaces.iter().filter_map(|namespace| namespace.number().ok()).collect();
        let note = LimitFile::new(folder, "", numbers)
            .map_err(|error| StartupError::from_system(format!("{}", folder.display()), &error))?;
        let mut kernel = Kernel::load(ebpf)?;
        kernel.limit_new(limits, &cgroups)?;
        Ok(Limiter { limits, selection, kernel, namespaces, note })
    }

    /// Limits all connections that are not limited yet; returns the state of all connections, and the processes
    /// that do not exist. Call it a few times a second: it finds new connections, and the kernel raises the
    /// advertised window with the receive buffer.
    pub fn apply(&mut self) -> Result<(Vec<ConnectionWindows>, Vec<ProcessFilter>), StartupError> {
        let missing = self.selection.refresh(&mut self.kernel.ebpf);
        let bytes = self.kernel.order(self.limits.into(), &self.namespaces)?;
        let noted: Vec<LimitEntry> = self
            .kernel
            .before()
            .into_iter()
            .map(|(cookie, before)| LimitEntry::Connection(cookie, before))
            .collect();
        self.note
            .write(noted)
            .map_err(|error| StartupError::from_system("cannot save the previous limits", &error))?;
        Ok((bytes.chunks_exact(STANDING).filter_map(standing).collect(), missing))
    }

    /// Restores the previous limits; returns the number of limited connections.
    pub fn undo(&mut self) -> Result<usize, StartupError> {
        let count = self.kernel.before().len();
        self.kernel.order(LimitCommand { is_undo: 1, ..LimitCommand::default() }, &self.namespaces)?;
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

/// Restores limits that a killed process left behind in some namespaces.
pub(super) fn restore(
    before: &[(u64, PreviousLimits)],
    namespaces: &[Namespace],
) -> Result<(), StartupError> {
    let (ebpf, _) = Selection::load(OBJECT, &[], Filter::default(), &types()?)?;
    let mut kernel = Kernel::load(ebpf)?;
    kernel.remember(before)?;
    kernel.order(LimitCommand { is_undo: 1, ..LimitCommand::default() }, namespaces).map(drop)
}

/// BPF programs in the kernel.
struct Kernel {
    ebpf: Ebpf,
}

impl Kernel {
    fn load(mut ebpf: Ebpf) -> Result<Kernel, StartupError> {
        iterator(&mut ebpf).load("tcp", &types()?).map_err(program_error)?;
        Ok(Kernel { ebpf })
    }

    /// Limits connections of some cgroups when they are created, until this process ends for any reason.
    fn limit_new(&mut self, limits: Limits, cgroups: &[PathBuf]) -> Result<(), StartupError> {
        if cgroups.is_empty() {
            return Ok(());
        }
        self.set_order(limits.into())?;
        let program = self.ebpf.program_mut("limit_new").expect("the BPF object contains it");
        let program: &mut SockOps = program.try_into().expect("the type matches");
        program.load().map_err(program_error)?;
        for cgroup in cgroups {
            let attach_error = |error: &dyn std::fmt::Display| StartupError {
                message: format!("cannot attach the program to cgroup {}: {error}", cgroup.display()),
                remedy: "a cgroup of version 2, root, and Linux 5.7 or newer".into(),
                is_missing: true,
            };
            let folder = File::open(cgroup).map_err(|error| attach_error(&error))?;
            // A BPF link permits other programs and takes no flag for it.
            program.attach(folder, CgroupAttachMode::Single).map_err(|error| attach_error(&error))?;
        }
        Ok(())
    }

    fn set_order(&mut self, order: LimitCommand) -> Result<(), StartupError> {
        let orders = self.ebpf.map_mut("orders").expect("the BPF object contains it");
        let mut orders = Array::<_, LimitCommand>::try_from(orders).expect("the type matches");
        orders.set(0, order, 0).map_err(program_error)
    }

    /// Visits every connection of some namespaces; returns the output of the program.
    fn order(&mut self, order: LimitCommand, namespaces: &[Namespace]) -> Result<Vec<u8>, StartupError> {
        self.set_order(order)?;
        let mut bytes = Vec::new();
        for namespace in namespaces {
            let program = iterator(&mut self.ebpf);
            let link = program.attach().and_then(|id| program.take_link(id)).map_err(program_error)?;
            // An iterator visits the namespace of the thread that opens it.
            let read = namespace.run(|| -> io::Result<Vec<u8>> {
                let mut read = Vec::new();
                link.into_file().map_err(io::Error::other)?.read_to_end(&mut read)?;
                Ok(read)
            });
            let read = read.and_then(|read| read);
            bytes
                .extend(read.map_err(|error| StartupError::from_system("cannot limit connections", &error))?);
        }
        Ok(bytes)
    }

    /// Returns the previous limits of each limited connection, by its cookie.
    fn before(&self) -> Vec<(u64, PreviousLimits)> {
        let map = self.ebpf.map("limited").expect("the BPF object contains it");
        let map = HashMap::<&MapData, u64, PreviousLimits>::try_from(map).expect("the type matches");
        map.iter().filter_map(Result::ok).collect()
    }

    fn remember(&mut self, before: &[(u64, PreviousLimits)]) -> Result<(), StartupError> {
        let map = self.ebpf.map_mut("limited").expect("the BPF object contains it");
        let mut map = HashMap::<_, u64, PreviousLimits>::try_from(map).expect("the type matches");
        before.iter().try_for_each(|(cookie, before)| map.insert(cookie, before, 0)).map_err(program_error)
    }
}

fn iterator(ebpf: &mut Ebpf) -> &mut Iter {
    let program = ebpf.program_mut("limit_tcp").expect("the BPF object contains it");
    program.try_into().expect("the type matches")
}

/// Parses `struct standing`. Returns connections that are established or listening.
fn standing(bytes: &[u8]) -> Option<ConnectionWindows> {
    let mut reader = BpfReader::new(bytes);
    let _cookie = reader.u64()?;
    let (local, remote) = (reader.address()?, reader.address()?);
    let (local_port, remote_port) = (reader.u16()?, reader.u16()?);
    let [segment, cwnd, cwnd_limit, peer_window, window, window_limit, state] = reader.words()?;
    const ESTABLISHED: u32 = 1;
    const CLOSE_WAIT: u32 = 8;
    const LISTEN: u32 = 10;
    [ESTABLISHED, CLOSE_WAIT, LISTEN].contains(&state).then(|| ConnectionWindows {
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
