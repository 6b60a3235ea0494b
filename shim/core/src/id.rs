//! Names of containers, execs and sandboxes, narrow enough to be used in paths and command lines.

use std::fmt;

use thiserror::Error;

/// Longest accepted name; containerd's own limit is 76 (`pkg/identifiers/validate.go`).
const ID_BYTES_MAX: usize = 128;

/// The name of a container, exec or sandbox: ASCII letters, digits, `-`, `_` and `.`, starting with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Box<str>);

/// Why a string is not an [`Id`].
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IdError {
    /// The name has no characters.
    #[error("use an empty id")]
    Empty,
    /// The name is longer than the limit.
    #[error("use an id of {0} bytes, more than {ID_BYTES_MAX}")]
    TooLong(usize),
    /// The name has a character that does not belong in a path component.
    #[error("use id {0:?}: only letters, digits, '-', '_' and '.' after a letter or digit are allowed")]
    BadCharacter(String),
}

impl Id {
    /// Parses a name that came over the wire or from an argument.
    pub fn parse(name: &str) -> Result<Self, IdError> {
        let Some(first) = name.bytes().next() else { return Err(IdError::Empty) };
        if name.len() > ID_BYTES_MAX {
            return Err(IdError::TooLong(name.len()));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !first.is_ascii_alphanumeric() || !name.bytes().all(allowed) {
            return Err(IdError::BadCharacter(name.to_owned()));
        }
        Ok(Self(name.into()))
    }

    /// The name of the shim's own exec number `number`. Starts with a character that [`Id::parse`] refuses, so it
    /// never meets a client's.
    pub(crate) fn internal(number: u64) -> Self {
        Self(format!("~{number}").into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_safe_in_a_path_are_accepted_and_others_refused() {
        for good in ["a", "0", "web-1", "a.b_c", "c8bbad1f5c9e"] {
            assert_eq!(Id::parse(good).map(|id| id.as_str().to_owned()), Ok(good.to_owned()));
        }
        for bad in ["", ".", "..", "-rf", "a/b", "a b", "é", "~1", "a\n", "a\0"] {
            Id::parse(bad).expect_err(bad);
        }
        Id::parse(&"a".repeat(ID_BYTES_MAX)).expect("at the limit");
        Id::parse(&"a".repeat(ID_BYTES_MAX + 1)).expect_err("over the limit");
    }

    #[test]
    fn internal_names_never_meet_client_names() {
        Id::parse(Id::internal(1).as_str()).expect_err("refused on the wire");
    }
}
