//! Which containerd runtime runs the pods of a handler.

/// Our own runtime.
const BERTH: &str = "io.containerd.berth.v1";

/// The runtime of others whose options are known here.
const RUNC: &str = "io.containerd.runc.v2";

/// A containerd runtime by what the agent has to do for its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRuntime {
    /// Our own shim, which is the sandbox of the pod.
    Berth,
    /// A shim of others, which groups the containers of a pod and has no sandbox of its own (decision 0006).
    Grouped {
        /// What containerd calls it: `io.containerd.<name>.v<number>`.
        name: String,
        /// What it is told beside the OCI spec.
        options: RuntimeOptions,
    },
}

/// The options that a runtime takes with each container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeOptions {
    /// None are known: its own defaults hold.
    None,
    /// Those of `io.containerd.runc.v2`: the OCI runtime, and who makes cgroups.
    Runc,
}

impl PodRuntime {
    /// The runtime that containerd calls so.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let options = match name {
            BERTH => return Self::Berth,
            RUNC => RuntimeOptions::Runc,
            _ => RuntimeOptions::None,
        };
        Self::Grouped { name: name.to_owned(), options }
    }

    /// What containerd calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Berth => BERTH,
            Self::Grouped { name, .. } => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_kind_of_runtime_it_is() {
        let grouped = |name: &str, options| PodRuntime::Grouped { name: name.to_owned(), options };
        let cases = [
            ("io.containerd.berth.v1", PodRuntime::Berth),
            ("io.containerd.runc.v2", grouped("io.containerd.runc.v2", RuntimeOptions::Runc)),
            ("io.containerd.kata.v2", grouped("io.containerd.kata.v2", RuntimeOptions::None)),
            // Another version of ours is another shim.
            ("io.containerd.berth.v2", grouped("io.containerd.berth.v2", RuntimeOptions::None)),
        ];
        for (name, expected) in cases {
            assert_eq!(PodRuntime::named(name), expected, "{name}");
            assert_eq!(expected.name(), name);
        }
    }
}
