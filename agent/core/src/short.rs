//! Texts for people, cut to what objects of the API server can carry.
//!
//! What pods, images and programs say is in them, and may be as long as it likes. The kubelet cuts none of them, nor does the API
//! server events of version `v1`: a status that is too large is refused for ever.

/// Most bytes of why something failed: a status has one for each container.
pub const FAILURE_BYTES_MAX: usize = 4 << 10;
/// Most bytes of an event: the 10 KiB that a probe may answer are told whole.
pub const EVENT_BYTES_MAX: usize = 16 << 10;

/// Stands for what is left out.
const REST: &str = "…";

/// The text, or its beginning with a sign that there is more.
#[must_use]
pub fn short(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - REST.len()));
        text.push_str(REST);
        // What is cut would stay with it.
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        for (text, expected) in [
            ("", ""),
            ("12345678", "12345678"),
            ("123456789", "12345…"),
            ("1234é6789", "1234…"),
            ("ééééé", "éé…"),
        ] {
            assert_eq!(short(text.to_owned(), 8), expected);
        }
        assert!(short("x".repeat(1 << 20), 8).capacity() < 64);
    }
}
