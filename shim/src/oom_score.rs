//! Who is killed first when the node has no memory left (`oom_score_adj`, `proc(5)`).
//!
//! A process has its parent's score. The shim's is for the shim alone: what it starts has the score that it should have,
//! or as much of it as the kernel allows. Lowering needs a capability that a nested node lacks.

use std::fs;
use std::process::Command;

use crate::sys;

const OWN: &str = "/proc/self/oom_score_adj";
/// The score of programs that serve a pod and are none of its processes.
pub(crate) const OF_NODE: &str = "0";

/// Sets the shim's own.
pub(crate) fn set(score: i32) {
    if fs::write(OWN, score.clamp(-1000, 1000).to_string()).is_err() {
        crate::log::warning!("oom_score_adj {score} is not allowed here, the inherited one is kept");
    }
}

/// One above containerd's own, as the runc shim has it: containerd is killed last, a container first.
pub(crate) fn raise() {
    let score = fs::read_to_string(OWN).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(score) = score.filter(|score| *score < 1000) {
        let _kept = fs::write(OWN, (score + 1).to_string()).is_err();
    }
}

/// The score of a process that lives.
pub(crate) fn of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()
}

/// Has a command begin with a score.
pub(crate) fn give(command: &mut Command, score: &str) {
    let score = score.to_owned();
    sys::before_exec(command, move || {
        // One that is not allowed is no reason not to run.
        let _kept = fs::write(OWN, &score).is_err();
        Ok(())
    });
}
