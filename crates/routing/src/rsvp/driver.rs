//! Sockets and timers of a speaker.

use super::interface::{Interface, Received};
use super::{RsvpCommand, RsvpFault, RsvpReport, RsvpSnapshot, RsvpSockets};
use crate::epoch::now_since;
use hmac::{Hmac, Mac as _};
use md5::Md5;
use netstage_core::rsvp::{
    RsvpAuthentication, RsvpConfig, RsvpInterface, RsvpReception, RsvpSpeaker, RsvpTransmit,
};
use netstage_core::time::{Duration, Instant};
use netstage_host::shared_key::PresharedKey;
use netstage_wire::rsvp::object::DIGEST;
use std::collections::BTreeSet;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Sleep, sleep_until};

/// Longest sleep of the timer: the interval at which interfaces are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Driver<H> {
    speaker: RsvpSpeaker,
    authentication: RsvpAuthentication,
    place: RsvpSockets,
    /// Open interfaces, in the order of the place.
    interfaces: Vec<Option<Interface>>,
    /// Time of the next check of the interfaces.
    next_check: Instant,
    tunnels: BTreeSet<u16>,
    faults: Vec<RsvpFault>,
    epoch: std::time::Instant,
    handle: H,
}

/// Reason why the task was woken.
enum Wake {
    Command(Option<RsvpCommand>),
    Packets,
    Timer,
}

