//! The connection to the API server.
//!
//! One HTTP/2 connection carries all requests and watches of the agent. A server that is gone without a word is found
//! out by pings, as in client-go (`k8s.io/apimachinery/pkg/util/net/http.go`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        self,
        connect::{
            Connection, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::watch;
use tower::{BoxError, Service, ServiceBuilder};

use super::ApiError;
use crate::{causes::with_causes, config::architecture};

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long nothing may come before the server is asked for a sign of life (`ReadIdleTimeout`).
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long that may take (`PingTimeout`).
const PING_WITHIN: Duration = Duration::from_secs(15);
/// How long a connection without pings (HTTP/1.1) may be silent: longer than any watch.
const READ_WITHIN: Duration = Duration::from_secs(330);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig.
    #[error("use the kubeconfig {path}", path = .path.display())]
    Kubeconfig {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// What it names: certificates, keys, a token file, a credential plugin, a proxy.
    #[error("use what the kubeconfig {path} names: {why}", path = .path.display())]
    Credentials {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// A client for the cluster of a kubeconfig. Reads every file that it names; a credential plugin is run.
///
/// # Errors
/// The kubeconfig, or what it names, cannot be used. No connection is made yet.
pub(super) async fn connect(kubeconfig: &Path) -> Result<Client, ConnectError> {
    connect_as(kubeconfig, None).await
}

/// As [`connect`], with the certificate and the key of another file.
///
/// # Errors
/// As of [`connect`], and where the file cannot be used.
pub(super) async fn connect_as(kubeconfig: &Path, identity: Option<&Path>) -> Result<Client, ConnectError> {
    let path = kubeconfig.to_owned();
    let unusable = |source| ConnectError::Kubeconfig { path: path.clone(), source: Box::new(source) };
    let mut named = Kubeconfig::read_from(kubeconfig).map_err(unusable)?;
    if let Some(identity) = identity {
        let file = identity.display().to_string();
        for auth in named.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
            (auth.client_certificate, auth.client_certificate_data) = (Some(file.clone()), None);
            (auth.client_key, auth.client_key_data) = (Some(file.clone()), None);
        }
    }
    let config =
        Config::from_custom_kubeconfig(named, &KubeConfigOptions::default()).await.map_err(unusable)?;
    let wrong = |why| ConnectError::Credentials { path: path.clone(), why };
    // Files are read and a plugin is run, and both may take their time. Client asks for the runtime that it is made in.
    let runtime = tokio::runtime::Handle::current();
    let made = tokio::task::spawn_blocking(move || {
        let _runtime = runtime.enter();
        client(config)
    });
    let made = made.await.unwrap_or_else(|_cancelled| Err("the agent is stopping".to_owned()));
    made.map_err(wrong)
}

fn client(mut config: Config) -> Result<Client, String> {
    config.headers.push((HeaderName::from_static("user-agent"), agent_name()));
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let proxy = config.proxy_url.clone();
    match proxy.as_ref().map(|proxy| (proxy, proxy.scheme_str().unwrap_or_default())) {
        None => through(tcp, &config),
        Some((proxy, "http")) => through(Tunnel::new(proxy.clone(), tcp), &config),
        Some((proxy, "socks5")) => through(SocksV5::new(proxy.clone(), tcp), &config),
        Some((_, scheme)) => Err(format!("its proxy-url is of `{scheme}`: write one of `http` or `socks5`")),
    }
}

fn through<C>(connector: C, config: &Config) -> Result<Client, String>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let tls = config.rustls_client_config().map_err(|error| with_causes(&error))?;
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let https = match &config.tls_server_name {
        Some(name) => {
            let name =
                name.clone().try_into().map_err(|_not_one| format!("tls-server-name `{name}` is no name"))?;
            https.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name))
        }
        None => https,
    };
    let mut timed = TimeoutConnector::new(https.enable_all_versions().wrap_connector(connector));
    timed.set_connect_timeout(Some(CONNECT_WITHIN));
    timed.set_read_timeout(Some(READ_WITHIN));
    let http: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_WITHIN)
        .build(timed);
    let text = |error: kube::Error| with_causes(&error);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(text)?)
        .layer(config.extra_headers_layer().map_err(text)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

/// Who the server hears asking: the kubelet whose place this is.
fn agent_name() -> HeaderValue {
    let processor = architecture();
    let name = format!("kubelet/v1.36.3 (linux/{processor}) berth/{}", env!("CARGO_PKG_VERSION"));
    HeaderValue::from_str(&name).unwrap_or_else(|_not_ascii| HeaderValue::from_static("kubelet"))
}

/// The client of now: another one takes its place when certificates or the kubeconfig have changed. Clones share it.
#[derive(Debug, Clone)]
pub struct Clients {
    sender: Arc<watch::Sender<Shared>>,
    receiver: watch::Receiver<Shared>,
}

/// A client has nothing to show.
#[derive(Clone)]
struct Shared(Client);

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Client")
    }
}

impl Clients {
    /// Begins with this one.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let (sender, receiver) = watch::channel(Shared(client));
        Self { sender: Arc::new(sender), receiver }
    }

    /// The one of now, for one request or one watch.
    #[must_use]
    pub fn get(&self) -> Client {
        self.receiver.borrow().0.clone()
    }

    /// Uses this one from now on. Watches begin again with it.
    pub fn replace(&self, client: Client) {
        self.sender.send_replace(Shared(client));
    }

    /// Waits until the one that [`get`](Self::get) gave last through this handle was replaced.
    pub(super) async fn replaced(&mut self) {
        // The sender lives as long as this handle.
        drop(self.receiver.changed().await);
    }

    /// As [`get`](Self::get), and [`replaced`](Self::replaced) waits for the next one.
    pub(super) fn take(&mut self) -> Client {
        self.receiver.borrow_and_update().0.clone()
    }
}

/// A request with a bound on its answer.
///
/// # Errors
/// As the server says, or no answer within the time.
pub(super) async fn within<T>(
    time: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(time, request).await {
        Ok(answer) => answer.map_err(ApiError::from),
        Err(_elapsed) => Err(ApiError::Unanswered(format!("nothing came within {} s", time.as_secs()))),
    }
}
