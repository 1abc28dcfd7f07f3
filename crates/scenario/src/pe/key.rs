//! Keys of encrypted tunnels in the text form of WireGuard: 32 bytes in base64 (RFC 4648 section 4), 44 characters.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Parses a key. Returns `None` unless the text is the one form of 32 bytes.
pub fn parse_key(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes().strip_suffix(b"=")?;
    if digits.len() != 43 {
        return None;
    }
    let mut key = [0; 32];
    let (mut bits, mut count, mut at) = (0_u32, 0, 0);
    for digit in digits {
        let value = ALPHABET.iter().position(|letter| letter == digit)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            key[at] = (bits >> count) as u8;
            at += 1;
        }
    }
    // The last digit has two spare bits, which are zero.
    (bits & 3 == 0).then_some(key)
}

/// Returns the text of a key.
pub fn format_key(key: &[u8; 32]) -> String {
    let digit = |bits: u32, shift: u32| char::from(ALPHABET[(bits >> shift & 63) as usize]);
    let mut text = String::with_capacity(44);
    for part in key.chunks(3) {
        let bits = part.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let length = 8 * part.len() as u32;
        let bits = bits << (24 - length);
        (0..=part.len() as u32).for_each(|index| text.push(digit(bits, 18 - 6 * index)));
    }
    text.push('=');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;

    #[test]
    fn keys_have_the_text_of_wireguard() {
        // Private and public key of Alice in RFC 7748 section 6.1, encoded by `base64`.
        let alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let key = parse_key(alice).unwrap();
        assert_eq!(key[..4], [0x77, 0x07, 0x6d, 0x0a]);
        assert_eq!(key[28..], [0x1d, 0xb9, 0x2c, 0x2a]);
        assert_eq!(format_key(&key), alice);
        let mut random = RandomStream::new(3, "keys");
        for _ in 0..100 {
            let key: [u8; 32] = std::array::from_fn(|_| (random.uniform() * 256.0) as u8);
            assert_eq!(parse_key(&format_key(&key)), Some(key));
        }
        for wrong in ["", "=", &alice[..43], &alice[1..], "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCp=", "é"]
        {
            assert_eq!(parse_key(wrong), None, "{wrong}");
        }
    }
}
