//! What a runtime handler stands for: which containerd runtime runs its pods, and how.

use std::path::PathBuf;

use berth_core::oci::{HandlerTerms, PrivilegedDevices};
use serde::{Deserialize, Serialize};

use super::containerd::Shim;

/// Our own runtime, as containerd calls it.
pub const BERTH_RUNTIME: &str = "io.containerd.berth.v1";

/// The runtime of others whose options are known here.
const RUNC: &str = "io.containerd.runc.v2";

/// What shims are called that run virtual machines (`vmbasedRuntimes` of containerd's `internal/cri/server/helpers_linux.go`).
const KATA: &str = "io.containerd.kata";

/// A handler as it was when a sandbox was made: recorded with it, so that a change of the configuration is one for later pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handler {
    /// What runs its pods.
    pub runtime: PodRuntime,
    /// Patterns of annotations of the pod that the runtime sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_annotations: Vec<String>,
    /// Whether privileged containers get no devices of the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub privileged_without_host_devices: bool,
    /// Whether those may then use all devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_devices_allowed: bool,
}

/// A containerd runtime by what the agent has to do for its pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodRuntime {
    /// Our own shim, which is the sandbox of the pod.
    Berth {
        /// The OCI runtime, a name or a path; the node's own where there is none.
        binary: Option<String>,
    },
    /// A shim of others, which groups the containers of a pod and has no sandbox of its own (decision 0006).
    Grouped {
        /// What containerd calls it: `io.containerd.<name>.v<number>`.
        name: String,
        /// The shim itself, where it is not found by that name.
        path: Option<PathBuf>,
        /// What it is told beside the OCI spec.
        options: RuntimeOptions,
    },
}

/// The options that a runtime takes with each container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuntimeOptions {
    /// None are known: its own defaults hold.
    None,
    /// Those of `io.containerd.runc.v2`: the OCI runtime, and who makes cgroups.
    Runc {
        /// The OCI runtime; the node's own where there is none.
        binary: Option<String>,
    },
    /// Those that containerd gives to every other runtime.
    Generic {
        /// `TypeUrl`.
        type_url: String,
        /// `ConfigPath`: the runtime's own configuration.
        config_path: String,
        /// All options in TOML, where there is no such file.
        config_body: String,
    },
}

impl PodRuntime {
    /// The runtime that containerd calls so.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let options = match name {
            BERTH_RUNTIME => return Self::Berth { binary: None },
            RUNC => RuntimeOptions::Runc { binary: None },
            _ => RuntimeOptions::None,
        };
        Self::Grouped { name: name.to_owned(), path: None, options }
    }

    /// What containerd calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Berth { .. } => BERTH_RUNTIME,
            Self::Grouped { name, .. } => name,
        }
    }
}

impl Handler {
    /// The handler that is a runtime and says no more.
    #[must_use]
    pub fn of(runtime: PodRuntime) -> Self {
        Self {
            runtime,
            pod_annotations: Vec::new(),
            privileged_without_host_devices: false,
            all_devices_allowed: false,
        }
    }

    /// The handler that containerd's section has: what its runc runs, an OCI runtime, our own shim runs as well.
    #[must_use]
    pub fn of_containerd(shim: &Shim) -> Self {
        let binary = shim.option("BinaryName").map(str::to_owned);
        let runtime = match (&shim.path, shim.name.as_str()) {
            (None, RUNC | BERTH_RUNTIME) => PodRuntime::Berth { binary },
            (path, name) => PodRuntime::Grouped {
                name: name.to_owned(),
                path: path.clone(),
                options: if name == RUNC { RuntimeOptions::Runc { binary } } else { generic(shim) },
            },
        };
        Self {
            runtime,
            pod_annotations: shim.pod_annotations.clone(),
            privileged_without_host_devices: shim.privileged_without_host_devices,
            all_devices_allowed: shim.all_devices_allowed,
        }
    }

    /// What the OCI spec shows of it.
    #[must_use]
    pub fn terms(&self) -> HandlerTerms<'_> {
        let devices = match (self.privileged_without_host_devices, self.all_devices_allowed) {
            (false, _) => PrivilegedDevices::All,
            (true, true) => PrivilegedDevices::Allowed,
            (true, false) => PrivilegedDevices::None,
        };
        let is_vm = self.runtime.name().contains(KATA);
        HandlerTerms { pod_annotations: &self.pod_annotations, devices, is_vm }
    }
}

/// Source: `GenerateRuntimeOptions` of containerd's `internal/cri/config/config.go`.
fn generic(shim: &Shim) -> RuntimeOptions {
    if shim.options.is_empty() {
        return RuntimeOptions::None;
    }
    let text = |name| shim.option(name).unwrap_or_default().to_owned();
    let (type_url, config_path) = (text("TypeUrl"), text("ConfigPath"));
    let config_body = if config_path.is_empty() { shim.options.to_string() } else { String::new() };
    RuntimeOptions::Generic { type_url, config_path, config_body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_kind_of_runtime_it_is() {
        let grouped =
            |name: &str, options| PodRuntime::Grouped { name: name.to_owned(), path: None, options };
        let cases = [
            ("io.containerd.berth.v1", PodRuntime::Berth { binary: None }),
            (
                "io.containerd.runc.v2",
                grouped("io.containerd.runc.v2", RuntimeOptions::Runc { binary: None }),
            ),
            ("io.containerd.kata.v2", grouped("io.containerd.kata.v2", RuntimeOptions::None)),
            // Another version of ours is another shim.
            ("io.containerd.berth.v2", grouped("io.containerd.berth.v2", RuntimeOptions::None)),
        ];
        for (name, expected) in cases {
            assert_eq!(PodRuntime::named(name), expected, "{name}");
            assert_eq!(expected.name(), name);
        }
    }

    /// A sandbox outlives the agent that recorded it.
    #[test]
    fn what_is_recorded_of_a_handler_is_read_by_the_next_agent() {
        let kata = PodRuntime::Grouped {
            name: "io.containerd.kata.v2".to_owned(),
            path: Some("/opt/kata/bin/containerd-shim-kata-v2".into()),
            options: RuntimeOptions::Generic {
                type_url: String::new(),
                config_path: "/opt/kata/qemu.toml".to_owned(),
                config_body: String::new(),
            },
        };
        let handler = Handler {
            pod_annotations: vec!["io.katacontainers.*".to_owned()],
            privileged_without_host_devices: true,
            ..Handler::of(kata)
        };
        let text = serde_json::to_string(&handler).unwrap();
        assert_eq!(
            text,
            r#"{"runtime":{"grouped":{"name":"io.containerd.kata.v2","path":"/opt/kata/bin/containerd-shim-kata-v2","options":{"generic":{"type_url":"","config_path":"/opt/kata/qemu.toml","config_body":""}}}},"podAnnotations":["io.katacontainers.*"],"privilegedWithoutHostDevices":true}"#
        );
        assert_eq!(serde_json::from_str::<Handler>(&text).unwrap(), handler);
        let plain = Handler::of(PodRuntime::Berth { binary: None });
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"runtime":{"berth":{"binary":null}}}"#);
    }
}
