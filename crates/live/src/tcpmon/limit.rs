//! Limits the windows of connections that run (bpf/limit.bpf.c), and puts them back.
//!
//! The kernel keeps a limit with the socket, so what was before is written down while it lasts: a process that
//! is killed leaves the file, and [`clean`] puts back what is in it.

use super::filter::{Filter, Process};
use super::reader::Reader;
use super::selection::{Selection, refused, types};
use crate::netns::Namespace;
use crate::obstacle::Obstacle;
use aya::maps::{Array, HashMap, MapData};
use aya::programs::Iter;
use aya::{Ebpf, Pod};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

static OBJECT: &[u8] = include_bytes!("../../../../bpf/limit.bpf.o");

/// Where it is written down what is limited.
pub const FOLDER: &str = "/run/netstage/tcp-limits";
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

/// `struct before`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
struct Before {
    cwnd: u32,
    window: u32,
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for Order {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Pod for Before {}

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
        let (ebpf, selection) = Selection::load(OBJECT, &[], filter, &types()?)?;
        let numbers = namespaces.iter().filter_map(|namespace| namespace.number().ok()).collect();
        let note = Note::new(folder, numbers)
            .map_err(|error| Obstacle::system(format!("{}", folder.display()), &error))?;
        Ok(Limiter { limits, selection, kernel: Kernel::load(ebpf)?, namespaces, note })
    }

    /// Limits what is not limited yet; how all of them stand, and the processes of which there is none. Call it
    /// a few times a second: new connections are found by it, and the kernel raises what it advertises with the
    /// receive buffer.
    pub fn apply(&mut self) -> Result<(Vec<Standing>, Vec<Process>), Obstacle> {
        let gone = self.selection.refresh(&mut self.kernel.ebpf);
        let Limits { cwnd, window } = self.limits;
        let order = Order { cwnd: cwnd.unwrap_or(0), window: window.unwrap_or(0), ..Order::default() };
        let bytes = self.kernel.order(order, &self.namespaces)?;
        self.note
            .write(&self.kernel.before())
            .map_err(|error| Obstacle::system("limits cannot be kept", &error))?;
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

/// Puts back what killed processes left limited: how many connections of theirs there were.
pub fn clean(folder: &Path) -> Result<usize, Obstacle> {
    let mut count = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let failed = |error| Obstacle::system(format!("{}", entry.path().display()), &error);
        let mut file = File::options().read(true).write(true).open(entry.path()).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            // It is at work.
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        // A kill in the middle of writing leaves a line that ends early.
        let (first, rest) = text.split_once('\n').unwrap_or_default();
        let noted: Vec<(u64, Before)> =
            rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if !noted.is_empty() {
            let (ebpf, _) = Selection::load(OBJECT, &[], Filter::default(), &types()?)?;
            let mut kernel = Kernel::load(ebpf)?;
            kernel.remember(&noted)?;
            let numbers = serde_json::from_str(first).unwrap_or_default();
            kernel.order(Order { is_undo: 1, ..Order::default() }, &namespaces(&numbers))?;
            count += noted.len();
        }
        fs::remove_file(entry.path()).map_err(failed)?;
    }
    Ok(count)
}

/// Those of some namespaces that are still there: they are held by names, processes, or open files.
fn namespaces(numbers: &BTreeSet<u64>) -> Vec<Namespace> {
    let entries =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_process = |process: PathBuf| {
        let is_namespace = |file: &PathBuf| {
            fs::read_link(file).is_ok_and(|target| target.to_string_lossy().starts_with("net:["))
        };
        let open = entries(process.join("fd")).filter(is_namespace);
        std::iter::once(process.join("ns/net")).chain(open.collect::<Vec<_>>())
    };
    let processes = entries("/proc".into()).filter(|path| path.join("fd").exists());
    let places = entries("/run/netns".into()).chain(processes.flat_map(of_process));
    let mut found = BTreeMap::new();
    for place in places {
        let number = fs::metadata(&place).map_or(0, |namespace| namespace.ino());
        if numbers.contains(&number)
            && !found.contains_key(&number)
            && let Ok(namespace) = Namespace::at(&place)
        {
            found.insert(number, namespace);
        }
    }
    found.into_values().collect()
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

    /// Has every connection of some namespaces looked at; what the program wrote of them.
    fn order(&mut self, order: Order, namespaces: &[Namespace]) -> Result<Vec<u8>, Obstacle> {
        let orders = self.ebpf.map_mut("orders").expect("it is in the object");
        let mut orders = Array::<_, Order>::try_from(orders).expect("it is of this kind");
        orders.set(0, order, 0).map_err(refused)?;
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

/// What is written down: a line of the numbers of namespaces, then one for each connection. Locked as long as its
/// process lives.
struct Note {
    path: PathBuf,
    file: File,
    namespaces: BTreeSet<u64>,
    known: Vec<(u64, Before)>,
}

impl Note {
    fn new(folder: &Path, namespaces: BTreeSet<u64>) -> io::Result<Note> {
        fs::create_dir_all(folder)?;
        let path = folder.join(std::process::id().to_string());
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
        file.try_lock().map_err(|_| io::Error::other("it is in use"))?;
        Ok(Note { path, file, namespaces, known: Vec::new() })
    }

    fn write(&mut self, before: &[(u64, Before)]) -> io::Result<()> {
        if self.known == before {
            return Ok(());
        }
        let line = |value: serde_json::Result<String>| value.expect("only numbers") + "\n";
        let mut lines = line(serde_json::to_string(&self.namespaces));
        lines.extend(before.iter().map(|entry| line(serde_json::to_string(entry))));
        self.file.rewind()?;
        self.file.write_all(lines.as_bytes())?;
        self.file.set_len(lines.len() as u64)?;
        self.known = before.to_vec();
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
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
