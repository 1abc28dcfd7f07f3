//! How a VPN flow is treated at its ingress: all of it that can be configured.

use crate::fair::Control;
use crate::packet::Packet;
use crate::quantity::{BitRate, Capacity};
use crate::queue::{Queue, TrafficClass};
use crate::rng::Stream;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A VPN flow, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its share of the core, relative to other flows'.
    pub weight: f64,
    /// How it is controlled.
    pub control: Control,
    /// Rate at the IP layer its window never falls short of. It says nothing where there is no
    /// window, and the sum of all on a link is the operator's business.
    pub minimum: Option<BitRate>,
    /// Rate at the IP layer it never exceeds, with one packet of burst, whatever its window allows.
    pub maximum: Option<BitRate>,
    /// Classes in which its packets wait; what no class lists belongs to the last. None: first in,
    /// first out, in the control's queue.
    pub classes: Vec<TrafficClass>,
}

/// Neither controlled nor limited.
impl Default for Settings {
    fn default() -> Settings {
        Settings { weight: 1.0, control: Control::None, minimum: None, maximum: None, classes: Vec::new() }
    }
}

impl Settings {
    /// Packets may have to wait at the ingress.
    pub fn may_wait(&self) -> bool {
        self.control != Control::None || self.maximum.is_some()
    }

    /// A queue of its classes, if it has any.
    pub(super) fn queue<P: Packet>(&self, rng: Stream) -> Option<Box<Queue<P>>> {
        (!self.classes.is_empty()).then(|| {
            let discipline = TrafficClass::discipline(&self.classes);
            Box::new(Queue::new(&discipline, Capacity::Packets(0), rng))
        })
    }
}
