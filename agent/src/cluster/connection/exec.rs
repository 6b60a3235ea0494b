//! Credential plugins: programs that a kubeconfig names, which say who the node is.
//!
//! Sources: `k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go`, `k8s.io/client-go/tools/clientcmd/validation.go`.

use std::time::Duration;

use jiff::{Timestamp, fmt::temporal::Pieces};
use kube::config::{ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::credentials::{Credential, Identity};
use crate::{
    cluster::certificates::pem::certified,
    document::{Node, parse},
    program::{Program, ProgramError},
};

/// Versions of what a plugin is told and prints.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// How long a plugin may take: it may have to ask a server of its own.
const WITHIN: Duration = Duration::from_secs(60);

/// Why a plugin did not say who the node is.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginError {
    /// The kubeconfig says too little of it, or something that no agent can do.
    #[error("use the credential plugin of the kubeconfig: {0}")]
    Configured(String),
    /// It has no answer.
    #[error("ask the credential plugin{hint}")]
    Run {
        /// What the kubeconfig says of where it comes from.
        hint: String,
        #[source]
        source: ProgramError,
    },
    /// What it printed is not what was asked for. Nothing of it is shown: it may be secret.
    #[error("understand what the credential plugin {command} printed: {why}")]
    Output { command: String, why: String },
}

/// A plugin, ready to be run.
#[derive(Debug)]
pub(super) struct Plugin {
    program: Program,
    version: String,
    hint: String,
    /// How long it may take: it is ended then.
    pub(super) within: Duration,
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
        let mut env: Vec<_> = env.collect();
        if env.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(refused("a variable of env has no name"));
        }
        let cluster = config.cluster.as_ref().filter(|_| config.provide_cluster_info);
        let info = told(&version, cluster);
        let hint =
            config.install_hint.as_ref().map_or_else(String::new, |hint| format!(" ({})", hint.trim()));
        env.push(("KUBERNETES_EXEC_INFO".to_owned(), info));
        let args = config.args.clone().unwrap_or_default();
        let program = Program { command, args, env, ..Program::default() };
        Ok(Self { program, version, hint, within: WITHIN })
    }

    /// Runs it once.
    pub(super) async fn run(&self) -> Result<Credential, PluginError> {
        let text = self.program.answer("", self.within).await;
        let text = text.map_err(|source| PluginError::Run { hint: self.hint.clone(), source })?;
        let bad =
            |why: &str| PluginError::Output { command: self.program.command.clone(), why: why.to_owned() };
        let documents = parse("plugin", &text).map_err(|_fault| bad("it is neither JSON nor YAML"))?;
        let document = documents.first().ok_or_else(|| bad("it is empty"))?;
        let credential = understood(document, &self.version).map_err(|why| bad(&why))?;
        usable(&credential).map_err(|why| bad(&why))?;
        Ok(credential)
    }
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
    let no_time = "its expirationTimestamp is no time";
    let until = field("expirationTimestamp").map(|text| time(&text).ok_or(no_time)).transpose()?;
    let identity = match (field("clientCertificateData"), field("clientKeyData")) {
        (Some(certificates), Some(key)) => Some(Identity::new(certificates, SecretString::from(key))),
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

/// A time with its offset. One of the year 9999 that is later than any `Timestamp` is the last of them.
fn time(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let at = pieces.date().to_datetime(pieces.time()?);
    let time = pieces.to_numeric_offset()?.to_timestamp(at).ok();
    time.or((at.year() == 9999).then_some(Timestamp::MAX))
}

/// Whether requests can be sent with it. One with which none can is never refused, and so would be kept as long as it says.
fn usable(credential: &Credential) -> Result<(), String> {
    credential.header()?;
    let Some(identity) = &credential.identity else { return Ok(()) };
    certified(&identity.certificates, identity.key.expose_secret()).map(drop)
}

#[cfg(test)]
mod tests;
