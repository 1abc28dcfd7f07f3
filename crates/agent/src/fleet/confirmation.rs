//! Confirmation of consents by their signer, at the address to which they apply. Before a run, a sender asks at the
//! address of each receiver, and the receiver signs the question, which contains a digest of the terms of all flows
//! between the two. This proves that the signer has the address, and consents to each of these flows now: a host that runs no agent receives a few small packets and nothing else, regardless of who signed in its name.
//!
//! Question and answer are one UDP datagram each. The question is longer than its answer, and a receiver answers only
//! the sender of the flow, so that neither can be used to send more to others. Consents expire a minute after they
//! were given.

use super::consent::{ConsentTerms, Signer, is_signed_by};
use netstage_agent_api::protocol::generated::Consent;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// UDP ports at which receivers confirm their consents: each address has the first that is free.
pub const PORTS: RangeInclusive<u16> = 4705..=4720;
/// Time for which a receiver confirms a consent after giving it.
const VALIDITY: Duration = Duration::from_secs(60);
/// Time within which a receiver has to confirm. A provider edge router on the way may be starting.
const LIMIT: Duration = Duration::from_secs(5);
/// First wait for an answer, which doubles with each question.
const FIRST_WAIT: Duration = Duration::from_millis(50);

const QUESTION: &[u8] = b"netstage consent?";
const ANSWER: &[u8] = b"netstage consent!";
const NONCE: usize = 16;
const DIGEST: usize = 32;
/// Length of a question: words, nonce, number of the run, digest, and zeros up to the length of an answer.
const QUESTION_BYTES: usize = 128;

/// Confirms the consents of an agent until it is dropped, or they expire.
pub struct ConsentResponder {
    /// Rung when the threads are to end.
    bell: Arc<EventFd>,
    /// Port and thread by address.
    answering: BTreeMap<IpAddr, (u16, JoinHandle<()>)>,
}

impl ConsentResponder {
    /// Starts to answer at the addresses of the terms. `enter` is called first by each thread.
    pub fn start(
        terms: Vec<ConsentTerms>,
        signer: &Arc<Signer>,
        enter: impl Fn() -> bool + Clone + Send + 'static,
    ) -> io::Result<ConsentResponder> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let bell = Arc::new(bell);
        let terms: Vec<ConsentTerms> = terms.into_iter().filter(ConsentTerms::needs_confirmation).collect();
        let addresses: BTreeMap<IpAddr, SocketAddr> =
            terms.iter().map(|terms| (terms.destination.ip(), terms.destination)).collect();
        let terms = Arc::new(terms);
        let start = |(ip, at): (IpAddr, SocketAddr)| {
            let (terms, signer, bell) = (Arc::clone(&terms), Arc::clone(signer), Arc::clone(&bell));
            let enter = enter.clone();
            let (sender, port) = mpsc::channel();
            let answering = move || {
                if enter()
                    && let Some(socket) =
                        PORTS.clone().find_map(|port| UdpSocket::bind(with_port(at, port)).ok())
                {
                    let _ = sender.send(socket.local_addr().map_or(0, |bound| bound.port()));
                    let _ = answer(&socket, ip, &terms, &signer, &bell);
                }
            };
            // Without a thread or a port there are no answers, and senders report that.
            let thread = thread::Builder::new().name("consent".into()).spawn(answering).ok()?;
            Some((ip, (port.recv().ok()?, thread)))
        };
        let answering = addresses.into_iter().filter_map(start).collect();
        Ok(ConsentResponder { bell, answering })
    }

    /// Returns the port at which consents to flows to this address are confirmed.
    pub fn port(&self, address: IpAddr) -> Option<u16> {
        self.answering.get(&address).map(|(port, _)| *port)
    }
}

impl Drop for ConsentResponder {
    fn drop(&mut self) {
        let _ = self.bell.write(1);
        for (_, thread) in std::mem::take(&mut self.answering).into_values() {
            let _ = thread.join();
        }
    }
}

