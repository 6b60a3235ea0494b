//! Kubeconfigs and a server that tells who asked.

mod malformed;
pub(in crate::cluster) mod server;

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use berth_core::cluster::proxy::Proxies;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use self::server::{Authority, Proxy, Server, TOGETHER};
use super::*;
use crate::cluster::{ApiError, Clients, client::within};

const SOON: Duration = Duration::from_secs(30);

/// A kubeconfig in a directory.
pub(in crate::cluster) struct Node {
    dir: tempfile::TempDir,
    cluster: Cluster,
}

impl Node {
    pub(in crate::cluster) fn with(cluster: Value, user: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubelet.conf");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "x", "cluster": cluster }],
            "users": [{ "name": "x", "user": user }],
            "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        let flags = [format!("--kubeconfig={}", kubeconfig.display())];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let facts = crate::config::tests::facts();
        let config = crate::config::tests::load_text("", &flags).unwrap().resolve(&facts).unwrap();
        let cluster = Cluster { proxies: Proxies::default(), ..config.cluster.unwrap() };
        Self { dir, cluster }
    }

    /// How it is configured, with certificates of its own.
    pub(in crate::cluster) fn cluster(&self) -> Cluster {
        Cluster { cert_dir: self.dir.path().join("pki"), ..self.cluster.clone() }
    }

    pub(in crate::cluster) async fn connection(&self) -> Result<Connection, ConnectError> {
        connect(&self.cluster, &self.cluster.kubeconfig).await
    }

    async fn client(&self) -> Result<Client, ConnectError> {
        self.connection().await.map(|connection| connection.client)
    }

    /// Who the server says that is asking.
    async fn who(&self) -> Result<Value, ApiError> {
        let client = self.client().await.map_err(|error| ApiError::Unanswered(with_causes(&error)))?;
        who(&client).await
    }
}

pub(in crate::cluster) async fn who(client: &Client) -> Result<Value, ApiError> {
    within(SOON, client.request(Request::get("/who").body(Vec::new()).unwrap())).await
}

/// Begins a watch that tells nothing.
pub(in crate::cluster) async fn watch(client: &Client) -> Response<Body> {
    let request = Request::get("/watch").body(Body::empty()).unwrap();
    within(SOON, client.send(request)).await.unwrap()
}

/// Waits until it is so.
pub(in crate::cluster) async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.unwrap();
}

pub(in crate::cluster) fn data(text: &str) -> String {
    base64(text.as_bytes())
}

/// The cluster of a kubeconfig: a server that is trusted by who has signed its certificate.
pub(in crate::cluster) fn trusting(url: &str, authority: &Authority) -> Value {
    json!({ "server": url, "certificate-authority-data": data(&authority.pem()) })
}

#[tokio::test]
async fn the_server_is_trusted_by_its_authority_and_its_name() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let named = Server::start(&authority, &["127.0.0.1", "api.example"]).await;
    let foreign = Server::start(&authority, &["api.example"]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.crt");
    fs::write(&file, authority.pem()).unwrap();
    let ca = |server: &Server| trusting(&server.url(), &authority);
    let with = |mut cluster: Value, more: Value| {
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cluster
    };
    for (cluster, is_trusted) in [
        (ca(&named), true),
        (json!({ "server": named.url(), "certificate-authority": file }), true),
        (trusting(&named.url(), &other), false),
        (json!({ "server": named.url() }), false),
        (json!({ "server": named.url(), "insecure-skip-tls-verify": true }), true),
        (ca(&foreign), false),
        (with(ca(&foreign), json!({ "tls-server-name": "api.example" })), true),
        (with(ca(&named), json!({ "tls-server-name": "other.example" })), false),
    ] {
        let answer = Node::with(cluster.clone(), json!({})).who().await;
        assert_eq!(answer.is_ok(), is_trusted, "{cluster}: {answer:?}");
    }
}

