//! The program on an interface: as long as the router holds it, or, pinned in the kernel's file system of
//! such things (bpffs), until its pin is removed.
//!
//! Who begins and finds a pin takes its place over: the kernel changes the program between two frames.

use super::Error;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the program of an interface is pinned, or was by a router before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    path: PathBuf,
    is_kept: bool,
}

impl Pin {
    /// The pin of an interface in a folder; it is kept, and the program forwards on if the router is killed,
    /// or only looked for.
    pub fn new(folder: &Path, interface: &str, is_kept: bool) -> Pin {
        // Such a file system takes no dots, and an interface has no colons.
        Pin { path: folder.join(interface.replace('.', ":")), is_kept }
    }

    fn of_mode(&self, is_native: bool) -> PathBuf {
        match is_native {
            true => self.path.clone(),
            false => PathBuf::from(format!("{}:generic", self.path.display())),
        }
    }
}

/// The program on an interface. Dropped, it is there no more.
#[derive(Debug)]
pub(super) struct Attachment {
    _held: Held,
    pin: Option<PathBuf>,
    is_native: bool,
}

#[derive(Debug)]
enum Held {
    Link(#[allow(dead_code)] XdpLink),
    Pinned(#[allow(dead_code)] FdLink),
}

impl Attachment {
    /// Puts the program on an interface, by its number in the calling thread's namespace.
    pub fn new(program: &mut Xdp, index: u32, pin: Option<&Pin>) -> Result<Attachment, Error> {
        let adopted = pin.and_then(|pin| adopt(program, pin));
        let (link, is_native, was_pinned) = match adopted {
            Some((link, is_native)) => (link, is_native, true),
            None => {
                let (link, is_native) = attach(program, index)?;
                (link, is_native, false)
            }
        };
        let Some(pin) = pin else { return Ok(Attachment { _held: Held::Link(link), pin: None, is_native }) };
        let path = pin.of_mode(is_native);
        if !pin.is_kept {
            if was_pinned {
                remove(&path);
            }
            return Ok(Attachment { _held: Held::Link(link), pin: None, is_native });
        }
        let link = FdLink::try_from(link).map_err(|error| Error::Pin(error.to_string()))?;
        let link = match was_pinned {
            true => link,
            false => FdLink::from(link.pin(&path).map_err(|error| Error::Pin(error.to_string()))?),
        };
        Ok(Attachment { _held: Held::Pinned(link), pin: Some(path), is_native })
    }

    /// Whether frames are redirected as the driver has them, rather than as the kernel's own.
    pub fn is_native(&self) -> bool {
        self.is_native
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(path) = &self.pin {
            remove(path);
        }
    }
}

fn remove(path: &Path) {
    // Who else removed it wanted the same.
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

/// What a router before left, if it is still on its interface, with this program from now on.
fn adopt(program: &mut Xdp, pin: &Pin) -> Option<(XdpLink, bool)> {
    [true, false].into_iter().find_map(|is_native| {
        let path = pin.of_mode(is_native);
        let link = FdLink::from(PinnedLink::from_pin(&path).ok()?);
        let changed = XdpLink::try_from(link).ok().and_then(|link| program.attach_to_link(link).ok());
        if changed.is_none() {
            // Its interface is gone.
            remove(&path);
        }
        Some((program.take_link(changed?).ok()?, is_native))
    })
}
