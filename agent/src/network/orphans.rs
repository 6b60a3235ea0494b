//! Plugins of an agent that was killed while they ran. They go on, and nobody removes what one of them makes after a DEL has
//! passed: so nothing is asked for a sandbox while such a plugin, or a program that it started, still runs for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::id::SandboxId;
use tokio::time::{Instant, sleep};

use super::{NetworkError, blocking};
use crate::processes;

/// Between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(50);

/// Sandboxes for which such plugins ran when this agent started.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Where plugins are.
    bin_dirs: Vec<PathBuf>,
    sandboxes: Mutex<BTreeSet<SandboxId>>,
}

impl Orphans {
    /// None yet. Their programs are in these directories.
    pub(super) fn of(bin_dirs: Vec<PathBuf>) -> Self {
        Self { bin_dirs, sandboxes: Mutex::default() }
    }

    /// Looks for plugins of the sandboxes that were being attached or detached, by our own records.
    pub(super) async fn find(&self, recorded: BTreeSet<SandboxId>) {
        let found = self.running().await.unwrap_or_default();
        let orphaned = recorded.into_iter().filter(|id| found.process(id.as_str()).is_some());
        self.all().extend(orphaned);
    }

    /// Returns when no plugin of an earlier agent runs for a sandbox.
    ///
    /// # Errors
    /// One still runs at `deadline`.
    pub(super) async fn gone(&self, sandbox: &str, deadline: Instant) -> Result<(), NetworkError> {
        let id = SandboxId::from_known(sandbox);
        while self.all().contains(&id) {
            match self.running().await?.process(sandbox) {
                None => drop(self.all().remove(&id)),
                Some(process) if Instant::now() >= deadline => {
                    return Err(NetworkError::Orphan { sandbox: id, process: process.to_string() });
                }
                Some(_) => sleep(PAUSE).await,
            }
        }
        Ok(())
    }

    async fn running(&self) -> Result<Running, NetworkError> {
        let bin_dirs = self.bin_dirs.clone();
        blocking(move || Ok(running(&bin_dirs))).await
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        // The set is whole whenever the lock is free.
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Processes that run as plugins.
#[derive(Debug, Default)]
struct Running {
    by_container: BTreeMap<String, u32>,
    /// A plugin that does not tell whose it is.
    silent: Option<u32>,
}

impl Running {
    /// One that runs, or may run, for a sandbox.
    fn process(&self, sandbox: &str) -> Option<u32> {
        self.by_container.get(sandbox).copied().or(self.silent)
    }
}

/// Processes that were started as plugins, by the container id in their environment. A container may say the same of itself: what
/// counts has this process's mount namespace, which no container has. Of those that do not show their environment, only a
/// plugin's own program counts: others are most likely none.
fn running(bin_dirs: &[PathBuf]) -> Running {
    let own = processes::link(std::process::id(), "ns/mnt");
    let ours = processes::all().filter(|process| processes::link(*process, "ns/mnt") == own);
    let told = processes::read(ours, "environ");
    let is_plugin = |process: &u32| {
        let program = processes::link(*process, "exe");
        program.is_some_and(|program| bin_dirs.iter().any(|dir| program.parent() == Some(dir)))
    };
    Running {
        by_container: told.read.iter().filter_map(|(pid, text)| Some((container_of(text)?, *pid))).collect(),
        silent: told.silent.into_iter().find(is_plugin),
    }
}

/// For which container the process of an environment was started as a plugin.
fn container_of(environ: &[u8]) -> Option<String> {
    let value = |name: &[u8]| environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name));
    value(b"CNI_COMMAND=")?;
    String::from_utf8(value(b"CNI_CONTAINERID=")?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// Ends with the test, also when that fails: what is left would be another run's orphan.
    struct Plugin(Child);

    impl Drop for Plugin {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn plugin(container: &str) -> Plugin {
        let mut command = Command::new("sleep");
        command.arg("1000").env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", container);
        Plugin(command.spawn().unwrap())
    }

    #[tokio::test]
    async fn a_sandbox_waits_for_its_own_plugins_alone() {
        let [ours, another, idle] =
            ["ours", "another", "idle"].map(|name| format!("berth-orphans-{name}-{}", std::process::id()));
        let (plugin_of_ours, _plugin_of_another) = (plugin(&ours), plugin(&another));
        let orphans = Orphans::default();
        orphans.find([&ours, &idle].map(|id| SandboxId::from_known(id.as_str())).into()).await;
        let now = Instant::now();
        let refused = orphans.gone(&ours, now).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", plugin_of_ours.0.id())), "{refused}");
        orphans.gone(&idle, now).await.unwrap();
        orphans.gone(&another, now).await.unwrap();
        drop(plugin_of_ours);
        orphans.gone(&ours, now).await.unwrap();
    }

    /// Nobody knows for whom a plugin runs that does not tell.
    #[test]
    fn a_silent_plugin_runs_for_any() {
        let by_container = BTreeMap::from([("a".to_owned(), 7)]);
        let running = Running { by_container: by_container.clone(), silent: Some(9) };
        assert_eq!(["a", "b"].map(|sandbox| running.process(sandbox)), [Some(7), Some(9)]);
        let running = Running { by_container, silent: None };
        assert_eq!(["a", "b"].map(|sandbox| running.process(sandbox)), [Some(7), None]);
    }

    #[test]
    fn environments_of_plugins() {
        assert_eq!(container_of(b"A=b\0CNI_CONTAINERID=x\0CNI_COMMAND=DEL\0").as_deref(), Some("x"));
        for other in [
            &b""[..],
            b"CNI_CONTAINERID=x\0",
            b"CNI_COMMAND=ADD\0",
            b"CNI_COMMAND=ADD\0CNI_CONTAINERID=\xff\0",
        ] {
            assert_eq!(container_of(other), None);
        }
    }
}
