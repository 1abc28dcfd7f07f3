//! Keep-alives of flows through NATs: STUN indications (RFC 8445 section 11) from both ends, so that no mapping expires
//! before a flow starts, while it is idle, or at a receiver that sends nothing else.

use netstage_wire::stun::{MessageClass, MessageWriter, TransactionId};
use ring::rand::{SecureRandom as _, SystemRandom};
use socket2::{SockAddr, Socket};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval of keep-alives. Mappings of carrier-grade NATs last a few seconds under load; the usual minimum is 30 s.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends keep-alives until it is dropped.
pub struct KeepAlive {
    /// Closed to end the thread.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeepAlive {
    /// Starts to send from each socket to the other end of its flow.
    pub fn start(paths: Vec<(Socket, SocketAddr)>) -> io::Result<KeepAlive> {
        let (end, ended) = mpsc::channel();
        let send = move || {
            let random = SystemRandom::new();
            loop {
                for (socket, to) in &paths {
                    let mut transaction = TransactionId::default();
                    if random.fill(&mut transaction).is_ok() {
                        let indication = MessageWriter::new(MessageClass::Indication, transaction);
                        // An error concerns an earlier packet, or a path that the flow itself reports.
                        let _ = socket.send_to(indication.as_bytes(), &SockAddr::from(*to));
                    }
                }
                if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("keep-alive".into()).spawn(send)?;
        Ok(KeepAlive { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
