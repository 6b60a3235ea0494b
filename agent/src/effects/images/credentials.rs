//! The credentials that a pod may use for an image.

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
    pub(super) source: SecretRecord,
}

/// Those that fit a repository. A secret that cannot be read has none: the pull may work without
/// (`getPullSecretsForPod` of `pkg/kubelet/kubelet_pods.go`).
pub(super) async fn find(host: &Host, wanted: &WantedImage, repository: &str) -> Vec<Tracked> {
    let mut found = Vec::new();
    for name in &wanted.secrets {
        let namespace = wanted.namespace.clone();
        let key = ObjectKey { kind: ObjectKind::Secret, namespace: namespace.clone(), name: name.clone() };
        let secret = match host.objects.read(&key).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                tracing::warn!(namespace, name, "an image pull secret is not there");
                continue;
            }
            Err(error) => {
                tracing::warn!(namespace, name, %error, "an image pull secret cannot be read");
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
            found.push(Tracked { credential, source });
        }
    }
    found
}
