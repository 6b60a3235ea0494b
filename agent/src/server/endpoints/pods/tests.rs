use std::sync::Arc;

use berth_core::{
    id::{ContainerId, ContainerName, PodName, PodUid, SandboxId},
    pod::port::status::{Published, Remains},
    spec::{ContainerKind, QosClass, Source},
    status::{Phase, PodStatus},
};
use http::Extensions;
use http_body_util::BodyExt as _;
use jiff::Timestamp;

use super::*;
use crate::{manifest, server::lanes::Lane};

async fn read(response: Response) -> Value {
    assert_eq!(response.headers()["content-type"], "application/json");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

fn container(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: ContainerName::new(name),
        kind: ContainerKind::Main,
        image: "registry/image:1".to_owned(),
        image_id: String::new(),
        id: Some(ContainerId::from_known("c1")),
        state,
        last_state: None,
        ready: true,
        started: true,
        restart_count: 0,
        user: None,
        actuated: None,
    }
}

fn view(state: ContainerState) -> View {
    view_in(state, None)
}

fn view_in(state: ContainerState, sandbox: Option<SandboxId>) -> View {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-node-1", "namespace": "default", "uid": "0b1c", "annotations": { "kubernetes.io/config.source": "file" },
        },
        "spec": {
            "containers": [{ "name": "c", "image": "image", "ofTomorrow": { "x": 1 } }],
        },
    });
    let mut status = PodStatus {
        uid: PodUid::new("0b1c"),
        name: PodName { namespace: "default".to_owned(), name: "web-node-1".to_owned() },
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        conditions: Vec::new(),
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers: Vec::new(),
        host_ips: Vec::new(),
        pod_ips: vec!["10.1.2.3".parse().unwrap()],
        start_time: Some(Timestamp::UNIX_EPOCH),
        qos: QosClass::BestEffort,
        recursive_read_only: false,
        resources: None,
        terminating: false,
    };
    status.containers.push(container("c", state));
    let read = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": manifest["metadata"],
        "spec": { "containers": [{ "name": "c", "image": "image" }] },
    });
    let pod = manifest::pod_from_json(&read.to_string(), Source::File).unwrap();
    let pod = berth_core::spec::Pod { manifest: manifest.to_string().into(), ..(*pod).clone() };
    let view = View::default();
    view.publish(Published {
        pod: Arc::new(pod),
        status: Arc::new(status),
        sandbox,
        remains: Remains::Something,
    });
    view
}

#[tokio::test]
async fn pods_are_shown_as_they_are_wanted_with_what_they_are() {
    let list = read(
        wanted(
            view(ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }),
            &Lane::new(1).of(&Extensions::new()),
        )
        .await,
    )
    .await;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let pod = &list["items"][0];
    assert_eq!(pod["metadata"]["uid"], "0b1c");
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    assert_eq!(pod["spec"]["containers"][0]["ofTomorrow"], json!({ "x": 1 }), "nothing of it is left out");
    assert_eq!((&pod["status"]["phase"], &pod["status"]["podIP"]), (&json!("Running"), &json!("10.1.2.3")));
    assert_eq!(pod["status"]["containerStatuses"][0]["ready"], true);
    assert_eq!(pod.get("kind"), None);
    assert_eq!(
        (&pod["spec"]["dnsPolicy"], &pod["spec"]["containers"][0]["imagePullPolicy"]),
        (&json!("ClusterFirst"), &json!("Always")),
        "it has the defaults of the API"
    );
    assert_eq!(
        read(wanted(View::default(), &Lane::new(1).of(&Extensions::new())).await).await["items"],
        Value::Null
    );
}

#[tokio::test]
async fn of_running_pods_the_containers_that_run_are_shown() {
    let list = read(
        running(
            view(ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }),
            &Lane::new(1).of(&Extensions::new()),
        )
        .await,
    )
    .await;
    let expected = json!([{
        "metadata": { "name": "web-node-1", "namespace": "default", "uid": "0b1c" },
        "spec": { "containers": [{ "name": "c", "image": "registry/image:1", "resources": {} }] },
        "status": {},
    }]);
    assert_eq!(list["items"], expected);
    let waiting = ContainerState::Waiting { reason: String::new(), message: String::new() };
    let whole = || Lane::new(1).of(&Extensions::new());
    assert_eq!(read(running(view(waiting.clone()), &whole()).await).await["items"], Value::Null);
    let sandbox = Some(SandboxId::from_known("s1"));
    let list = read(running(view_in(waiting, sandbox), &whole()).await).await;
    assert_eq!(list["items"][0]["spec"], json!({ "containers": null }));
    assert_eq!(list["items"][0]["metadata"]["name"], "web-node-1");
}
