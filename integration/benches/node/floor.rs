//! The floor: what no agent can do without, done by hand.
//!
//! Network namespace, the pod's cgroups, an overlay of the same layers, the same CNI plugins, then `create` and `start`
//! of the same OCI runtime with the spec that Berth wrote for a pod that runs beside, changed only in its names:
//! seccomp profile, mounts, resources and all the rest are the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth::control::PodObject;
use berth::netns;
use berth_integration::containerd::NAMESPACE;
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

use crate::control::container_id;
use crate::plugins::{Attachment, Plugins};
use crate::processes::overlay_layers;

/// Where containerd keeps bundles.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task";
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// Everything that is the same for every run.
#[derive(Debug)]
pub(crate) struct Floor {
    runtime: PathBuf,
    args: Vec<String>,
    spec: Value,
    layers: String,
    plugins: Plugins,
    world: World,
    dir: PathBuf,
    uid: String,
}

/// How long the parts of one start took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Network namespace, cgroups, overlay, bundle.
    pub(crate) prepare: Duration,
    /// CNI ADD.
    pub(crate) network: Duration,
    /// `create`.
    pub(crate) create: Duration,
    /// `start`.
    pub(crate) start: Duration,
}

impl Taken {
    /// All parts.
    pub(crate) fn whole(&self) -> Duration {
        self.prepare + self.network + self.create + self.start
    }
}

/// The names of one run.
struct Names {
    id: String,
    bundle: PathBuf,
    netns: PathBuf,
    groups: Vec<PathBuf>,
}

impl Floor {
    /// Learns from a running pod.
    pub(crate) fn of(node: &Node, pod: &PodObject) -> Result<Self> {
        let id = container_id(pod)?;
        let bundle = Path::new(BUNDLES).join(NAMESPACE).join(&id);
        let record = json_file(&bundle.join("berth.json"))?;
        let args = record["args"].as_array().into_iter().flatten();
        let pid = fs::read_to_string(bundle.join("init.pid")).context("read the pid of the model")?;
        let dir = node.world.root().join("floor");
        fs::create_dir_all(&dir)?;
        Ok(Self {
            runtime: record["binary"].as_str().context("no runtime in the record")?.into(),
            args: args.filter_map(|arg| arg.as_str().map(str::to_owned)).collect(),
            spec: json_file(&bundle.join("config.json"))?,
            layers: overlay_layers(pid.trim().parse()?)?,
            plugins: Plugins::read(&node.cni_conf().join("10-lab.conflist"))?,
            world: node.world.clone(),
            dir,
            uid: pod.pod.metadata.uid.clone().context("the pod has no uid")?,
        })
    }

    /// Starts one, takes it away again, and says how long the start took.
    pub(crate) fn start(&self, run: usize) -> Result<Taken> {
        let names = self.names(run)?;
        let spec = self.spec_of(&names)?;

        let begun = Instant::now();
        self.prepare(&names, &spec)?;
        let prepared = Instant::now();
        let attachment = Attachment { id: &names.id, netns: &names.netns };
        let result = self.plugins.add(attachment)?;
        let connected = Instant::now();
        self.call(&names, |command| {
            command.args(["create", "--bundle"]).arg(&names.bundle);
            command.arg("--pid-file").arg(names.bundle.join("init.pid")).arg(&names.id);
        })?;
        let created = Instant::now();
        self.call(&names, |command| {
            command.args(["start", &names.id]);
        })?;
        let started = Instant::now();

        self.call(&names, |command| {
            command.args(["delete", "--force", &names.id]);
        })?;
        self.plugins.del(attachment, &result)?;
        clear(&names)?;
        Ok(Taken {
            prepare: prepared - begun,
            network: connected - prepared,
            create: created - connected,
            start: started - created,
        })
    }

    fn names(&self, run: usize) -> Result<Names> {
        let id = format!("floor-{run}");
        // Beside the model's, in every hierarchy where it has one.
        let groups = self.world.cgroups()?;
        let of_model = groups.iter().filter(|group| group.ends_with(format!("pod{}", self.uid)));
        let groups = of_model.map(|group| group.with_file_name(format!("pod{id}"))).collect();
        let bundle = self.dir.join(&id);
        Ok(Names { netns: Path::new("/run/netns").join(&id), id, bundle, groups })
    }

    fn spec_of(&self, names: &Names) -> Result<String> {
        let mut spec = self.spec.clone();
        let group = spec["linux"]["cgroupsPath"].as_str().context("the spec has no cgroupsPath")?;
        let parent = Path::new(group).parent().context("cgroupsPath has no parent")?;
        let path = parent.with_file_name(format!("pod{}", names.id)).join(&names.id);
        spec["linux"]["cgroupsPath"] = path.to_str().into();
        spec["root"]["path"] = names.bundle.join("rootfs").to_str().into();
        let spaces = spec["linux"]["namespaces"].as_array_mut().context("the spec has no namespaces")?;
        for space in spaces.iter_mut().filter_map(Value::as_object_mut) {
            if space["type"] == "network" {
                space.insert("path".to_owned(), names.netns.to_str().into());
            } else {
                // The pod's shared ones are made too, by the runtime.
                space.remove("path");
            }
        }
        Ok(spec.to_string())
    }

    fn prepare(&self, names: &Names, spec: &str) -> Result<()> {
        netns::ensure(&names.netns, None)?;
        for group in &names.groups {
            fs::create_dir(group).with_context(|| format!("make cgroup {}", group.display()))?;
        }
        for part in ["rootfs", "upper", "work"] {
            fs::create_dir_all(names.bundle.join(part))?;
        }
        let (upper, work) = (names.bundle.join("upper"), names.bundle.join("work"));
        let options = format!(
            "volatile,lowerdir={},upperdir={},workdir={}",
            self.layers,
            upper.display(),
            work.display()
        );
        let target = names.bundle.join("rootfs");
        mount(Some("overlay"), &target, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount an overlay with {options}"))?;
        fs::write(names.bundle.join("config.json"), spec).context("write the spec")
    }

    fn call(&self, names: &Names, with: impl FnOnce(&mut Command)) -> Result<()> {
        let said = File::options().create(true).append(true).open(names.bundle.join("log"))?;
        let mut command = Command::new(&self.runtime);
        command.args(&self.args).arg("--root").arg(self.dir.join("state"));
        with(&mut command);
        let status = command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said).status()?;
        let said = || fs::read_to_string(names.bundle.join("log")).unwrap_or_default();
        ensure!(status.success(), "{command:?} ended with {status}: {}", said());
        Ok(())
    }
}

fn clear(names: &Names) -> Result<()> {
    umount2(&names.bundle.join("rootfs"), MntFlags::MNT_DETACH)?;
    netns::remove(&names.netns)?;
    fs::remove_dir_all(&names.bundle)?;
    wait::until("the floor's cgroups to be empty", GONE_LIMIT, || {
        let left: Vec<_> = names.groups.iter().filter(|group| !is_removed(&names.id, group)).collect();
        Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
    })
}

fn json_file(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("read {} as JSON", path.display()))
}

/// Removes the pod's cgroup, and the container's where the runtime left it.
fn is_removed(id: &str, group: &Path) -> bool {
    let gone = |path: &Path| !path.exists() || fs::remove_dir(path).is_ok();
    let own = group.join(id);
    // Where a hierarchy is not mounted, crun leaves a plain file; a cgroup's own cannot be removed.
    drop(fs::remove_file(own.join("cgroup.procs")));
    gone(&own) && gone(group)
}
