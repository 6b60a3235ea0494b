//! Percent encoding (RFC 3986, 2.1).

/// The bytes that a text stands for; `None` for a `%` without two digits.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let (digits, behind) = after.split_first_chunk::<2>()?;
            let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
            bytes.push(u8::try_from(high? * 16 + low?).ok()?);
            rest = behind;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    Some(bytes)
}
