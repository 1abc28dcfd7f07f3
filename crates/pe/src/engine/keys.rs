//! Keys shared by two provider edge routers, so that no third party can forge a report.

use netstage_core::fair::wire::Authentication;
use netstage_wire::mpls::LabelValue;
use ring::hmac;

/// Transmitted length of a digest, bytes.
const DIGEST: usize = 16;

/// Keys by number. One key signs new messages; signatures of all keys are accepted, so that keys can be
/// changed without a gap.
#[derive(Clone, Debug)]
pub struct Keys {
    sign: u8,
    keys: Vec<(u8, hmac::Key)>,
}

impl Keys {
    /// Creates a key set from numbered keys; `sign` is the number of the signing key. Returns `None` if that
    /// number is missing.
    pub fn new(sign: u8, keys: &[(u8, Vec<u8>)]) -> Option<Keys> {
        keys.iter().any(|(number, _)| *number == sign).then(|| Keys {
            sign,
            keys: keys
                .iter()
                .map(|(number, key)| (*number, hmac::Key::new(hmac::HMAC_SHA256, key)))
                .collect(),
        })
    }

    /// Calls `each` with the authentication for messages between two labels, one per direction. Both labels
    /// enter the digest, the lower first, so that no message can be moved to another VPN.
    pub(super) fn between<T>(
        keys: Option<&Keys>,
        labels: [LabelValue; 2],
        each: impl FnOnce(Option<Authentication<'_>>) -> T,
    ) -> T {
        let Some(keys) = keys else { return each(None) };
        let digest = |number: u8, message: &[u8]| {
            let (_, key) = keys.keys.iter().find(|(known, _)| *known == number)?;
            let mut context = hmac::Context::with_key(key);
            context.update(&labels[0].min(labels[1]).number().to_be_bytes());
            context.update(&labels[0].max(labels[1]).number().to_be_bytes());
            context.update(message);
            context.sign().as_ref().first_chunk::<DIGEST>().copied()
        };
        each(Some(Authentication { key: keys.sign, digest: &digest }))
    }
}
