//! Sandboxes that were detached: where all that was begun for one is undone, nothing has to be looked for on disk before its
//! namespace goes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use berth_core::id::SandboxId;

/// What this agent knows of sandboxes between their ADD and the end of their namespaces.
#[derive(Debug, Default)]
pub(super) struct Unwired(Mutex<BTreeMap<SandboxId, State>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// An ADD was begun and has not come to a good end: what it may still write, a DEL may not have seen.
    Begun,
    /// A DEL has worked, after every ADD had ended.
    Undone,
}

impl Unwired {
    /// An ADD begins.
    pub(super) fn adds(&self, sandbox: &SandboxId) {
        self.all().insert(sandbox.clone(), State::Begun);
    }

    /// An ADD has worked.
    pub(super) fn added(&self, sandbox: &SandboxId) {
        self.all().remove(sandbox);
    }

    /// A DEL has worked.
    pub(super) fn deleted(&self, sandbox: &SandboxId) {
        self.all().entry(sandbox.clone()).or_insert(State::Undone);
    }

    /// Whether nothing of a sandbox is attached or written down.
    pub(super) fn has(&self, sandbox: &SandboxId) -> bool {
        self.all().get(sandbox) == Some(&State::Undone)
    }

    /// Its namespace is gone.
    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.all().remove(sandbox);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SandboxId, State>> {
        // The map is whole whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_del_after_every_add_has_ended_leaves_nothing() {
        let sandbox = SandboxId::from_known("s");
        type Step = fn(&Unwired, &SandboxId);
        let [adds, added, deleted]: [Step; 3] = [Unwired::adds, Unwired::added, Unwired::deleted];
        for (steps, expected) in [
            (&[adds][..], false),
            (&[], false),
            (&[adds, added], false),
            (&[adds, added, deleted], true),
            // An earlier agent attached it.
            (&[deleted], true),
            (&[deleted, deleted], true),
            (&[deleted, adds], false),
            (&[deleted, adds, added], false),
            (&[deleted, adds, added, deleted], true),
            // The ADD failed, or was given up and may go on.
            (&[adds, deleted], false),
            (&[adds, deleted, deleted], false),
            (&[adds, adds, added, deleted], true),
        ] {
            let unwired = Unwired::default();
            steps.iter().for_each(|step| step(&unwired, &sandbox));
            assert_eq!(unwired.has(&sandbox), expected, "{}", steps.len());
            unwired.forget(&sandbox);
            assert!(!unwired.has(&sandbox) && unwired.all().is_empty());
        }
    }
}
