//! The OCI runtimes that the shim is tested with.

use std::env;
use std::path::{Path, PathBuf};

use berth_shim_conformance::harness::{self, Driver, Endurance, Subject, World};
use libtest_mimic::Trial;

/// Says, in a virtual machine of the integration tests, what its kernel does not have; absent elsewhere.
const LACKS: &str = "BERTH_VM_LACKS";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// This program under another name.
    Fake,
    Crun,
    Runc,
    /// runc, which finds the components' criu.
    RuncWithCriu,
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Runtime::Fake => "fake",
            Runtime::Crun => "crun",
            Runtime::Runc => "runc",
            Runtime::RuncWithCriu => "runc-criu",
        }
    }

    /// What it needs that a kernel may have been built without.
    fn need(self) -> Option<&'static str> {
        match self {
            Runtime::Fake | Runtime::Crun | Runtime::Runc => None,
            Runtime::RuncWithCriu => Some("checkpoints"),
        }
    }

    /// That, in a machine that was declared to do without. Elsewhere everything is there, or a test fails that needs it.
    fn lacks(self) -> Option<&'static str> {
        let declared = env::var(LACKS).unwrap_or_default();
        self.need().filter(|need| declared.split(',').any(|name| name == *need))
    }

    fn subject(self) -> Result<Subject, String> {
        let runtime = match self {
            Runtime::Fake => harness::Runtime::fake(),
            Runtime::Crun | Runtime::Runc => harness::Runtime::real(&find(self.name())?, Vec::new()),
            Runtime::RuncWithCriu => {
                let (runc, criu) = (find("runc")?, find("criu")?);
                let dir = criu.parent().unwrap_or(Path::new("/")).display().to_string();
                let path = format!("PATH={dir}:/usr/sbin:/usr/bin:/sbin:/bin");
                harness::Runtime::real(Path::new("/usr/bin/env"), vec![path, runc.display().to_string()])
            }
        };
        let shim = PathBuf::from(env!("CARGO_BIN_EXE_containerd-shim-berth-v1"));
        Ok(Subject { name: self.name().to_owned(), shim, runtime, endurance: Endurance::EXACT, fault: None })
    }
}

/// What the agent would put before every command of a world's runtime.
pub(super) fn args(world: &World) -> Vec<String> {
    let is_crun = world.subject().runtime.name() == Runtime::Crun.name();
    match world.groups().driver() {
        Driver::Systemd => vec!["--systemd-cgroup".to_owned()],
        Driver::Cgroupfs if is_crun => vec!["--cgroup-manager=cgroupfs".to_owned()],
        Driver::Cgroupfs => Vec::new(),
    }
}

/// A test with one runtime.
pub(crate) fn trial(name: &str, runtime: Runtime, test: fn(&World)) -> Trial {
    let trial = match runtime.subject() {
        Ok(subject) => harness::trial(name, &subject, test),
        Err(missing) => Trial::test(format!("{name}::{}", runtime.name()), move || Err(missing.into())),
    };
    let lacking = runtime.lacks();
    if let Some(need) = lacking {
        eprintln!("LEFT OUT, since this kernel has no {need}: {}", trial.name());
    }
    trial.with_ignored_flag(lacking.is_some())
}

/// A runtime among the components that the workspace builds, or installed.
fn find(name: &str) -> Result<PathBuf, String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/components/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::iter::once(built).chain(env::split_paths(&path)).collect();
    let found = places.iter().map(|place| place.join(name)).find(|program| program.is_file());
    found.ok_or_else(|| format!("{name} is in none of {places:?}: run scripts/setup"))
}
