//! Signed consent of a receiver to being sent to. The sender verifies it itself, so that a controller with a
//! wrong address cannot make agents flood a host that did not consent.
//!
//! The consent consists of a signature by the receiver's key over the terms of one flow, and the certificate
//! of that key. [`super::confirmation`] binds it to the address and to the present.

use super::authority::TlsIdentity;
use super::trust::TrustedAuthorities;
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask, NatPath, ServiceTask};
use netstage_core::time::Duration;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::net::{IpAddr, SocketAddr};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, ring::ECDSA_P256_SHA256};

/// Terms of a consent: one flow of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsentTerms {
    /// Number of the run.
    pub run: u64,
    /// Number of the flow or service.
    pub flow: u32,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address and port of the receiver, or the group of a multicast flow.
    pub destination: SocketAddr,
    /// Mean rate, payload bits per second; `None` where the traffic has none.
    rate: Option<u64>,
    duration: Duration,
    /// Path through NATs.
    nat: Option<NatPath>,
}

impl ConsentTerms {
    /// Returns the terms of a flow.
    pub fn of_flow(run: u64, flow: &FlowTask, duration: Duration) -> ConsentTerms {
        let rate = flow.traffic.pattern().and_then(|pattern| pattern.mean_rate()).map(|rate| rate as u64);
        let (source, destination) = (flow.source.ip(), flow.destination);
        ConsentTerms { run, flow: flow.id, source, destination, rate, duration, nat: flow.nat }
    }

    /// Returns the terms of what this end of a service sends to the other.
    pub fn sent_by_service(run: u64, service: &ServiceTask, duration: Duration) -> ConsentTerms {
        ConsentTerms::of_service(run, service, false, duration)
    }

    fn of_service(run: u64, service: &ServiceTask, is_received: bool, duration: Duration) -> ConsentTerms {
        let (own, other) = (service.local_endpoint(), service.remote_endpoint());
        let (source, destination) = if is_received { (other, own) } else { (own, other) };
        ConsentTerms {
            run,
            flow: service.id,
            source: source.ip(),
            destination,
            rate: None,
            duration,
            nat: None,
        }
    }

    /// Returns the terms of everything that an assignment has the agent receive.
    pub fn received(run: u64, assignment: &Assignment) -> impl Iterator<Item = ConsentTerms> {
        ConsentTerms::all(run, assignment, FlowSide::Receive)
    }

    /// Returns the terms of everything that an assignment has the agent send.
    pub fn sent(run: u64, assignment: &Assignment) -> impl Iterator<Item = ConsentTerms> {
        ConsentTerms::all(run, assignment, FlowSide::Send)
    }

    fn all(run: u64, assignment: &Assignment, side: FlowSide) -> impl Iterator<Item = ConsentTerms> {
        let duration = assignment.duration;
        let flows = assignment.flows.iter().filter(move |flow| flow.side == side);
        let is_received = side == FlowSide::Receive;
        let service = move |service| ConsentTerms::of_service(run, service, is_received, duration);
        let flows = flows.map(move |flow| ConsentTerms::of_flow(run, flow, duration));
        flows.chain(assignment.services.iter().map(service))
    }

    /// Returns whether the receiver confirms its consent at its address. On a path through NATs, the answered path checks
    /// have proved that it receives there, and a group has no address at which to ask.
    pub fn needs_confirmation(&self) -> bool {
        self.nat.is_none() && !self.destination.ip().is_multicast()
    }

    /// Returns the terms as signed text.
    pub fn statement(&self) -> String {
        let ConsentTerms { run, flow, source, destination, rate, duration, nat } = self;
        let rate = rate.map_or("any".into(), |rate| format!("{rate} bit/s"));
        let nat = nat.map_or(String::new(), |path| {
            format!("through NAT from {} to {}\n", path.source, path.destination)
        });
        format!(
            "netstage consent to be sent to\nrun {run}\nflow {flow}\nfrom {source}\nat {destination}\n\
             rate {rate}\nduration {} ns\n{nat}",
            duration.0
        )
    }
}

/// Signs consents to the flows an agent receives.
pub struct Signer {
    key: EcdsaKeyPair,
    certificate: Vec<u8>,
}

impl Signer {
    /// Returns a signer with an agent's identity, or `None` if its key is unusable.
    pub fn new(identity: &TlsIdentity) -> Option<Signer> {
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let key =
            EcdsaKeyPair::from_pkcs8(algorithm, identity.key.secret_der(), &SystemRandom::new()).ok()?;
        Some(Signer { key, certificate: identity.chain.first()?.to_vec() })
    }

