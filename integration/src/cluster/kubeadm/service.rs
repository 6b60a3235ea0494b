//! The service `kubelet` and who manages it: a script by the name of `systemctl`, which kubeadm finds in `PATH`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{binaries, files};

/// Where packages install the kubelet.
pub(super) const PROGRAM: &str = "/usr/bin/kubelet";

/// The service of a machine.
#[derive(Debug)]
pub(super) struct Service {
    dir: PathBuf,
    /// `PATH` of whoever is to find it, and its own.
    pub(super) path: OsString,
}

impl Service {
    /// Writes the script below a directory, where the service's log and number are too.
    pub(super) fn install(dir: &Path) -> Result<Self> {
        let programs = dir.join("bin");
        files::make_dir(&programs)?;
        files::write_program(programs.join("systemctl"), &systemctl(dir))?;
        Ok(Self { dir: dir.to_owned(), path: binaries::search_path(Some(&programs))? })
    }

    /// `systemctl VERB kubelet`.
    pub(super) fn systemctl(&self, verb: &str) -> Result<()> {
        let mut manager = Command::new(self.dir.join("bin/systemctl"));
        let done = manager.args([verb, "kubelet"]).env("PATH", &self.path).status();
        let done = done.with_context(|| format!("start systemctl {verb} kubelet"))?;
        ensure!(done.success(), "systemctl {verb} kubelet ended with {done}");
        Ok(())
    }

    /// The process that was started last.
    pub(super) fn pid(&self) -> Result<u32> {
        let text = files::read(self.dir.join("kubelet.pid"))?;
        text.trim().parse().with_context(|| format!("{text:?} is no process"))
    }

    /// Where what it says is kept.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("kubelet.log")
    }
}

/// Knows one service. What it starts is the lab's init's, as that of a service manager is.
fn systemctl(dir: &Path) -> String {
    let script = r#"#!/bin/sh
# systemctl VERB [--quiet] SERVICE: as far as kubeadm calls it.
for last; do :; done
pid="$(cat DIR/kubelet.pid 2>/dev/null || echo 0)"
# One that has ended and that nobody has waited for yet takes signals still.
runs() { [ "$pid" -gt 0 ] && grep -q '^State:.[^ZX]' "/proc/$pid/status" 2>/dev/null; }
stop() {
    runs || return 0
    kill "$pid"
    for _ in $(seq 200); do runs || return 0; sleep 0.1; done
    return 1
}
start() {
    runs && return 0
    KUBELET_KUBECONFIG_ARGS="--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
    KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml
    KUBELET_KUBEADM_ARGS= KUBELET_EXTRA_ARGS=
    for file in /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet; do
        [ ! -f "$file" ] || . "$file"
    done
    # Beside the script it leads no group, so setsid does not fork and becomes the program.
    setsid /usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS \
        >>DIR/kubelet.log 2>&1 </dev/null &
    echo $! >DIR/kubelet.pid.part
    mv -f DIR/kubelet.pid.part DIR/kubelet.pid
}
echo "$*" >>DIR/systemctl.log
case "$1" in
    daemon-reload) exit 0 ;;
esac
[ "${last%.service}" = kubelet ] || exit 4
case "$1" in
    start) start ;;
    stop) stop ;;
    restart) stop && pid=0 && start ;;
    is-active) runs ;;
    is-enabled) echo enabled ;;
    status) echo "Loaded: loaded" ;;
    *) exit 1 ;;
esac
"#;
    script.replace("DIR", &dir.display().to_string())
}
