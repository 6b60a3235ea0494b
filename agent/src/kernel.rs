//! What the agent sets of the machine's kernel when it starts, as the kubelet does.
//!
//! Settings of the kernel belong to the whole machine. They are what every kubelet makes of it, so one beside this agent
//! wants the same; with `protectKernelDefaults` they are only compared.
//! Source: `pkg/kubelet/cm/container_manager_linux.go` `setupKernelTunables`, `cmd/kubelet/app/server.go` `run`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{causes::with_causes, config::Config};

/// Settings below `/proc/sys` and what they are to be (`component-helpers/node/util/sysctl`): memory is promised without
/// counting, a lack of it kills a process and not the machine, a panic reboots after ten seconds, a fault of the kernel is
/// a panic, and root has keys for many containers.
const WANTED: [(&str, u64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// The agent's own score.
const OWN_SCORE: &str = "/proc/self/oom_score_adj";

/// Why the machine does not fit.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A setting is other than it must be, and must not be changed.
    #[error(
        "check {path}, which has to be {wanted} and is {found}: set it, or leave protectKernelDefaults out to have it set",
        path = .path.display()
    )]
    Protected {
        /// Which.
        path: PathBuf,
        /// What it is to be.
        wanted: u64,
        /// What it is.
        found: String,
    },
}

/// Sets what has to be set. What cannot be set is told, and the agent goes on: pods run all the same.
///
/// # Errors
/// When the configuration says that settings of the kernel are not the agent's to change, and they do not fit.
pub fn prepare(config: &Config) -> Result<(), KernelError> {
    set_own_score(config);
    tune(&config.sysctl_root, config.protect_kernel_defaults)
}

fn set_own_score(config: &Config) {
    let wanted = config.oom_score_adj;
    if let Err(error) = fs::write(OWN_SCORE, wanted.to_string()) {
        tracing::warn!(
            error = with_causes(&error),
            floor = config.node.oom_score_floor,
            "the agent cannot have oom_score_adj {wanted}, and gives containers and shims nothing below its floor: it \
             needs CAP_SYS_RESOURCE"
        );
    }
}

fn tune(root: &Path, is_protected: bool) -> Result<(), KernelError> {
    for (name, wanted) in WANTED {
        let path = root.join(name);
        let found = fs::read_to_string(&path);
        if found.as_ref().is_ok_and(|text| text.trim() == wanted.to_string()) {
            continue;
        }
        if is_protected {
            let found =
                found.map_or_else(|error| format!("unknown ({error})"), |text| text.trim().to_owned());
            return Err(KernelError::Protected { path, wanted, found });
        }
        match found.and_then(|found| set(&path, wanted).map(|()| found)) {
            Ok(found) => {
                tracing::info!(path = %path.display(), from = found.trim(), to = wanted, "kernel set");
            }
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(path = %path.display(), wanted, error, "a setting of the kernel could not be made");
            }
        }
    }
    Ok(())
}

/// Never makes a file: what the kernel does not have cannot be set.
fn set(path: &Path, wanted: u64) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, wanted.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of most machines.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in
            WANTED.iter().zip(["0", "0", "0", "0", "1000000", "25000000"]).map(|(a, b)| (a.0, b))
        {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    fn values(root: &Path) -> Vec<String> {
        let value = |(name, _): &(&str, u64)| fs::read_to_string(root.join(name)).unwrap_or_default();
        WANTED.iter().map(|one| value(one).trim().to_owned()).collect()
    }

    #[test]
    fn a_machine_is_set_as_the_kubelet_sets_it() {
        let root = machine();
        tune(root.path(), false).unwrap();
        assert_eq!(values(root.path()), ["1", "0", "10", "1", "1000000", "25000000"]);
    }

    #[test]
    fn a_protected_machine_is_compared_and_left() {
        let root = machine();
        let before = values(root.path());
        let told = tune(root.path(), true).unwrap_err().to_string();
        assert!(told.contains("vm/overcommit_memory, which has to be 1 and is 0"), "{told}");
        assert_eq!(values(root.path()), before);
        tune(root.path(), false).unwrap();
        tune(root.path(), true).unwrap();
    }

    #[test]
    fn what_the_kernel_does_not_have_is_not_made() {
        let root = machine();
        fs::remove_dir_all(root.path().join("kernel/keys")).unwrap();
        tune(root.path(), false).unwrap();
        assert!(!root.path().join("kernel/keys").exists());
        assert_eq!(values(root.path())[0], "1");
        assert!(tune(root.path(), true).unwrap_err().to_string().contains("root_maxkeys"));
    }
}
