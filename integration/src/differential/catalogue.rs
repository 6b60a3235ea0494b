//! The pods that are chosen by hand: each field that a node acts on alone, and those that a node refuses or that fail.

mod bad;
mod environment;
mod identity;
mod lives;
mod names;
mod probes;
mod resources;
mod security;
mod volumes;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::case::Case;
use crate::cluster::Cluster;
use crate::{components, files};

/// All of them.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        environment::cases(),
        identity::cases(),
        resources::cases(),
        security::cases(),
        volumes::cases(),
        names::cases(),
        lives::cases(),
        probes::cases(),
        bad::cases(),
    ]
    .concat()
}

/// The manifests of the documentation.
///
/// # Errors
/// One cannot be read.
pub fn examples(cluster: &Cluster) -> Result<Vec<Case>> {
    let mut all = files::list(components::workspace().join("examples"))?;
    all.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    all.sort();
    let case = |file: &std::path::PathBuf| {
        let path = file.to_str().context("an example has an odd path")?;
        let said =
            cluster.kubectl(&["create", "--dry-run=client", "--output", "json", "--filename", path])?;
        let object: Value =
            serde_json::from_str(&said).with_context(|| format!("{path} is no single object"))?;
        let name = file.file_stem().and_then(|name| name.to_str()).context("an example has no name")?;
        let case = Case::of(&format!("example-{name}"), object["spec"].clone());
        Ok(if object["spec"]["restartPolicy"] == "Never" { case.until(is_over) } else { case })
    };
    all.iter().map(case).collect()
}

/// Those of which the names are here, for a test of a minute.
pub const QUICK: [&str; 16] = [
    "plain",
    "env-field-refs",
    "env-resource-refs",
    "env-from",
    "command-expands",
    "user-and-group",
    "fs-group",
    "capabilities-some",
    "read-only-root",
    "resources-burstable",
    "resources-guaranteed",
    "volume-config-map",
    "volume-downward-api",
    "host-aliases",
    "dns-config",
    "init-and-sidecar",
];

/// A pod that ends and begins no more.
fn never() -> Value {
    json!({ "restartPolicy": "Never" })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
}

/// The first main container waits for this reason.
fn waits(pod: &Value, reason: &str) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
}

/// Its first main or init container ended a fourth time, and waits for 40 s: longer than what is between two looks. Of one that could not be
/// started a kubelet shows that error as long as it waits.
fn backs_off(pod: &Value) -> bool {
    ["initContainerStatuses", "containerStatuses"].iter().any(|list| {
        let one = &pod["status"][*list][0];
        let reason = &one["state"]["waiting"]["reason"];
        let waits = reason == "CrashLoopBackOff" || reason == "RunContainerError";
        one["restartCount"] == 3 && (waits || one["state"]["terminated"].is_object())
    })
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_that_may_be_a_pods() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for name in names {
            let may_be = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(name.bytes().all(may_be) && name.len() <= 63, "{name}");
        }
    }

    #[test]
    fn those_of_a_minute_are_there() {
        let all = all();
        for name in QUICK {
            assert!(all.iter().any(|case| case.name == name), "{name}");
        }
    }
}
