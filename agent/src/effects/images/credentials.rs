//! The credentials that a pod may use for an image: those of its secrets, then the node's.

use berth_core::{
    image::{WantedImage, access::PullSecret},
    spec::{ObjectKey, ObjectKind},
};
use futures::stream::{self, StreamExt as _};

use super::host::Host;
use crate::objects::{Credential, Keyring, MalformedSecret};

/// Secrets that are asked for at once.
const AT_ONCE: usize = 8;

/// One of them, and what is kept of where it is from.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    pub(super) credential: Credential,
    /// `None`: the node has it, for every pod.
    pub(super) source: Option<PullSecret>,
}

impl Tracked {
    /// The secrets of these.
    pub(super) fn secrets(all: &[Self]) -> impl Iterator<Item = &PullSecret> {
        all.iter().filter_map(|one| one.source.as_ref())
    }
}

/// What of the secrets of a pod can be used.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Credentials that fit the repository.
    pub(super) credentials: Vec<Tracked>,
    /// Names of secrets that cannot be read.
    pub(super) missing: Vec<String>,
    /// What is wrong with the first that is malformed: nothing is pulled then (`makeLookupPullCredentialsFunc` of
    /// `pkg/kubelet/images/image_manager.go`).
    pub(super) malformed: Option<MalformedSecret>,
}

/// The accounts of a secret, and which that is.
struct Accounts {
    name: String,
    uid: String,
    keyring: Keyring,
}

impl Accounts {
    fn tracked(&self, namespace: &str, credential: Credential) -> Tracked {
        let source = PullSecret {
            uid: self.uid.clone(),
            namespace: namespace.to_owned(),
            name: self.name.clone(),
            credential_hash: credential.hash(),
        };
        Tracked { credential, source: Some(source) }
    }
}

/// Credentials that fit a repository. A secret that cannot be read has none: the pull may work without
/// (`getPullSecretsForPod` of `pkg/kubelet/kubelet_pods.go`). They are asked for at once: who does not answer holds up few others.
/// Those of all secrets are looked up together (`MakeDockerKeyring` of `pkg/credentialprovider/secrets/secrets.go`).
pub(super) async fn find(host: &Host, wanted: &WantedImage, repository: &str) -> Found {
    let (secrets, own) = tokio::join!(of_secrets(host, wanted), host.node_accounts.find(repository));
    let mut found = Found::default();
    let mut readable = Vec::new();
    for (name, accounts) in wanted.secrets.iter().zip(secrets) {
        match accounts {
            Ok(Some(accounts)) => readable.push(accounts),
            Ok(None) => found.missing.push(name.clone()),
            Err(malformed) => {
                found.malformed.get_or_insert(malformed);
            }
        }
    }
    let fitting = Keyring::lookup_in(readable.iter().map(|one| (one, &one.keyring)), repository);
    let fitting = fitting.into_iter().map(|(of, credential)| of.tracked(&wanted.namespace, credential));
    found.credentials.extend(fitting);
    found.credentials.extend(own.into_iter().map(|credential| Tracked { credential, source: None }));
    found
}

/// Names of secrets that cannot be read.
pub(super) async fn missing(host: &Host, wanted: &WantedImage) -> Vec<String> {
    let secrets = of_secrets(host, wanted).await;
    let missing = wanted.secrets.iter().zip(secrets).filter(|(_, accounts)| matches!(accounts, Ok(None)));
    missing.map(|(name, _)| name.clone()).collect()
}

/// Those of each secret, in their order.
async fn of_secrets(host: &Host, wanted: &WantedImage) -> Vec<Result<Option<Accounts>, MalformedSecret>> {
    let secrets = wanted.secrets.clone().into_iter();
    let secrets = secrets.map(|name| of_secret(host, wanted, name));
    stream::iter(secrets).buffered(AT_ONCE).collect().await
}

/// Those of one secret, if that can be read. One of a pod that is wanted is followed, so it is known as it was last while the API server is
/// away.
async fn of_secret(
    host: &Host,
    wanted: &WantedImage,
    name: String,
) -> Result<Option<Accounts>, MalformedSecret> {
    let namespace = wanted.namespace.clone();
    let key = ObjectKey { kind: ObjectKind::Secret, namespace: namespace.clone(), name: name.clone() };
    let secret = match host.objects.read(&key).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            tracing::debug!(namespace, name, "an image pull secret is not there");
            return Ok(None);
        }
        Err(error) => {
            tracing::warn!(namespace, name, %error, "an image pull secret cannot be read");
            return Ok(None);
        }
    };
    let mut keyring = Keyring::default();
    keyring.add(&secret)?;
    Ok(Some(Accounts { name, uid: secret.uid.clone(), keyring }))
}
