//! Claims of volumes and what they are bound to, read when a pod's volume is made.
//!
//! A node may get those of its pods one by one, and watch none (`plugin/pkg/auth/authorizer/node/node_authorizer.go`): what is not bound yet
//! is asked for again when the volume is tried again.

use std::time::Duration;

use berth_core::{
    derived::claim::{Asked, Claim, Claimed, PersistentSource, PersistentVolume},
    failure::{Failure, FailureKind},
    spec::{NodeTerm, Requirement, VolumeMode},
};
use k8s_openapi::api::core::v1::{
    NodeSelectorTerm, PersistentVolume as ApiVolume, PersistentVolumeClaim as ApiClaim, PersistentVolumeSpec,
};
use kube::Api;

use crate::{
    cluster::{ApiError, node::NodeObject, within},
    manifest::{HOST_PATH_TYPES, NODE_OPERATORS},
};

/// How long the API server may take for each object.
const WITHIN: Duration = Duration::from_secs(10);

/// What keeps a claim that is being deleted for the pods that use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Mount options as they were once written (`MountOptionAnnotation` of `k8s.io/api/core/v1`).
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// What a claim of a pod comes to on this node.
///
/// # Errors
/// It is not bound, or is not to be had here, or the API server does not say.
pub async fn claimed(cluster: Option<&NodeObject>, asked: Asked<'_>) -> Result<Claimed, Failure> {
    let Some(cluster) = cluster else {
        return Err(refused(asked.failed("this node has no API server, start the agent with --kubeconfig")));
    };
    let unread = |what: &str, error: &ApiError| {
        let message = asked.failed(&format!("failed to fetch {what} from API server: {error}")).to_string();
        let kind = if error.is_away() { FailureKind::Transient } else { FailureKind::Config };
        Failure::new(kind, message)
    };
    let claim = of_claim(claim(cluster, asked).await.map_err(|error| unread("PVC", &error))?);
    let name = asked.bound(&claim).map_err(refused)?;
    let volume = volume(cluster, name).await.map_err(|error| unread(&format!("PV {name}"), &error))?;
    let volume = of_volume(volume);
    let node = match volume.affinity {
        Some(_) => Some(cluster.read().await.map_err(|error| unread("node", &error))?),
        None => None,
    };
    asked.claimed(&claim, volume, node.as_ref()).map_err(refused)
}

/// It may be bound, or made right, at any time.
fn refused(error: impl ToString) -> Failure {
    Failure::new(FailureKind::Config, error.to_string())
}

async fn claim(cluster: &NodeObject, asked: Asked<'_>) -> Result<ApiClaim, ApiError> {
    let (namespace, name) = (&asked.pod.name.namespace, &asked.claim.name);
    within(WITHIN, async {
        cluster.clients.there_are_some().await;
        Api::<ApiClaim>::namespaced(cluster.clients.get(), namespace).get(name).await
    })
    .await
}

async fn volume(cluster: &NodeObject, name: &str) -> Result<ApiVolume, ApiError> {
    let volumes = Api::<ApiVolume>::all(cluster.clients.get());
    within(WITHIN, volumes.get(name)).await
}

fn of_claim(found: ApiClaim) -> Claim {
    let (metadata, spec) = (found.metadata, found.spec.unwrap_or_default());
    let is_kept = metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    let mut owners = metadata.owner_references.into_iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    Claim {
        uid: metadata.uid.unwrap_or_default(),
        controller: controller.map(|owner| owner.uid),
        is_going: metadata.deletion_timestamp.is_some() && !is_kept,
        is_bound: found.status.and_then(|status| status.phase).is_some_and(|phase| phase == "Bound"),
        volume: spec.volume_name.unwrap_or_default(),
    }
}

