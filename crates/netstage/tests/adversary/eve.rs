//! A malicious member of the fleet: it consents to anything in its own name, and confirms that at its addresses.

use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::task::Assignment;
use netstage_host::netns::Namespace;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Port at which senders ask whether a consent is current.
pub const CONFIRMATION_PORT: u16 = 4705;
const QUESTION: &[u8] = b"netstage consent?";
const ANSWER: &[u8] = b"netstage consent!";
const NONCE: usize = 16;
const DIGEST: usize = 32;
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Signer of everything.
pub struct Eve {
    key: Arc<EcdsaKeyPair>,
    certificate: Vec<u8>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Eve {
    /// Uses the identity in the folder of a member, and confirms consents at these addresses of a namespace.
    pub fn new(folder: &Path, namespace: &Namespace, addresses: &[IpAddr]) -> Eve {
        let decode = |name: &str| pem::parse(fs::read(folder.join(name)).unwrap()).unwrap().into_contents();
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &decode("agent.key"), &random);
        let (key, ended) = (Arc::new(key.unwrap()), Arc::default());
        let bind = |at: &IpAddr| UdpSocket::bind((*at, CONFIRMATION_PORT)).unwrap();
        let sockets: Vec<UdpSocket> = namespace.run(|| addresses.iter().map(bind).collect()).unwrap();
        let answering = sockets.into_iter().map(|socket| {
            let (key, ended) = (Arc::clone(&key), Arc::clone(&ended));
            thread::spawn(move || answer(&socket, &key, &ended))
        });
        let threads = answering.collect();
        Eve { key, certificate: decode("agent.pem"), ended, threads }
    }

    /// Consents to all that an assignment sends.
    pub fn consents(&self, run: u64, assignment: &Assignment) -> Vec<Consent> {
        let duration = assignment.duration.0;
        let sign = |flow: u32, from: IpAddr, at: SocketAddr, rate: Option<f64>| {
            let rate = rate.map_or("any".into(), |rate| format!("{} bit/s", rate as u64));
            let statement = format!(
                "netstage consent to be sent to\nrun {run}\nflow {flow}\nfrom {from}\nat {at}\nrate {rate}\n\
                 duration {duration} ns\n"
            );
            let signature = self.key.sign(&SystemRandom::new(), statement.as_bytes()).unwrap();
            Consent {
                run,
                flow,
                destination: at.to_string(),
                signature: signature.as_ref().to_vec(),
                certificate: self.certificate.clone(),
                confirmation_port: CONFIRMATION_PORT.into(),
            }
        };
        let flows = assignment.flows.iter().map(|flow| {
            let rate = flow.traffic.pattern().and_then(|pattern| pattern.mean_rate());
            sign(flow.id, flow.source.ip(), flow.destination, rate)
        });
        let services = assignment
            .services
            .iter()
            .map(|service| sign(service.id, service.local_endpoint().ip(), service.remote_endpoint(), None));
        flows.chain(services).collect()
    }
}

impl Drop for Eve {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

fn answer(socket: &UdpSocket, key: &EcdsaKeyPair, ended: &AtomicBool) {
    socket.set_read_timeout(Some(CHECK_INTERVAL)).unwrap();
    let mut question = [0; 2048];
    while !ended.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
        let Some(rest) = question[..length].strip_prefix(QUESTION) else { continue };
        // The number of the run is between nonce and digest.
        let (Some(nonce), Some(digest)) = (rest.get(..NONCE), rest.get(NONCE + 8..NONCE + 8 + DIGEST)) else {
            continue;
        };
        let text = [b"netstage consents are current\n", nonce, digest].concat();
        let signature = key.sign(&SystemRandom::new(), &text).unwrap();
        let _ = socket.send_to(&[ANSWER, nonce, signature.as_ref()].concat(), from);
    }
}
