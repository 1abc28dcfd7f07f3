//! Interface changes: addresses, MTUs, links that go down or up, interfaces that are removed and recreated,
//! and interfaces added or removed by a new configuration.

use super::forward::{OWN, RouterForwardingLoop};
use super::host::{InterfaceState, PortSlot, incoming, is_setting_of, no_interface, not_in_the_kernel};
use crate::fast_path::attachment::Pin;
use crate::fib;
use crate::shaper::Shaper;
use crate::slow_path;
use netstage_host::log::Level;
use netstage_host::ports::{FramePort as _, NO_MAC};
use netstage_host::startup_error::StartupError;
use netstage_scenario::router::{FastPath, KilledBehavior};
use std::path::PathBuf;

impl RouterForwardingLoop {
    /// Opens all configured interfaces, which must exist.
    pub(super) fn open_all(&mut self, seen: Vec<Option<InterfaceState>>) -> Result<(), StartupError> {
        for (number, seen) in seen.into_iter().enumerate() {
            let name = &self.router.interfaces[number].name;
            let seen = seen.ok_or_else(|| no_interface(name))?;
            let port = self.machine.open(name)?;
            self.open(number as u32, seen, port);
        }
        self.open_delivery()
    }

    /// Creates the TUN interface for packets received in LSPs, if any interface accepts labels.
    pub(super) fn open_delivery(&mut self) -> Result<(), StartupError> {
        if self.delivery.is_none() && self.router.interfaces.iter().any(|interface| interface.mpls) {
            let tun = self.machine.delivery(&mut self.settings)?;
            let added = self.waiter.add(OWN, tun.fd());
            added.map_err(|error| {
                StartupError::from_system("cannot read packets the kernel sends into LSPs", &error)
            })?;
            self.delivery = Some(tun);
            if self.router.fpm.is_some() {
                self.machine.carry_own()?;
            }
        }
        self.record_settings();
        Ok(())
    }

    /// Records the settings to restore if the router is killed.
    fn record_settings(&mut self) {
        if let Err(error) = self.remains.write(&self.settings, &self.pins()) {
            (self.log)(Level::Note, &format!("cannot record the settings to restore after a kill: {error}"));
        }
    }

    fn pins(&self) -> Vec<PathBuf> {
        match self.router.when_killed {
            KilledBehavior::Stop => Vec::new(),
            KilledBehavior::Forward => vec![self.remains.pins(&self.router.pins)],
        }
    }

    /// Starts to serve an interface.
    pub(super) fn open(&mut self, number: u32, seen: InterfaceState, port: PortSlot) {
        let name = self.router.interfaces[number as usize].name.clone();
        if let Some(line) = self.machine.take_over(&mut self.settings, &name) {
            (self.log)(Level::Alarm, &line);
        }
        self.names.interfaces.insert(seen.index, number);
        self.set_port(number, port, &seen);
        match self.interface_states.get_mut(number as usize) {
            Some(known) => *known = Some(seen),
            None => self.interface_states.push(Some(seen)),
        }
        self.configure(number);
        self.shape(number);
        if self.has_begun
            && let Err(error) = self.attach(number)
        {
            let line = format!("{name}: no XDP program, the slow path handles its packets: {error}");
            (self.log)(Level::Alarm, &line);
        }
    }

    fn set_port(&mut self, number: u32, port: PortSlot, seen: &InterfaceState) {
        let before = self.slow_path.set_port(number, port, answering(seen));
        if let Some(before) = before
            && before.0.is_some()
        {
            self.waiter.remove(number as usize, before.fd());
        }
        let port = &self.slow_path.ports()[number as usize];
        if port.0.is_some()
            && let Err(error) = self.waiter.add(number as usize, port.fd())
        {
            (self.log)(Level::Alarm, &format!("cannot wait for frames of a port: {error}"));
        }
    }

    /// Applies the configuration of an open interface.
    pub(super) fn configure(&mut self, number: u32) {
        let Some(Some(seen)) = self.interface_states.get(number as usize) else { return };
        let interface = &self.router.interfaces[number as usize];
        let incoming = incoming(interface);
        let link = fib::FibInterface { mac: seen.mac, mtu: seen.mtu, incoming };
        let tables = self.slow_path.tables_mut();
        self.fib.set_interface(tables, number, link);
        self.fib.set_up(tables, number, seen.is_up);
        if let Some(fast_path) = tables.fast_path() {
            fast_path.change(number, incoming, seen.mac);
        }
        self.require_probe(number);
    }

    /// Sets the shaper of an interface as configured.
    pub(super) fn shape(&mut self, number: u32) {
        let shaping = self.router.interfaces[number as usize].shaping.as_ref();
        self.slow_path.set_shaper(number, shaping.map(Shaper::new));
    }

    /// Lets only the slow path send to an interface until a probe shows that redirected frames arrive.
    fn require_probe(&mut self, number: u32) {
        self.egress.forget(number);
        self.slow_path.tables_mut().set_slow(number, true);
    }

