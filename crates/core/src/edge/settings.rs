//! Configuration of a VPN flow at its ingress.

use crate::fair::VpnControl;
use crate::packet::QueuePacket;
use crate::quantity::{BitRate, Capacity};
use crate::queue::{PacketQueue, TrafficClass};
use crate::rng::RandomStream;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Configuration of a VPN flow.
#[derive(Clone, Debug, PartialEq)]
pub struct VpnFlowSettings {
    /// Share of the core relative to other flows.
    pub weight: f64,
    /// Control of the flow.
    pub control: VpnControl,
    /// Minimum rate at the IP layer that the window always permits. Without a window it has no effect. The
    /// operator has to make sure that each link can carry the sum of its minimum rates.
    pub minimum: Option<BitRate>,
    /// Maximum rate at the IP layer, with a burst of one packet, regardless of the window.
    pub maximum: Option<BitRate>,
    /// Traffic classes of the flow's packets; packets that match no class belong to the last one. If empty,
    /// the control's first-in, first-out queue is used.
    pub classes: Vec<TrafficClass>,
}

/// Neither controlled nor limited.
impl Default for VpnFlowSettings {
    fn default() -> VpnFlowSettings {
        VpnFlowSettings {
            weight: 1.0,
            control: VpnControl::None,
            minimum: None,
            maximum: None,
            classes: Vec::new(),
        }
    }
}

impl VpnFlowSettings {
    /// Returns whether packets may have to wait at the ingress.
    pub fn may_wait(&self) -> bool {
        self.control != VpnControl::None || self.maximum.is_some()
    }

    /// Creates the queue for the classes, if there are any.
    pub(super) fn queue<P: QueuePacket>(&self, rng: RandomStream) -> Option<Box<PacketQueue<P>>> {
        (!self.classes.is_empty()).then(|| {
            let discipline = TrafficClass::discipline(&self.classes);
            Box::new(PacketQueue::new(&discipline, Capacity::Packets(0), rng))
        })
    }
}
