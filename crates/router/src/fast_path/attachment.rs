//! Attachment of the XDP program to an interface. It lasts as long as the router holds it or, if pinned in a
//! bpffs, until the pin is removed.
//!
//! A new router that finds a pin takes over the attachment: the kernel replaces the program atomically
//! between two frames.

use super::FastPathError;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use std::fs;
use std::path::{Path, PathBuf};

/// Path at which the program of an interface is pinned, by this or an earlier router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    path: PathBuf,
    is_kept: bool,
}

impl Pin {
    /// Returns the pin of an interface in a folder. If `is_kept`, the program is pinned and forwards even
    /// after the router is killed; otherwise an earlier pin is taken over and removed.
    pub fn new(folder: &Path, interface: &str, is_kept: bool) -> Pin {
        // bpffs allows no dots in names; interface names contain no colons.
        Pin { path: folder.join(interface.replace('.', ":")), is_kept }
    }

    fn of_mode(&self, is_native: bool) -> PathBuf {
        match is_native {
            true => self.path.clone(),
            false => PathBuf::from(format!("{}:generic", self.path.display())),
        }
    }
}

/// Attached program; detached on drop.
#[derive(Debug)]
pub(super) struct XdpAttachment {
    _held: AttachmentLink,
    pin: Option<PathBuf>,
    is_native: bool,
}

#[derive(Debug)]
enum AttachmentLink {
    Link(#[allow(dead_code)] XdpLink),
    Pinned(#[allow(dead_code)] FdLink),
}

impl XdpAttachment {
    /// Attaches the program to an interface, given by its index in the thread's network namespace.
    pub fn new(program: &mut Xdp, index: u32, pin: Option<&Pin>) -> Result<XdpAttachment, FastPathError> {
        let adopted = pin.and_then(|pin| adopt(program, pin));
        let (link, is_native, was_pinned) = match adopted {
            Some((link, is_native)) => (link, is_native, true),
            None => {
                let (link, is_native) = attach(program, index)?;
                (link, is_native, false)
            }
        };
        let Some(pin) = pin else {
            return Ok(XdpAttachment { _held: AttachmentLink::Link(link), pin: None, is_native });
        };
        let path = pin.of_mode(is_native);
        if !pin.is_kept {
            if was_pinned {
                remove(&path);
            }
            return Ok(XdpAttachment { _held: AttachmentLink::Link(link), pin: None, is_native });
        }
        let link = FdLink::try_from(link).map_err(|error| FastPathError::Pin(error.to_string()))?;
        let link = match was_pinned {
            true => link,
            false => FdLink::from(link.pin(&path).map_err(|error| FastPathError::Pin(error.to_string()))?),
        };
        Ok(XdpAttachment { _held: AttachmentLink::Pinned(link), pin: Some(path), is_native })
    }

    /// Returns whether the program runs in the driver (native mode) instead of the kernel's generic path.
    pub fn is_native(&self) -> bool {
        self.is_native
    }
}

impl Drop for XdpAttachment {
    fn drop(&mut self) {
        if let Some(path) = &self.pin {
            remove(path);
        }
    }
}

fn remove(path: &Path) {
    // If the file is missing, another process has removed it.
    let _ = fs::remove_file(path);
}

fn attach(program: &mut Xdp, index: u32) -> Result<(XdpLink, bool), ProgramError> {
    let native = program.attach_to_if_index(index, XdpMode::Driver);
    let (link, is_native) = match native {
        Ok(link) => (link, true),
        Err(_) => (program.attach_to_if_index(index, XdpMode::Skb)?, false),
    };
    Ok((program.take_link(link)?, is_native))
}

/// Takes over the attachment of an earlier router, if it is still on its interface, and replaces its program.
fn adopt(program: &mut Xdp, pin: &Pin) -> Option<(XdpLink, bool)> {
    [true, false].into_iter().find_map(|is_native| {
        let path = pin.of_mode(is_native);
        let link = FdLink::from(PinnedLink::from_pin(&path).ok()?);
        let changed = XdpLink::try_from(link).ok().and_then(|link| program.attach_to_link(link).ok());
        if changed.is_none() {
            // The interface no longer exists.
            remove(&path);
        }
        Some((program.take_link(changed?).ok()?, is_native))
    })
}