    /// Stops to serve an interface that was removed or is no longer configured.
    pub(super) fn close(&mut self, number: u32) {
        let Some(seen) = self.interface_states[number as usize].take() else { return };
        self.names.interfaces.remove(&seen.index);
        if let Some(fast_path) = self.slow_path.tables_mut().fast_path_mut() {
            fast_path.detach(number);
        }
        self.set_port(number, PortSlot::default(), &seen);
        self.slow_path.set_shaper(number, None);
        self.fib.set_up(self.slow_path.tables_mut(), number, false);
    }

    /// Restores the settings of an interface that is no longer configured.
    pub(super) fn restore(&mut self, name: &str) {
        self.settings.restore(|setting| is_setting_of(setting, name));
    }

    /// Attaches the XDP program to all interfaces, since the routes are loaded.
    pub(super) fn attach_all(&mut self) -> Result<(), StartupError> {
        self.has_begun = true;
        if self.slow_path.tables().fast_path().is_none() {
            return Ok(());
        }
        if self.router.when_killed == KilledBehavior::Forward {
            self.remains.make_folder(&self.router.pins)?;
        }
        for number in 0..self.interface_states.len() as u32 {
            if let Err(error) = self.attach(number) {
                if self.router.fast_path == FastPath::Xdp {
                    return Err(not_in_the_kernel(&error));
                }
                let name = &self.router.interfaces[number as usize].name;
                let line = format!("{name}: no XDP program, the slow path handles its packets: {error}");
                (self.log)(Level::Note, &line);
            }
        }
        Ok(())
    }

    fn attach(&mut self, number: u32) -> Result<(), crate::fast_path::FastPathError> {
        let Some(seen) = &self.interface_states[number as usize] else { return Ok(()) };
        // The XDP program requires Ethernet headers.
        if seen.mac == NO_MAC {
            return Ok(());
        }
        let interface = &self.router.interfaces[number as usize];
        let is_kept = self.router.when_killed == KilledBehavior::Forward;
        let pin = Pin::new(&self.remains.pins(&self.router.pins), &interface.name, is_kept);
        match self.slow_path.tables_mut().fast_path_mut() {
            Some(fast_path) => {
                fast_path.attach(number, incoming(interface), seen.index, seen.mac, Some(&pin))
            }
            None => Ok(()),
        }
    }

    /// Handles a change of links or addresses.
    pub(super) fn handle_link_changes(&mut self) {
        let seen = match self.machine.interface_states(&self.router.interfaces) {
            Ok(seen) => seen,
            Err(error) => {
                (self.log)(Level::Alarm, &error.to_string());
                return;
            }
        };
        let mut is_renumbered = false;
        for (number, now) in seen.into_iter().enumerate() {
            if self.interface_states[number] != now {
                is_renumbered |= self.follow(number as u32, now);
            }
        }
        if !is_renumbered {
            return;
        }
        self.record_settings();
        match self.load() {
            Ok(news) => self.take(news),
            Err(error) => (self.log)(Level::Alarm, &error.to_string()),
        }
    }

    /// Handles the change of an interface. Returns whether its kernel index changed or it was removed.
    fn follow(&mut self, number: u32, now: Option<InterfaceState>) -> bool {
        let name = self.router.interfaces[number as usize].name.clone();
        let before = self.interface_states[number as usize].clone();
        let (Some(now), Some(before)) = (&now, &before) else {
            self.close(number);
            match now {
                None => (self.log)(Level::Alarm, &format!("{name}: the interface is gone")),
                Some(now) => self.reopen(number, &name, now),
            }
            return true;
        };
        if now.index != before.index {
            self.close(number);
            self.reopen(number, &name, now.clone());
            return true;
        }
        if now.is_up != before.is_up {
            let (level, what) = if now.is_up { (Level::Note, "up") } else { (Level::Alarm, "down") };
            (self.log)(level, &format!("{name}: link {what}"));
        }
        self.slow_path.set_interface(number, answering(now));
        if now.mtu != before.mtu {
            (self.log)(Level::Note, &format!("{name}: MTU {} B", now.mtu));
            // The frame size of a port is the MTU at the time of opening.
            match self.machine.open(&name) {
                Ok(port) => self.set_port(number, port, now),
                Err(error) => (self.log)(Level::Alarm, &error.to_string()),
            }
        }
        self.interface_states[number as usize] = Some(now.clone());
        self.configure(number);
        false
    }

    fn reopen(&mut self, number: u32, name: &str, now: InterfaceState) {
        match self.machine.open(name) {
            Ok(port) => {
                (self.log)(Level::Note, &format!("{name}: the interface is back"));
                self.open(number, now, port);
            }
            Err(error) => (self.log)(Level::Alarm, &error.to_string()),
        }
    }
}

/// Returns the addresses of an interface for the slow path.
fn answering(seen: &InterfaceState) -> slow_path::SlowPathInterface {
    slow_path::SlowPathInterface { mac: seen.mac, v4: seen.v4, v6: seen.v6 }
}
