//! Packets released by the scheduler leave to the core; packets delivered to a circuit leave to a neighbor.

use super::pool::{HEADROOM, StoredPacket};
use super::{CircuitNextHop, Counter, DepartingFrame, EngineState, PacketDrop};
use netstage_core::fair::IngressTransmit;
use netstage_core::time::Instant;
use netstage_wire::ethernet::{Mac, ethertype};

impl EngineState {
    pub(super) fn transmit(&mut self, flow: usize, transmit: IngressTransmit<StoredPacket>) {
        match transmit {
            IngressTransmit::Data(packet) => {
                self.vpns[self.flows[flow].vpn as usize].held -= 1;
                self.write_mark(packet);
                self.encapsulate_packet(flow, packet);
            }
            IngressTransmit::Query(query) => {
                if let Err(refused) = self.send_query(flow, query) {
                    self.count(refused);
                }
            }
        }
    }

    /// Puts a packet in the queue of a VPN flow. Releases its buffer if the queue is full.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        flow: usize,
        packet: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let packet = self.fill_inner_packet(flow, packet);
        match self.edge.handle_packet(now, flow, packet) {
            Ok(()) => {
                self.vpns[self.flows[flow].vpn as usize].held += 1;
                self.take_dropped();
                Ok(())
            }
            Err(packet) => {
                self.pool.release(packet.buffer);
                Err(Counter::QueueFull.of(flow))
            }
        }
    }

    /// Sends a packet by a circuit, or queues it until the MAC address of the next hop is resolved.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        exit: usize,
        packet: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let CircuitNextHop { circuit, via } = self.exits[exit];
        let mac = match self.circuits[circuit as usize].mac {
            Some(mac) => mac,
            None => {
                let address = via.unwrap_or_else(|| self.destination(packet));
                match self.neighbors.lookup(circuit, address) {
                    Some(mac) => mac,
                    None => return self.await_neighbor(now, circuit, address, packet),
                }
            }
        };
        self.hand_over(circuit as usize, mac, packet);
        Ok(())
    }

    /// Sends a packet by a circuit to one of its neighbors.
    #[inline]
    pub(super) fn hand_over(&mut self, circuit: usize, mac: Mac, packet: StoredPacket) {
        let circuit = &mut self.circuits[circuit];
        circuit.sent.add(packet.length);
        let header = circuit.header.bytes();
        let start = HEADROOM - header.len();
        let bytes = self.pool.bytes(packet.buffer);
        bytes[start..HEADROOM].copy_from_slice(header);
        bytes[start..start + 6].copy_from_slice(&mac);
        if bytes[HEADROOM] >> 4 == 6 {
            bytes[HEADROOM - 2..HEADROOM].copy_from_slice(&ethertype::IPV6.to_be_bytes());
        }
        let end = HEADROOM as u16 + packet.length;
        self.departures[circuit.port as usize].push(DepartingFrame {
            buffer: packet.buffer,
            start: start as u16,
            end,
        });
    }
}
