//! What came of a request to the API server, as far as somebody acts on it.

use std::{error::Error, fmt};

use kube::core::Status;

/// Why a request was not answered as wished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The server answered, and refused.
    Refused {
        /// HTTP status.
        code: u16,
        /// `reason` of the status object, such as `NotFound`; empty when it gave none.
        reason: String,
        /// For people.
        message: String,
    },
    /// No answer: nobody knows whether the request was carried out.
    Unanswered(String),
}

impl ApiError {
    /// The object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// It is there already, or is another than the request was for.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The version that was asked for is no longer kept.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Who asks may not: authentication or authorization refused.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.code(), Some(401 | 403))
    }

    /// The request cannot be carried out as it is, however often it is sent.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unanswered(_) => None,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message, .. } if message.is_empty() => {
                write!(out, "the API server answered with status {code}")
            }
            Self::Refused { message, .. } => out.write_str(message),
            Self::Unanswered(why) => write!(out, "no answer of the API server: {why}"),
        }
    }
}

impl Error for ApiError {}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            // Its text may show a part of what came, which may be secret.
            kube::Error::SerdeError(error) => Self::Unanswered(format!(
                "what came cannot be understood (line {}, column {})",
                error.line(),
                error.column()
            )),
            other => Self::Unanswered(innermost(&other)),
        }
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        Self::Refused { code: status.code, reason: status.reason, message: status.message }
    }
}

/// The errors of the client repeat their causes in their own texts: the innermost says what happened.
fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_its_code() {
        let refused = |code| ApiError::Refused { code, reason: String::new(), message: String::new() };
        for (code, not_found, conflict, expired, forbidden, invalid) in [
            (404, true, false, false, false, false),
            (409, false, true, false, false, false),
            (410, false, false, true, false, false),
            (401, false, false, false, true, false),
            (403, false, false, false, true, false),
            (400, false, false, false, false, true),
            (422, false, false, false, false, true),
            (429, false, false, false, false, false),
        ] {
            let error = refused(code);
            assert_eq!(error.is_not_found(), not_found, "{code}");
            assert_eq!(error.is_conflict(), conflict, "{code}");
            assert_eq!(error.is_expired(), expired, "{code}");
            assert_eq!(error.is_forbidden(), forbidden, "{code}");
            assert_eq!(error.is_invalid(), invalid, "{code}");
        }
        let silent = ApiError::Unanswered("connection refused".to_owned());
        assert!(!silent.is_not_found() && !silent.is_invalid());
        assert_eq!(silent.to_string(), "no answer of the API server: connection refused");
    }
}
