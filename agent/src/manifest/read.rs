//! From a text to pods.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::spec::{Pod, Source};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod as ApiPod, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{hash, notes::Notes, pod};
use crate::document::{self, Fault, Faults, Node, Place, Value};

/// A pod of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Fields that are understood and not acted on.
    pub unsupported: Vec<String>,
    /// Fields that are not known, with their place: as under a kubelet, those of a newer API do not stop a pod.
    pub unknown: Vec<String>,
}

/// Where a manifest comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Which source.
    pub source: Source,
    /// Path of the file or the address: part of the UID, and of every fault.
    pub place: &'a str,
    /// Name of the node, lower case.
    pub node: &'a str,
    /// When it was last changed: `kubernetes.io/config.seen`.
    pub seen: Timestamp,
}

/// Reads every pod of a text: YAML or JSON, one or several documents, each a Pod or a list of them.
///
/// # Errors
/// Everything that is wrong with the text. Then none of its pods is used: a file is one intent.
pub fn read(text: &str, origin: &Origin<'_>) -> Result<Vec<Manifest>, Faults> {
    let mut manifests = Vec::new();
    let mut faults = Vec::new();
    for document in document::parse(origin.place, text)? {
        for node in pods_of(&document)? {
            match static_pod(&node, origin) {
                Ok(manifest) => manifests.push(manifest),
                Err(found) => faults.extend(found.0),
            }
        }
    }
    Faults(faults).or(manifests)
}

/// Reads back the pod of a record: [`Pod::manifest`], which had its defaults applied when it was first read.
///
/// # Errors
/// What is wrong with it, when something else than Berth wrote it.
pub fn pod_from_json(json: &str, source: Source) -> Result<Arc<Pod>, Faults> {
    // A text of a person's may not have every character that a pod of the API has, and no more values than a person writes.
    let written: ApiPod = serde_json::from_str(json).map_err(|error| Fault {
        place: None,
        field: String::new(),
        message: format!("not a pod: {error}"),
    })?;
    let nowhere = Node { place: Place { file: "record".into(), line: 0 }, value: Value::Null };
    convert(&nowhere, &written, source).map(|manifest| manifest.pod)
}

/// The nodes of all pods in a document.
fn pods_of(document: &Node) -> Result<Vec<Node>, Fault> {
    let text = |key: &str| document.get(key).and_then(Node::text).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "Pod") => Ok(vec![document.clone()]),
        ("v1", "PodList" | "List") => match document.get("items").map(|items| &items.value) {
            Some(Value::List(items)) => Ok(items.clone()),
            Some(Value::Null) | None => Ok(Vec::new()),
            Some(_) => Err(document.fault("items", "expected a list")),
        },
        ("", _) | (_, "") => Err(document.fault(
            "",
            "`apiVersion` or `kind` is missing: a pod begins with `apiVersion: v1` and `kind: Pod`",
        )),
        (version, kind) => {
            let message =
                format!("{kind} of {version} is not a pod: only Pod and PodList of v1 can be run from here");
            Err(document.fault("kind", message))
        }
    }
}

fn static_pod(node: &Node, origin: &Origin<'_>) -> Result<Manifest, Faults> {
    let (mut written, unknown): (ApiPod, Faults) = document::read_noting(node)?;
    refuse_references(node, &written)?;
    apply_defaults(&mut written, origin);
    let mut manifest = convert(node, &written, origin.source)?;
    // What a saved pod has in its status is nobody's wish.
    let mut unknown = unknown.0;
    unknown.retain(|fault| !fault.field.starts_with("status."));
    unknown.sort();
    manifest.unknown = unknown.iter().map(ToString::to_string).collect();
    Ok(manifest)
}

pub(super) fn convert(node: &Node, written: &ApiPod, source: Source) -> Result<Manifest, Faults> {
    let mut notes = Notes::new(node);
    let pod = pod::convert(&mut notes, written, source);
    let (pod, unsupported) = notes.finish(pod)?;
    // `finish` answers with the fault that says why there is no pod.
    let pod = pod.map(Arc::new).ok_or_else(Faults::default)?;
    Ok(Manifest { pod, unsupported, unknown: Vec::new() })
}

/// What a pod that the API server does not know may not use. Source: KEP-5233 `PreventStaticPodAPIReferences`, beyond the
/// references that lie in containers and volumes.
fn refuse_references(node: &Node, written: &ApiPod) -> Result<(), Faults> {
    let Some(spec) = &written.spec else { return Ok(()) };
    let account = |name: Option<&String>| name.is_some_and(|name| !name.is_empty());
    let mut faults = Vec::new();
    for (field, there) in [
        ("spec.serviceAccountName", account(spec.service_account_name.as_ref())),
        ("spec.serviceAccount", account(spec.service_account.as_ref())),
        (
            "spec.imagePullSecrets",
            spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()),
        ),
        ("spec.resourceClaims", spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())),
    ] {
        if there {
            faults
                .push(node.fault(field, "needs an object of the API server, which a static pod may not use"));
        }
    }
    Faults(faults).or(())
}

/// What the kubelet adds to a static pod. Source: `pkg/kubelet/config/common.go` `applyDefaults`.
fn apply_defaults(pod: &mut ApiPod, origin: &Origin<'_>) {
    // What only the API server writes: a pod that was saved from a cluster may still have it.
    pod.status = None;
    let kept = std::mem::take(&mut pod.metadata);
    pod.metadata = ObjectMeta {
        annotations: kept.annotations,
        labels: kept.labels,
        name: kept.name,
        namespace: kept
            .namespace
            .filter(|namespace| !namespace.is_empty())
            .or_else(|| Some("default".to_owned())),
        uid: kept.uid.filter(|uid| !uid.is_empty()),
        ..ObjectMeta::default()
    };
    let uid = pod.metadata.uid.clone().unwrap_or_else(|| hash::static_uid(pod, origin.node, origin.place));
    let name = pod.metadata.name.take().unwrap_or_default();
    // An empty name must stay one, to be refused.
    pod.metadata.name = Some(if name.is_empty() { name } else { format!("{name}-{}", origin.node) });
    let annotations = pod.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert("kubernetes.io/config.source".to_owned(), source_name(origin.source).to_owned());
    annotations.insert("kubernetes.io/config.hash".to_owned(), uid.clone());
    annotations.insert("kubernetes.io/config.seen".to_owned(), origin.seen.to_string());
    pod.metadata.uid = Some(uid);
    let Some(spec) = &mut pod.spec else { return };
    spec.node_name = Some(origin.node.to_owned());
    let any = Toleration {
        effect: Some("NoExecute".to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_with(Vec::new);
    if !tolerations.contains(&any) {
        tolerations.push(any);
    }
}

fn source_name(source: Source) -> &'static str {
    match source {
        Source::File => "file",
        Source::Http => "http",
        Source::Api => "api",
    }
}