fn of_volume(found: ApiVolume) -> PersistentVolume {
    let (metadata, spec) = (found.metadata, found.spec.unwrap_or_default());
    let source = source(&spec);
    let annotated = metadata.annotations.as_ref().and_then(|all| all.get(MOUNT_OPTIONS));
    let mount_options = match annotated {
        Some(options) => options.split(',').map(str::to_owned).collect(),
        None => spec.mount_options.unwrap_or_default(),
    };
    let required = spec.node_affinity.and_then(|affinity| affinity.required);
    PersistentVolume {
        name: metadata.name.unwrap_or_default(),
        claim: spec.claim_ref.map(|claim| claim.uid.unwrap_or_default()),
        source,
        mode: match spec.volume_mode.as_deref() {
            Some("Block") => VolumeMode::Block,
            Some(_) | None => VolumeMode::Filesystem,
        },
        is_of_one_pod: spec.access_modes.unwrap_or_default() == ["ReadWriteOncePod"],
        mount_options,
        affinity: required.map(|terms| terms.node_selector_terms.iter().map(term).collect()),
    }
}

/// What has a kind that is not known is as good as none.
fn source(spec: &PersistentVolumeSpec) -> PersistentSource {
    match (&spec.local, &spec.host_path) {
        (Some(local), _) => PersistentSource::Local(local.path.clone()),
        (None, Some(host)) => {
            let written = host.type_.as_deref().unwrap_or_default();
            match HOST_PATH_TYPES.iter().find(|(name, _)| *name == written) {
                Some((_, kind)) => PersistentSource::HostPath { path: host.path.clone(), kind: *kind },
                None => PersistentSource::Other,
            }
        }
        (None, None) => PersistentSource::Other,
    }
}

