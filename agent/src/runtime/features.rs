//! What OCI runtimes say that they can do (`features.md` of the OCI runtime specification), asked once of each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::config::CgroupDriver;
use nix::sys::utsname::uname;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::probe::{self, OciCommand};
use crate::{
    causes::with_causes,
    config::PodRuntime,
    program::{Program, ProgramError},
};

/// How long a runtime may take to answer. It takes milliseconds, and a pod waits for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The first kernel that makes a mount read-only with all that is mounted below it (`mount_setattr`).
const KERNEL: (u32, u32) = (5, 12);

/// Features of runtimes. Clones share what is known.
#[derive(Debug, Clone)]
pub struct RuntimeFeatures {
    /// The node's own runtime.
    own: OciCommand,
    driver: CgroupDriver,
    is_kernel_able: bool,
    known: Arc<Mutex<BTreeMap<String, Arc<OnceCell<Features>>>>>,
}

/// What of them counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Features {
    recursive_read_only: bool,
}

/// What a runtime prints.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Printed {
    #[serde(default)]
    mount_options: Option<Vec<String>>,
}

impl RuntimeFeatures {
    /// Nothing is known yet of the node's runtime and those that handlers name.
    #[must_use]
    pub fn new(own: &OciCommand, driver: CgroupDriver) -> Self {
        let is_kernel_able = uname().is_ok_and(|name| is_at_least(&name.release().to_string_lossy(), KERNEL));
        Self { own: own.clone(), driver, is_kernel_able, known: Arc::default() }
    }

    /// Whether pods of a runtime can have mounts that are read-only with all that is mounted below them: the OCI runtime says so,
    /// and the kernel is new enough. Shims of others are not asked. Source: containerd `internal/cri/server/service.go`
    /// `introspectRuntimeHandler`.
    pub async fn recursive_read_only(&self, runtime: &PodRuntime) -> bool {
        let binary = match runtime {
            PodRuntime::Berth { binary: None } => self.own.binary.clone(),
            PodRuntime::Berth { binary: Some(name) } => match probe::named(name, self.driver) {
                Ok(command) => command.binary,
                Err(_not_there) => return false,
            },
            PodRuntime::Grouped { .. } => return false,
        };
        self.is_kernel_able && self.of(binary).await.recursive_read_only
    }

    async fn of(&self, binary: String) -> Features {
        let known = Arc::clone(
            self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(binary.clone()).or_default(),
        );
        let found = known.get_or_try_init(|| ask(binary.clone())).await.copied();
        found.unwrap_or_else(|error| {
            tracing::warn!(runtime = binary, error = with_causes(&error), "an OCI runtime says no features");
            Features::default()
        })
    }
}

/// One that has no such command, or prints something else, has none of them.
async fn ask(binary: String) -> Result<Features, ProgramError> {
    let program = Program { command: binary, args: vec!["features".to_owned()], ..Program::default() };
    match program.answer("", ANSWER_WITHIN).await {
        Ok(text) => Ok(read(&text)),
        Err(ProgramError::Failed { .. } | ProgramError::Output { .. }) => Ok(Features::default()),
        Err(
            error @ (ProgramError::Start { .. } | ProgramError::Unreadable(..) | ProgramError::Silent(..)),
        ) => Err(error),
    }
}

fn read(text: &str) -> Features {
    let options = serde_json::from_str::<Printed>(text).ok().and_then(|printed| printed.mount_options);
    let recursive_read_only = options.is_some_and(|options| options.iter().any(|option| option == "rro"));
    Features { recursive_read_only }
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
            assert_eq!(read(text).recursive_read_only, expected, "{text}");
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

    #[tokio::test]
    async fn each_is_asked_once() {
        let dir = tempfile::tempdir().unwrap();
        let own = OciCommand { binary: "/nowhere/runtime".to_owned(), args: Vec::new() };
        let mut features = RuntimeFeatures::new(&own, CgroupDriver::Cgroupfs);
        features.is_kernel_able = true;
        for (name, text, expected) in [
            ("able", r#"[ "$1" = features ] && echo '{"mountOptions": ["rro"]}'"#, true),
            ("old", "echo unknown command features >&2; exit 1", false),
        ] {
            let runtime = runtime(dir.path(), name, text);
            for _ in 0..3 {
                assert_eq!(features.recursive_read_only(&runtime).await, expected, "{name}");
            }
            assert_eq!(fs::read_to_string(dir.path().join(name).with_extension("asked")).unwrap(), "x\n");
        }
        assert!(!features.recursive_read_only(&PodRuntime::Berth { binary: None }).await);
        features.is_kernel_able = false;
        let able = PodRuntime::Berth { binary: Some(dir.path().join("able").display().to_string()) };
        assert!(!features.recursive_read_only(&able).await);
    }
}
