//! A whole node: containerd, network and agent, and a registry where one is asked for.

pub mod cgroups;
pub(crate) mod leftovers;
mod pod;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::agent::{Agent, Images, Places, Settings};
use crate::containerd::{Containerd, Release};
use crate::control::Control;
use crate::lab::World;
use crate::process::printed;
use crate::registry::Registry;
use crate::wait::{self, Look};
use crate::{binaries, cni, files, links, stored};

pub use pod::PodState;

/// How long a pod may take from its manifest to Ready, on a machine busy with other tests.
pub const POD_LIMIT: Duration = Duration::from_secs(90);
/// How long the pods of a test may take to be gone; grace periods in tests are short.
pub const GONE_LIMIT: Duration = Duration::from_secs(90);

/// A node with everything running.
#[derive(Debug)]
pub struct Node {
    /// The world it lives in.
    pub world: World,
    /// The registry, if the settings ask for one, until a test takes it.
    pub registry: Option<Registry>,
    /// Containerd.
    pub containerd: Containerd,
    /// The agent.
    pub agent: Agent,
    control: Control,
    places: Places,
    leases: PathBuf,
    before: leftovers::Baseline,
}

impl Node {
    /// Starts one with the lab's usual settings.
    ///
    /// # Errors
    /// A part did not become ready.
    pub fn start() -> Result<Self> {
        Self::start_with(&Settings::default())
    }

    /// Starts one.
    ///
    /// # Errors
    /// A part did not become ready.
    pub fn start_with(settings: &Settings) -> Result<Self> {
        let mut node = Self::prepare(settings)?;
        node.agent.start()?;
        Ok(node)
    }

    /// Everything but the agent, which is configured and not started.
    ///
    /// # Errors
    /// A part did not become ready.
    pub fn prepare(settings: &Settings) -> Result<Self> {
        let world = World::here()?;
        let before = leftovers::Baseline::take()?;
        world.make_cgroup()?;
        let root = world.root();
        let registry = images(&root.join("registry"), &root.join("containerd"), settings)?;
        let path = binaries::search_path(settings.path_first.as_deref())?;
        let containerd = Containerd::start_release(settings.containerd, &root.join("containerd"), path)?;
        containerd.add_registry(&Registry::host(), &format!("http://{}", Registry::host()))?;
        let places = Places {
            dir: root.join("agent"),
            manifests: root.join("manifests"),
            cni_conf: root.join("cni"),
            registries: containerd.registries().to_owned(),
            containerd_config: containerd.config(),
            cgroup: world.cgroup_root(),
        };
        let leases = root.join("leases");
        files::make_dir(&places.manifests)?;
        cni::write(&places.cni_conf, &cni::network(&leases))?;
        let agent = Agent::new(&places, settings)?;
        let control = Control::new()?;
        Ok(Self { world, registry, containerd, agent, control, places, leases, before })
    }

