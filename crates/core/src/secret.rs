//! Comparison of digests and passwords.

/// Compares two secrets in a time that does not depend on their contents.
pub(crate) fn equal(first: &[u8], second: &[u8]) -> bool {
    first.len() == second.len() && first.iter().zip(second).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
