//! Points at which the agent can be made to die, so that tests can show that a death at any of them leaves nothing
//! behind (invariant 6). The label comes from `BERTH_ABORT_AT`, with `#n` for the n-th time that it is reached; without it,
//! reaching a point costs one comparison. With `stop:` before the label the agent stops there, as by SIGSTOP, and goes on with SIGCONT:
//! so tests show what it makes of a change that comes just then.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::own_log;

/// Points within effects, after something was made that a restart must find, and some of the loop.
const INNER: &[&str] = &[
    "sandbox.record-created",
    "sandbox.created",
    "sandbox.started",
    "sandbox.shut-down",
    "grouped.recorded",
    "grouped.held",
    "grouped.released",
    "container.files-written",
    "container.record-created",
    "container.task-created",
    "container.task-started",
    "container.task-deleted",
    "pod.logs-removed",
    "container.snapshot-removed",
    "volume.directory-made",
    "content.gathered",
    "content.written",
    "image-volume.lease-taken",
    "image-volume.snapshot-made",
    "image-volume.mounted",
    "image-volume.snapshot-removed",
    "volumes.unmounted",
    "pull.transferred",
    "pull.named",
    "image.record-removed",
    "unpack.applied",
    "unpack.done",
    "persist.before",
    "persist.after",
    "forget.before",
    "forget.after",
    "agent.restored",
];

/// Where to die. Nowhere by default. Clones die together.
#[derive(Debug, Clone, Default)]
pub struct Failpoint(Option<Arc<Doom>>);

#[derive(Debug)]
struct Doom {
    label: String,
    /// How often it is still reached, the last time among them.
    left: AtomicU32,
    signal: Signal,
}

impl Failpoint {
    /// Dies at `point`: one of [`labels`], at the first time or, with `#n`, at the n-th.
    #[must_use]
    pub fn at(point: Option<String>) -> Self {
        Self(point.map(|point| {
            let (signal, point) = match point.strip_prefix("stop:") {
                Some(point) => (Signal::SIGSTOP, point),
                None => (Signal::SIGKILL, point.as_str()),
            };
            let (label, count) = point.split_once('#').unwrap_or((point, "1"));
            let left = AtomicU32::new(count.parse().unwrap_or(1));
            Arc::new(Doom { label: label.to_owned(), left, signal })
        }))
    }

    /// Dies here when `label`, a point within an effect, was asked for.
    pub fn reach(&self, label: &str) {
        debug_assert!(INNER.contains(&label), "{label} is not in the list");
        self.pass(label);
    }

    /// Dies here when the point before an effect or a request of this kind was asked for.
    pub fn before(&self, kind: &str) {
        self.pass(&before(kind));
    }

    /// Dies here when the point after an effect or a request of this kind was asked for.
    pub fn after(&self, kind: &str) {
        self.pass(&after(kind));
    }

    fn pass(&self, label: &str) {
        let Some(doom) = self.0.as_ref().filter(|doom| doom.label == label) else { return };
        if doom.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            own_log::say_now(&format!("dying on request label={label:?}\n"));
            // As a power cut would: no destructor, no handler. Neither signal can fail on oneself.
            let _cannot_fail = kill(Pid::this(), doom.signal);
        }
    }
}

fn before(kind: &str) -> String {
    format!("{kind}.before")
}

fn after(kind: &str) -> String {
    format!("{kind}.after")
}

/// Every label of effects: `<effect>.before` and `<effect>.after` for each kind of effect, and the points within them.
pub fn labels(kinds: &[&str]) -> impl Iterator<Item = String> {
    edges(kinds).chain(INNER.iter().map(|&label| label.to_owned()))
}

/// `<kind>.before` and `<kind>.after` for each kind of effect or request.
pub fn edges(kinds: &[&str]) -> impl Iterator<Item = String> {
    kinds.iter().flat_map(|kind| [before(kind), after(kind)])
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_list_of_labels_is_that_of_the_source() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let call = ["failpoint.", "reach(\""].concat();
        let mut found = Vec::new();
        for file in files {
            let text = fs::read_to_string(file).unwrap();
            let calls = text.split(call.as_str()).skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
        let once: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(once, INNER.iter().copied().collect::<BTreeSet<_>>());
        assert_eq!(found.len(), once.len(), "a label stands for one point: {found:?}");
    }
}
