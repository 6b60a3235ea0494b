//! The connection to the API server, as a kubeconfig says.
//!
//! An HTTP/2 connection carries as many requests and watches as the server takes on it, and more of them are made when they are needed.
//! One that is silent is found out by pings, as in client-go (`k8s.io/apimachinery/pkg/util/net/http.go`), and earlier when the lease shows it.

mod authenticated;
mod credentials;
mod exec;
mod gate;
mod proxy;
mod reload;
mod settings;
mod spreading;
mod wire;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_core::cluster::certificate::Validity;
use http::{HeaderName, HeaderValue, Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, util::BoxCloneSyncService};

use self::{
    authenticated::{Authenticated, Made},
    credentials::{Credentials, Source, TokenFile},
    exec::Plugin,
    gate::OneByOne,
    proxy::Way,
    spreading::{Carried, Spreading},
    wire::Wired,
};
pub(super) use self::{
    reload::{Content, follow},
    wire::Wires,
};
use super::{answers::Bounded, certificates::pem::validity, client::Connection, measured::Measured};
use crate::{
    causes::with_causes,
    config::{Cluster, architecture},
};

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long nothing may come before the server is asked for a sign of life (`ReadIdleTimeout`, which is 30 s there): so that a connection
/// that lives is not silent for as long as [`SILENT`].
const PING_AFTER: Duration = Duration::from_secs(10);
/// How long nothing has come on a connection that is cut when the lease is not renewed.
pub(super) const SILENT: Duration = Duration::from_secs(20);
/// How long that may take (`PingTimeout`).
const PING_WITHIN: Duration = Duration::from_secs(15);
/// Requests that are sent before the server has told its settings: it breaks off those beyond.
const FIRST_STREAMS: usize = 1;
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
        source: Box<KubeconfigError>,
    },
    /// It is none.
    #[error("use the kubeconfig {path}: {why}", path = .path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where it is wrong. Nothing of its text, which may be a token or a key.
        why: String,
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

/// Why a kubeconfig is not used. What the parser tells shows the lines around the fault.
pub(super) fn unusable(path: &Path, error: KubeconfigError) -> ConnectError {
    let path = path.to_owned();
    match error {
        KubeconfigError::Parse(fault) => {
            let place = fault.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
            let why = format!("it cannot be understood{}", place.unwrap_or_default());
            ConnectError::Malformed { path, why }
        }
        error => ConnectError::Kubeconfig { path, source: Box::new(error) },
    }
}

/// Sends a request over a connection.
type Transport = BoxCloneSyncService<Request<Body>, Response<Carried>, BoxError>;

/// A client for the cluster of a kubeconfig: that of the node, or the one with which it asks for its certificate. Reads every
/// certificate that it names. No connection is made yet; a credential plugin is run with the first request.
///
/// # Errors
/// The kubeconfig, or what it names, cannot be used.
pub(super) async fn connect(cluster: &Cluster, kubeconfig: &Path) -> Result<Connection, ConnectError> {
    connect_as(cluster, kubeconfig, None).await
}

/// As [`connect`], with the certificate and the key of another file.
///
/// # Errors
/// As of [`connect`], and where the file cannot be used.
pub(super) async fn connect_as(
    cluster: &Cluster,
    kubeconfig: &Path,
    identity: Option<&Path>,
) -> Result<Connection, ConnectError> {
    // Before anything is read: what changes meanwhile is seen as a change.
    let made_from = reload::look(kubeconfig).await.ok();
    let unusable = |error| unusable(kubeconfig, error);
    let mut named = Kubeconfig::read_from(kubeconfig).map_err(unusable)?;
    if let Some(identity) = identity {
        let file = identity.display().to_string();
        for auth in named.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
            (auth.client_certificate, auth.client_certificate_data) = (Some(file.clone()), None);
            (auth.client_key, auth.client_key_data) = (Some(file.clone()), None);
            (auth.exec, auth.token, auth.token_file) = (None, None, None);
        }
    }
    let named_proxy = proxy::named(&named);
    let config =
        Config::from_custom_kubeconfig(named, &KubeConfigOptions::default()).await.map_err(unusable)?;
    let wrong = |why| ConnectError::Credentials { path: kubeconfig.to_owned(), why };
    let proxies = cluster.proxies.clone();
    // Files are read, which may take its time. Client asks for the runtime that it is made in.
    let runtime = tokio::runtime::Handle::current();
    let made = tokio::task::spawn_blocking(move || {
        let _runtime = runtime.enter();
        let way = Way::of(named_proxy.as_deref(), &proxies, &config.cluster_url)?;
        let recipe = Recipe::of(config, way)?;
        let (client, many, validity) = (recipe.client()?, recipe.client()?, recipe.validity());
        Ok(Connection { client, many, wires: recipe.wires, made_from, validity, is_awaited: false })
    });
    let made = made.await.unwrap_or_else(|_cancelled| Err("the agent is stopping".to_owned()));
    made.map_err(wrong)
}

/// What clients are made of: everything that was to be read for them was read.
struct Recipe {
    config: Config,
    way: Way,
    /// Of all of them: a plugin is run once for all.
    credentials: Option<Arc<Credentials>>,
    /// Connections of all of them.
    wires: Wires,
}

