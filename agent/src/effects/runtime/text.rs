//! What containerd's answer to a creation or a start says, in code and words. Text is matched here alone.

use berth_core::pod::port::start_failure::Answer;
use tonic::Code;

/// Ends of messages that come from a broken connection between containerd and the shim, or from containerd's own end.
/// They are looked for at the end, where the cause is: what a pod chooses stands before it.
const BROKEN: &[&str] = &[
    "ttrpc: closed",
    "ttrpc: server closed",
    "context canceled",
    "context deadline exceeded",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
];

/// What a shim answers for the runtime: the call was carried to its end, whatever the words of a hook that failed in it.
const OF_THE_RUNTIME: &[&str] = &["OCI runtime create", "OCI runtime start"];

/// What the answer says of the task `id`. Another creation of it under way, as of an agent that was killed, has its bundle.
/// Source: containerd, `core/runtime/v2/bundle.go` `NewBundle`.
pub(super) fn answer(code: Code, id: &str, message: &str) -> Answer {
    let is_under_way = message.trim_end().ends_with(&format!("/{id}: file exists"));
    if code == Code::Unknown && is_under_way {
        return Answer::OutOfStep;
    }
    let is_of_the_runtime = OF_THE_RUNTIME.iter().any(|begin| message.contains(begin));
    if !is_of_the_runtime && BROKEN.iter().any(|end| message.trim_end().ends_with(end)) {
        return Answer::CutOff;
    }
    match code {
        Code::NotFound | Code::AlreadyExists => Answer::OutOfStep,
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted => Answer::CutOff,
        Code::FailedPrecondition => Answer::NotInState,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Answer::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_has_failed_in_whichever_words() {
        let failed = [
            (Code::Unknown, "OCI runtime create failed: exec: \"nope\": executable file not found in $PATH"),
            (Code::Internal, "OCI runtime create failed: words that nobody has seen before"),
            (Code::Internal, "failed to mount /run/x: no space left on device"),
            (Code::Unknown, "exec: \"context canceled\": executable file not found in $PATH"),
            (Code::Unknown, "OCI runtime create failed: error running hook: connect: connection refused"),
            (Code::Internal, "OCI runtime start failed: hook: context deadline exceeded"),
            (Code::ResourceExhausted, "too many containers"),
            (Code::Unknown, "runc start failed: cannot set memory limit"),
            (Code::Unknown, "mkdir /run/task/k8s.io/c2: file exists"),
            (Code::Internal, "OCI runtime create failed: mkdir /x/c1: file exists"),
        ];
        for (code, message) in failed {
            assert_eq!(answer(code, "c1", message), Answer::Failed, "{code:?} {message}");
        }
    }

    #[test]
    fn what_was_not_tried_says_why() {
        let others = [
            (Code::Unknown, "failed to create shim task: ttrpc: closed", Answer::CutOff),
            (Code::Unknown, "failed to create shim task: context canceled", Answer::CutOff),
            (Code::Unknown, "runc create failed: context deadline exceeded", Answer::CutOff),
            (Code::Unknown, "dial unix /run/berth/shim/x.sock: connect: connection refused", Answer::CutOff),
            (Code::Unavailable, "ttrpc: closed", Answer::CutOff),
            (Code::NotFound, "sandbox s1 not found", Answer::OutOfStep),
            (Code::NotFound, "task c1 not found", Answer::OutOfStep),
            (Code::AlreadyExists, "task c1: already exists", Answer::OutOfStep),
            (Code::Unknown, "mkdir /run/task/k8s.io/c1: file exists", Answer::OutOfStep),
            (Code::FailedPrecondition, "layer wants dm-verity", Answer::NotInState),
            (Code::FailedPrecondition, "the container runs already", Answer::NotInState),
        ];
        for (code, message, expected) in others {
            assert_eq!(answer(code, "c1", message), expected, "{code:?} {message}");
        }
    }
}
