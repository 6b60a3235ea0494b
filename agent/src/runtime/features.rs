//! What OCI runtimes say that they can do (`features.md` of the OCI runtime specification).
//!
//! One that has answered is not asked again. Of one that does not, the last failure is known at once, and it is asked again once a minute
//! at most, in the background: nobody waits for it but who asks before it has ever answered.

use std::{
    collections::BTreeMap,
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::config::CgroupDriver;
use nix::sys::utsname::uname;
use serde::Deserialize;
use tokio::{sync::watch, time::Instant};

use super::probe::{self, OciCommand, ProbeError};
use crate::{
    causes::with_causes,
    config::PodRuntime,
    one_thread::{OneThread, Unanswered},
    program::{Program, ProgramError},
};

/// How long a runtime may take to answer. It takes milliseconds, and a pod waits for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How soon one is asked again that has not said what it can do, at the earliest.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The first kernel that makes a mount read-only with all that is mounted below it (`mount_setattr`).
const KERNEL: (u32, u32) = (5, 12);

/// Features of runtimes. Clones share what is known.
#[derive(Debug, Clone)]
pub struct RuntimeFeatures {
    /// The node's own runtime.
    own: OciCommand,
    driver: CgroupDriver,
    is_kernel_able: bool,
    again_after: Duration,
    /// By their names or paths.
    known: Arc<Mutex<BTreeMap<String, Arc<Asked>>>>,
}

/// A runtime.
#[derive(Debug)]
struct Asked {
    /// Where it is looked for and started.
    thread: OneThread,
    told: watch::Sender<Told>,
}

/// What is known of one.
#[derive(Debug)]
struct Told {
    /// What it has said last, or why it has said nothing.
    answer: Option<Result<Features, Unasked>>,
    /// When it is to be asked: not while it is, nor when it has said all.
    next: Option<Instant>,
}

/// Why it is not known what a runtime can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ask OCI runtime {runtime} what it can do: {why}")]
pub struct Unasked {
    runtime: String,
    why: String,
}

/// Why a runtime could not be asked.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Search(#[from] Unanswered),
    #[error(transparent)]
    Absent(#[from] ProbeError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("it was killed: {0}")]
    Killed(ExitStatus),
}

/// What came of asking.
enum Answer {
    /// This is for good.
    Said(Features),
    /// It knows no such command, or has failed: it has none for now.
    Refused,
}

/// What of them counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Whether mounts can be read-only with all that is mounted below them: the OCI runtime says so, and the kernel is new enough.
    pub recursive_read_only: bool,
    /// Whether pods can have user namespaces: the OCI runtime says that it has them, and mounts with other owners.
    pub user_namespaces: bool,
}

