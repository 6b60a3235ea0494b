//! The credentials that a pod may use for an image: those of its secrets, then the node's.

use berth_core::{
    image::WantedImage,
    spec::{ObjectKey, ObjectKind},
};

use super::{host::Host, pulled::SecretRecord};
use crate::objects::{Credential, Keyring};

/// One of them, and what is kept of where it is from.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    pub(super) credential: Credential,
    /// `None`: the node has it, for every pod.
    pub(super) source: Option<SecretRecord>,
}

/// What of the secrets of a pod can be used.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Credentials that fit the repository.
    pub(super) credentials: Vec<Tracked>,
    /// Names of secrets that cannot be read.
    pub(super) missing: Vec<String>,
}

/// Credentials that fit a repository. A secret that cannot be read has none: the pull may work without
/// (`getPullSecretsForPod` of `pkg/kubelet/kubelet_pods.go`).
pub(super) async fn find(host: &Host, wanted: &WantedImage, repository: &str) -> Found {
    let mut found = Found::default();
    for name in &wanted.secrets {
        let namespace = wanted.namespace.clone();
        let key = ObjectKey { kind: ObjectKind::Secret, namespace: namespace.clone(), name: name.clone() };
        let secret = match host.objects.read(&key).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                tracing::debug!(namespace, name, "an image pull secret is not there");
                found.missing.push(name.clone());
                continue;
            }
            Err(error) => {
                tracing::warn!(namespace, name, %error, "an image pull secret cannot be read");
                found.missing.push(name.clone());
                continue;
            }
        };
        let mut keyring = Keyring::default();
        keyring.add(&secret);
        for credential in keyring.lookup(repository) {
            let source = SecretRecord {
                uid: secret.uid.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                credential_hash: credential.hash(),
            };
            found.credentials.push(Tracked { credential, source: Some(source) });
        }
    }
    let own = host.node_accounts.find(repository).await;
    found.credentials.extend(own.into_iter().map(|credential| Tracked { credential, source: None }));
    found
}
