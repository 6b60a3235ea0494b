//! Which OCI runtime works on this machine: crun, which is smaller and faster, where a trial container can be created
//! with it exactly as pods will be; else runc.

mod verdict;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use berth_core::{cgroup::names, config::CgroupDriver, oci::OCI_VERSION};
use tokio::process::Command;

use self::verdict::{TrialError, untried};
use crate::{
    causes::with_causes,
    cgroup::Tree,
    config::{Config, OciRuntime},
};

/// How long a runtime may take for one step. It takes milliseconds; and an agent without a runtime that passes waits for
/// each in turn before it does anything else.
const STEP_WITHIN: Duration = Duration::from_secs(10);

/// Where distributions and packages put runtimes, beyond `PATH`, which a service manager may cut short.
const DIRS: [&str; 5] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/bin"];

/// Name of the container that is tried. Only one agent at a time runs on a directory.
const TRIAL: &str = "berth-trial";

/// Most bytes of a runtime's output that are shown.
const OUTPUT_MAX: usize = 300;

/// How shims call the OCI runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciCommand {
    /// Absolute path.
    pub binary: String,
    /// Arguments before the command.
    pub args: Vec<String>,
}

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The configured one is not there.
    #[error(
        "find OCI runtime {0:?}: it is neither in PATH nor in the usual directories; install it or name its path"
    )]
    NotFound(String),
    /// None works.
    #[error(
        "find an OCI runtime that works on this machine: {0}; install runc or crun, or name one with ociRuntime"
    )]
    NoneWorks(String),
}

/// Chooses the runtime: the configured one, or the first that passes a trial. What a trial of this agent left in the tree of
/// cgroups is removed, of one that was cut off and of its own.
///
/// # Errors
/// See [`ProbeError`].
pub async fn probe(config: &Config, tree: &Arc<Tree>) -> Result<OciCommand, ProbeError> {
    let cgroup = names::trial(&config.node.cgroups, &config.node.paths.run);
    remove_leftover(tree, cgroup.clone()).await;
    let driver = config.node.cgroups.driver;
    match &config.oci_runtime {
        OciRuntime::Path(path) => Ok(command(path.clone(), driver)),
        OciRuntime::Named(name) => named(name, driver),
        OciRuntime::Auto => {
            let chosen = choose(config).await;
            // A runtime tries a few times where a hierarchy is busy for longer, and says that it deleted the container.
            remove_leftover(tree, cgroup).await;
            chosen
        }
    }
}

/// The runtime of a name or a path. One in a path is not looked for.
///
/// # Errors
/// There is none of that name.
pub fn named(name: &str, driver: CgroupDriver) -> Result<OciCommand, ProbeError> {
    let path = if name.starts_with('/') { Some(PathBuf::from(name)) } else { find(name) };
    Ok(command(path.ok_or_else(|| ProbeError::NotFound(name.to_owned()))?, driver))
}

/// Nothing but the next trial needs the cgroup to be gone, and that one says what keeps it from working.
async fn remove_leftover(tree: &Arc<Tree>, cgroup: Option<String>) {
    let Some(cgroup) = cgroup else { return };
    let tree = Arc::clone(tree);
    let removed = tokio::task::spawn_blocking(move || tree.remove(&cgroup)).await;
    // Fails only when the agent is stopping.
    if let Ok(Err(error)) = removed {
        tracing::warn!(error = with_causes(&error), "what is left of a trial cannot be removed");
    }
}

async fn choose(config: &Config) -> Result<OciCommand, ProbeError> {
    let mut failures = Vec::new();
    for name in ["crun", "runc"] {
        let Some(path) = find(name) else {
            failures.push((command(name.into(), config.node.cgroups.driver), TrialError::Absent));
            continue;
        };
        let command = command(path, config.node.cgroups.driver);
        match trial(config, &command).await {
            Ok(()) => {
                tracing::info!(runtime = command.binary, "OCI runtime passed its trial");
                return Ok(command);
            }
            Err(error) => {
                tracing::info!(
                    runtime = name,
                    why = with_causes(&error),
                    "OCI runtime did not pass its trial"
                );
                failures.push((command, error));
            }
        }
    }
    let chosen = untried(failures)?;
    tracing::warn!(
        runtime = chosen.binary,
        "no OCI runtime passed its trial, and that of this one was kept from saying anything: it is used untried"
    );
    Ok(chosen)
}

