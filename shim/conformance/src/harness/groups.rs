//! Control groups of containers: made by the OCI runtime itself, or by systemd at its request.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Who makes them: the `cgroupDriver` of a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The runtime.
    Cgroupfs,
    /// systemd, for runtimes that are called with `--systemd-cgroup`.
    Systemd,
}

impl Driver {
    /// The one that an agent would choose here. Source: `sd_booted(3)`.
    pub fn of_machine() -> Driver {
        if Path::new("/run/systemd/system").is_dir() { Driver::Systemd } else { Driver::Cgroupfs }
    }
}

/// The groups of one test's containers, all below one that has the test's name.
#[derive(Debug)]
pub struct Groups {
    driver: Driver,
    test: String,
    top: String,
    /// What the runtime makes below a scope, in which it keeps the container.
    below: &'static str,
}

impl Groups {
    pub(crate) fn new(driver: Driver, test: &str, runtime: &str) -> Groups {
        // A dash in the name of a slice would put it below another.
        let top = match driver {
            Driver::Cgroupfs => test.to_owned(),
            Driver::Systemd => format!("{}.slice", test.replace('-', "_")),
        };
        // `run.oci.systemd.subgroup` of crun(1).
        let below = if driver == Driver::Systemd && runtime == "crun" { "container" } else { "" };
        Groups { driver, test: test.to_owned(), top, below }
    }

    /// Who makes them.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The name of the one above all, in each hierarchy.
    pub(crate) fn top(&self) -> &str {
        &self.top
    }

    /// What the spec of a container names: a path, or for systemd `slice:prefix:name`.
    pub fn named(&self, id: &str) -> String {
        match self.driver {
            Driver::Cgroupfs => format!("/{}/{id}", self.top),
            Driver::Systemd => format!("{}:{}:{id}", self.top, self.test),
        }
    }

    /// The group on version 2 that ends with a container, with all that the runtime makes below it.
    pub fn outer(&self, id: &str) -> PathBuf {
        let name = match self.driver {
            Driver::Cgroupfs => id.to_owned(),
            Driver::Systemd => format!("{}-{id}.scope", self.test),
        };
        Path::new("/sys/fs/cgroup").join(&self.top).join(name)
    }

    /// The group on version 2 that has a container's processes.
    pub fn of(&self, id: &str) -> PathBuf {
        let outer = self.outer(id);
        if self.below.is_empty() { outer } else { outer.join(self.below) }
    }

    /// Has systemd forget its slice.
    pub(crate) fn end(&self) {
        if self.driver == Driver::Systemd {
            // It may never have been begun.
            let _gone = Command::new("systemctl").args(["stop", "--no-block", &self.top]).output().is_ok();
        }
    }
}