#[tokio::test]
async fn the_node_is_who_its_kubeconfig_says() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["127.0.0.1"]).await;
    let cluster = trusting(&server.url(), &authority);
    let (certificate, key) = authority.client("file");
    let dir = tempfile::tempdir().unwrap();
    let files = ["client.crt", "client.key", "token"].map(|name| dir.path().join(name));
    for (file, text) in files.iter().zip([&certificate, &key, &"of-file\n".to_owned()]) {
        fs::write(file, text).unwrap();
    }
    let (certificate, key) = authority.client("data");
    let plugin = |status: Value| {
        let printed = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status,
        });
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "echo", "args": [printed.to_string()],
        } })
    };
    let (theirs, their_key) = authority.client("plugin");
    for (user, token, name) in [
        (json!({}), Value::Null, Value::Null),
        (json!({ "token": "inline" }), json!("Bearer inline"), Value::Null),
        (json!({ "token": "inline", "tokenFile": files[2] }), json!("Bearer of-file"), Value::Null),
        (json!({ "token": "inline", "tokenFile": "none" }), json!("Bearer inline"), Value::Null),
        (json!({ "tokenFile": files[2] }), json!("Bearer of-file"), Value::Null),
        (json!({ "username": "a", "password": "b" }), json!("Basic YTpi"), Value::Null),
        (json!({ "client-certificate": files[0], "client-key": files[1] }), Value::Null, json!("file")),
        (
            json!({ "client-certificate-data": data(&certificate), "client-key-data": data(&key) }),
            Value::Null,
            json!("data"),
        ),
        (plugin(json!({ "token": "said" })), json!("Bearer said"), Value::Null),
        (
            plugin(json!({ "clientCertificateData": theirs, "clientKeyData": their_key })),
            Value::Null,
            json!("plugin"),
        ),
        (
            plugin(json!({ "token": "said", "clientCertificateData": theirs, "clientKeyData": their_key })),
            json!("Bearer said"),
            json!("plugin"),
        ),
    ] {
        let node = Node::with(cluster.clone(), user.clone());
        let who = node.who().await.unwrap_or_else(|error| panic!("{user}: {error}"));
        assert_eq!((&who["authorization"], &who["certificate"]), (&token, &name), "{user}");
        assert!(who["agent"].as_str().unwrap().starts_with("kubelet/v1.36"), "{who}");
    }
    let gone = json!({ "auth-provider": { "name": "gcp" } });
    let refused = Node::with(cluster, gone).client().await.err().unwrap();
    assert!(
        with_causes(&refused).contains("auth-provider `gcp` is no longer a part of Kubernetes"),
        "{refused}"
    );
}

#[tokio::test]
async fn another_certificate_of_a_plugin_is_used_on_other_connections_and_ends_those_before() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = trusting(&server.url(), &authority);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("printed");
    let (first, second) = (authority.client("first"), authority.client("second"));
    let print = |(certificate, key): &(String, String), token: &str| {
        // It has ended already, so the plugin is run for each request.
        let status = json!({
            "clientCertificateData": certificate, "clientKeyData": key, "token": token,
            "expirationTimestamp": "2000-01-01T00:00:00Z",
        });
        let printed = json!({ "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status });
        fs::write(&file, printed.to_string()).unwrap();
    };
    let user = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "cat", "args": [file],
    } });
    let Connection { client, many, .. } = Node::with(cluster, user).connection().await.unwrap();
    let asks = async |certificate: &str, token: &str| {
        let who = who(&client).await.unwrap();
        assert_eq!(who["certificate"], certificate);
        assert_eq!(who["authorization"], format!("Bearer {token}"));
    };
    print(&first, "one");
    let mut watches = [watch(&client).await.into_body(), watch(&many).await.into_body()];
    asks("first", "one").await;
    print(&first, "two");
    asks("first", "two").await;
    assert_eq!(server.connections(), 2, "the same certificate needs no other connection");
    print(&second, "three");
    asks("second", "three").await;
    asks("second", "three").await;
    // Those of who has asked nothing since as well.
    for watch in &mut watches {
        let error = watch.frame().await.unwrap().unwrap_err();
        assert!(with_causes(&error).contains("was given up"), "{error}");
    }
    until(|| server.open() == 1).await;
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_plugin_that_fails_is_told_by_the_request_and_not_by_the_client() {
    let user = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", "echo 'the cloud is away' >&2; exit 1"],
    } });
    let node = Node::with(json!({ "server": "https://127.0.0.1:1" }), user);
    let client = node.client().await.unwrap();
    let error = who(&client).await.unwrap_err().to_string();
    assert!(error.contains("the cloud is away"), "{error}");
}