impl Recipe {
    fn of(mut config: Config, way: Way) -> Result<Self, String> {
        config.headers.push((HeaderName::from_static("user-agent"), agent_name()));
        // The client would go another way than ours (NO_PROXY is compared with the proxy there).
        config.proxy_url = None;
        let credentials = source(&mut config.auth_info)?.map(Credentials::of);
        take_in(&mut config.auth_info);
        Ok(Self { config, way, credentials, wires: Wires::default() })
    }

    /// How long the certificate holds, where there is one that was read.
    fn validity(&self) -> Option<Validity> {
        let pem = STANDARD.decode(self.config.auth_info.client_certificate_data.as_ref()?.trim()).ok()?;
        validity(&String::from_utf8_lossy(&pem))
    }

    /// A client with connections of its own.
    fn client(&self) -> Result<Client, String> {
        let Self { config, way, credentials, wires } = self;
        let text = |error: kube::Error| with_causes(&error);
        let (base, auth) = (config.base_uri_layer(), config.auth_layer().map_err(text)?);
        let (headers, namespace) =
            (config.extra_headers_layer().map_err(text)?, config.default_namespace.clone());
        let transport = transport(config, way, wires)?;
        let transport = match credentials {
            None => transport,
            Some(credentials) => {
                let made = Made { config: config.clone(), way: way.clone(), wires: wires.clone() };
                BoxCloneSyncService::new(Authenticated::of(Arc::clone(credentials), made, transport))
            }
        };
        let service = ServiceBuilder::new()
            .layer(base)
            .option_layer(auth)
            .layer(headers)
            .map_err(BoxError::from)
            .service(Measured(Bounded(transport)));
        Ok(ClientBuilder::new(service, namespace).build())
    }
}

/// Reads a certificate and its key, so that no client that is made later reads others. Where they cannot be read, who uses them says so.
fn take_in(user: &mut AuthInfo) {
    let read = |path: &Option<String>| path.as_ref().and_then(|path| fs::read(path).ok());
    if user.client_certificate_data.is_none()
        && let Some(bytes) = read(&user.client_certificate)
    {
        user.client_certificate_data = Some(base64(&bytes));
    }
    if user.client_key_data.is_none()
        && let Some(bytes) = read(&user.client_key)
    {
        user.client_key_data = Some(base64(&bytes).into());
    }
}

/// What of the user's credentials changes by itself, taken out: the client knows of the others alone.
fn source(user: &mut AuthInfo) -> Result<Option<Source>, String> {
    if let Some(provider) = user.auth_provider.take() {
        return Err(format!(
            "its auth-provider `{}` is no longer a part of Kubernetes: name a credential plugin as `exec`",
            provider.name
        ));
    }
    let (file, exec) = (user.token_file.take(), user.exec.take());
    if let Some(file) = file.filter(|file| !file.is_empty()) {
        return Ok(Some(Source::File(TokenFile::new(file.into(), user.token.take()))));
    }
    match exec.filter(|_| user.token.is_none()) {
        Some(exec) => Ok(Some(Source::Plugin(Plugin::of(&exec).map_err(|error| with_causes(&error))?))),
        None => Ok(None),
    }
}

/// Connections with the certificate of the configuration.
fn transport(config: &Config, way: &Way, wires: &Wires) -> Result<Transport, String> {
    match way {
        Way::Direct => through(proxy::tcp(), config, wires),
        Way::Http(proxy) => through(proxy.tunnel(proxy::tcp()), config, wires),
        Way::Https(proxy) => {
            // Who the node is, is no business of the proxy's.
            let mut anonymous = config.clone();
            anonymous.auth_info = AuthInfo::default();
            let tls = anonymous.rustls_client_config().map_err(|error| with_causes(&error))?;
            let to_proxy = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
            through(proxy.tunnel(to_proxy.wrap_connector(proxy::tcp())), config, wires)
        }
        Way::Socks(proxy) => through(proxy.socks(proxy::tcp()), config, wires),
    }
}

fn through<C>(connector: C, config: &Config, wires: &Wires) -> Result<Transport, String>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: legacy::connect::Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
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
    let mut http = legacy::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_WITHIN)
        // As client-go: one that is dead is not found out by the next request alone.
        .http2_keep_alive_while_idle(true)
        .http2_initial_max_send_streams(FIRST_STREAMS)
        // A connection that carries watches is idle to the pool, which would forget it and make another one for the next.
        .pool_idle_timeout(None);
    let wires = wires.clone();
    Ok(BoxCloneSyncService::new(Spreading::of(move |told| {
        let single: legacy::Client<_, Body> = http.build(Wired::of(timed.clone(), wires.clone(), told));
        BoxCloneSyncService::new(OneByOne::of(single).map_err(BoxError::from))
    })))
}

/// Who the server hears asking: the kubelet whose place this is.
fn agent_name() -> HeaderValue {
    let processor = architecture();
    let name = format!("kubelet/v1.36.3 (linux/{processor}) berth/{}", env!("CARGO_PKG_VERSION"));
    HeaderValue::from_str(&name).unwrap_or_else(|_not_ascii| HeaderValue::from_static("kubelet"))
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
pub(in crate::cluster) mod tests;
