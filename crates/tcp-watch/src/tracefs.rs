//! Private instance of the kernel's tracing (tracefs), which leaves other instances alone and is removed at the
//! end. [`clean`] removes instances of killed processes.

use netstage_host::startup_error::StartupError;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Possible mount points.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const PREFIX: &str = "netstage-";
/// Ring size per processor in KiB.
const RING_KIB: &str = "4096";
/// Bytes per read.
const READ_BYTES: usize = 1 << 16;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The tracing file system: its mount point, or a private mount that ends with this value.
struct Root {
    path: PathBuf,
    _mount: Option<OwnedFd>,
}

impl Root {
    fn open() -> io::Result<Root> {
        let mounted = MOUNT_POINTS
            .map(Path::new)
            .into_iter()
            .find(|mount_point| mount_point.join("instances").is_dir());
        if let Some(mount_point) = mounted {
            return Ok(Root { path: mount_point.to_owned(), _mount: None });
        }
        let system = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&system)?;
        let mount = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Root { path, _mount: Some(mount) })
    }

    fn instances(&self) -> PathBuf {
        self.path.join("instances")
    }
}

/// Tracing instance, removed on drop.
pub(super) struct Instance {
    folder: PathBuf,
    pipe: Option<File>,
    /// Held while this process lives: an unlocked instance was left by a killed process.
    _lock: File,
    _root: Root,
}

impl Instance {
    /// Creates an instance without events that uses CLOCK_MONOTONIC.
    pub fn new() -> Result<Instance, StartupError> {
        let tracing_error = |error: io::Error| StartupError {
            message: format!("cannot use the kernel's tracing: {error}"),
            remedy: "run as root, on a kernel with CONFIG_EVENT_TRACING".into(),
            is_missing: true,
        };
        let root = Root::open().map_err(tracing_error)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = root.instances().join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(tracing_error)?;
        let configure = || -> io::Result<(File, File)> {
            let lock = File::open(&folder)?;
            lock.try_lock()?;
            for (setting, value) in [("trace_clock", "mono"), ("buffer_size_kb", RING_KIB)] {
                fs::write(folder.join(setting), value)?;
            }
            let mut pipe = OpenOptions::new();
            let pipe = pipe.read(true).custom_flags(libc::O_NONBLOCK).open(folder.join("trace_pipe"))?;
            Ok((lock, pipe))
        };
        match configure() {
            Ok((lock, pipe)) => Ok(Instance { folder, pipe: Some(pipe), _lock: lock, _root: root }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(tracing_error(error))
            }
        }
    }

    /// Enables an event, for example `tcp/tcp_probe`, optionally filtered by a condition on its fields.
    pub fn enable(&self, event: &str, condition: Option<&str>) -> io::Result<()> {
        let event = self.folder.join("events").join(event);
        if let Some(condition) = condition {
            fs::write(event.join("filter"), condition)?;
        }
        fs::write(event.join("enable"), "1")
    }

    /// Adds the kernel's call stack to an event.
    pub fn enable_stacks(&self, event: &str) -> io::Result<()> {
        fs::write(self.folder.join("events").join(event).join("trigger"), "stacktrace")
    }

    /// Reads the available text.
    pub fn read(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => take(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // An instance with an open pipe cannot be removed.
        self.pipe = None;
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Removes the instances of killed processes; returns their number.
pub fn clean() -> usize {
    let Ok(root) = Root::open() else { return 0 };
    let is_abandoned = |folder: &PathBuf| {
        let name = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        name && File::open(folder).is_ok_and(|file| file.try_lock().is_ok())
    };
    let entries = fs::read_dir(root.instances()).into_iter().flatten().flatten();
    let abandoned = entries.map(|entry| entry.path()).filter(is_abandoned);
    abandoned.filter(|folder| fs::remove_dir(folder).is_ok()).count()
}
