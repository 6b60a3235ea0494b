//! Credential plugins: programs that a kubeconfig names, which say who the node is.
//!
//! Sources: `k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go`, `k8s.io/client-go/tools/clientcmd/validation.go`.

use std::{process::Stdio, time::Duration};

use jiff::Timestamp;
use kube::config::{ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use secrecy::SecretString;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
};

use super::credentials::{Credential, Identity};
use crate::document::{Node, parse};

/// Versions of what a plugin is told and prints.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// How long a plugin may take: it may have to ask a server of its own.
const WITHIN: Duration = Duration::from_secs(60);
/// How much a plugin may print: certificates and tokens have a few KiB.
const OUTPUT_MAX: u64 = 1 << 20;
/// How much of its complaints is passed on.
const COMPLAINT_MAX: u64 = 2 << 10;

/// Why a plugin did not say who the node is.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginError {
    /// The kubeconfig says too little of it, or something that no agent can do.
    #[error("use the credential plugin of the kubeconfig: {0}")]
    Configured(String),
    /// It cannot be started.
    #[error("run the credential plugin {command}{hint}")]
    Start {
        command: String,
        /// What the kubeconfig says of where it comes from.
        hint: String,
        #[source]
        source: std::io::Error,
    },
    /// It says nothing.
    #[error("run the credential plugin {0}: it was ended after {1:?}")]
    Silent(String, Duration),
    /// It failed.
    #[error("run the credential plugin {command}: {status}{complaint}")]
    Failed { command: String, status: String, complaint: String },
    /// What it printed is not what was asked for. Nothing of it is shown: it may be secret.
    #[error("understand what the credential plugin {command} printed: {why}")]
    Output { command: String, why: String },
}

/// A plugin, ready to be run.
#[derive(Debug)]
pub(super) struct Plugin {
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// What it is told.
    info: String,
    version: String,
    hint: String,
}

impl Plugin {
    pub(super) fn of(config: &ExecConfig) -> Result<Self, PluginError> {
        let refused = |why: &str| PluginError::Configured(why.to_owned());
        let version = config.api_version.clone().unwrap_or_default();
        if !VERSIONS.contains(&version.as_str()) {
            let why = format!("apiVersion `{version}` is not one of {}", VERSIONS.join(", "));
            return Err(PluginError::Configured(why));
        }
        match (&config.interactive_mode, version == VERSIONS[0]) {
            (Some(ExecInteractiveMode::Always), _) => {
                return Err(refused("interactiveMode is `Always`, and an agent has no terminal"));
            }
            (None, true) => return Err(refused("interactiveMode is missing: write `Never`")),
            (Some(_), _) | (None, false) => {}
        }
        let command = config.command.clone().filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| refused("command is missing"))?;
        let env = config.env.iter().flatten().map(|one| {
            let part = |name: &str| one.get(name).cloned().unwrap_or_default();
            (part("name"), part("value"))
        });
        let env: Vec<_> = env.collect();
        if env.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(refused("a variable of env has no name"));
        }
        let cluster = config.cluster.as_ref().filter(|_| config.provide_cluster_info);
        let info = told(&version, cluster);
        let hint =
            config.install_hint.as_ref().map_or_else(String::new, |hint| format!(" ({})", hint.trim()));
        Ok(Self { command, args: config.args.clone().unwrap_or_default(), env, info, version, hint })
    }

    /// Runs it once.
    pub(super) async fn run(&self) -> Result<Credential, PluginError> {
        self.run_within(WITHIN).await
    }

    async fn run_within(&self, limit: Duration) -> Result<Credential, PluginError> {
        let mut command = Command::new(&self.command);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", &self.info);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // With what it starts itself, which may hold its output open.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| PluginError::Start {
            command: self.command.clone(),
            hint: self.hint.clone(),
            source,
        })?;
        let ran = tokio::time::timeout(limit, self.answer(&mut child)).await;
        // As long as it was not waited for, the number is its own.
        if let Some(group) = child.id().and_then(|id| i32::try_from(id).ok())
            && let Err(error) = killpg(Pid::from_raw(group), Signal::SIGKILL)
        {
            tracing::debug!(%error, command = self.command, "end a credential plugin");
        }
        ran.unwrap_or_else(|_elapsed| Err(PluginError::Silent(self.command.clone(), limit)))
    }

    async fn answer(&self, child: &mut Child) -> Result<Credential, PluginError> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (output, complaint) = tokio::join!(bounded(stdout, OUTPUT_MAX), bounded(stderr, COMPLAINT_MAX));
        let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
        let complaint = if complaint.is_empty() { complaint } else { format!(": {complaint}") };
        let bad = |why: &str| PluginError::Output { command: self.command.clone(), why: why.to_owned() };
        if output.len() as u64 > OUTPUT_MAX {
            return Err(bad("it is longer than 1 MiB"));
        }
        let failed = |status| PluginError::Failed { command: self.command.clone(), status, complaint };
        match child.wait().await {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(status.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        }
        let text = String::from_utf8(output).map_err(|_not_text| bad("it is no text"))?;
        let documents = parse("plugin", &text).map_err(|_fault| bad("it is neither JSON nor YAML"))?;
        let document = documents.first().ok_or_else(|| bad("it is empty"))?;
        understood(document, &self.version).map_err(|why| bad(&why))
    }
}

/// Reads up to a bound and one byte, and lets the rest go by.
async fn bounded(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut read = Vec::new();
    let Some(mut stream) = stream else { return read };
    // What was read until an error is what there is.
    drop((&mut stream).take(most + 1).read_to_end(&mut read).await);
    drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
    read
}

/// `KUBERNETES_EXEC_INFO`.
fn told(version: &str, cluster: Option<&ExecAuthCluster>) -> String {
    let mut spec = json!({ "interactive": false });
    if let (Some(cluster), Some(spec)) = (cluster, spec.as_object_mut()) {
        // Names as in the API: those of the type are a kubeconfig's.
        let authority = cluster.certificate_authority_data.as_ref().map(|data| super::base64(data));
        let all = json!({
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": authority,
            "proxy-url": cluster.proxy_url,
            "config": cluster.config,
        });
        let given = all.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let given: serde_json::Map<_, _> = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        spec.insert("cluster".to_owned(), given.into());
    }
    json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec }).to_string()
}

/// What a plugin said.
fn understood(document: &Node, version: &str) -> Result<Credential, String> {
    let text =
        |node: Option<&Node>| node.and_then(Node::text).map(str::to_owned).filter(|text| !text.is_empty());
    if text(document.get("kind")).as_deref() != Some("ExecCredential") {
        return Err("its kind is not ExecCredential".to_owned());
    }
    let printed = text(document.get("apiVersion")).unwrap_or_default();
    if printed != version {
        return Err(format!("it is of another apiVersion than {version}"));
    }
    let status = document.get("status").ok_or("it has no status")?;
    let field = |name: &str| text(status.get(name));
    let until = match field("expirationTimestamp") {
        None => None,
        Some(time) => Some(
            time.parse::<Timestamp>().map_err(|_not_one| "its expirationTimestamp is no time".to_owned())?,
        ),
    };
    let identity = match (field("clientCertificateData"), field("clientKeyData")) {
        (Some(certificates), Some(key)) => Some(Identity { certificates, key: SecretString::from(key) }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err("of a certificate and its key there is one alone".to_owned());
        }
    };
    let token = field("token").map(SecretString::from);
    if token.is_none() && identity.is_none() {
        return Err("it has neither a token nor a certificate with its key".to_owned());
    }
    Ok(Credential { token, identity, until })
}

#[cfg(test)]
mod tests;
