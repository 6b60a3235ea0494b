//! Digests for fixtures.

/// Lowercase hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_nibbles_in_order() {
        assert_eq!(super::hex(&[0x00, 0x9f, 0xa1]), "009fa1");
    }
}
