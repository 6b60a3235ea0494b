//! Proxies on the way to the API server: `proxy-url` of the kubeconfig, else what the environment says.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_core::cluster::proxy::Proxies;
use http::{HeaderValue, Uri, uri::Scheme};
use hyper_util::client::legacy::connect::{
    HttpConnector,
    proxy::{SocksV5, Tunnel},
};
use kube::config::Kubeconfig;

use crate::percent::decoded;

/// How the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// By itself.
    Direct,
    /// Through a tunnel (`CONNECT`).
    Http(Proxy),
    /// Through a tunnel that is asked for by TLS.
    Https(Proxy),
    /// By SOCKS 5.
    Socks(Proxy),
}

/// A proxy, and who the node is there.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    address: Uri,
    user: Option<(String, String)>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Proxy({})", self.address)
    }
}

/// `proxy-url` of the current cluster.
pub(super) fn named(config: &Kubeconfig) -> Option<String> {
    let named = config.current_context.as_ref()?;
    let context = config.contexts.iter().find(|one| one.name == *named)?.context.as_ref()?;
    let cluster = config.clusters.iter().find(|one| one.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

impl Way {
    /// The way to a server; `named` is the proxy of its kubeconfig.
    pub(super) fn of(named: Option<&str>, environment: &Proxies, server: &Uri) -> Result<Self, String> {
        let scheme = server.scheme();
        if ![Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&scheme) {
            return Err(format!("its server `{server}` is no URL of `https`"));
        }
        let is_tls = scheme != Some(&Scheme::HTTP);
        let port = server.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let by_environment = || environment.of_server(is_tls, server.host().unwrap_or_default(), port);
        match named {
            Some(url) => Self::parse(url).map_err(|why| format!("its proxy-url {why}")),
            None => match by_environment() {
                Some(url) if url.contains("://") => Self::parse(url),
                Some(url) => Self::parse(&format!("http://{url}")),
                None => Ok(Self::Direct),
            }
            .map_err(|why| format!("the proxy of the environment {why}")),
        }
    }

    fn parse(url: &str) -> Result<Self, String> {
        let url: Uri = url.parse().map_err(|_not_one| "is no URL".to_owned())?;
        let scheme = url.scheme_str().unwrap_or_default();
        let port = match scheme {
            "http" => 80,
            "https" => 443,
            "socks5" | "socks5h" => 1080,
            _ => return Err(format!("is of `{scheme}`: write one of `http`, `https` or `socks5`")),
        };
        let authority = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name.as_bytes()), decoded(password.as_bytes()))
        });
        let host = url.host().unwrap_or_default();
        let address = Uri::builder()
            .scheme(if scheme == "https" { "https" } else { "http" })
            .authority(format!("{host}:{}", url.port_u16().unwrap_or(port)))
            .path_and_query("/")
            .build()
            .map_err(|_not_one| "has no host".to_owned())?;
        let proxy = Proxy { address, user };
        Ok(match scheme {
            "http" => Self::Http(proxy),
            "https" => Self::Https(proxy),
            _ => Self::Socks(proxy),
        })
    }
}

impl Proxy {
    pub(super) fn tunnel<C>(&self, connector: C) -> Tunnel<C> {
        let tunnel = Tunnel::new(self.address.clone(), connector);
        let Some((name, password)) = &self.user else { return tunnel };
        let basic = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        match HeaderValue::from_str(&basic) {
            Ok(value) => tunnel.with_auth(value),
            // Base64 is always one.
            Err(_) => tunnel,
        }
    }

    pub(super) fn socks(&self, connector: HttpConnector) -> SocksV5<HttpConnector> {
        let socks = SocksV5::new(self.address.clone(), connector);
        match &self.user {
            Some((name, password)) => socks.with_auth(name.clone(), password.clone()),
            None => socks,
        }
    }
}

/// Connections without TLS.
pub(super) fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(address: &str, user: Option<(&str, &str)>) -> Proxy {
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        Proxy { address: address.parse().unwrap(), user }
    }

    #[test]
    fn what_a_kubeconfig_names_counts_more_than_the_environment() {
        let environment = Proxies { https: "proxy.example:3128".to_owned(), ..Proxies::default() };
        let server: Uri = "https://api.example:6443".parse().unwrap();
        let user = Some(("a", "p@ss:word"));
        for (named, expected) in [
            (None, Way::Http(proxy("http://proxy.example:3128/", None))),
            (Some("http://p"), Way::Http(proxy("http://p:80/", None))),
            (Some("https://p"), Way::Https(proxy("https://p:443/", None))),
            (Some("https://[fd00::1]:1"), Way::Https(proxy("https://[fd00::1]:1/", None))),
            (Some("socks5://p"), Way::Socks(proxy("http://p:1080/", None))),
            (Some("http://a:p%40ss:word@p:1"), Way::Http(proxy("http://p:1/", user))),
        ] {
            assert_eq!(Way::of(named, &environment, &server).unwrap(), expected, "{named:?}");
        }
        let direct = Way::of(None, &environment, &"https://127.0.0.1:1".parse().unwrap()).unwrap();
        assert_eq!(direct, Way::Direct);
        for server in ["ftp://api.example", "api.example:6443"] {
            Way::of(None, &environment, &server.parse().unwrap()).unwrap_err();
        }
        for (named, why) in [
            ("ftp://p", "its proxy-url is of `ftp`: write one of `http`, `https` or `socks5`"),
            ("p:1", "its proxy-url is of ``"),
            ("http://", "its proxy-url is no URL"),
        ] {
            let refused = Way::of(Some(named), &environment, &server).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }
}
