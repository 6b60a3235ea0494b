//! The life of the sandbox.

use crate::event::ReqId;
use crate::reply::{Code, Failure, SandboxState, SandboxView};

#[derive(Debug, Default)]
pub(crate) enum Life {
    /// The shim serves plain tasks, or nothing yet.
    #[default]
    Absent,
    /// Known, its namespaces not entered.
    Created { at_ns: i64 },
    /// The shim enters the namespaces.
    Starting { at_ns: i64, from: ReqId },
    /// `pid` holds the pod's namespaces.
    Ready { at_ns: i64, pid: u32 },
    /// Stopped; still described until it is shut down.
    Stopped { at_ns: i64, pid: u32, exited_at_ns: i64 },
}

#[derive(Debug, Default)]
pub(crate) struct Sandbox {
    pub(crate) life: Life,
    pub(crate) waiters: Vec<ReqId>,
}

impl Sandbox {
    pub(crate) fn view(&self) -> Option<SandboxView> {
        let view = |at_ns: &i64, pid: u32, state, exited_at_ns| {
            Some(SandboxView { pid, state, created_at_ns: *at_ns, exited_at_ns })
        };
        match &self.life {
            Life::Absent => None,
            Life::Created { at_ns } | Life::Starting { at_ns, .. } => {
                view(at_ns, 0, SandboxState::NotReady, None)
            }
            Life::Ready { at_ns, pid } => view(at_ns, *pid, SandboxState::Ready, None),
            Life::Stopped { at_ns, pid, exited_at_ns } => {
                view(at_ns, *pid, SandboxState::NotReady, Some(*exited_at_ns))
            }
        }
    }

    /// Whether the process must outlive its tasks.
    pub(crate) fn is_present(&self) -> bool {
        match self.life {
            Life::Absent => false,
            Life::Created { .. } | Life::Starting { .. } | Life::Ready { .. } | Life::Stopped { .. } => true,
        }
    }

    /// Whether nothing may run any more.
    pub(crate) fn is_stopped(&self) -> bool {
        match self.life {
            Life::Stopped { .. } => true,
            Life::Absent | Life::Created { .. } | Life::Starting { .. } | Life::Ready { .. } => false,
        }
    }

    /// Whether members may be created now. Without a sandbox the shim serves plain tasks.
    pub(crate) fn may_create_member(&self) -> Result<(), Failure> {
        match self.life {
            Life::Absent | Life::Ready { .. } => Ok(()),
            Life::Created { .. } | Life::Starting { .. } => Err(refuse("the sandbox is not started")),
            Life::Stopped { .. } => Err(refuse("the sandbox is stopped")),
        }
    }
}

pub(crate) fn refuse(why: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, why)
}
