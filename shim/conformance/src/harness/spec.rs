//! OCI runtime specs.

use serde_json::{Value, json};

/// A runtime spec that grows by the wishes of a test.
#[derive(Debug, Clone)]
pub struct Spec(Value);

impl Spec {
    /// A container that runs a script of busybox's shell.
    pub fn sh(script: &str) -> Spec {
        Spec::run(&["/bin/busybox", "sh", "-c", script])
    }

    /// A container that runs a program. Applets of busybox are in `/bin`.
    pub fn run(args: &[&str]) -> Spec {
        Spec(json!({
            "ociVersion": "1.1.0",
            "process": process(args),
            "root": { "path": "rootfs" },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"] },
                { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
                  "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] },
                { "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"] },
            ],
            "annotations": {},
            "linux": {
                "resources": {},
                "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }],
            },
        }))
    }

    /// With a terminal.
    pub fn terminal(mut self) -> Spec {
        self.0["process"]["terminal"] = json!(true);
        self
    }

    /// With a limit of memory, swap included.
    pub fn memory_limit(mut self, bytes: i64) -> Spec {
        self.0["linux"]["resources"]["memory"] = json!({ "limit": bytes, "swap": bytes });
        self
    }

    /// Asks for namespaces of the pod, with the paths that containerd's clients write.
    pub fn sharing(mut self, kinds: &[&str]) -> Spec {
        let files = [("network", "net"), ("ipc", "ipc"), ("uts", "uts"), ("pid", "pid")];
        for namespace in self.0["linux"]["namespaces"].as_array_mut().unwrap() {
            let kind = namespace["type"].as_str().unwrap().to_owned();
            if let Some((_, file)) = files.iter().find(|(name, _)| *name == kind && kinds.contains(name)) {
                namespace["path"] = json!(format!("/proc/1/ns/{file}"));
            }
        }
        self
    }

    /// Asks for no namespace of the pod.
    pub(super) fn unshared(mut self) -> Spec {
        for namespace in self.0["linux"]["namespaces"].as_array_mut().unwrap() {
            namespace.as_object_mut().unwrap().remove("path");
        }
        self
    }

    /// Joins a namespace of a kind by its path.
    pub fn joining(mut self, kind: &str, path: &str) -> Spec {
        for namespace in self.0["linux"]["namespaces"].as_array_mut().unwrap() {
            if namespace["type"] == kind {
                namespace["path"] = json!(path);
            }
        }
        self
    }

    /// Leaves the container in the node's namespace of a kind.
    pub fn without_namespace(mut self, kind: &str) -> Spec {
        self.0["linux"]["namespaces"].as_array_mut().unwrap().retain(|namespace| namespace["type"] != kind);
        self
    }

    /// Gives the container a namespace of a kind for itself, unless the spec says something about that kind.
    pub(super) fn with_namespace(mut self, kind: &str) -> Spec {
        let namespaces = self.0["linux"]["namespaces"].as_array_mut().unwrap();
        if namespaces.iter().all(|namespace| namespace["type"] != kind) {
            namespaces.push(json!({ "type": kind }));
        }
        self
    }

    /// With any change to the document.
    pub fn with(mut self, change: impl FnOnce(&mut Value)) -> Spec {
        change(&mut self.0);
        self
    }

    /// With an annotation.
    pub fn annotation(mut self, name: &str, value: &str) -> Spec {
        self.0["annotations"][name] = json!(value);
        self
    }

    /// In a cgroup.
    pub fn cgroup(mut self, path: &str) -> Spec {
        self.0["linux"]["cgroupsPath"] = json!(path);
        self
    }

    pub(crate) fn cgroup_unless_named(self, path: &str) -> Spec {
        if self.0["linux"]["cgroupsPath"].is_null() { self.cgroup(path) } else { self }
    }

    /// Whether it asks for a terminal.
    pub fn is_terminal(&self) -> bool {
        self.0["process"]["terminal"] == json!(true)
    }

    /// As `config.json` has it.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).unwrap()
    }
}

/// An OCI process, for the init of a container and for execs.
pub fn process(args: &[&str]) -> Value {
    let capabilities = ["CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_NET_RAW"];
    json!({
        "terminal": false,
        "user": { "uid": 0, "gid": 0 },
        "args": args,
        "env": ["PATH=/bin:/usr/bin", "TERM=xterm"],
        "cwd": "/",
        "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
        "noNewPrivileges": true,
    })
}
