//! Invariant 1: the cores have no async runtime, no system calls, no wire definitions. `cargo metadata` is asked for all
//! that they are built from.

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        path::Path,
    };

    use serde_json::Value;

    /// Crates that do I/O, know the time, run tasks or speak a wire format.
    const FORBIDDEN: [&str; 18] = [
        "async-std",
        "berth-proto",
        "futures",
        "futures-util",
        "getrandom",
        "libc",
        "mio",
        "nix",
        "prost",
        "rand",
        "reqwest",
        "rustix",
        "smol",
        "socket2",
        "tokio",
        "tonic",
        "ttrpc",
        "hyper",
    ];

    #[test]
    fn invariant_1_cores_are_pure() {
        let metadata = metadata();
        let nodes = nodes(&metadata);
        for core in ["berth-core", "berth-shim-core", "berth-stream"] {
            let below = below(core, &nodes);
            let found: Vec<&&str> = FORBIDDEN.iter().filter(|name| below.contains(**name)).collect();
            assert!(found.is_empty(), "{core} depends on {found:?}");
            assert!(below.contains("thiserror"), "{core}: nothing was looked at");
        }
    }

    #[test]
    fn the_fence_sees_what_it_is_to_keep_out() {
        let metadata = metadata();
        let below = below("berth", &nodes(&metadata));
        assert!(below.contains("tokio"), "the agent's shell is known to depend on tokio");
    }

    #[expect(clippy::disallowed_methods, reason = "cargo is asked")]
    fn metadata() -> Value {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let output = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform"])
            .arg(concat!("x86_64", "-unknown-linux-gnu"))
            .arg("--manifest-path")
            .arg(manifest)
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("cargo tells JSON")
    }

    /// Name of each package and those that it is built from (not those of its tests or build script), by id.
    fn nodes(metadata: &Value) -> BTreeMap<&str, (&str, Vec<&str>)> {
        let names: BTreeMap<&str, &str> = metadata["packages"]
            .as_array()
            .expect("packages")
            .iter()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
        nodes
            .iter()
            .map(|node| {
                let id = text(&node["id"]);
                let normal = node["deps"].as_array().expect("deps").iter().filter(|dep| is_normal(dep));
                (id, (names[id], normal.map(|dep| text(&dep["pkg"])).collect()))
            })
            .collect()
    }

    fn is_normal(dep: &Value) -> bool {
        dep["dep_kinds"].as_array().expect("kinds").iter().any(|kind| kind["kind"].is_null())
    }

    /// Every package that `root` is built from.
    fn below<'a>(root: &str, nodes: &BTreeMap<&'a str, (&'a str, Vec<&'a str>)>) -> BTreeSet<&'a str> {
        let mut open: Vec<&str> =
            nodes.iter().filter(|(_, (name, _))| *name == root).map(|(id, _)| *id).collect();
        assert_eq!(open.len(), 1, "{root} is a package");
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            for next in &nodes[id].1 {
                if seen.insert(*next) {
                    open.push(next);
                }
            }
        }
        seen.into_iter().map(|id| nodes[id].0).collect()
    }

    fn text(value: &Value) -> &str {
        value.as_str().expect("a string")
    }
}