#[tokio::test]
async fn requests_go_through_the_proxy_that_the_kubeconfig_names() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["api.example"]).await;
    // Nobody but the proxy knows where the server is.
    let url = format!("https://api.example:{}", server.port());
    let mut made = Vec::new();
    for (scheme, user, expected) in [
        ("http", "", None),
        ("http", "a:p%40ss@", Some("Basic YTpwQHNz")),
        ("https", "", None),
        ("socks5", "", None),
    ] {
        let proxy = Proxy::start(scheme, &authority, server.port()).await;
        let mut cluster = trusting(&url, &authority);
        cluster["proxy-url"] = json!(format!("{scheme}://{user}127.0.0.1:{}", proxy.port()));
        let answer = Node::with(cluster, json!({ "token": "x" })).who().await;
        assert_eq!(answer.unwrap_or_else(|error| panic!("{scheme}: {error}"))["authorization"], "Bearer x");
        assert_eq!(proxy.authorization().as_deref(), expected, "{scheme}");
        made.push(proxy.connections());
    }
    assert_eq!(made, [1, 1, 1, 1]);
    let cluster = json!({ "server": url, "proxy-url": "ftp://127.0.0.1" });
    let refused = Node::with(cluster, json!({})).client().await.err().unwrap();
    assert!(refused.to_string().contains("its proxy-url is of `ftp`"), "{refused}");
}

#[tokio::test]
async fn a_proxy_of_the_environment_is_used_where_it_does_not_say_otherwise() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["api.example"]).await;
    let proxy = Proxy::start("http", &authority, server.port()).await;
    let url = format!("https://api.example:{}", server.port());
    let cluster = trusting(&url, &authority);
    let mut node = Node::with(cluster, json!({}));
    node.cluster.proxies.https = format!("127.0.0.1:{}", proxy.port());
    node.who().await.unwrap();
    assert_eq!(proxy.connections(), 1);
    node.cluster.proxies.no_proxy = ".example".to_owned();
    node.who().await.unwrap_err();
    assert_eq!(proxy.connections(), 1, "asked without");
}

#[tokio::test]
async fn however_many_requests_begin_at_once_a_client_makes_one_connection() {
    let authority = Authority::new("ours");
    for (is_http2, connections) in [(true, 1), (false, TOGETHER)] {
        let hosts = ["127.0.0.1"];
        let server = match is_http2 {
            true => Server::start_http2(&authority, &hosts, 100).await,
            false => Server::start(&authority, &hosts).await,
        };
        let cluster = trusting(&server.url(), &authority);
        let client = Node::with(cluster, json!({})).client().await.unwrap();
        let ask =
            || within(SOON, client.request::<Value>(Request::get("/together").body(Vec::new()).unwrap()));
        let answers = futures::future::join_all((0..TOGETHER).map(|_| ask())).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(server.connections(), connections, "HTTP/2: {is_http2}");
    }
}

