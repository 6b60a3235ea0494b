//! The same container under containerd's own shim, one shim for each as `ctr` makes them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::binaries;
use berth_integration::containerd::{Containerd, ctr};
use berth_integration::lab::World;
use berth_integration::registry::Registry;
use berth_integration::wait::{self, Look};

use crate::figure::{Figure, Unit};
use crate::processes;

/// The image of all containers.
pub(crate) const IMAGE: &str = "localhost:5000/busybox:1";
/// Containerd's own shim.
pub(crate) const SHIM: &str = "containerd-shim-runc-v2";
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// A registry and a containerd, without an agent.
pub(crate) struct Bare {
    pub(crate) world: World,
    pub(crate) containerd: Containerd,
    registry: Registry,
}

impl Bare {
    /// Starts both and pulls the image.
    pub(crate) fn start() -> Result<Self> {
        let world = World::here()?;
        world.make_cgroup()?;
        let registry = Registry::with_busybox(&world.root().join("registry"))?;
        let path = binaries::search_path(None)?;
        let containerd = Containerd::start(&world.root().join("containerd"), path)?;
        ctr(&["images", "pull", "--plain-http", IMAGE])?;
        Ok(Self { world, containerd, registry })
    }

    /// Ends both.
    pub(crate) fn end(mut self) -> Result<()> {
        self.containerd.stop()?;
        self.registry.stop()?;
        for group in self.world.cgroups()? {
            fs::remove_dir(&group).with_context(|| format!("remove {}", group.display()))?;
        }
        Ok(())
    }
}

/// Measures with this many containers.
pub(crate) fn measure(containers: usize) -> Result<Vec<Figure>> {
    let section = format!("{containers} containers, {SHIM}");
    let bare = Bare::start()?;
    let ids: Vec<String> = (0..containers).map(|number| format!("stock-{number}")).collect();
    let mut starts = Vec::new();
    for id in &ids {
        let group = format!("{}/{id}", bare.world.cgroup());
        let begun = Instant::now();
        ctr(&["run", "--detach", "--cgroup", &group, IMAGE, id, "/bin/sleep", "infinity"])?;
        starts.push(begun.elapsed());
    }
    let shims = processes::of_program(SHIM, "-id")?;
    ensure!(shims.len() == containers, "{} shims serve {containers} containers", shims.len());
    let of_shims = shims.iter().map(|pid| processes::pss(*pid)).collect::<Result<Vec<_>>>()?;
    let mut figures = vec![Figure::median(&section, "PSS per shim", &of_shims, Unit::Mebibytes)?];
    figures.extend(Figure::times(&section, "ctr run --detach, no network", &starts)?);

    for id in &ids {
        ctr(&["tasks", "delete", "--force", id])?;
        ctr(&["containers", "delete", id])?;
    }
    wait::until("the shims to end", GONE_LIMIT, || {
        let left = processes::of_program(SHIM, "-id")?;
        Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
    })?;
    bare.end()?;
    Ok(figures)
}
