//! Messages of an unauthenticated host that requests to join a fleet, from arbitrary bytes: tokens, messages,
//! certificate requests. Each is read or rejected; what was read is written unchanged; and an issued
//! certificate names the agent it was issued to, whatever the request contains.

use netstage_agent::fleet::authority::{Authority, agent_name_of};
use netstage_agent::fleet::enrollment::generated::{JoinReply, JoinRequest, RenewReply, RenewRequest};
use netstage_agent::fleet::folder::{FleetFolder, TokenGrant};
use netstage_agent::fleet::token::Token;
use prost::Message as _;
use std::path::PathBuf;
use std::time::Duration;

/// FleetFolder with one token that cannot be guessed, in a temporary folder.
struct World {
    folder: PathBuf,
    fleet: FleetFolder,
    authority: Authority,
}

impl World {
    fn new() -> World {
        let folder = std::env::temp_dir().join(format!("netstage-fuzz-join-{}", std::process::id()));
        let fleet = FleetFolder::create(&folder, "fuzz").expect("a folder can be created");
        let (valid, lasting) = (Duration::from_secs(3600), Duration::from_secs(3600));
        fleet
            .token(&TokenGrant { agent: "secret".into(), labels: Vec::new(), valid, lasting })
            .expect("a token");
        let authority = fleet.authorities().expect("the authority exists").current;
        World { folder, fleet, authority }
    }

    fn certificate(&self, request: &[u8]) {
        if let Ok(signed) = self.authority.sign("ber-1", request, u64::from(u32::MAX)) {
            assert_eq!(agent_name_of(signed.der()).as_deref(), Some("ber-1"));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

thread_local! {
    static WORLD: World = World::new();
}

pub fn run(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind {
        b't' => token(bytes),
        b'j' => {
            if let Ok(message) = JoinRequest::decode(bytes) {
                WORLD.with(|world| {
                    let joined = world.fleet.join(&world.authority, &message.secret, &message.request);
                    assert!(joined.is_err(), "joined without a valid token");
                    world.certificate(&message.request);
                });
            }
        }
        b'n' => {
            if let Ok(message) = RenewRequest::decode(bytes) {
                WORLD.with(|world| world.certificate(&message.request));
            }
        }
        b'c' => WORLD.with(|world| world.certificate(bytes)),
        b'J' => drop(JoinReply::decode(bytes)),
        b'N' => drop(RenewReply::decode(bytes)),
        _ => {}
    }
}

fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text.trim().to_ascii_lowercase());
    }
}
