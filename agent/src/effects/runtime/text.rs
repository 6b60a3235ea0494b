//! Whether a failed start counts as a run.
//!
//! It does as it does under a kubelet, where containerd's CRI writes exit code 128 and the reason `StartError` for whatever
//! makes a task's creation or start fail, be it the container's fault or not. What is left out is what says that nothing was
//! tried: containerd lost the task, or the way to the shim broke. Nobody can tell so from a run, and the next try of the
//! same run finds what this one left.
//! Source: containerd, `internal/cri/server/container_start.go` `StartContainer`.

use tonic::Code;

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The creation of the task.
    Create,
    /// The start of the task.
    Start,
}

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

/// Whether what containerd answered to `call` counts as a run that failed.
pub(super) fn is_a_run(call: Call, code: Code, message: &str) -> bool {
    let was_tried = match code {
        Code::NotFound
        | Code::AlreadyExists
        | Code::Unavailable
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted => false,
        // The task may run: an earlier start of it was not heard of to its end.
        Code::FailedPrecondition => call == Call::Create,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => true,
    };
    was_tried && !BROKEN.iter().any(|end| message.trim_end().ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_tried_is_a_run_in_whichever_words() {
        let runs = [
            (
                Call::Create,
                Code::Unknown,
                "OCI runtime create failed: exec: \"nope\": executable file not found in $PATH",
            ),
            (
                Call::Create,
                Code::Internal,
                "OCI runtime create of c1 failed: words that nobody has seen before",
            ),
            (Call::Create, Code::Internal, "failed to mount /run/x: no space left on device"),
            (Call::Create, Code::Unknown, "exec: \"context canceled\": executable file not found in $PATH"),
            (Call::Create, Code::FailedPrecondition, "layer wants dm-verity"),
            (Call::Create, Code::ResourceExhausted, "too many containers"),
            (Call::Start, Code::Unknown, "runc start failed: cannot set memory limit"),
        ];
        for (call, code, message) in runs {
            assert!(is_a_run(call, code, message), "{call:?} {code:?} {message}");
        }
    }

    #[test]
    fn what_was_not_tried_is_none() {
        let others = [
            (Call::Create, Code::Unknown, "failed to create shim task: ttrpc: closed"),
            (Call::Create, Code::Unknown, "failed to create shim task: context canceled"),
            (Call::Create, Code::Unknown, "runc create failed: context deadline exceeded"),
            (Call::Create, Code::Unknown, "dial unix /run/berth/shim/x.sock: connect: connection refused"),
            (Call::Create, Code::NotFound, "sandbox s1 not found"),
            (Call::Create, Code::AlreadyExists, "task c1: already exists"),
            (Call::Start, Code::NotFound, "task c1 not found"),
            (Call::Start, Code::FailedPrecondition, "the container runs already"),
            (Call::Start, Code::Unavailable, "ttrpc: closed"),
        ];
        for (call, code, message) in others {
            assert!(!is_a_run(call, code, message), "{call:?} {code:?} {message}");
        }
    }
}
