//! The node's CSINode.

use anyhow::{Context, Result, ensure};
use berth_integration::agent::NODE_NAME;
use berth_integration::cluster::{AuditEvent, Cluster};
use serde_json::{Value, json};

use super::{by_node, told_ready};
use crate::kit::eventually;
use crate::suite::same;

/// What a kubelet of Kubernetes 1.36 says of plugins that CSI has taken the place of.
const MIGRATED: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
    kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

fn path() -> String {
    format!("/apis/storage.k8s.io/v1/csinodes/{NODE_NAME}")
}

fn drivers(object: &Value) -> usize {
    object["spec"]["drivers"].as_array().map_or(0, Vec::len)
}

/// Waits until there is one of this Node object, which has no drivers.
pub(super) fn is_made(cluster: &Cluster, node: &Value) -> Result<()> {
    let uid = &node["metadata"]["uid"];
    let owned = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"] == *uid;
    let object = cluster.wait_for(&path(), "the node's", owned)?;
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": uid }]);
    same("whose it is", &object["metadata"]["ownerReferences"], &owner)?;
    let annotations = json!({ "storage.alpha.kubernetes.io/migrated-plugins": MIGRATED });
    same("what it says", &object["metadata"]["annotations"], &annotations)?;
    same("drivers", drivers(&object), 0)
}

/// It was made once, before the node was told to be ready.
pub(super) fn came_first(cluster: &Cluster) -> Result<()> {
    let audit = cluster.audit()?;
    let is_made = |event: &&AuditEvent| event.is("create", "csinodes") && event.code() == 201;
    let made: Vec<_> = audit.iter().filter(is_made).map(|event| &event.request_received_timestamp).collect();
    let ready = told_ready(&audit).first().and_then(|at| audit.get(*at)).context("it is not ready")?;
    let ready = &ready.request_received_timestamp;
    ensure!(made.len() == 1 && made[0] < ready, "made at {made:?}, ready at {ready}");
    Ok(())
}

/// Adds a driver, as the kubelet before may have done.
pub(super) fn add_driver(cluster: &Cluster) -> Result<()> {
    let driver = json!({ "name": "csi.example.com", "nodeID": NODE_NAME, "topologyKeys": [] });
    let patch = json!({ "spec": { "drivers": [driver] } });
    cluster.request("PATCH", &path(), "application/merge-patch+json", &patch).map(drop)
}

/// An agent that begins looks at it, and leaves its driver.
pub(super) fn keeps_its_driver(cluster: &Cluster) -> Result<()> {
    eventually("a look at the CSINode", &true, || {
        Ok(by_node(cluster)?.iter().any(|event| event.is("get", "csinodes") && event.code() == 200))
    })?;
    same("drivers", drivers(&cluster.get_json(&path())?), 1)
}
