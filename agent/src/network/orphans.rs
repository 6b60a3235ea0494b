//! Plugins of an agent that was killed while they ran. They go on, and nobody removes what one of them makes after a DEL has
//! passed: so nothing is asked for a sandbox while such a plugin, or a program that it started, still runs for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::id::SandboxId;
use tokio::time::{Instant, sleep};

use super::{NetworkError, blocking};

/// Between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(50);

/// Sandboxes for which such plugins ran when this agent started.
#[derive(Debug, Default)]
pub(super) struct Orphans(Mutex<BTreeSet<SandboxId>>);

impl Orphans {
    /// Looks for plugins of the sandboxes that were being attached or detached, by our own records.
    pub(super) async fn find(&self, recorded: BTreeSet<SandboxId>) {
        let found = blocking(move || Ok(running())).await.unwrap_or_default();
        let orphaned = recorded.into_iter().filter(|id| found.contains_key(id.as_str()));
        self.all().extend(orphaned);
    }

    /// Returns when no plugin of an earlier agent runs for a sandbox.
    ///
    /// # Errors
    /// One still runs at `deadline`.
    pub(super) async fn gone(&self, sandbox: &str, deadline: Instant) -> Result<(), NetworkError> {
        let id = SandboxId::from_known(sandbox);
        while self.all().contains(&id) {
            match blocking(|| Ok(running())).await?.get(sandbox) {
                None => drop(self.all().remove(&id)),
                Some(process) if Instant::now() >= deadline => {
                    return Err(NetworkError::Orphan { sandbox: id, process: process.clone() });
                }
                Some(_) => sleep(PAUSE).await,
            }
        }
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        // The set is whole whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Processes that were started as plugins, by the container id in their environment. A container may say the same of itself: what
/// counts has this process's mount namespace, which no container has.
fn running() -> BTreeMap<String, String> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let plugins = processes.filter_map(|process| {
        let dir = process.path();
        // A process that ends meanwhile has no files.
        let container = container_of(&fs::read(dir.join("environ")).ok()?)?;
        let is_ours = fs::read_link(dir.join("ns/mnt")).ok() == own;
        is_ours.then(|| (container, process.file_name().to_string_lossy().into_owned()))
    });
    plugins.collect()
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

    fn plugin(container: &str) -> Child {
        let mut command = Command::new("sleep");
        command.arg("1000").env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", container).spawn().unwrap()
    }

    #[tokio::test]
    async fn a_sandbox_waits_for_its_own_plugins_alone() {
        let (mut ours, mut of_another) = (plugin("berth-orphans-ours"), plugin("berth-orphans-another"));
        let ids = ["berth-orphans-ours", "berth-orphans-idle"].map(SandboxId::from_known);
        let orphans = Orphans::default();
        orphans.find(BTreeSet::from(ids)).await;
        let now = Instant::now();
        let refused = orphans.gone("berth-orphans-ours", now).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", ours.id())), "{refused}");
        orphans.gone("berth-orphans-idle", now).await.unwrap();
        orphans.gone("berth-orphans-another", now).await.unwrap();
        for child in [&mut ours, &mut of_another] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        orphans.gone("berth-orphans-ours", now).await.unwrap();
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
