//! An error with its causes, in one line.

use std::{error::Error, fmt::Write};

/// `what failed: why: why that`.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string cannot fail.
        let _infallible = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
