//! What came of a request to the API server, as far as somebody acts on it.

use std::{error::Error, fmt, time::Duration};

use berth_core::short::short;
use kube::core::Status;

/// Longest that a server is obeyed when it says when to ask again. It says seconds (`pkg/util/flowcontrol`); somebody between may say
/// days.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Bytes of a message that are kept, of a server that may say anything.
const MESSAGE_MAX: usize = 1024;
/// Cause of a refusal of a version that the server has not got to (`CauseTypeResourceVersionTooLarge`).
const TOO_LARGE: &str = "ResourceVersionTooLarge";

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
        /// How long the server is to be left alone; zero where it does not say.
        retry_after: Duration,
    },
    /// No answer: nobody knows whether the request was carried out.
    Unanswered(String),
    /// An answer that is not used, and why: what it says is too much, or not true.
    Unusable(String),
}

impl ApiError {
    /// What cannot be read. Its text would show a part of what came, which may be secret.
    pub(super) fn of_json(error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        Self::Unusable(format!("it cannot be understood (line {line}, column {column})"))
    }

    /// What became of a connection.
    pub(super) fn of_transport(error: &(dyn Error + 'static)) -> Self {
        Self::Unanswered(innermost(error))
    }

    /// Nobody knows whether the server has heard of it.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }

    /// The server is away: nothing came, or what is said in its place by somebody between.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.is_unanswered() || matches!(self.code(), Some(502..=504))
    }

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

    /// The version that was asked for is one that the server has not got to.
    #[must_use]
    pub fn is_too_new(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason == TOO_LARGE)
    }

    /// The server has too much to do, or is broken: the same may be carried out later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.code().is_none_or(|code| code == 429 || code >= 500)
    }

    /// How long the server is to be left alone, at least.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unanswered(_) | Self::Unusable(_) => Duration::ZERO,
        }
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
            Self::Unanswered(_) | Self::Unusable(_) => None,
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
            Self::Unusable(why) => write!(out, "the answer of the API server is not used: {why}"),
        }
    }
}

impl Error for ApiError {}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            kube::Error::SerdeError(error) => Self::of_json(&error),
            other => Self::of_transport(&other),
        }
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        let Status { code, mut reason, message, details, .. } = status;
        let causes = details.as_ref().map_or(&[][..], |details| &details.causes);
        if causes.iter().any(|cause| cause.reason == TOO_LARGE) {
            TOO_LARGE.clone_into(&mut reason);
        }
        let message = short(message, MESSAGE_MAX);
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let retry_after = Duration::from_secs(seconds.into()).min(RETRY_AFTER_MAX);
        Self::Refused { code, reason, message, retry_after }
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
        let refused = |code| ApiError::from(Status { code, ..Status::default() });
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
        assert!(!silent.is_not_found() && !silent.is_invalid() && silent.is_transient());
        assert_eq!(silent.to_string(), "no answer of the API server: connection refused");
    }

    #[test]
    fn a_server_is_away_where_others_answer_for_it() {
        let silent = ApiError::Unanswered("connection refused".to_owned());
        assert!(silent.is_away());
        assert!(!ApiError::Unusable("it is about another object".to_owned()).is_away());
        for (code, is_away) in
            [(403, false), (429, false), (500, false), (502, true), (503, true), (504, true)]
        {
            let refused = ApiError::from(Status { code, ..Status::default() });
            assert_eq!(refused.is_away(), is_away, "{code}");
        }
    }

    #[test]
    fn a_server_is_asked_again_when_it_says_so() {
        for (code, seconds, is_transient, retry_after) in [
            (429, 7, true, 7),
            (429, 0, true, 0),
            (503, 100_000, true, 60),
            (500, 0, true, 0),
            (409, 0, false, 0),
            (404, 3, false, 3),
        ] {
            let answer = format!(r#"{{"code": {code}, "details": {{"retryAfterSeconds": {seconds}}}}}"#);
            let error = ApiError::from(serde_json::from_str::<Status>(&answer).unwrap());
            assert_eq!((error.is_transient(), error.retry_after().as_secs()), (is_transient, retry_after));
        }
    }

    #[test]
    fn a_version_of_the_future_is_known_by_its_cause() {
        let answer = r#"{"kind": "Status", "status": "Failure", "code": 504, "reason": "Timeout",
            "message": "Timeout: Too large resource version: 9, current: 7", "details": {"retryAfterSeconds": 1,
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}}"#;
        let error = ApiError::from(serde_json::from_str::<Status>(answer).unwrap());
        assert!(error.is_too_new() && !error.is_expired(), "{error:?}");
        assert!(!ApiError::from(Status { code: 504, ..Status::default() }).is_too_new());
    }

    #[test]
    fn a_message_without_end_is_cut() {
        let message = "é".repeat(MESSAGE_MAX);
        let error = ApiError::from(Status { code: 500, message, ..Status::default() });
        assert_eq!(error.to_string(), format!("{}…", "é".repeat(MESSAGE_MAX / 2 - 2)));
    }
}