#[tokio::test]
async fn many_watches_have_a_connection_of_their_own_with_what_was_read_then() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = trusting(&server.url(), &authority);
    let (certificate, key) = authority.client("first");
    let dir = tempfile::tempdir().unwrap();
    let files = ["client.crt", "client.key"].map(|name| dir.path().join(name));
    fs::write(&files[0], certificate).unwrap();
    fs::write(&files[1], key).unwrap();
    let user = json!({ "client-certificate": files[0], "client-key": files[1] });
    let connection = Node::with(cluster, user).connection().await.unwrap();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    for client in [&connection.client, &connection.many, &connection.client] {
        assert_eq!(who(client).await.unwrap()["certificate"], "first");
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn no_request_waits_behind_watches_however_few_streams_the_server_takes() {
    let authority = Authority::new("ours");
    for (streams, connections) in [(1, 11), (3, 4), (4, 3), (100, 1)] {
        let server = Server::start_http2(&authority, &["127.0.0.1"], streams).await;
        let cluster = trusting(&server.url(), &authority);
        let client = Node::with(cluster, json!({})).client().await.unwrap();
        let watches = futures::future::join_all((0..10).map(|_| watch(&client))).await;
        for _ in 0..3 {
            who(&client).await.unwrap();
        }
        assert_eq!(server.connections(), connections, "{streams}");
        assert_eq!(server.open(), connections, "{streams}");
        // The connections go with what they carried; one stays for the next request.
        drop(watches);
        until(|| server.open() == 1).await;
        who(&client).await.unwrap();
        assert_eq!(server.connections(), connections, "{streams}");
    }
}

#[tokio::test]
async fn what_waits_for_a_silent_server_ends_when_it_is_given_up_and_is_asked_on_another_connection() {
    let authority = Authority::new("ours");
    for is_http2 in [true, false] {
        let server = match is_http2 {
            true => Server::start_http2(&authority, &["127.0.0.1"], 2).await,
            false => Server::start(&authority, &["127.0.0.1"]).await,
        };
        let cluster = trusting(&server.url(), &authority);
        let mut clients = Clients::new(Node::with(cluster, json!({})).connection().await.unwrap());
        let (one, many) = (clients.get(), clients.take_many());
        let mut watches = [watch(&one).await.into_body(), watch(&many).await.into_body()];
        who(&one).await.unwrap();
        who(&many).await.unwrap();
        let asked = server.requests();
        let cut = async {
            until(|| server.requests() == asked + 2).await;
            clients.cut_silent(Duration::ZERO)
        };
        let (first, second, cut) = tokio::join!(never(&one), never(&many), cut);
        assert!(cut >= 2, "{cut}");
        for asked in [first, second] {
            let why = asked.unwrap_err().to_string();
            assert!(why.contains("was given up"), "{why}");
        }
        for watch in &mut watches {
            let error = watch.frame().await.unwrap().unwrap_err();
            assert!(with_causes(&error).contains("was given up"), "{error}");
        }
        let before = server.connections();
        who(&one).await.unwrap();
        who(&many).await.unwrap();
        assert_eq!(server.connections(), before + 2, "HTTP/2: {is_http2}");
    }
}

/// Asks what is never answered.
async fn never(client: &Client) -> Result<Value, ApiError> {
    within(SOON, client.request(Request::get("/never").body(Vec::new()).unwrap())).await
}

#[tokio::test]
async fn a_connection_is_given_up_no_sooner_than_it_is_silent_and_not_where_it_owes_nothing() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = trusting(&server.url(), &authority);
    let clients = Clients::new(Node::with(cluster, json!({})).connection().await.unwrap());
    let client = clients.get();
    let mut watch = watch(&client).await.into_body();
    for _ in 0..2 {
        who(&client).await.unwrap();
    }
    assert_eq!(clients.cut_silent(Duration::ZERO), 0, "a watch has nothing to tell");
    let asked = server.requests();
    let given_up = async {
        until(|| server.requests() == asked + 1).await;
        assert_eq!(clients.cut_silent(SOON), 0);
        // Another answer shows that it lives.
        who(&client).await.unwrap();
        assert_eq!(clients.cut_silent(Duration::ZERO), 0);
    };
    tokio::select! {
        answer = never(&client) => panic!("{answer:?}"),
        () = given_up => {}
    }
    tokio::time::timeout(LOOK, watch.frame()).await.unwrap_err();
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn certificate_files_that_change_are_used_from_then_on_and_the_connection_before_ends() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = trusting(&server.url(), &authority);
    let dir = tempfile::tempdir().unwrap();
    let files = ["client.crt", "client.key"].map(|name| dir.path().join(name));
    // One after the other: for a moment they do not fit.
    let write = |name: &str| {
        let (certificate, key) = authority.client(name);
        fs::write(&files[0], certificate).unwrap();
        fs::write(&files[1], key).unwrap();
    };
    write("first");
    let node = Node::with(cluster, json!({ "client-certificate": files[0], "client-key": files[1] }));
    let clients = Clients::new(node.connection().await.unwrap());
    let following = reload::follow_every(LOOK, &clients, &node.cluster.kubeconfig, || node.connection());
    let changing = async {
        for name in ["first", "second", "third"] {
            write(name);
            while who(&clients.get()).await.unwrap()["certificate"] != name {
                tokio::time::sleep(LOOK).await;
            }
            until(|| server.open() == 1).await;
        }
    };
    tokio::select! {
        () = following => {}
        changed = tokio::time::timeout(SOON, changing) => changed.unwrap(),
    }
}

/// A kubeconfig with a token, and the clients that it makes.
async fn followed(server: &Server, authority: &Authority) -> (Node, Clients, String) {
    let cluster = trusting(&server.url(), authority);
    let node = Node::with(cluster, json!({ "token": "first" }));
    let clients = Clients::new(node.connection().await.unwrap());
    let text = fs::read_to_string(&node.cluster.kubeconfig).unwrap();
    (node, clients, text)
}

