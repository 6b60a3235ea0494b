//! Requests about pods, one at a time each.

use std::time::Duration;

use berth_core::cluster::sync::{Answer, ApiPod as Known, Call, Mirror, Request};
use k8s_openapi::{
    api::core::v1::{Node, Pod as ApiPod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{ApiError, client::within, lenient, pods::known};
use crate::failpoint::Failpoint;

/// How long the server may take to answer.
const WITHIN: Duration = Duration::from_secs(30);

/// The annotation of a mirror: the hash of the pod that it shows (`pkg/kubelet/types/pod_update.go`).
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Names of what is asked about pods and what happened to them, for [`crate::failpoint`].
pub const REQUESTS: &[&str] = &["patch-status", "delete-pod", "create-mirror", SEND_EVENT];

/// See [`super::send_events`].
pub(super) const SEND_EVENT: &str = "send-event";

/// Carries a request out.
pub(super) async fn perform(client: Client, node: &str, request: &Request, failpoint: &Failpoint) -> Answer {
    let kind = match &request.call {
        Call::PatchStatus { .. } => "patch-status",
        Call::Delete { .. } => "delete-pod",
        Call::CreateMirror(_) => "create-mirror",
    };
    failpoint.before(kind);
    let answer = answer(client, node, request).await;
    failpoint.after(kind);
    answer
}

async fn answer(client: Client, node: &str, request: &Request) -> Answer {
    let api: Api<ApiPod> = Api::namespaced(client.clone(), &request.name.namespace);
    let name = &request.name.name;
    let answer = match &request.call {
        Call::PatchStatus { uid, patch } => {
            let patch = Patch::Strategic(json!({"metadata": {"uid": uid.as_str()}, "status": patch}));
            within(WITHIN, patch_status(client, request, &patch)).await.map(Some)
        }
        Call::Delete { uid } => {
            let preconditions = Preconditions { uid: Some(uid.as_str().to_owned()), resource_version: None };
            let params = DeleteParams {
                preconditions: Some(preconditions),
                ..DeleteParams::default().grace_period(0)
            };
            within(WITHIN, api.delete(name, &params)).await.map(|_deleted| None)
        }
        Call::CreateMirror(mirror) => {
            let made = create_mirror(client, &api, node, mirror).await;
            let Some(made) = made.transpose() else { return Answer::Gone };
            made.map(Some)
        }
    };
    match answer {
        Ok(Some(pod)) => match known(&pod) {
            pod if is_meant(request, &pod) => Answer::Pod(Box::new(pod)),
            _ => refused(request, &ApiError::Unusable("it is about another pod".to_owned())),
        },
        Ok(None) => Answer::Done,
        Err(error) => refused(request, &error),
    }
}

/// Whether an answer is about the pod of the request. Whoever answers for the server may say anything; a mirror has whatever UID it gets.
fn is_meant(request: &Request, pod: &Known) -> bool {
    let is_same = match &request.call {
        Call::PatchStatus { uid, .. } | Call::Delete { uid } => pod.uid == *uid,
        Call::CreateMirror(_) => !pod.uid.as_str().is_empty(),
    };
    is_same && pod.name == request.name
}

async fn patch_status(client: Client, request: &Request, patch: &Patch<Value>) -> Result<ApiPod, ApiError> {
    let url = ApiPod::url_path(&(), Some(&request.name.namespace));
    let sent = kube::core::Request::new(url);
    let sent = sent.patch_subresource("status", &request.name.name, &PatchParams::default(), patch);
    let sent = sent.map_err(|error| ApiError::Unusable(error.to_string()))?;
    lenient::object(client.request(sent).await?)
}

fn refused(request: &Request, error: &ApiError) -> Answer {
    let what = match &request.call {
        Call::PatchStatus { .. } => "patch the status of a pod",
        Call::Delete { .. } => "delete a pod",
        Call::CreateMirror(_) => "make a mirror pod",
    };
    let is_made = matches!(request.call, Call::CreateMirror(_));
    if error.is_not_found() || (error.is_conflict() && is_made) {
        tracing::debug!(pod = %request.name, what, %error, "another pod is there, or none");
        return Answer::Gone;
    }
    if error.is_conflict() {
        tracing::debug!(pod = %request.name, what, %error, "it was changed meanwhile, or is another one");
        return Answer::Conflict;
    }
    tracing::warn!(pod = %request.name, what, %error, "request to the API server failed");
    if error.is_forbidden() || error.is_invalid() {
        return Answer::Refused;
    }
    Answer::Failed { retry_after: error.retry_after() }
}

/// Source: `CreateMirrorPod` of `pkg/kubelet/pod/mirror_client.go`. Its owner is the node, so that it goes with it. `None`: the node is
/// being removed from the cluster (`tryReconcileMirrorPods` of `pkg/kubelet/kubelet.go`).
async fn create_mirror(
    client: Client,
    api: &Api<ApiPod>,
    node: &str,
    mirror: &Mirror,
) -> Result<Option<ApiPod>, ApiError> {
    let nodes: Api<Node> = Api::all(client);
    let owner = within(WITHIN, nodes.get(node)).await?;
    if owner.metadata.deletion_timestamp.is_some() {
        tracing::debug!(node, "no mirror pod is made: the node is being removed");
        return Ok(None);
    }
    let mut pod: ApiPod = serde_json::from_str(&mirror.manifest)
        .map_err(|error| ApiError::Unanswered(format!("read the pod that is to be mirrored: {error}")))?;
    pod.metadata.uid = None;
    pod.status = None;
    pod.annotations_mut().insert(MIRROR.to_owned(), mirror.hash.clone());
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    within(WITHIN, api.create(&PostParams::default(), &pod)).await.map(Some)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use berth_core::id::{OpId, PodName, PodUid};
    use kube::client::Body;

    use super::*;

    /// It is tried again, and ever later: there is nothing to be compared with.
    #[tokio::test]
    async fn an_answer_about_another_pod_is_none() {
        let pod = |namespace: &str, name: &str, uid: &str| json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}, "status": {"phase": "Running"}});
        let call = Call::PatchStatus { uid: PodUid::new("u1"), patch: json!({"phase": "Running"}) };
        let name = PodName { namespace: "a".to_owned(), name: "web".to_owned() };
        let request = Request { op: OpId(1), name, call };
        for (sent, is_used) in [
            (pod("a", "web", "u1"), true),
            (pod("a", "web", "u2"), false),
            (pod("a", "other", "u1"), false),
            (pod("b", "web", "u1"), false),
            (json!({"metadata": {"namespace": "a", "name": "web"}}), false),
            (json!({"metadata": {}}), false),
            (json!({}), false),
        ] {
            let text = sent.to_string();
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let body = Body::from(text.clone().into_bytes());
                async move { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            let told = answer(Client::new(service, "default"), "n", &request).await;
            let is_pod = matches!(&told, Answer::Pod(pod) if pod.uid.as_str() == "u1");
            let has_failed = told == Answer::Failed { retry_after: Duration::ZERO };
            assert_eq!((is_pod, has_failed), (is_used, !is_used), "{sent}: {told:?}");
        }
    }

    #[tokio::test]
    async fn a_node_that_is_being_removed_gets_no_mirrors_and_a_mirror_without_uid_is_none() {
        let manifest =
            r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns-n", "namespace": "a"}}"#;
        let mirror = Mirror { hash: "h".to_owned(), manifest: manifest.into() };
        let name = PodName { namespace: "a".to_owned(), name: "dns-n".to_owned() };
        let request = Request { op: OpId(1), name, call: Call::CreateMirror(mirror) };
        let failed = Answer::Failed { retry_after: Duration::ZERO };
        for (metadata, uid, expected) in [
            (json!({"name": "n", "uid": "u"}), "m", None),
            (json!({"name": "n", "uid": "u"}), "", Some(failed)),
            (
                json!({"name": "n", "uid": "u", "deletionTimestamp": "2026-11-23T20:00:00Z"}),
                "m",
                Some(Answer::Gone),
            ),
        ] {
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns-n", "namespace": "a", "uid": uid}});
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata.clone()});
                let object = if request.method() == http::Method::POST { pod } else { node };
                let body = Body::from(object.to_string().into_bytes());
                async move { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            let told = answer(Client::new(service, "default"), "n", &request).await;
            match expected {
                Some(expected) => assert_eq!(told, expected),
                None => assert!(matches!(&told, Answer::Pod(pod) if pod.uid.as_str() == "m"), "{told:?}"),
            }
        }
    }
}
