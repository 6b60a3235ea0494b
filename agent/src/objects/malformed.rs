//! What of a pull secret cannot be understood.

use serde_json::{Value, error::Category};

/// What of a pull secret cannot be understood. Users see it as the reason that a container waits for, in the kubelet's words, where those
/// show nothing of the secret. Source: `encoding/json` and `encoding/base64` of Go, `decodeDockerConfigFieldAuth` of
/// `pkg/credentialprovider/config.go`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedSecret {
    /// It ends in the middle.
    #[error("unexpected end of JSON input")]
    Cut,
    /// It is no JSON. Go shows the character that is wrong.
    #[error("invalid JSON in line {line}, column {column}")]
    NoJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A value of it is of another type than it is to be.
    #[error("json: cannot unmarshal {found} into Go {place} of type {wanted}")]
    Mistyped {
        /// What it is, as Go calls it.
        found: &'static str,
        /// Where it is.
        place: String,
        /// What it is to be.
        wanted: &'static str,
    },
    /// An `auth` is not base64.
    #[error("illegal base64 data at input byte {at}")]
    Base64 {
        /// The first byte that is wrong, line breaks not counted.
        at: usize,
    },
    /// An `auth` has no user and no password.
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

impl MalformedSecret {
    /// What a parser says of a text.
    pub(super) fn no_json(error: &serde_json::Error) -> Self {
        match error.classify() {
            Category::Eof => Self::Cut,
            Category::Io | Category::Syntax | Category::Data => {
                Self::NoJson { line: error.line(), column: error.column() }
            }
        }
    }

    /// A value that is not what is `wanted` in its place.
    pub(super) fn mistyped(value: &Value, place: &str, wanted: &'static str) -> Self {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Self::Mistyped { found, place: place.to_owned(), wanted }
    }
}