/// Returns the address with another port, and the scope of a link-local address.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn answer(
    socket: &UdpSocket,
    own: IpAddr,
    terms: &[ConsentTerms],
    signer: &Signer,
    bell: &EventFd,
) -> io::Result<()> {
    let end = Instant::now() + VALIDITY;
    socket.set_nonblocking(true)?;
    let mut question = [0; QUESTION_BYTES + 1];
    loop {
        let mut polled = [bell.as_fd(), socket.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let left_ms = end.saturating_duration_since(Instant::now()).as_millis() as u16;
        match poll(&mut polled, PollTimeout::from(left_ms)) {
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(ready) if ready == 0 || polled[0].any() == Some(true) => return Ok(()),
            Ok(_) => {}
        }
        let Ok((QUESTION_BYTES, from)) = socket.recv_from(&mut question) else { continue };
        let Some((nonce, run, digest)) = read_question(&question[..QUESTION_BYTES]) else { continue };
        let ends = (run, from.ip().to_canonical(), own);
        let is_asked = |terms: &&ConsentTerms| (terms.run, terms.source, terms.destination.ip()) == ends;
        let asked: Vec<&ConsentTerms> = terms.iter().filter(is_asked).collect();
        if asked.is_empty() || digest != digest_of(&asked) {
            continue;
        }
        let Some(signature) = signer.sign(&confirmation(nonce, digest)) else { continue };
        let _ = socket.send_to(&[ANSWER, nonce, &signature].concat(), from);
    }
}

/// Returns the nonce, the number of the run, and the digest.
fn read_question(bytes: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (nonce, rest) = bytes.strip_prefix(QUESTION)?.split_at_checked(NONCE)?;
    let (run, rest) = rest.split_first_chunk()?;
    Some((nonce, u64::from_be_bytes(*run), rest.get(..DIGEST)?))
}

/// Returns a digest of terms in any order.
fn digest_of(terms: &[&ConsentTerms]) -> [u8; DIGEST] {
    let mut statements: Vec<String> = terms.iter().map(|terms| terms.statement()).collect();
    statements.sort();
    let digest = digest(&SHA256, statements.concat().as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Returns the text that a receiver signs. The terms contain the number of the run.
fn confirmation(nonce: &[u8], digest: &[u8]) -> Vec<u8> {
    [b"netstage consents are current\n", nonce, digest].concat()
}

/// Asks a receiver to confirm its consents to all flows of a run between two addresses. Returns the reason if it does
/// not.
pub fn ask(all: &[&ConsentTerms], consent: &Consent, stop: &AtomicBool) -> Result<(), String> {
    let Some(terms) = all.first() else { return Ok(()) };
    let port = u16::try_from(consent.confirmation_port).ok().filter(|port| PORTS.contains(port));
    let to = with_port(terms.destination, port.unwrap_or(*PORTS.start()));
    let unanswered = |why: &str| format!("the receiver at {to} (UDP) did not confirm its consent: {why}");
    let failed = |error: io::Error| unanswered(&error.to_string());
    let mut nonce = [0; NONCE];
    SystemRandom::new().fill(&mut nonce).map_err(|_| unanswered("no random numbers"))?;
    let digest = digest_of(all);
    let mut question = [QUESTION, &nonce, &terms.run.to_be_bytes(), &digest].concat();
    question.resize(QUESTION_BYTES, 0);
    let source = if terms.source.is_unspecified() { unspecified(to) } else { terms.source };
    let socket = UdpSocket::bind((source, 0)).map_err(failed)?;
    socket.connect(to).map_err(failed)?;
    let end = Instant::now() + LIMIT;
    let mut wait = FIRST_WAIT;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        // An error may be the answer to an earlier question, from a host that does not listen yet.
        let _ = socket.send(&question);
        let next = (Instant::now() + wait).min(end);
        wait *= 2;
        let mut bytes = [0; QUESTION_BYTES];
        while let left @ 1.. = next.saturating_duration_since(Instant::now()).as_micros() as u64 {
            socket.set_read_timeout(Some(Duration::from_micros(left))).map_err(failed)?;
            let Ok(length) = socket.recv(&mut bytes) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let signature = bytes[..length].strip_prefix(ANSWER).and_then(|rest| rest.strip_prefix(&nonce));
            if signature.is_some_and(|signature| {
                is_signed_by(&consent.certificate, &confirmation(&nonce, &digest), signature)
            }) {
                return Ok(());
            }
        }
    }
    Err(unanswered("no answer"))
}

fn unspecified(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}

#[cfg(test)]
mod tests {
    use super::super::authority::{Authority, TlsIdentity, request};
    use super::*;
    use netstage_agent_api::task::{Assignment, FlowSide, FlowTask};
    use netstage_core::quantity::BitRate;
    use netstage_core::traffic::Pattern;
    use rustls::pki_types::PrivateKeyDer;

    #[test]
    fn a_receiver_confirms_exactly_the_flows_to_which_it_consents() {
        let folder = netstage_harness::TemporaryFolder::new("confirmation");
        let authority = Authority::create(&folder, "lab").unwrap();
        let signer = || {
            let (key, request) = request().unwrap();
            let certificate = authority.sign("a", &request, super::super::folder::now_s() + 1000).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            Arc::new(Signer::new(&TlsIdentity { chain: vec![certificate.der().clone()], key }).unwrap())
        };
        let second = netstage_core::time::Duration::from_secs(1);
        let flow = |id| FlowTask {
            id,
            ..FlowTask::udp(
                "f",
                FlowSide::Receive,
                ["127.0.0.1:0".parse().unwrap(), "127.0.0.1:5001".parse().unwrap()],
                Pattern::Cbr { rate: BitRate(1), packet: 100 },
                second,
            )
        };
        let terms = |ids: &[u32]| {
            let flows = ids.iter().map(|id| flow(*id)).collect();
            let assignment = Assignment::of_flows("a", second, second, flows);
            ConsentTerms::received(7, &assignment).collect::<Vec<_>>()
        };
        let (own, other) = (signer(), signer());
        let responder = ConsentResponder::start(terms(&[1, 2]), &own, || true).unwrap();
        let port = responder.port("127.0.0.1".parse().unwrap()).unwrap();
        let ask = &|ids: &[u32], signer: &Signer| {
            let terms = terms(ids);
            let consent = signer.consent(&terms[0]).unwrap();
            let consent = Consent { confirmation_port: port.into(), ..consent };
            super::ask(&terms.iter().collect::<Vec<_>>(), &consent, &AtomicBool::new(false))
        };
        assert_eq!(ask(&[2, 1], &own), Ok(()));
        // A refusal is silence, for which the sender waits.
        thread::scope(|scope| {
            for (ids, signer) in [(&[1, 2, 3][..], &own), (&[1], &own), (&[1, 2], &other)] {
                scope.spawn(move || assert!(ask(ids, signer).is_err(), "{ids:?}"));
            }
        });
        drop(responder);
        assert!(ask(&[1, 2], &own).is_err(), "the receiver has ended");
    }
}