    /// Signs a consent to these terms.
    pub fn consent(&self, terms: &ConsentTerms) -> Option<Consent> {
        Some(Consent {
            run: terms.run,
            flow: terms.flow,
            destination: terms.destination.to_string(),
            signature: self.sign(terms.statement().as_bytes())?,
            certificate: self.certificate.clone(),
            confirmation_port: 0,
        })
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        Some(self.key.sign(&SystemRandom::new(), message).ok()?.as_ref().to_vec())
    }
}

/// Reports whether a message was signed by the key of a certificate (DER).
pub fn is_signed_by(certificate: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let certificate = CertificateDer::from(certificate);
    let parsed = EndEntityCert::try_from(&certificate);
    parsed.is_ok_and(|parsed| parsed.verify_signature(ECDSA_P256_SHA256, message, signature).is_ok())
}

/// Reports whether a consent was signed by an agent of the authorities' fleet and permits sending on
/// these terms.
pub fn covers(consent: &Consent, trusted: &TrustedAuthorities, terms: &ConsentTerms) -> bool {
    let verified = || {
        let anchors: Vec<_> =
            trusted.valid().filter_map(|authority| anchor_from_trusted_cert(authority).ok()).collect();
        let certificate = CertificateDer::from(consent.certificate.as_slice());
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        let (now, usage) = (UnixTime::now(), KeyUsage::client_auth());
        certificate.verify_for_usage(&[ECDSA_P256_SHA256], &anchors, &[], now, usage, None, None).ok()?;
        let statement = terms.statement();
        certificate.verify_signature(ECDSA_P256_SHA256, statement.as_bytes(), &consent.signature).ok()
    };
    (consent.run, consent.flow) == (terms.run, terms.flow) && verified().is_some()
}

#[cfg(test)]
mod tests {
    use super::super::authority::{Authority, request};
    use super::*;
    use netstage_agent_api::task::{FlowSide, FlowTask};
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Duration;
    use netstage_core::traffic::Pattern;
    use rustls::pki_types::PrivateKeyDer;

    #[test]
    fn a_consent_is_valid_only_for_its_run_flow_address_and_fleet() {
        let folder = netstage_harness::TemporaryFolder::new("consent");
        let ours = Authority::create(&folder, "ours").unwrap();
        let identity = |authority: &Authority, expires_s| {
            let (key, request) = request().unwrap();
            let certificate = authority.sign("a", &request, expires_s).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            TlsIdentity { chain: vec![certificate.der().clone()], key }
        };
        let far = super::super::folder::now_s() + 1000;
        let destination: SocketAddr = "192.0.2.1:5001".parse().unwrap();
        let flow = FlowTask {
            id: 7,
            ..FlowTask::udp(
                "f",
                FlowSide::Receive,
                ["192.0.2.2:0".parse().unwrap(), destination],
                Pattern::Cbr { rate: BitRate(1), packet: 100 },
                Duration::from_secs(1),
            )
        };
        let second = Duration::from_secs(1);
        let sent = FlowTask { side: FlowSide::Send, id: 8, ..flow.clone() };
        let flows = vec![flow, sent];
        let assignment = Assignment::of_flows("a", second, second, flows);
        let sign = |identity| {
            let signer = Signer::new(&identity).unwrap();
            ConsentTerms::received(3, &assignment)
                .filter_map(|terms| signer.consent(&terms))
                .collect::<Vec<_>>()
        };
        let given = sign(identity(&ours, far));
        let [consent] = &given[..] else { panic!("{given:?}") };
        let [terms] = &ConsentTerms::received(3, &assignment).collect::<Vec<_>>()[..] else { panic!() };
        let trusted = TrustedAuthorities::one(ours.certificate().clone());
        let check = |consent: &Consent, terms: &ConsentTerms| covers(consent, &trusted, terms);
        assert!(check(consent, terms));
        for other in [
            ConsentTerms { run: 4, ..terms.clone() },
            ConsentTerms { flow: 8, ..terms.clone() },
            ConsentTerms { source: "192.0.2.9".parse().unwrap(), ..terms.clone() },
            ConsentTerms { destination: "192.0.2.9:5001".parse().unwrap(), ..terms.clone() },
            ConsentTerms { rate: Some(2), ..terms.clone() },
            ConsentTerms { duration: second * 2, ..terms.clone() },
        ] {
            assert!(!check(consent, &other), "{other:?}");
            let renamed = Consent { run: other.run, flow: other.flow, ..consent.clone() };
            assert!(!check(&renamed, &other), "{other:?}");
        }
        assert!(!check(&sign(identity(&ours, 1))[0], terms), "expired");
        let theirs = Authority::create(&folder, "theirs").unwrap();
        assert!(!check(&sign(identity(&theirs, far))[0], terms), "another fleet");
    }
}
