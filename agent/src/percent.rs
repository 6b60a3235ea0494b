//! Percent signs, in URLs and in messages of gRPC.

/// A text in which `%` and two hexadecimal digits stand for a byte; any other `%` for itself.
pub(crate) fn decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let encoded = after.split_first_chunk::<2>().filter(|_| first == b'%');
        if let Some((byte, behind)) = encoded.and_then(|(digits, behind)| Some((byte_of(*digits)?, behind))) {
            bytes.push(byte);
            rest = behind;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// No sign is a digit, though a number may have one.
fn byte_of(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_behind_a_percent_sign_are_a_byte() {
        for (text, expected) in [
            ("", ""),
            ("p%40ss:w%6Frd", "p@ss:word"),
            ("%e2%82%AC", "\u{20ac}"),
            ("%ff%00", "\u{fffd}\0"),
            ("50%", "50%"),
            ("%4", "%4"),
            ("%%41", "%A"),
            ("%2541", "%41"),
            ("%+4%-1%4g", "%+4%-1%4g"),
        ] {
            assert_eq!(decoded(text.as_bytes()), expected, "{text}");
        }
    }
}