fn command(path: PathBuf, driver: CgroupDriver) -> OciCommand {
    let is_crun = path.file_name().is_some_and(|name| name == "crun");
    let args = match (driver, is_crun) {
        (CgroupDriver::Systemd, _) => vec!["--systemd-cgroup".to_owned()],
        (CgroupDriver::Cgroupfs, true) => vec!["--cgroup-manager=cgroupfs".to_owned()],
        (CgroupDriver::Cgroupfs, false) => Vec::new(),
    };
    OciCommand { binary: path.display().to_string(), args }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(DIRS.into_iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Creates a container and deletes it. Nothing runs in it.
async fn trial(config: &Config, command: &OciCommand) -> Result<(), TrialError> {
    let name = Path::new(&command.binary).file_name().unwrap_or_default().display();
    let dir = Path::new(&config.node.paths.run).join(format!("trial-{name}"));
    let (bundle, root) = (dir.clone(), dir.join("state"));
    if root.exists() {
        // An agent or a runtime died in a trial: its container may still be there.
        drop(step(command, &root, "delete", &["--force", TRIAL]).await);
    }
    let spec = spec(config);
    let prepare = move || {
        if bundle.exists() {
            fs::remove_dir_all(&bundle)?;
        }
        fs::create_dir_all(bundle.join("rootfs"))?;
        fs::write(bundle.join("rootfs/trial"), "")?;
        fs::write(bundle.join("config.json"), spec)
    };
    prepare().map_err(|error| {
        // What was half written takes room that others need.
        drop(fs::remove_dir_all(&dir));
        TrialError::Prepare(dir.clone(), error)
    })?;
    let dir_text = dir.display().to_string();
    let created = step(command, &root, "create", &["--bundle", &dir_text, TRIAL]).await;
    if matches!(created, Err(TrialError::Timeout)) {
        // A deletion would hang as well: the next trial begins with it.
        return created;
    }
    let deleted = step(command, &root, "delete", &["--force", TRIAL]).await;
    let ended = created.and(deleted).map_err(|error| error.seen_in(&dir));
    // Left behind it would only be in the next trial's way, which removes it.
    drop(fs::remove_dir_all(&dir));
    ended
}

async fn step(
    command: &OciCommand,
    root: &Path,
    step: &'static str,
    args: &[&str],
) -> Result<(), TrialError> {
    let mut child = Command::new(&command.binary);
    child.args(&command.args).arg("--root").arg(root).arg(step).args(args);
    // The container inherits the streams, and a pipe would stay open as long as it does: a file does not.
    let log_path = root.with_extension("log");
    let log = fs::File::create(&log_path).map_err(|error| TrialError::Prepare(log_path.clone(), error))?;
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    let status = tokio::time::timeout(STEP_WITHIN, child.status())
        .await
        .map_err(|_elapsed| TrialError::Timeout)?
        .map_err(TrialError::Run)?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(&log_path).unwrap_or_default();
    let end = text.floor_char_boundary(OUTPUT_MAX);
    Err(TrialError::Failed { step, output: text[..end].trim().to_owned() })
}

/// The smallest container: this program as the only file, in namespaces and a cgroup of its own.
fn spec(config: &Config) -> String {
    let settings = &config.node.cgroups;
    // Names of scopes are the machine's, on which other agents may try theirs.
    let scope = || format!("{}:berth:trial-{}", slice_of(&names::kubepods(settings)), std::process::id());
    let cgroups_path = names::trial(settings, &config.node.paths.run).unwrap_or_else(scope);
    let exe = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/bin/sh"));
    serde_json::json!({
        "ociVersion": OCI_VERSION,
        "root": {"path": "rootfs", "readonly": true},
        "process": {"cwd": "/", "args": ["/trial"], "user": {"uid": 0, "gid": 0}, "noNewPrivileges": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755"]},
            {"destination": "/trial", "type": "bind", "source": exe, "options": ["bind", "ro"]},
        ],
        "linux": {
            "cgroupsPath": cgroups_path,
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}],
        },
    })
    .to_string()
}

/// The slice of the level of all pods: what `cgroupRoot` names, else the system's.
fn slice_of(pods: &str) -> &str {
    pods.rsplit('/').nth(1).filter(|name| !name.is_empty()).unwrap_or("system.slice")
}

#[cfg(test)]
mod tests {
    use berth_core::config::{CgroupSettings, CgroupVersion};

    use super::*;
    use crate::config::{Facts, KubeletFlags, Settings};

    /// As agents of two run directories have it, with the same cgroup root.
    fn config(run: &str) -> Config {
        let mut settings =
            Settings::load(KubeletFlags::parse(&["--hostname-override=node"]).unwrap()).unwrap();
        settings.kubelet.fail_cgroup_v1 = Some(false);
        let mut config = settings.resolve(&Facts::gather(Path::new("/")).unwrap()).unwrap();
        config.node.cgroups = CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/");
        config.node.paths.run = run.to_owned();
        config.oci_runtime = OciRuntime::Path("/none".into());
        config
    }

    #[tokio::test]
    async fn what_is_left_of_a_trial_goes_and_that_of_another_agent_stays() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Arc::new(Tree::at(dir.path()));
        let [ours, theirs] = ["/run/berth", "/run/second/berth"].map(config);
        let path = |config: &Config| names::trial(&config.node.cgroups, &config.node.paths.run).unwrap();
        for config in [&ours, &theirs] {
            tree.ensure(&format!("{}/container", path(config))).unwrap();
            // What is tried is where the next agent looks for it.
            let spec: serde_json::Value = serde_json::from_str(&spec(config)).unwrap();
            assert_eq!(spec["linux"]["cgroupsPath"], path(config));
        }
        for _ in 0..2 {
            probe(&ours, &tree).await.unwrap();
            assert!(!tree.exists(&path(&ours)));
        }
        assert!(tree.exists(&format!("{}/container", path(&theirs))));
    }

    #[test]
    fn arguments_follow_the_runtime_and_the_driver() {
        let args = |path: &str, driver| command(PathBuf::from(path), driver).args;
        assert_eq!(args("/usr/bin/crun", CgroupDriver::Cgroupfs), ["--cgroup-manager=cgroupfs"]);
        assert_eq!(args("/usr/bin/crun", CgroupDriver::Systemd), ["--systemd-cgroup"]);
        assert_eq!(args("/usr/sbin/runc", CgroupDriver::Cgroupfs), Vec::<String>::new());
    }

    #[test]
    fn a_trial_is_beside_the_pods() {
        assert_eq!(slice_of("/kubepods.slice"), "system.slice");
        assert_eq!(slice_of("/lab.slice/lab-kubepods.slice"), "lab.slice");
        assert_eq!(slice_of("/a.slice/a-b.slice/a-b-kubepods.slice"), "a-b.slice");
    }
}
