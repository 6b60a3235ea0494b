//! What the tests of sessions have in common.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use berth_core::{
    id::{ContainerId, ContainerName, PodName, PodUid, SandboxId},
    pod::port::status::{Published, Remains},
    server::{ContainerPath, PodPath, RequestKind, ServerType},
    spec::{ContainerKind, QosClass, Source},
    status::{ContainerState, ContainerStatus, Phase, PodStatus},
};
use berth_proto::{SHIM_PROTOCOL, shim::StateResponse};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::mpsc,
};

use super::shim::{self, Seen};
use crate::{
    effects::SandboxHandlers,
    manifest,
    metrics::Metrics,
    runtime::{
        Shims,
        fake::{Ending, Fake},
    },
    server::{
        Lanes, Requests, Response,
        hang_up::HangUp,
        streaming::{Streaming, attach, exec, port_forward, run, run::Outputs, sockets::Sockets},
    },
    view::View,
};

/// Far longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// How long a client that has hung up may have its input held.
pub(super) const GONE: Duration = Duration::from_millis(100);

/// Bytes that the kernel keeps for a client that does not read: few, so that what is kept here can be told from it.
const SEND_BUFFER: u32 = 64 << 10;

/// The sandbox of the pod.
pub(super) const SANDBOX: &str = "0123456789";

/// A node with one pod, whose containers are `app` (which reads), `once` (which reads once), `tty` and `once-tty` (as those, with a
/// terminal), `closed` (which does not read) and `ended`.
pub(super) struct World {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Seen>,
    pub(super) streaming: Arc<Streaming>,
    pub(super) metrics: Metrics,
    pub(super) requests: Requests,
    _directory: TempDir,
    _containerd: Fake,
}

const MANIFEST: &str = r#"{
    "apiVersion": "v1", "kind": "Pod",
    "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
    "spec": { "hostNetwork": true, "containers": [
        { "name": "app", "image": "app", "stdin": true },
        { "name": "once", "image": "app", "stdin": true, "stdinOnce": true },
        { "name": "tty", "image": "app", "stdin": true, "tty": true },
        { "name": "once-tty", "image": "app", "stdin": true, "stdinOnce": true, "tty": true },
        { "name": "closed", "image": "app" },
        { "name": "ended", "image": "app" }
    ] }
}"#;

impl World {
    /// With a shim whose streams share a connection.
    pub(super) async fn start() -> Self {
        Self::with_shim(SHIM_PROTOCOL).await
    }

    /// With a shim that speaks a version of its protocol.
    pub(super) async fn with_shim(version: u32) -> Self {
        let directory = TempDir::new().unwrap();
        let run = directory.path().display().to_string();
        std::fs::create_dir(directory.path().join("shim")).unwrap();
        let sandbox = SandboxId::from_known(SANDBOX);
        let (events, _nobody) = mpsc::channel(1);
        let shims = Shims::new(&run, Path::new("/nowhere"), events);
        let seen = shim::start(&shims.socket(&sandbox), version);
        let containerd = Fake::answering(&[] as &[StateResponse], Ending::NotFound).await;
        let view = View::default();
        view.publish(published(sandbox));
        let metrics = Metrics::new("n", view.clone()).unwrap();
        let streaming = Arc::new(Streaming {
            view,
            shims,
            containerd: containerd.containerd.clone(),
            handlers: SandboxHandlers::default(),
            metrics: metrics.clone(),
            places: Lanes::default().sessions,
            outputs: Outputs::default(),
            sockets: Sockets::default(),
            idle: Some(LONG),
            gone: GONE,
        });
        let socket = TcpSocket::new_v4().unwrap();
        // Those that are accepted have it from here.
        socket.set_send_buffer_size(SEND_BUFFER).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Requests::new().unwrap();
        tokio::spawn(serve(listener, Arc::clone(&streaming), requests.clone()));
        Self { address, seen, streaming, metrics, requests, _directory: directory, _containerd: containerd }
    }
}

fn published(sandbox: SandboxId) -> Published {
    let pod = manifest::pod_from_json(MANIFEST, Source::Api).unwrap();
    let containers = pod.containers.iter().map(|container| ContainerStatus {
        name: container.name.clone(),
        kind: ContainerKind::Main,
        image: String::new(),
        image_id: String::new(),
        id: Some(ContainerId::from_known(container.name.as_str())),
        state: match container.name.as_str() {
            "ended" => ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: String::new() },
            _ => ContainerState::Running { started_at: Timestamp::UNIX_EPOCH },
        },
        last_state: None,
        ready: true,
        started: true,
        restart_count: 0,
        user: None,
        actuated: None,
    });
    let status = PodStatus {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        terminating: false,
        conditions: Vec::new(),
        host_ips: Vec::new(),
        pod_ips: Vec::new(),
        start_time: None,
        qos: QosClass::BestEffort,
        recursive_read_only: false,
        resources: None,
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers: containers.collect(),
    };
    Published { pod, status: Arc::new(status), sandbox: Some(sandbox), remains: Remains::Something }
}

async fn serve(listener: TcpListener, streaming: Arc<Streaming>, requests: Requests) {
    while let Ok((socket, _)) = listener.accept().await {
        let (streaming, requests) = (Arc::clone(&streaming), requests.clone());
        let hang_up = HangUp::of(&socket);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let streaming = Arc::clone(&streaming);
            let kind = RequestKind::of("GET", request.uri().path(), ServerType::ReadWrite);
            request.extensions_mut().insert(requests.begin(kind));
            request.extensions_mut().insert(hang_up.clone());
            async move { Ok::<_, Infallible>(answer(&streaming, request).await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service).with_upgrades());
    }
}

/// `/exec/{namespace}/{pod}/{container}` and the others.
async fn answer(streaming: &Arc<Streaming>, request: Request<Incoming>) -> Response {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let [endpoint, namespace, name, rest @ ..] = parts.as_slice() else { panic!("{path}") };
    let name = PodName { namespace: (*namespace).to_owned(), name: (*name).to_owned() };
    let (uid, container) = match rest {
        [] => (None, ""),
        [container] => (None, *container),
        [uid, container, ..] => (Some(PodUid::new(*uid)), *container),
    };
    let pod = PodPath { name, uid };
    let path = ContainerPath { pod: pod.clone(), container: ContainerName::new(container) };
    match *endpoint {
        "exec" => exec(streaming, &path, request),
        "attach" => attach(streaming, &path, request),
        "run" => run(streaming, &path, request).await,
        _ => port_forward(streaming, &pod, request),
    }
}
