//! Threaded cgroup (version 2) below that of this process. It is removed on drop; a killed process leaves an empty one,
//! which the next process removes.
//!
//! If no hierarchy is mounted, it is mounted for this process alone: `ip netns exec`, for example, hides that of
//! /sys/fs/cgroup. Such a mount has no place in the file system, and ends with its descriptor (fsmount(2)).

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Cgroup of some threads of this process.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    /// Mount through which the folder is reached, if it is that of this process.
    _mount: Option<OwnedFd>,
}

impl Cgroup {
    /// Creates a cgroup without threads. Needs root, and a writable hierarchy.
    pub fn create() -> io::Result<Cgroup> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let (root, mount_point, mount) = hierarchy()?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).map(Path::new);
        let own = own.and_then(|own| own.strip_prefix(root).ok()).ok_or_else(|| {
            let reason = "the cgroup of this process is outside of the mounted hierarchy";
            io::Error::new(io::ErrorKind::NotFound, reason)
        })?;
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        // Numbers of processes are unique in their namespace.
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let (parent, prefix) = (mount_point.join(own), format!("netstage-{namespace}-"));
        remove_abandoned(&parent, &prefix);
        let folder = parent.join(format!("{prefix}{}-{number}", std::process::id()));
        let described =
            |error: io::Error| io::Error::new(error.kind(), format!("cgroup {}: {error}", folder.display()));
        match fs::create_dir(&folder) {
            // Left behind by a killed process of the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.map_err(described)?,
        }
        fs::write(folder.join("cgroup.type"), "threaded").map_err(|error| {
            let _ = fs::remove_dir(&folder);
            described(error)
        })?;
        Ok(Cgroup { folder, _mount: mount })
    }

    /// Moves the calling thread into the cgroup. Threads and programs that it starts later are members, too.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.threads"), "0")
    }

    /// Returns the folder of the cgroup.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It fails while threads are left, and is then left empty when the process ends.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns the root of the hierarchy that is mounted, its mount point, and the mount if it is that of this process.
fn hierarchy() -> io::Result<(PathBuf, PathBuf, Option<OwnedFd>)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // Fields: number, parent, device, root, mount point, …, "-", type.
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mut fields = mounted.unwrap_or_default().split(' ').skip(3);
    if let Some((root, mount_point)) = fields.next().zip(fields.next()) {
        return Ok((root.into(), mount_point.into(), None));
    }
    let mount = mount().map_err(|error| {
        let reason = format!("no hierarchy of cgroups of version 2 is mounted, nor can it be: {error}");
        io::Error::new(error.kind(), reason)
    })?;
    let mount_point = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(("/".into(), mount_point.into(), Some(mount)))
}

/// Mounts the hierarchy at no place.
fn mount() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let harmless = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, harmless)?)
}

/// Removes the cgroups of processes that have ended.
fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // It fails if a program of the process is still ending.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