/// What a runtime prints.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Printed {
    mount_options: Option<Vec<String>>,
    linux: Option<Linux>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Linux {
    namespaces: Option<Vec<String>>,
    mount_extensions: Option<MountExtensions>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MountExtensions {
    idmap: Option<Idmap>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Idmap {
    enabled: Option<bool>,
}

impl RuntimeFeatures {
    /// Nothing is known yet of the node's runtime and those that handlers name.
    #[must_use]
    pub fn new(own: &OciCommand, driver: CgroupDriver) -> Self {
        let is_kernel_able = uname().is_ok_and(|name| is_at_least(&name.release().to_string_lossy(), KERNEL));
        Self { own: own.clone(), driver, is_kernel_able, again_after: AGAIN_AFTER, known: Arc::default() }
    }

    /// What pods of a runtime can have: its OCI runtime says so, and for mounts that are read-only with all that is mounted below them the
    /// kernel is new enough. Shims of others are not asked. Source: containerd `internal/cri/server/service.go`
    /// `introspectRuntimeHandler`, `supportsCRIUserns`.
    ///
    /// # Errors
    /// The runtime has not said what it can do.
    pub async fn of(&self, runtime: &PodRuntime) -> Result<Features, Unasked> {
        let Some(name) = self.name_of(runtime) else { return Ok(Features::default()) };
        let asked = self.ask(name);
        let mut heard = asked.told.subscribe();
        // Fails only when nobody could tell any more, who is held here.
        let told = heard.wait_for(|told| told.answer.is_some()).await.ok();
        let answer = told.and_then(|told| told.answer.clone()).unwrap_or_else(|| Ok(Features::default()));
        answer.map(|found| self.with_this_kernel(found))
    }

    /// The same, as far as is known: nobody is waited for.
    #[must_use]
    pub fn known(&self, runtime: &PodRuntime) -> Features {
        let Some(name) = self.name_of(runtime) else { return Features::default() };
        let asked = self.ask(name);
        match &asked.told.borrow().answer {
            Some(Ok(found)) => self.with_this_kernel(*found),
            Some(Err(_)) | None => Features::default(),
        }
    }

    fn with_this_kernel(&self, found: Features) -> Features {
        Features { recursive_read_only: found.recursive_read_only && self.is_kernel_able, ..found }
    }

    fn name_of<'a>(&'a self, runtime: &'a PodRuntime) -> Option<&'a str> {
        match runtime {
            PodRuntime::Berth { binary } => Some(binary.as_deref().unwrap_or(&self.own.binary)),
            PodRuntime::Grouped { .. } => None,
        }
    }

    /// Has one asked where that is due.
    fn ask(&self, name: &str) -> Arc<Asked> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = Arc::clone(known.entry(name.to_owned()).or_default());
        drop(known);
        let now = Instant::now();
        let is_due = asked.told.send_if_modified(|told| told.next.take_if(|next| *next <= now).is_some());
        if is_due {
            let (asked, name) = (Arc::clone(&asked), name.to_owned());
            let (driver, again_after) = (self.driver, self.again_after);
            tokio::spawn(async move {
                let answer = asked.answer(&name, driver).await;
                asked.take(answer, &name, again_after);
            });
        }
        asked
    }
}

impl Default for Asked {
    fn default() -> Self {
        let told = Told { answer: None, next: Some(Instant::now()) };
        Self { thread: OneThread::default(), told: watch::Sender::new(told) }
    }
}

impl Asked {
    async fn answer(&self, name: &str, driver: CgroupDriver) -> Result<Answer, AskError> {
        let searched = name.to_owned();
        let OciCommand { binary, .. } =
            self.thread.run(ANSWER_WITHIN, move || probe::named(&searched, driver)).await??;
        let args = vec!["features".to_owned()];
        let program = Program { command: binary, args, starter: self.thread.clone(), ..Program::default() };
        let ended = program.run("", ANSWER_WITHIN).await?;
        match ended.status.code() {
            Some(0) => Ok(Answer::Said(read(&ended.output))),
            Some(_) => Ok(Answer::Refused),
            None => Err(AskError::Killed(ended.status)),
        }
    }

    fn take(&self, answer: Result<Answer, AskError>, name: &str, again_after: Duration) {
        let later = Some(Instant::now() + again_after);
        let (answer, next) = match answer {
            Ok(Answer::Said(features)) => (Ok(features), None),
            Ok(Answer::Refused) => (Ok(Features::default()), later),
            Err(error) => (Err(Unasked { runtime: name.to_owned(), why: with_causes(&error) }), later),
        };
        if let Err(error) = &answer
            && !matches!(&self.told.borrow().answer, Some(Err(before)) if before == error)
        {
            tracing::warn!(error = with_causes(error), "an OCI runtime says no features");
        }
        self.told.send_replace(Told { answer: Some(answer), next });
    }
}

/// One that prints something else has none of them.
fn read(text: &[u8]) -> Features {
    let Printed { mount_options, linux } = serde_json::from_slice(text).unwrap_or_default();
    let Linux { namespaces, mount_extensions } = linux.unwrap_or_default();
    let names =
        |list: Option<Vec<String>>, name: &str| list.is_some_and(|list| list.iter().any(|one| one == name));
    let shifts_owners = mount_extensions.and_then(|all| all.idmap?.enabled).unwrap_or(false);
    Features {
        recursive_read_only: names(mount_options, "rro"),
        user_namespaces: names(namespaces, "user") && shifts_owners,
    }
}

/// Whether a release such as `6.1.0-13-amd64` is of this version or a later one.
fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= version
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    #[test]
    fn a_runtime_that_says_rro_has_it() {
        for (text, expected) in [
            (r#"{"ociVersionMin": "1.0.0", "mountOptions": ["ro", "rro", "rw"]}"#, true),
            (r#"{"mountOptions": ["ro", "rrow"]}"#, false),
            (r#"{"mountOptions": null}"#, false),
            ("{}", false),
            (r#"{"mountOptions": "rro"}"#, false),
            ("rro", false),
            ("", false),
        ] {
            assert_eq!(read(text.as_bytes()).recursive_read_only, expected, "{text}");
        }
    }

    #[test]
    fn kernels() {
        for (release, expected) in [
            ("5.12.0", true),
            ("5.11.22-generic", false),
            ("6.1.0-13-amd64", true),
            ("5.4", false),
            ("10", true),
            ("", false),
            ("99999999999999999999.1", false),
        ] {
            assert_eq!(is_at_least(release, KERNEL), expected, "{release}");
        }
    }

    #[test]
    fn a_runtime_that_has_user_namespaces_and_shifts_owners_of_mounts_has_them() {
        for (text, expected) in [
            (
                r#"{"linux": {"namespaces": ["ipc", "user"], "mountExtensions": {"idmap": {"enabled": true}}}}"#,
                true,
            ),
            (r#"{"linux": {"namespaces": ["ipc"], "mountExtensions": {"idmap": {"enabled": true}}}}"#, false),
            (
                r#"{"linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": false}}}}"#,
                false,
            ),
            (r#"{"linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {}}}}"#, false),
            (r#"{"linux": {"namespaces": ["user"], "mountExtensions": null}}"#, false),
            (r#"{"linux": {"namespaces": ["user"]}}"#, false),
            (r#"{"linux": null, "mountOptions": ["rro"]}"#, false),
            ("{}", false),
        ] {
            assert_eq!(read(text.as_bytes()).user_namespaces, expected, "{text}");
        }
    }

    fn runtime(dir: &Path, name: &str, text: &str) -> PodRuntime {
        let path = dir.join(name);
        fs::write(
            &path,
            format!("#!/bin/sh\necho x >> {}\n{text}\n", path.with_extension("asked").display()),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        PodRuntime::Berth { binary: Some(path.display().to_string()) }
    }

    fn features(own: &str) -> RuntimeFeatures {
        let own = OciCommand { binary: own.to_owned(), args: Vec::new() };
        let features = RuntimeFeatures::new(&own, CgroupDriver::Cgroupfs);
        RuntimeFeatures { is_kernel_able: true, ..features }
    }

    fn asked(dir: &Path, name: &str) -> usize {
        fs::read_to_string(dir.join(name).with_extension("asked")).map_or(0, |text| text.lines().count())
    }

    const ABLE: &str = r#"[ "$1" = features ] && echo '{
        "mountOptions": ["rro"], "linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": true}}}
    }'"#;
    const ALL: Features = Features { recursive_read_only: true, user_namespaces: true };

    #[tokio::test]
    async fn one_that_answers_is_asked_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut features = features("/nowhere/runtime");
        features.again_after = Duration::ZERO;
        for (name, text, expected) in [("able", ABLE, ALL), ("mute", "true", Features::default())] {
            let runtime = runtime(dir.path(), name, text);
            assert_eq!(features.known(&runtime), Features::default(), "{name}: not yet");
            for _ in 0..3 {
                assert_eq!(features.of(&runtime).await, Ok(expected), "{name}");
            }
            assert_eq!(features.known(&runtime), expected, "{name}");
            assert_eq!(asked(dir.path(), name), 1, "{name}");
        }
        features.is_kernel_able = false;
        let able = PodRuntime::Berth { binary: Some(dir.path().join("able").display().to_string()) };
        let without = Features { recursive_read_only: false, ..ALL };
        assert_eq!((features.of(&able).await, features.known(&able)), (Ok(without), without));
    }

    /// It may be one that is being replaced, or may have been killed.
    #[tokio::test]
    async fn one_that_fails_is_asked_again_and_not_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, expected) in [
            ("old", "echo unknown command features >&2; exit 1", Some(Features::default())),
            ("killed", "kill -9 $$", None),
            ("missing", "", None),
        ] {
            let features = features("/nowhere/runtime");
            let failing = runtime(dir.path(), name, text);
            let path = dir.path().join(name);
            if text.is_empty() {
                fs::remove_file(&path).unwrap();
            }
            for _ in 0..3 {
                assert_eq!(features.of(&failing).await.ok(), expected, "{name}");
            }
            assert!(asked(dir.path(), name) <= 1, "{name}");
            runtime(dir.path(), name, ABLE);
            features.known.lock().unwrap().values().for_each(|one| {
                one.told.send_modify(|told| told.next = Some(Instant::now()));
            });
            let again = async {
                while features.of(&failing).await != Ok(ALL) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), again).await.expect("it is asked again");
        }
    }

    /// Of what hangs, nothing more is left however often it is asked for, and who asks later waits for nothing.
    #[tokio::test]
    async fn one_whose_file_system_hangs_holds_one_thread() {
        let features = features("/nowhere/runtime");
        let none = PodRuntime::Berth { binary: None };
        let thread = features.ask("/nowhere/runtime").thread.clone();
        features.of(&none).await.unwrap_err();
        let (answer, hangs) = std::sync::mpsc::sync_channel::<()>(0);
        thread.run(Duration::from_millis(10), move || hangs.recv().is_ok()).await.unwrap_err();
        let due = || {
            let known = features.known.lock().unwrap();
            known.values().for_each(|one| one.told.send_modify(|told| told.next = Some(Instant::now())));
        };
        due();
        let at_once = tokio::time::timeout(ANSWER_WITHIN / 2, features.of(&none)).await;
        at_once.expect("what is known").unwrap_err();
        assert_eq!(features.known.lock().unwrap().len(), 1);
        drop(answer);
    }
}
