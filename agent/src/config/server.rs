//! The node's own server: where it listens, and whom it lets in.
//!
//! Sources: `cmd/kubelet/app/auth.go`, `cmd/kubelet/app/server.go` `InitializeTLS`. Without `--config` the kubelet has other defaults, by
//! which everybody is let in (`applyLegacyDefaults` of `cmd/kubelet/app/options/options.go`); here they are the same with and without.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use berth_core::server::Debugging;

use super::{KubeletConfiguration, KubeletFlags, Settings, resolve::duration, tls};
use crate::{
    document::{Fault, Node},
    ip,
};

/// What the server is started with.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSettings {
    /// Where it listens (`address`, `port`).
    pub listen: SocketAddr,
    /// Where it listens for those who need not say who they are (`readOnlyPort`).
    pub read_only: Option<SocketAddr>,
    /// How TLS is spoken.
    pub tls: tls::TlsSettings,
    /// How somebody says who they are.
    pub authentication: AuthenticationSettings,
    /// Who decides what they may.
    pub authorization: AuthorizationSettings,
    /// Whether endpoints for debugging are there, exec and logs among them.
    pub debugging: Debugging,
    /// How long a stream may carry nothing (`streamingConnectionIdleTimeout`); zero is without bound.
    pub stream_idle: Duration,
}

/// `authentication`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationSettings {
    /// Authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Tokens are asked about at the API server, and what it says is kept for so long.
    pub tokens: Option<Duration>,
    /// Whether somebody who says nothing is somebody, too.
    pub anonymous: bool,
}

/// `authorization`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizationSettings {
    /// Who is somebody may everything.
    AlwaysAllow,
    /// The API server is asked.
    Webhook {
        /// How long what it allows stays allowed.
        allowed: Duration,
        /// How long what it does not stays so.
        denied: Duration,
    },
}

/// What is wrong with the server's settings.
pub(super) fn check(kubelet: &KubeletConfiguration, tree: &Node, flags: &KubeletFlags) -> Vec<Fault> {
    let mut faults = tls::check(kubelet, tree);
    if kubelet.address.as_ref().is_some_and(|address| !address.is_empty() && ip::sloppy(address).is_none()) {
        faults.push(tree.fault("address", "must be an IP address"));
    }
    if kubelet.enable_system_log_query == Some(true) && kubelet.enable_system_log_handler == Some(false) {
        faults.push(tree.fault("enableSystemLogQuery", "needs `enableSystemLogHandler: true`"));
    }
    if kubelet.enable_server != Some(false) && flags.kubeconfig.is_none() {
        faults.extend(without_cluster(kubelet, tree));
    }
    faults
}

/// Nobody can be asked who asks and what they may. Where the settings say nothing about that, nobody is let in; where they say something, it
/// has to make sense as for the kubelet.
fn without_cluster(kubelet: &KubeletConfiguration, tree: &Node) -> Vec<Fault> {
    let asks_webhook = webhook_authenticates(kubelet);
    let may_be_somebody = is_anonymous(kubelet) || client_ca(kubelet).is_some();
    let is_webhook =
        kubelet.authorization.as_ref().and_then(|section| section.mode.as_deref()) == Some("Webhook");
    let mut faults = Vec::new();
    if asks_webhook && is_written(tree, "authentication.webhook.enabled") {
        let why = "webhook authentication asks the API server, and the node has none: set false, or give --kubeconfig";
        faults.push(tree.fault("authentication.webhook.enabled", why));
    }
    if is_webhook && (may_be_somebody || is_written(tree, "authorization.mode")) {
        let why = "`Webhook` asks the API server, and the node has none: set `AlwaysAllow`, by which everybody whom `authentication` \
                   knows may everything, or give --kubeconfig";
        faults.push(tree.fault("authorization.mode", why));
    }
    faults
}

fn is_written(tree: &Node, path: &str) -> bool {
    path.split('.').try_fold(tree, |node, key| node.get(key)).is_some_and(|node| node.text() != Some(""))
}

fn webhook_authenticates(kubelet: &KubeletConfiguration) -> bool {
    let webhook = kubelet.authentication.as_ref().and_then(|section| section.webhook.as_ref());
    webhook.and_then(|section| section.enabled) == Some(true)
}

fn is_anonymous(kubelet: &KubeletConfiguration) -> bool {
    let anonymous = kubelet.authentication.as_ref().and_then(|section| section.anonymous.as_ref());
    anonymous.and_then(|section| section.enabled) == Some(true)
}

fn client_ca(kubelet: &KubeletConfiguration) -> Option<&str> {
    let x509 = kubelet.authentication.as_ref().and_then(|section| section.x509.as_ref());
    x509.and_then(|section| section.client_ca_file.as_deref()).filter(|file| !file.is_empty())
}

impl Settings {
    /// The node's own server; `None` where it has none.
    pub(super) fn server(&self) -> Option<ServerSettings> {
        let kubelet = &self.kubelet;
        if kubelet.enable_server == Some(false) {
            return None;
        }
        let address = kubelet.address.as_deref().and_then(ip::sloppy)?;
        let port =
            |port: Option<i32>| port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        let debugging = if kubelet.enable_debugging_handlers == Some(false) {
            Debugging::Off
        } else {
            Debugging::On { logs: kubelet.enable_system_log_handler != Some(false) }
        };
        Some(ServerSettings {
            listen: (address, port(kubelet.port)?).into(),
            read_only: port(kubelet.read_only_port).map(|port| (address, port).into()),
            tls: tls::settings(kubelet),
            authentication: self.authentication(),
            authorization: self.authorization(),
            debugging,
            stream_idle: duration(kubelet.streaming_connection_idle_timeout),
        })
    }

    fn authentication(&self) -> AuthenticationSettings {
        let kubelet = &self.kubelet;
        let webhook = kubelet.authentication.as_ref().and_then(|section| section.webhook.as_ref());
        let asks = webhook_authenticates(kubelet) && self.flags.kubeconfig.is_some();
        AuthenticationSettings {
            client_ca: self.path("authentication.x509.clientCAFile", client_ca(kubelet)),
            tokens: asks.then(|| duration(webhook.and_then(|section| section.cache_ttl))),
            anonymous: is_anonymous(kubelet),
        }
    }

    fn authorization(&self) -> AuthorizationSettings {
        let section = self.kubelet.authorization.clone().unwrap_or_default();
        if section.mode.as_deref() == Some("AlwaysAllow") {
            return AuthorizationSettings::AlwaysAllow;
        }
        let webhook = section.webhook.unwrap_or_default();
        AuthorizationSettings::Webhook {
            allowed: duration(webhook.cache_authorized_ttl),
            denied: duration(webhook.cache_unauthorized_ttl),
        }
    }

    /// The kubelet's document as `/configz` shows it. Source: `initConfigz` of `cmd/kubelet/app/server.go`.
    #[must_use]
    pub fn shown(&self) -> serde_json::Value {
        let mut kubelet = self.kubelet.clone();
        // They may hold passwords.
        for values in kubelet.static_pod_url_header.iter_mut().flat_map(|headers| headers.values_mut()) {
            *values = vec!["<masked>".to_owned()];
        }
        let mut shown = serde_json::json!({ "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1" });
        if let (Ok(serde_json::Value::Object(fields)), Some(all)) =
            (serde_json::to_value(kubelet), shown.as_object_mut())
        {
            all.extend(fields);
        }
        shown
    }
}
