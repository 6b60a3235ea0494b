//! When a shim that answers nothing is given up.
//!
//! A shim holds every container of its pod: to kill it ends them all. So that happens only where all of them are to go
//! anyway: when its sandbox is being removed, which is the only removal that asks about silence here. One container that
//! is removed beside healthy neighbours waits for the shim however long it takes.
//!
//! A shim may be slow for many reasons, above all a disk that stalls. Block devices get 30 s before the kernel gives up on
//! a command (`SD_TIMEOUT` of `drivers/scsi/sd.h`, `nvme_core.io_timeout`), and file systems wait that long with them. So
//! one silence proves nothing. Each question is waited for while the agent itself runs on time, and the count begins anew
//! with whatever else comes back: what was answered, refused, could not be asked or was cut off.
//!
//! The kubelet gives one call of the kind two minutes (`runtimeRequestTimeout`) and tries again for ever; containerd's
//! CRI waits as long for a container to die after SIGKILL. Neither ever ends a shim that hangs.

use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
};

/// Questions in a row that a shim may leave unanswered while its sandbox is removed. With
/// [`SHIM_ANSWER`](crate::pod::port::sandbox::SHIM_ANSWER) for each and the growing delays of a retry between them (1, 2,
/// 4, 8, 16 s) that is one and a half minutes, three times the longest usual stall of a disk.
pub const SILENT_QUESTIONS_MAX: u32 = 6;

/// How often in a row the shim of a sandbox that is being removed did not answer, with one more outcome of the removal.
#[must_use]
pub fn unanswered(before: u32, outcome: &Result<Outcome, Failure>) -> u32 {
    match outcome {
        Err(Failure { kind: FailureKind::Silent, .. }) => before.saturating_add(1),
        Ok(_) | Err(_) => 0,
    }
}

/// Whether the shim of a sandbox that is being removed is killed now.
#[must_use]
pub fn is_given_up(unanswered: u32) -> bool {
    unanswered >= SILENT_QUESTIONS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_given_up_after_six_unanswered_questions_in_a_row_and_for_nothing_else() {
        let silent = [Some(FailureKind::Silent); 6];
        let but = |at: usize, kind: Option<FailureKind>| {
            let mut outcomes = silent;
            outcomes[at] = kind;
            outcomes.to_vec()
        };
        let cases = [
            ("never asked", vec![], false),
            ("a stall of a minute", silent[..5].to_vec(), false),
            ("six", silent.to_vec(), true),
            ("seven", [&silent[..], &silent[..1]].concat(), true),
            ("answered before", but(0, None), false),
            ("answered between", but(3, None), false),
            ("answered at last", but(5, None), false),
            ("refused between", but(3, Some(FailureKind::Transient)), false),
            ("cut off between, perhaps since the agent was slow", but(5, Some(FailureKind::Unknown)), false),
            ("containerd away between", but(2, Some(FailureKind::RuntimeDown)), false),
            ("the sandbox is gone", but(4, Some(FailureKind::SandboxGone)), false),
            ("only cut off", vec![Some(FailureKind::Unknown); 50], false),
            ("only refused", vec![Some(FailureKind::Transient); 50], false),
        ];
        for (what, outcomes, expected) in cases {
            let count = outcomes.into_iter().fold(0, |before, kind| {
                let outcome =
                    kind.map_or(Ok(Outcome::Done), |kind| Err(Failure { kind, message: String::new() }));
                unanswered(before, &outcome)
            });
            assert_eq!(is_given_up(count), expected, "{what}");
        }
    }
}