impl<H: FnMut(Instant, Vec<RsvpReport>)> Driver<H> {
    pub(super) fn new(
        config: RsvpConfig,
        place: RsvpSockets,
        epoch: std::time::Instant,
        handle: H,
    ) -> io::Result<Driver<H>> {
        let authentication = authentication(config.router, epoch)?;
        let mut driver = Driver {
            speaker: RsvpSpeaker::new(config),
            authentication,
            interfaces: Vec::new(),
            next_check: Instant::ZERO,
            tunnels: BTreeSet::new(),
            faults: Vec::new(),
            place,
            epoch,
            handle,
        };
        for (position, place) in driver.place.interfaces.iter().enumerate() {
            let opened = Interface::open(&driver.place.namespace, place).map_err(|error| {
                let remedy = "check that the interface exists, and that this process has CAP_NET_RAW";
                io::Error::new(error.kind(), format!("cannot run RSVP on {}: {error}; {remedy}", place.name))
            })?;
            driver.interfaces.push(Some(opened));
            let (number, settings) = (position as u32 + 1, settings(place));
            driver.authentication.set_interface(number, &settings, place.keys.clone());
            driver.speaker.set_interface(now_since(epoch), number, settings);
        }
        Ok(driver)
    }

    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<RsvpCommand>) -> io::Result<()> {
        let mut timer = Box::pin(sleep_until(tokio::time::Instant::now()));
        loop {
            timer.as_mut().reset(self.deadline());
            match poll_fn(|context| self.poll(context, timer.as_mut(), &mut commands)).await {
                Wake::Command(Some(RsvpCommand::Stop) | None) => break,
                Wake::Command(Some(command)) => self.handle_command(command),
                Wake::Packets | Wake::Timer => {}
            }
            self.receive();
            let now = self.now();
            if self.speaker.poll_timeout() <= now {
                self.speaker.handle_timeout(now);
            }
            self.reopen(now);
            self.settle();
        }
        for tunnel in std::mem::take(&mut self.tunnels) {
            self.speaker.remove_tunnel(self.now(), tunnel);
        }
        self.settle();
        Ok(())
    }

    fn now(&self) -> Instant {
        now_since(self.epoch)
    }

    fn deadline(&self) -> tokio::time::Instant {
        let left = self.speaker.poll_timeout().min(self.next_check).since(self.now()).min(CHECK_INTERVAL);
        // Tokio rounds timers up to whole milliseconds.
        tokio::time::Instant::now() + std::time::Duration::from_nanos(left.0)
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        timer: Pin<&mut Sleep>,
        commands: &mut UnboundedReceiver<RsvpCommand>,
    ) -> Poll<Wake> {
        if let Poll::Ready(command) = commands.poll_recv(context) {
            return Poll::Ready(Wake::Command(command));
        }
        // All interfaces are polled, so that each of them wakes the task.
        let ready = self.interfaces.iter().flatten().filter(|one| one.poll_ready(context).is_ready());
        if ready.count() > 0 {
            return Poll::Ready(Wake::Packets);
        }
        timer.poll(context).map(|()| Wake::Timer)
    }

    fn handle_command(&mut self, command: RsvpCommand) {
        let now = self.now();
        match command {
            RsvpCommand::SetTunnel(tunnel, request) => {
                self.tunnels.insert(tunnel);
                self.speaker.set_tunnel(now, tunnel, request);
            }
            RsvpCommand::RemoveTunnel(tunnel) => {
                self.tunnels.remove(&tunnel);
                self.speaker.remove_tunnel(now, tunnel);
            }
            RsvpCommand::SetRoute(network, length, next_hop) => {
                self.speaker.set_route(now, network, length, next_hop);
            }
            RsvpCommand::FailNeighbor(neighbor) => self.speaker.fail_neighbor(now, neighbor),
            RsvpCommand::SetBypass(neighbor, bypass) => self.speaker.set_bypass(now, neighbor, bypass),
            RsvpCommand::Show(answer) => {
                // The requester may have stopped waiting.
                let _ = answer.send(RsvpSnapshot {
                    lsps: self.speaker.lsps().collect(),
                    counters: self.speaker.counters(),
                    authentication: self.authentication.counters(),
                });
            }
            RsvpCommand::Stop => {}
        }
    }

    fn receive(&mut self) {
        let now = self.now();
        for position in 0..self.interfaces.len() {
            let Driver { speaker, authentication, interfaces, .. } = self;
            let Some(interface) = &mut interfaces[position] else { continue };
            let (number, mut answers) = (position as u32 + 1, Vec::new());
            let mut each = |packet: Received<'_>| {
                let Received { source, destination, has_options, message } = packet;
                if !has_options && !speaker.is_local(destination) {
                    return;
                }
                match authentication.receive(now, number, source, message) {
                    RsvpReception::Accept => speaker.handle_packet(now, number, source, message),
                    RsvpReception::Drop => {}
                    RsvpReception::Challenge(challenge) => answers.push(challenge),
                    RsvpReception::Respond(response) => {
                        speaker.repeat(response.to);
                        answers.push(response);
                    }
                }
            };
            let received = interface.receive(&mut each);
            for answer in answers {
                if let Some(answer) = self.speaker.routed(answer) {
                    self.send(&answer);
                }
            }
            if let Err(error) = received {
                self.fail(position, &error);
            }
        }
    }

    /// Closes an interface that failed, until it works again.
    fn fail(&mut self, position: usize, error: &io::Error) {
        self.interfaces[position] = None;
        self.speaker.remove_interface(self.now(), position as u32 + 1);
        let interface = self.place.interfaces[position].name.clone();
        self.faults.push(RsvpFault { interface, reason: error.to_string() });
    }

    /// Opens interfaces that failed, if they are up again.
    fn reopen(&mut self, now: Instant) {
        if now < self.next_check {
            return;
        }
        self.next_check = now + CHECK_INTERVAL;
        for (position, place) in self.place.interfaces.iter().enumerate() {
            if self.interfaces[position].is_some() {
                continue;
            }
            let opened = Interface::open(&self.place.namespace, place);
            // An interface that is down is opened as well, and fails at the first read.
            let usable = opened.and_then(|mut one| one.receive(&mut |_| {}).map(|()| one));
            if let Ok(interface) = usable {
                self.interfaces[position] = Some(interface);
                self.speaker.set_interface(now, position as u32 + 1, settings(place));
            }
        }
    }

    /// Reports the speaker's events, and then sends its messages: a label must be usable before another router knows it.
    fn settle(&mut self) {
        let faults = self.faults.drain(..).map(RsvpReport::Fault);
        let events = std::iter::from_fn(|| self.speaker.poll_event()).map(RsvpReport::Event);
        let reports: Vec<RsvpReport> = faults.chain(events).collect();
        if !reports.is_empty() {
            (self.handle)(now_since(self.epoch), reports);
        }
        while let Some(transmit) = self.speaker.poll_transmit() {
            let signed = self.authentication.sign(self.now(), transmit);
            self.send(&signed);
        }
    }

    /// Sends a message. If this fails, the message is retransmitted like one that the link loses.
    fn send(&mut self, transmit: &RsvpTransmit) {
        let position = transmit.to.interface as usize - 1;
        if let Some(interface) = self.interfaces.get(position).and_then(Option::as_ref) {
            let _ = interface.send(transmit);
        }
    }
}

/// Returns the authentication of a speaker, with a clock that began at `epoch`.
fn authentication(router: Ipv4Addr, epoch: std::time::Instant) -> io::Result<RsvpAuthentication> {
    let started = SystemTime::now() - epoch.elapsed();
    let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let secret = PresharedKey::generate().map_err(io::Error::other)?;
    let secret = *secret.bytes().first_chunk().expect("a key has 128 bits");
    Ok(RsvpAuthentication::new(router, hmac_md5, since_1970.as_nanos() as u64, secret))
}

/// HMAC-MD5 (RFC 2104), which RFC 2747 requires.
fn hmac_md5(secret: &[u8], message: &[u8]) -> [u8; DIGEST] {
    let mut mac = Hmac::<Md5>::new_from_slice(secret).expect("a key has any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn settings(place: &super::RsvpPlace) -> RsvpInterface {
    RsvpInterface { address: place.address, length: place.length, bandwidth: place.bandwidth }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_rfc_2202() {
        let expected = |text: &str| u128::from_str_radix(text, 16).unwrap().to_be_bytes();
        assert_eq!(hmac_md5(&[0x0b; 16], b"Hi There"), expected("9294727a3638bb1c13f48ef8158bfc9d"));
        let long = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(hmac_md5(&[0xaa; 80], long), expected("6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd"));
    }
}
