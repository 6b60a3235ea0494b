//! What the error channel says when a session ends.

use serde_json::json;

use super::version::Version;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The command has ended well, or what was attached to has.
    Success,
    /// The command has ended with an exit code other than zero.
    ExitCode(i32),
    /// The command could not be run or attached to, or it is not known how it ended: why, for people.
    Failure(String),
}

impl Outcome {
    /// What is written to the error channel, which is finished after it: a `metav1.Status` since version 4, before it
    /// the message of a failure, or nothing.
    pub fn last_word(&self, version: Version) -> Vec<u8> {
        let message = self.message();
        if version < Version::V4 {
            return message.unwrap_or_default().into_bytes();
        }
        let status = match self {
            Outcome::Success => json!({ "metadata": {}, "status": "Success" }),
            Outcome::ExitCode(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Outcome::Failure(_) => json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "code": 500,
            }),
        };
        status.to_string().into_bytes()
    }

    fn message(&self) -> Option<String> {
        match self {
            Outcome::Success => None,
            Outcome::ExitCode(code) => Some(format!("command terminated with non-zero exit code: {code}")),
            Outcome::Failure(why) => Some(format!("Internal error occurred: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn since_version_4_it_is_a_status() {
        for version in [Version::V4, Version::V5] {
            let status = |outcome: Outcome| -> Value {
                serde_json::from_slice(&outcome.last_word(version)).expect("JSON")
            };
            assert_eq!(status(Outcome::Success), json!({ "metadata": {}, "status": "Success" }));
            let exited = status(Outcome::ExitCode(137));
            assert_eq!(exited["status"], "Failure");
            assert_eq!(exited["reason"], "NonZeroExitCode");
            assert_eq!(exited["details"], json!({ "causes": [{ "reason": "ExitCode", "message": "137" }] }));
            let failed = status(Outcome::Failure("error executing command in container: gone".to_owned()));
            assert_eq!(failed["reason"], "InternalError");
            assert_eq!(failed["code"], 500);
            assert_eq!(
                failed["message"],
                "Internal error occurred: error executing command in container: gone"
            );
        }
    }

    #[test]
    fn before_version_4_it_is_text() {
        for version in [Version::V1, Version::V2, Version::V3] {
            assert_eq!(Outcome::Success.last_word(version), b"");
            assert_eq!(
                Outcome::ExitCode(3).last_word(version),
                b"command terminated with non-zero exit code: 3"
            );
            assert_eq!(
                Outcome::Failure("gone".to_owned()).last_word(version),
                b"Internal error occurred: gone"
            );
        }
    }
}