impl Node {
    fn write(&self, text: &str) {
        let part = self.dir.path().join("part");
        fs::write(&part, text).unwrap();
        fs::rename(&part, &self.cluster.kubeconfig).unwrap();
    }
}

/// Waits until this token is used.
async fn uses(clients: &Clients, token: &str) {
    while who(&clients.get()).await.unwrap()["authorization"] != format!("Bearer {token}") {
        tokio::time::sleep(LOOK).await;
    }
}

const LOOK: Duration = Duration::from_millis(20);

#[tokio::test]
async fn what_a_kubeconfig_names_is_read_again_when_it_has_changed() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["127.0.0.1"]).await;
    let (node, clients, first) = followed(&server, &authority).await;
    let tries = AtomicUsize::new(0);
    let connect = || {
        tries.fetch_add(1, Ordering::SeqCst);
        node.connection()
    };
    // Before anybody looks at it for the first time.
    node.write(&first.replace("first", "second"));
    let following = reload::follow_every(LOOK, &clients, &node.cluster.kubeconfig, connect);
    let changing = async {
        uses(&clients, "second").await;
        assert_eq!(tries.load(Ordering::SeqCst), 1);
        node.write(&first.replace("first", "third"));
        uses(&clients, "third").await;
        // What cannot be used leaves the client that there is.
        let tried = tries.load(Ordering::SeqCst);
        node.write("{");
        node.write(&first.replace("https://", "broken://"));
        while tries.load(Ordering::SeqCst) == tried {
            tokio::time::sleep(LOOK).await;
        }
        uses(&clients, "third").await;
        // What it was made from at first is another change.
        node.write(&first);
        uses(&clients, "first").await;
    };
    tokio::select! {
        () = following => {}
        changed = tokio::time::timeout(SOON, changing) => changed.unwrap(),
    }
}

#[tokio::test]
async fn who_asks_before_there_are_clients_waits_for_the_first_ones() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["127.0.0.1"]).await;
    let (node, _, first) = followed(&server, &authority).await;
    let clients = Clients::awaited();
    assert!(clients.are_awaited());
    who(&clients.get()).await.unwrap_err();
    let asking = async {
        clients.there_are_some().await;
        who(&clients.get()).await
    };
    let coming = async {
        tokio::time::sleep(LOOK).await;
        assert_eq!(server.requests(), 0);
        clients.replace(node.connection().await.unwrap());
    };
    let (answer, ()) = tokio::join!(asking, coming);
    assert_eq!(answer.unwrap()["authorization"], "Bearer first");
    assert!(!clients.are_awaited());
    node.write(&first.replace("first", "second"));
    clients.replace(node.connection().await.unwrap());
    clients.there_are_some().await;
    uses(&clients, "second").await;
}

#[tokio::test]
async fn what_was_refused_is_tried_again_ever_less_often() {
    let authority = Authority::new("ours");
    let server = Server::start(&authority, &["127.0.0.1"]).await;
    let (node, clients, first) = followed(&server, &authority).await;
    node.write(&first.replace("first", "second"));
    let tries = std::sync::Mutex::new(Vec::new());
    // What it is refused for is in no file that is looked at.
    let connect = || {
        let mut tries = tries.lock().unwrap();
        tries.push(std::time::Instant::now());
        let is_refused = tries.len() <= 4;
        let why =
            ConnectError::Credentials { path: node.cluster.kubeconfig.clone(), why: "no memory".to_owned() };
        let node = &node;
        async move { if is_refused { Err(why) } else { node.connection().await } }
    };
    let following = reload::follow_every(LOOK, &clients, &node.cluster.kubeconfig, connect);
    tokio::select! {
        () = following => {}
        used = tokio::time::timeout(SOON, uses(&clients, "second")) => used.unwrap(),
    }
    let tries = tries.into_inner().unwrap();
    assert_eq!(tries.len(), 5);
    for (at, pair) in tries.windows(2).enumerate() {
        let (paused, least) = (pair[1] - pair[0], LOOK * (1 << at));
        assert!(paused >= least, "the pause {at} is {paused:?}");
    }
}
