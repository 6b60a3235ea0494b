//! In a worker: AppArmor profiles that the kernel has loaded, and the runtime's default, which is loaded where it is missing.
//!
//! Source: containerd `contrib/apparmor/{apparmor,template}.go`.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use berth_core::{
    failure::{Failure, FailureKind},
    oci::{AppArmorChoice, DEFAULT_PROFILE, ProfileTerms, default_profile},
};
use serde::{Deserialize, Serialize};

use crate::{effects::failure::local, sys::end_with_this_thread};

/// Most of the kernel's list that is read: a node has some hundred profiles.
const LIST_MAX: u64 = 1 << 20;

/// Most of the parser's complaints that are told.
const COMPLAINT_MAX: usize = 300;

/// What a container's spec needs of AppArmor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum AppArmorParts {
    /// Nothing.
    Nothing,
    /// Which profiles there are.
    Listed,
    /// The same, the runtime's default among them.
    WithDefault,
}

impl AppArmorParts {
    /// What a choice needs.
    pub(in crate::effects) fn of(choice: Option<&AppArmorChoice>) -> Self {
        match choice {
            None => Self::Nothing,
            Some(AppArmorChoice::Localhost(_)) => Self::Listed,
            Some(AppArmorChoice::Default) => Self::WithDefault,
        }
    }
}

/// Where AppArmor is on a node.
#[derive(Debug)]
pub(in crate::effects) struct Places {
    list: PathBuf,
    own: PathBuf,
    abi: PathBuf,
    parser: PathBuf,
}

impl Places {
    /// Those of this node.
    pub(in crate::effects) fn of_node() -> Self {
        Self {
            list: "/sys/kernel/security/apparmor/profiles".into(),
            own: "/proc/self/attr/current".into(),
            abi: "/etc/apparmor.d/abi/3.0".into(),
            parser: "/sbin/apparmor_parser".into(),
        }
    }
}

/// The kernel's list of profiles; `None` where none is needed.
pub(in crate::effects) fn profiles(places: &Places, parts: AppArmorParts) -> Result<Option<String>, Failure> {
    let list = || listed(&places.list).map_err(local("list AppArmor profiles in", &places.list));
    match parts {
        AppArmorParts::Nothing => Ok(None),
        AppArmorParts::Listed => list().map(Some),
        AppArmorParts::WithDefault => {
            let found = list()?;
            if AppArmorChoice::Default.is_among(&found) {
                return Ok(Some(found));
            }
            load(places)?;
            list().map(Some)
        }
    }
}

fn listed(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LIST_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Has the parser compile the default profile and give it to the kernel. Others may do so at the same time: the last one holds.
fn load(places: &Places) -> Result<(), Failure> {
    // Who does not run under a profile is unconfined.
    let own = fs::read_to_string(&places.own).unwrap_or_default();
    let text =
        default_profile(ProfileTerms { own: own.trim_end_matches('\0'), has_abi: places.abi.exists() });
    let run = || {
        let mut parser = parser(places).spawn()?;
        if let Some(mut stdin) = parser.stdin.take() {
            // One that ends without reading tells why by its code.
            drop(stdin.write_all(text.as_bytes()));
        }
        parser.wait_with_output()
    };
    let ended = run().map_err(local("load an AppArmor profile with", &places.parser))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = &said[..said.floor_char_boundary(COMPLAINT_MAX)];
    let message = format!(
        "failed to generate apparmor spec opts: load apparmor profile {DEFAULT_PROFILE}: {} says {:?} ({})",
        places.parser.display(),
        said.trim(),
        ended.status
    );
    Err(Failure::new(FailureKind::Transient, message))
}

/// One that hangs ends with this worker.
fn parser(places: &Places) -> Command {
    let mut command = Command::new(&places.parser);
    command.arg("-Kr").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    end_with_this_thread(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
        thread,
    };

    use super::*;

    /// A node whose parser is a script.
    fn node(dir: &Path, loaded: &str, parser: &str) -> Places {
        let at = |name: &str| dir.join(name);
        fs::write(at("list"), loaded).unwrap();
        fs::write(at("own"), "unconfined\n").unwrap();
        let script = format!("#!/bin/sh\ncd {}\n{parser}\n", dir.display());
        fs::write(at("parser"), script).unwrap();
        fs::set_permissions(at("parser"), fs::Permissions::from_mode(0o755)).unwrap();
        Places { list: at("list"), own: at("own"), abi: at("abi"), parser: at("parser") }
    }

    #[test]
    fn the_default_profile_is_loaded_once() {
        let dir = tempfile::tempdir().unwrap();
        let loads = "cat > text; echo \"$@\" >> calls; echo 'cri-containerd.apparmor.d (enforce)' >> list";
        let places = node(dir.path(), "other (enforce)\n", loads);
        assert_eq!(profiles(&places, AppArmorParts::Nothing).unwrap(), None);
        assert_eq!(profiles(&places, AppArmorParts::Listed).unwrap().unwrap(), "other (enforce)\n");
        for _ in 0..2 {
            let found = profiles(&places, AppArmorParts::WithDefault).unwrap().unwrap();
            assert_eq!(found, "other (enforce)\ncri-containerd.apparmor.d (enforce)\n");
        }
        assert_eq!(fs::read_to_string(dir.path().join("calls")).unwrap(), "-Kr\n");
        let text = fs::read_to_string(dir.path().join("text")).unwrap();
        assert!(text.starts_with("profile cri-containerd.apparmor.d "), "{text}");
    }

    #[test]
    fn a_parser_that_hangs_ends_with_its_worker() {
        let dir = tempfile::tempdir().unwrap();
        let places = node(dir.path(), "", "exec sleep 1000");
        let mut started = thread::spawn(move || parser(&places).spawn().unwrap()).join().unwrap();
        assert_eq!(started.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_profile_that_cannot_be_loaded_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let places = node(dir.path(), "", "echo 'syntax error, line 1' >&2; exit 1");
        let failure = profiles(&places, AppArmorParts::WithDefault).unwrap_err();
        let start =
            "failed to generate apparmor spec opts: load apparmor profile cri-containerd.apparmor.d: ";
        assert!(failure.message.starts_with(start), "{failure:?}");
        assert!(failure.message.contains("syntax error, line 1"), "{failure:?}");
        fs::remove_file(&places.parser).unwrap();
        profiles(&places, AppArmorParts::WithDefault).unwrap_err();
        fs::remove_file(&places.list).unwrap();
        profiles(&places, AppArmorParts::Listed).unwrap_err();
    }
}