/// A term with something that is not known fits no node.
fn term(written: &NodeSelectorTerm) -> NodeTerm {
    let all = |written: &Option<Vec<k8s_openapi::api::core::v1::NodeSelectorRequirement>>| {
        written
            .iter()
            .flatten()
            .map(|one| {
                let (_, operator) = NODE_OPERATORS.iter().find(|(name, _)| *name == one.operator)?;
                let values = one.values.clone().unwrap_or_default();
                Some(Requirement { key: one.key.clone(), operator: *operator, values })
            })
            .collect::<Option<Vec<Requirement>>>()
    };
    match (all(&written.match_expressions), all(&written.match_fields)) {
        (Some(labels), Some(fields)) => NodeTerm { labels, fields },
        (_, _) => NodeTerm::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::{
        derived::claim::LocalVolume,
        spec::{HostPathType, Operator, Pod, Source, VolumeSource},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{manifest::pod_from_json, objects::fake::Fake};

    const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";
    const VOLUMES: &str = "/api/v1/persistentvolumes";

    fn pod() -> Arc<Pod> {
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}],
                "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
            },
        });
        pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"))
    }

    async fn ask(server: &Fake) -> Result<Claimed, Failure> {
        let pod = pod();
        let VolumeSource::Claim(claim) = &pod.volumes[0].source else { panic!("{:?}", pod.volumes) };
        let asked = Asked { pod: &pod, volume: &pod.volumes[0].name, claim };
        let cluster = NodeObject { clients: server.clients(), name: "n".to_owned() };
        claimed(Some(&cluster), asked).await
    }

    #[tokio::test]
    async fn a_claim_is_followed_to_its_volume_once_it_is_bound() {
        let server = Fake::default();
        let why = |failure: Failure| (failure.kind, failure.message);
        let (kind, message) = why(ask(&server).await.unwrap_err());
        assert_eq!(kind, FailureKind::Config);
        assert!(
            message.contains("error processing PVC shop/mine: failed to fetch PVC from API server: "),
            "{message}"
        );
        server.put(CLAIMS, "mine", json!({"spec": {}, "status": {"phase": "Pending"}}));
        let (kind, message) = why(ask(&server).await.unwrap_err());
        assert!(kind == FailureKind::Config && message.ends_with(": PVC is not bound"), "{message}");
        server.put(CLAIMS, "mine", json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}));
        let (_, message) = why(ask(&server).await.unwrap_err());
        assert!(message.contains("failed to fetch PV pv from API server: "), "{message}");
        let spec = json!({"local": {"path": "/srv"}, "claimRef": {"uid": "mine"}});
        server.put_in(VOLUMES, "", "pv", json!({"spec": spec}));
        let expected = LocalVolume {
            name: "pv".into(),
            path: "/srv".into(),
            read_only: false,
            options: Vec::new(),
            is_of_one_pod: false,
        };
        assert_eq!(ask(&server).await.unwrap(), Claimed::Local(expected));
        server.set_down(true);
        assert_eq!(why(ask(&server).await.unwrap_err()).0, FailureKind::Transient);
    }

    fn read<T: serde::de::DeserializeOwned>(written: Value) -> T {
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn what_counts_of_a_claim() {
        let of = |metadata: Value, phase: &str| {
            of_claim(read(
                json!({"metadata": metadata, "spec": {"volumeName": "pv"}, "status": {"phase": phase}}),
            ))
        };
        let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u0"},
            {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "u1", "controller": true}]);
        let found = of(json!({"uid": "c", "ownerReferences": owners}), "Bound");
        let controller = Some("u1".to_owned());
        let expected =
            Claim { uid: "c".into(), controller, is_going: false, is_bound: true, volume: "pv".into() };
        assert_eq!(found, expected);
        assert!(!of(json!({}), "Lost").is_bound);
        let deleted = "2026-01-01T00:00:00Z";
        for (finalizers, is_going) in
            [(json!([]), true), (json!(["x/y"]), true), (json!(["x/y", PROTECTION]), false)]
        {
            let metadata = json!({"deletionTimestamp": deleted, "finalizers": finalizers});
            assert_eq!(of(metadata, "Bound").is_going, is_going, "{finalizers}");
        }
    }

    #[test]
    fn what_counts_of_a_volume() {
        let of = |metadata: Value, spec: Value| of_volume(read(json!({"metadata": metadata, "spec": spec})));
        let found = of(json!({"name": "pv"}), json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
        let other = PersistentVolume {
            name: "pv".into(),
            claim: None,
            source: PersistentSource::Other,
            mode: VolumeMode::Filesystem,
            is_of_one_pod: false,
            mount_options: Vec::new(),
            affinity: None,
        };
        assert_eq!(found, other);
        let requirement = |operator: &str| json!({"key": "zone", "operator": operator, "values": ["a"]});
        let terms =
            json!([{"matchExpressions": [requirement("In")]}, {"matchExpressions": [requirement("Like")]}]);
        let spec = json!({
            "hostPath": {"path": "/srv", "type": "Directory"},
            "claimRef": {"uid": "c"},
            "volumeMode": "Block",
            "accessModes": ["ReadWriteOncePod"],
            "mountOptions": ["noexec"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        });
        let zone = Requirement { key: "zone".into(), operator: Operator::In, values: vec!["a".into()] };
        let zone = NodeTerm { labels: vec![zone], fields: Vec::new() };
        let expected = PersistentVolume {
            claim: Some("c".into()),
            source: PersistentSource::HostPath { path: "/srv".into(), kind: HostPathType::Directory },
            mode: VolumeMode::Block,
            is_of_one_pod: true,
            mount_options: vec!["noexec".into()],
            affinity: Some(vec![zone, NodeTerm::default()]),
            ..other
        };
        assert_eq!(of(json!({"name": "pv"}), spec.clone()), expected);
        let annotated = of(json!({"name": "pv", "annotations": {MOUNT_OPTIONS: "ro,nosuid"}}), spec);
        assert_eq!(annotated.mount_options, ["ro", "nosuid"]);
        let several = of(json!({}), json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}));
        assert!(!several.is_of_one_pod);
        let odd = of(json!({}), json!({"hostPath": {"path": "/srv", "type": "Strange"}}));
        assert_eq!(odd.source, PersistentSource::Other);
    }
}
