//! Kubeconfigs: whether one can be used, what it holds, and the one that follows from a bootstrap.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::{
    pem::{chain, only},
    store::{CertificateError, Pair, of_disk, read, write},
};
use crate::{causes::with_causes, cluster::connection::unusable};

/// Whether a kubeconfig is there, and the certificate that it holds, if it does, is its key's own, and nothing of its chain has ended
/// (`isClientConfigStillValid`).
pub(super) async fn is_usable(path: &Path) -> bool {
    let fault = match identity(path).await {
        Ok(identity) => fault(&identity.pair, path),
        Err(CertificateError::NoIdentity(_)) => None,
        Err(error) => Some(with_causes(&error)),
    };
    if let Some(why) = &fault {
        tracing::debug!(why, "the kubeconfig is not used");
    }
    fault.is_none()
}

/// Why a pair cannot be used.
fn fault(pair: &Pair, path: &Path) -> Option<String> {
    let now = Timestamp::now();
    match chain(&pair.certificates) {
        None => Some("it has no certificate, or one that cannot be understood".to_owned()),
        Some(chain) if chain.iter().any(|it| it.has_ended(now)) => Some("its chain has ended".to_owned()),
        Some(_) => pair.certified(path).err().map(|error| with_causes(&error)),
    }
}

/// Who a node is by its kubeconfig.
pub(super) struct Identity {
    pub(super) pair: Pair,
    pub(super) place: Place,
}

/// Where a certificate and its key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the kubeconfig itself.
    Kubeconfig,
    /// One of them at least is in a file of its own, which others may replace.
    Files,
}

/// The certificate and key that a kubeconfig holds or names.
pub(super) async fn identity(path: &Path) -> Result<Identity, CertificateError> {
    let (config, place) = (load(path).await?, path.display().to_string());
    let (_, auth) = current(&config).ok_or_else(|| CertificateError::NoIdentity(place.clone()))?;
    let none = || CertificateError::NoIdentity(place.clone());
    let malformed = || CertificateError::Malformed(place.clone());
    let decode = |text: &str| {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        String::from_utf8(bytes).ok()
    };
    let certificates = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => decode(data).ok_or_else(malformed)?,
        (None, Some(file)) => read(file.as_ref()).await?,
        (None, None) => return Err(none()),
    };
    let key = match (&auth.client_key_data, &auth.client_key) {
        (Some(data), _) => decode(data.expose_secret()).ok_or_else(malformed)?,
        (None, Some(file)) => read(file.as_ref()).await?,
        (None, None) => return Err(none()),
    };
    let is_whole = auth.client_certificate_data.is_some() && auth.client_key_data.is_some();
    let place = if is_whole { Place::Kubeconfig } else { Place::Files };
    let pair = Pair { certificates: only(&certificates, "CERTIFICATE"), key: only(&key, "KEY") };
    Ok(Identity { pair, place })
}

/// Writes the kubeconfig that follows from a bootstrap: the same server, with the certificate in a file
/// (`writeKubeconfigFromBootstrapping`).
pub(super) async fn write_after(
    bootstrap: &Path,
    path: &Path,
    certificate: &Path,
) -> Result<(), CertificateError> {
    let config = load(bootstrap).await?;
    let place = bootstrap.display().to_string();
    let (cluster, _) = current(&config).ok_or(CertificateError::NoIdentity(place))?;
    let authority = match (&cluster.certificate_authority, &cluster.certificate_authority_data) {
        (Some(file), _) => json!({ "certificate-authority": file }),
        (None, Some(data)) => json!({ "certificate-authority-data": data }),
        (None, None) => json!({}),
    };
    let mut server = json!({ "server": cluster.server });
    if let (Some(server), Some(more)) = (server.as_object_mut(), authority.as_object()) {
        server.extend(more.clone());
        if cluster.insecure_skip_tls_verify == Some(true) {
            server.insert("insecure-skip-tls-verify".to_owned(), json!(true));
        }
    }
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default-cluster", "cluster": server }],
        "users": [{
            "name": "default-auth",
            "user": { "client-certificate": certificate, "client-key": certificate },
        }],
        "contexts": [{
            "name": "default-context",
            "context": { "cluster": "default-cluster", "namespace": "default", "user": "default-auth" },
        }],
        "current-context": "default-context",
    });
    let (path, text) = (path.to_owned(), format!("{text:#}\n"));
    of_disk(move || write(&path, &text, 0o600)).await
}

async fn load(path: &Path) -> Result<Kubeconfig, CertificateError> {
    let path = path.to_owned();
    of_disk(move || {
        let read = Kubeconfig::read_from(&path);
        read.map_err(|error| CertificateError::from(unusable(&path, error)))
    })
    .await
}

/// The cluster and the user of the current context.
fn current(config: &Kubeconfig) -> Option<(&Cluster, &AuthInfo)> {
    let named = config.current_context.as_ref()?;
    let context = config.contexts.iter().find(|one| one.name == *named)?.context.as_ref()?;
    let cluster = config.clusters.iter().find(|one| one.name == context.cluster)?.cluster.as_ref()?;
    let user = context.user.as_ref()?;
    let auth = config.auth_infos.iter().find(|one| one.name == *user)?.auth_info.as_ref()?;
    Some((cluster, auth))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_is_used_as_long_as_its_whole_chain_holds_and_belongs_to_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.conf");
        assert!(!is_usable(&path).await, "there is none");
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let until = |year| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.self_signed(&own).unwrap().pem()
        };
        let (holds, ended) = (until(2999), until(2001));
        for (chain, key, is_used) in [
            (holds.clone(), &own, true),
            (format!("{holds}{holds}"), &own, true),
            (ended.clone(), &own, false),
            (format!("{holds}{ended}"), &own, false),
            (holds.clone(), &other, false),
            (String::new(), &own, false),
        ] {
            let user = json!({
                "client-certificate-data": STANDARD.encode(&chain),
                "client-key-data": STANDARD.encode(key.serialize_pem()),
            });
            let text = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "x",
                "clusters": [{ "name": "x", "cluster": { "server": "https://127.0.0.1:1" } }],
                "users": [{ "name": "x", "user": user }],
                "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
            });
            fs::write(&path, text.to_string()).unwrap();
            assert_eq!(is_usable(&path).await, is_used, "{chain}");
        }
        let why = |chain: &str| {
            let pair = Pair { certificates: chain.to_owned(), key: own.serialize_pem() };
            fault(&pair, &path)
        };
        assert_eq!(why(&holds), None);
        assert_eq!(why(&ended).unwrap(), "its chain has ended");
        let broken = holds.replace("\nM", "\n!");
        for chain in [String::new(), broken.clone(), format!("{holds}{broken}")] {
            assert_eq!(why(&chain).unwrap(), "it has no certificate, or one that cannot be understood");
        }
    }

    #[tokio::test]
    async fn nothing_is_told_of_the_text_of_a_kubeconfig_that_cannot_be_understood() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.conf");
        let user = "{client-key-data: canary, client-key-data: canary}";
        fs::write(&path, format!("users:\n- name: x\n  user: {user}\n")).unwrap();
        let error = identity(&path).await.err().unwrap();
        let text = with_causes(&error);
        assert!(text.contains("it cannot be understood"), "{text}");
        assert!(!text.contains("canary") && !format!("{error:?}").contains("canary"), "{error:?}");
    }
}