    /// Has an agent with other settings from its next start on.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn set_agent(&mut self, settings: &Settings) -> Result<()> {
        self.agent = Agent::new(&self.places, settings)?;
        Ok(())
    }

    /// Directory of manifests.
    #[must_use]
    pub fn manifests(&self) -> &Path {
        &self.places.manifests
    }

    /// Directory of CNI configurations.
    #[must_use]
    pub fn cni_conf(&self) -> &Path {
        &self.places.cni_conf
    }

    /// Puts a manifest there, whole or not at all; `file` has no extension.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn apply(&self, file: &str, manifest: &str) -> Result<()> {
        // A file whose name begins with a dot is no manifest.
        let part = self.places.manifests.join(format!(".{file}"));
        files::write(&part, manifest)?;
        fs::rename(&part, self.manifest(file)).with_context(|| format!("write manifest {file}"))
    }

    /// Takes a manifest away.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove(&self, file: &str) -> Result<()> {
        fs::remove_file(self.manifest(file)).with_context(|| format!("remove manifest {file}"))
    }

    /// Every pod that the agent shows.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn pods(&self) -> Result<Vec<PodState>> {
        let shown = self.control.overview()?.pods;
        shown.iter().map(|object| Ok(PodState(serde_json::to_value(&object.pod)?))).collect()
    }

    /// The pod of a manifest by the name in it; `None` when the agent shows none.
    ///
    /// # Errors
    /// The agent does not answer, or shows several.
    pub fn pod(&self, name: &str) -> Result<Option<PodState>> {
        let mut found: Vec<_> = self.pods()?.into_iter().filter(|pod| pod.is_of(name)).collect();
        ensure!(found.len() <= 1, "several pods are named {name}: {found:?}");
        Ok(found.pop())
    }

    /// Waits until a pod is as wanted and gives its state.
    ///
    /// # Errors
    /// It was not in time.
    pub fn wait(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&PodState) -> bool,
    ) -> Result<PodState> {
        wait::until(&format!("pod {name} to be {what}"), limit, || {
            Ok(match self.pod(name)? {
                Some(pod) if wanted(&pod) => Look::Ready(pod),
                Some(pod) => Look::NotYet(pod.to_string()),
                None => Look::NotYet("no such pod".to_owned()),
            })
        })
    }

    /// Waits until a pod is Ready.
    ///
    /// # Errors
    /// It was not in time.
    pub fn ready(&self, name: &str) -> Result<PodState> {
        self.wait(name, "Ready", POD_LIMIT, PodState::is_ready)
    }

    /// Waits until the agent shows no pod of this name.
    ///
    /// # Errors
    /// It was still there at the limit.
    pub fn gone(&self, name: &str) -> Result<()> {
        wait::until(&format!("pod {name} to be gone"), GONE_LIMIT, || {
            Ok(match self.pod(name)? {
                None => Look::Ready(()),
                Some(pod) => Look::NotYet(pod.to_string()),
            })
        })
    }

    /// Removes every manifest and waits until no pod is shown and nothing of any is left.
    ///
    /// # Errors
    /// Something was left; the message lists it.
    pub fn clear(&self) -> Result<()> {
        self.remove_manifests()?;
        wait::until("the node to be empty", GONE_LIMIT, || {
            let left = self.left()?;
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(left.join("\n  ")) })
        })
    }

    /// Removes every manifest.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_manifests(&self) -> Result<()> {
        files::list(&self.places.manifests)?.iter().try_for_each(files::remove)
    }

    /// The pods that the agent shows; when there are none, what is left of any.
    ///
    /// # Errors
    /// The agent or containerd does not answer.
    pub fn left(&self) -> Result<Vec<String>> {
        let pods: Vec<String> = self.pods()?.iter().map(|pod| format!("pod {pod}")).collect();
        if pods.is_empty() { self.before.left(&self.world, &self.leases) } else { Ok(pods) }
    }

    /// Ends the node: no pod, no trace of any, then no process and no cgroup.
    ///
    /// # Errors
    /// Something was left or did not end.
    pub fn end(self) -> Result<()> {
        self.clear()?;
        self.close()
    }

    /// Ends what runs; pods are no concern.
    ///
    /// # Errors
    /// Something did not end.
    pub fn close(mut self) -> Result<()> {
        self.agent.stop()?;
        self.containerd.stop()?;
        if let Some(registry) = self.registry.take() {
            registry.stop()?;
        }
        // Plugins make the bridge with the first pod and nobody removes it.
        if links::names()?.contains(cni::BRIDGE) {
            system("ip", &["link", "delete", cni::BRIDGE])?;
        }
        self.world.remove_cgroups()
    }

    fn manifest(&self, file: &str) -> PathBuf {
        self.places.manifests.join(format!("{file}.yaml"))
    }
}

/// Starts the registry that was asked for, or gives the image to the containerd of a directory. What a version has stored is for
/// that version.
fn images(registry: &Path, containerd: &Path, settings: &Settings) -> Result<Option<Registry>> {
    if settings.images == Images::Stored && settings.containerd == Release::Reference {
        stored::unpack(containerd)?;
        return Ok(None);
    }
    Registry::with_busybox(registry).map(Some)
}

/// Runs a command of the system and gives what it printed.
///
/// # Errors
/// It failed.
pub fn system(program: &str, args: &[&str]) -> Result<String> {
    printed(Command::new(program).args(args))
}
