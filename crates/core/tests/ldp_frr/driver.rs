//! A speaker on real sockets, one link and one thread.

use netstage_core::ldp::{Connection, Event, Speaker, Transmit};
use netstage_core::time::Instant;
use netstage_wire::ldp::{ALL_ROUTERS, PORT};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

pub struct Driver {
    pub speaker: Speaker,
    pub events: Vec<Event>,
    /// Connections that this end asked for, and that the peer did.
    pub connected: usize,
    pub accepted: usize,
    start: std::time::Instant,
    hellos: UdpSocket,
    listener: TcpListener,
    streams: BTreeMap<Connection, (TcpStream, Vec<u8>)>,
    connections: u64,
}

impl Driver {
    pub fn new(mut speaker: Speaker, address: Ipv4Addr) -> Driver {
        let hellos = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        hellos.join_multicast_v4(&ALL_ROUTERS, &address).unwrap();
        hellos.set_multicast_loop_v4(false).unwrap();
        hellos.set_nonblocking(true).unwrap();
        let listener = TcpListener::bind((address, PORT)).unwrap();
        listener.set_nonblocking(true).unwrap();
        speaker.add_interface(Instant::ZERO, 0);
        let (start, streams) = (std::time::Instant::now(), BTreeMap::new());
        let (events, connected, accepted, connections) = (Vec::new(), 0, 0, 0);
        Driver { speaker, events, connected, accepted, start, hellos, listener, streams, connections }
    }

    pub fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }

    /// Goes on until something is so, which must be within so many seconds; gives the seconds it took.
    pub fn until(&mut self, what: &str, seconds: u64, mut is_so: impl FnMut(&mut Driver) -> bool) -> f64 {
        let begin = std::time::Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < Duration::from_secs(seconds), "{what}: not within {seconds} s");
            if !self.turn() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        begin.elapsed().as_secs_f64()
    }

    /// Does what there is to do; tells whether anything arrived.
    fn turn(&mut self) -> bool {
        let arrived = [self.take_hellos(), self.take_connections(), self.take_bytes()];
        let now = self.now();
        if self.speaker.poll_timeout() <= now {
            self.speaker.handle_timeout(now);
        }
        while let Some(transmit) = self.speaker.poll_transmit(now) {
            self.transmit(transmit);
        }
        self.events.extend(std::iter::from_fn(|| self.speaker.poll_event()));
        arrived.contains(&true)
    }

    fn take_hellos(&mut self) -> bool {
        let mut bytes = [0; 1500];
        let mut arrived = false;
        while let Ok((length, SocketAddr::V4(source))) = self.hellos.recv_from(&mut bytes) {
            self.speaker.handle_hello(self.now(), 0, *source.ip(), &bytes[..length]);
            arrived = true;
        }
        arrived
    }

    fn take_connections(&mut self) -> bool {
        let Ok((stream, remote)) = self.listener.accept() else { return false };
        let IpAddr::V4(remote) = remote.ip() else { return false };
        self.accepted += 1;
        let connection = self.keep(stream);
        self.speaker.handle_accepted(self.now(), connection, remote);
        true
    }

    fn keep(&mut self, stream: TcpStream) -> Connection {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        self.connections += 1;
        let connection = Connection(self.connections);
        self.streams.insert(connection, (stream, Vec::new()));
        connection
    }

    fn take_bytes(&mut self) -> bool {
        let now = self.now();
        let (mut arrived, mut closed) = (false, Vec::new());
        for (connection, (stream, waiting)) in &mut self.streams {
            flush(stream, waiting);
            self.speaker.set_writable(*connection, waiting.is_empty());
            let mut bytes = [0; 65_536];
            match stream.read(&mut bytes) {
                Ok(0) => closed.push(*connection),
                Ok(length) => {
                    self.speaker.handle_bytes(now, *connection, &bytes[..length]);
                    arrived = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => closed.push(*connection),
            }
        }
        for connection in closed {
            self.streams.remove(&connection);
            self.speaker.handle_closed(now, connection);
        }
        arrived
    }

    fn transmit(&mut self, transmit: Transmit) {
        match transmit {
            Transmit::Discovery { bytes, .. } => _ = self.hellos.send_to(&bytes, (ALL_ROUTERS, PORT)),
            Transmit::Stream { connection, bytes } => {
                let Some((stream, waiting)) = self.streams.get_mut(&connection) else { return };
                waiting.extend(bytes);
                flush(stream, waiting);
                self.speaker.set_writable(connection, waiting.is_empty());
            }
            Transmit::Connect { peer, address } => {
                let wait = Duration::from_secs(1);
                match TcpStream::connect_timeout(&(address, PORT).into(), wait) {
                    Ok(stream) => {
                        self.connected += 1;
                        let connection = self.keep(stream);
                        self.speaker.handle_connected(self.now(), peer, connection);
                    }
                    Err(_) => self.speaker.handle_refused(self.now(), peer),
                }
            }
            Transmit::Close { connection } => _ = self.streams.remove(&connection),
        }
    }
}

fn flush(stream: &mut TcpStream, waiting: &mut Vec<u8>) {
    while let Ok(written @ 1..) = stream.write(waiting) {
        waiting.drain(..written);
    }
}
