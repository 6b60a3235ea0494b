//! What a start that did not work comes to: whether it counts as a run, is tried again, or may have worked after all.
//!
//! It counts as a run as it does under a kubelet, where containerd's CRI writes exit code 128 and the reason `StartError` for
//! whatever makes a task's creation or start fail, be it the container's fault or not. What is left out is what says that
//! nothing was tried: containerd lost the task, or the way to the shim broke. Nobody can tell so from a run, and the next try
//! of the same run finds what this one left.
//! Source: containerd, `internal/cri/server/container_start.go` `StartContainer`.

use crate::{
    failure::{Failure, FailureKind},
    id::ContainerId,
};

/// A call that makes a task and did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// Which call.
    pub call: Call,
    /// What containerd answered.
    pub answer: Answer,
    /// What was found of the sandbox after that.
    pub sandbox: Sandbox,
    /// What containerd said, alone.
    pub cause: String,
    /// The same with what was tried, on what.
    pub message: String,
}

/// A call that makes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The creation of the task.
    Create,
    /// The start of the task.
    Start,
}

/// What containerd answers to a call that did not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was tried, and failed.
    Failed,
    /// The task is not in a state for it.
    NotInState,
    /// There is no such task, or one is there already.
    OutOfStep,
    /// The way to the shim broke, or containerd is ending.
    CutOff,
}

/// What is found of a sandbox in which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// It is up.
    Up,
    /// It has gone.
    Gone,
    /// It could not be asked, for this reason.
    Unknown(FailureKind),
}

impl StartFailure {
    /// What it is taken for.
    #[must_use]
    pub fn judged(self, id: &ContainerId) -> Failure {
        let kind = self.kind();
        let message = match (kind, self.call) {
            (FailureKind::StartFailed, Call::Create) => {
                format!("failed to create containerd task: {}", self.cause)
            }
            (FailureKind::StartFailed, Call::Start) => {
                format!("failed to start containerd task {:?}: {}", id.as_str(), self.cause)
            }
            _ => self.message,
        };
        Failure::new(kind, message)
    }

    fn kind(&self) -> FailureKind {
        let kind = match (self.sandbox, self.answer, self.call) {
            (Sandbox::Gone, ..) => FailureKind::SandboxGone,
            (Sandbox::Unknown(kind), ..) => kind,
            (Sandbox::Up, Answer::Failed, _) | (Sandbox::Up, Answer::NotInState, Call::Create) => {
                FailureKind::StartFailed
            }
            // The task may run: an earlier start of it was not heard of to its end.
            (Sandbox::Up, Answer::NotInState, Call::Start)
            | (Sandbox::Up, Answer::OutOfStep | Answer::CutOff, _) => FailureKind::Transient,
        };
        match (self.call, kind) {
            // It may run, or have run before its sandbox went.
            (Call::Start, FailureKind::Transient | FailureKind::SandboxGone) => FailureKind::Unknown,
            (Call::Create | Call::Start, kind) => kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_where_and_what_is_left_of_the_sandbox_decide_what_follows() {
        use Answer::{CutOff, Failed, NotInState, OutOfStep};
        use Call::{Create, Start};
        use FailureKind::{RuntimeDown, SandboxGone, StartFailed, Transient, Unknown};
        let up = Sandbox::Up;
        let cases = [
            (Create, Failed, up, StartFailed),
            (Create, NotInState, up, StartFailed),
            (Create, OutOfStep, up, Transient),
            (Create, CutOff, up, Transient),
            (Create, Failed, Sandbox::Gone, SandboxGone),
            (Create, OutOfStep, Sandbox::Gone, SandboxGone),
            (Create, Failed, Sandbox::Unknown(Transient), Transient),
            (Create, Failed, Sandbox::Unknown(RuntimeDown), RuntimeDown),
            (Start, Failed, up, StartFailed),
            (Start, NotInState, up, Unknown),
            (Start, OutOfStep, up, Unknown),
            (Start, CutOff, up, Unknown),
            (Start, Failed, Sandbox::Gone, Unknown),
            (Start, CutOff, Sandbox::Gone, Unknown),
            (Start, Failed, Sandbox::Unknown(Transient), Unknown),
            (Start, Failed, Sandbox::Unknown(Unknown), Unknown),
            (Start, Failed, Sandbox::Unknown(RuntimeDown), RuntimeDown),
        ];
        let id = ContainerId::from_known("c1");
        for (call, answer, sandbox, expected) in cases {
            let failure =
                StartFailure { call, answer, sandbox, cause: "no".into(), message: "start c1: no".into() };
            let what = format!("{failure:?}");
            let judged = failure.judged(&id);
            let message = match (expected, call) {
                (StartFailed, Create) => "failed to create containerd task: no",
                (StartFailed, Start) => "failed to start containerd task \"c1\": no",
                _ => "start c1: no",
            };
            assert_eq!((judged.kind, judged.message.as_str()), (expected, message), "{what}");
        }
    }
}
