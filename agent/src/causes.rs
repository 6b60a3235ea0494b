//! An error with its causes, in one line.

use std::{error::Error, fmt::Write};

/// `what failed: why: why that`.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some libraries say the words of the cause in their own.
        if !text.ends_with(&why) {
            // Writing to a string cannot fail.
            let _infallible = write!(text, ": {why}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::with_causes;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Outer {
        words: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        for (words, expected) in [
            ("open it", "open it: not there"),
            ("open it: not there", "open it: not there"),
            ("not there: open it", "not there: open it: not there"),
        ] {
            assert_eq!(with_causes(&Outer { words, source: io::Error::other("not there") }), expected);
        }
    }
}
