//! Signed consent of a receiver to being sent to. The sender verifies it itself, so that a controller with a
//! wrong address cannot make agents flood a host that did not consent.
//!
//! The consent consists of a signature by the receiver's key over run, flow and address, and the certificate
//! of that key.

use super::authority::TlsIdentity;
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::task::Assignment;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::net::SocketAddr;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, ring::ECDSA_P256_SHA256};

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

    /// Signs one consent for each flow that the assignment sends to the agent, and for each service.
    pub fn consents(&self, run: u64, assignment: &Assignment) -> Vec<Consent> {
        let sign = |flow: u32, destination: SocketAddr| {
            let signature = self.key.sign(&SystemRandom::new(), &statement(run, flow, destination)).ok()?;
            Some(Consent {
                run,
                flow,
                destination: destination.to_string(),
                signature: signature.as_ref().to_vec(),
                certificate: self.certificate.clone(),
            })
        };
        assignment.received().filter_map(|(number, destination)| sign(number, destination)).collect()
    }
}

/// Reports whether a consent was signed by an agent of the authority's fleet and permits sending this flow to
/// this destination.
pub fn covers(
    consent: &Consent,
    authority: &CertificateDer<'_>,
    run: u64,
    flow: u32,
    destination: SocketAddr,
) -> bool {
    let verified = || {
        let anchor = anchor_from_trusted_cert(authority).ok()?;
        let certificate = CertificateDer::from(consent.certificate.as_slice());
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        let (now, usage) = (UnixTime::now(), KeyUsage::client_auth());
        certificate.verify_for_usage(&[ECDSA_P256_SHA256], &[anchor], &[], now, usage, None, None).ok()?;
        let statement = statement(run, flow, destination);
        certificate.verify_signature(ECDSA_P256_SHA256, &statement, &consent.signature).ok()
    };
    (consent.run, consent.flow) == (run, flow) && verified().is_some()
}

fn statement(run: u64, flow: u32, destination: SocketAddr) -> Vec<u8> {
    format!("netstage consent to be sent to\nrun {run}\nflow {flow}\nat {destination}\n").into_bytes()
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
        let consents = |identity| Signer::new(&identity).unwrap().consents(3, &assignment);
        let given = consents(identity(&ours, far));
        let [consent] = &given[..] else { panic!("{given:?}") };
        let check = |consent: &Consent, run, flow, to: &str| {
            covers(consent, ours.certificate(), run, flow, to.parse().unwrap())
        };
        assert!(check(consent, 3, 7, "192.0.2.1:5001"));
        assert!(!check(consent, 4, 7, "192.0.2.1:5001"));
        assert!(!check(consent, 3, 8, "192.0.2.1:5001"));
        assert!(!check(consent, 3, 7, "192.0.2.9:5001"));
        assert!(!check(&Consent { run: 4, ..consent.clone() }, 4, 7, "192.0.2.1:5001"));
        assert!(!check(&consents(identity(&ours, 1))[0], 3, 7, "192.0.2.1:5001"), "expired");
        let theirs = Authority::create(&folder, "theirs").unwrap();
        assert!(!check(&consents(identity(&theirs, far))[0], 3, 7, "192.0.2.1:5001"), "another fleet");
    }
}
