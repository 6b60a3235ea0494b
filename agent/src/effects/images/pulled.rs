//! What images were pulled with, so that a pod that could not have pulled one does not get it.
//!
//! Source: `pkg/kubelet/images/pullmanager` (KEP-2535), in whose directory and form this is kept, with the default of
//! `imagePullCredentialsVerificationPolicy`: what nobody here pulled (preloaded images) is for everybody.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::failure::Failure;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{credentials::Tracked, host::Host};
use crate::effects::{
    PullsUnderWay,
    failure::{local, unknown},
    host::blocking,
    pulls::{Came, WITHIN},
};

/// Directory of the records, below the root directory.
const DIRECTORY: &str = "image_manager";
pub(super) const PULLED: &str = "pulled";
pub(super) const PULLING: &str = "pulling";

/// Version of their form.
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Largest record that is read, and most secrets in one.
const BYTES_MAX: u64 = 1 << 20;
const SECRETS_MAX: usize = 500;

/// Most secrets in a record beside which one that only fits is kept (`writeRecordWhileMatchingLimit`).
const FITTING_MAX: usize = 100;

/// Which secret a credential was from. Nothing of it can be had from its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretRecord {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) credential_hash: String,
}

impl SecretRecord {
    /// The same secret, whatever is in it now, or the same credential, wherever it is from.
    fn allows(&self, other: &Self) -> bool {
        let place = |one: &Self| (one.uid.clone(), one.namespace.clone(), one.name.clone());
        self.credential_hash == other.credential_hash || place(self) == place(other)
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: Option<jiff::Timestamp>,
    image_ref: String,
    #[serde(default)]
    credential_mapping: BTreeMap<String, Credentials>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretRecord>,
    #[serde(default, skip_serializing_if = "is_false")]
    node_pods_accessible: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Who may use an image that is on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    /// Every pod.
    All,
    /// Who has one of these.
    With(Vec<SecretRecord>),
    /// Who can pull it.
    Nobody,
}

impl Access {
    pub(super) fn allows(&self, found: &[Tracked]) -> bool {
        match self {
            Self::All => true,
            Self::With(secrets) => {
                let sources = || found.iter().filter_map(|one| one.source.as_ref());
                secrets.iter().any(|secret| sources().any(|source| secret.allows(source)))
            }
            Self::Nobody => false,
        }
    }

    /// The first secret that allows an image, where it is not known as it is now. Once it is, it allows the image by itself, whatever
    /// becomes of the one that it is like. Source: `MustAttemptImagePull`.
    pub(super) fn not_kept<'a>(&self, found: &'a [Tracked]) -> Option<&'a SecretRecord> {
        let Self::With(known) = self else { return None };
        let mut sources = found.iter().filter_map(|one| one.source.as_ref());
        let fits = sources.find(|source| known.iter().any(|secret| secret.allows(source)))?;
        (known.len() < FITTING_MAX && !known.contains(fits)).then_some(fits)
    }
}

/// Who may use the image of an id, by the name of a repository. What cannot be read allows nobody.
pub(super) async fn access(host: &Arc<Host>, image: &str, repository: &str, id: &str) -> Access {
    let (dir, image, repository, id) = (dir(host), image.to_owned(), repository.to_owned(), id.to_owned());
    let read = blocking(move || Ok(read_access(&dir, &image, &repository, &id)));
    match tokio::time::timeout(WITHIN, read).await {
        Ok(Ok(access)) => access,
        Ok(Err(_)) | Err(_) => Access::Nobody,
    }
}

/// Keeps that an image is being pulled: should the agent die in between, nobody gets it without a pull of its own.
pub(super) async fn begin(host: &Arc<Host>, image: &str) -> Result<(), Failure> {
    let mut under_way = host.pulls.lock().await;
    let (dir, name) = (dir(host), image.to_owned());
    let was_written = change(&host.pulls, move || {
        let text = serde_json::json!({"kind": "ImagePullIntent", "apiVersion": VERSION, "image": name});
        let file = path(&dir, PULLING, &name);
        let was_written = file.try_exists().unwrap_or(true);
        put(&file, text.to_string().as_bytes())
            .map(|()| was_written)
            .map_err(local("write a record of a pull below", dir.display().to_string()))
    })
    .await?;
    under_way.entry(image.to_owned()).or_default().begun(was_written);
    Ok(())
}

/// A pull has ended. Where nobody knows what the pulls of a name brought, that they were begun stays written.
pub(super) async fn ended(host: &Arc<Host>, image: &str, came: Came) {
    let mut under_way = host.pulls.lock().await;
    let Some(is_known) = under_way.entry(image.to_owned()).or_default().ended(came) else { return };
    if is_known {
        under_way.remove(image);
        let (dir, name) = (dir(host), image.to_owned());
        let removed = change(&host.pulls, move || {
            remove_intent(&dir, &name).map_err(local("remove a record of a pull below", dir))
        });
        if let Err(failure) = removed.await {
            tracing::warn!(image, why = failure.message, "the image counts as being pulled");
        }
    }
}

/// Keeps what an image was pulled with: nothing means that everybody could.
pub(super) async fn record(
    host: &Arc<Host>,
    repository: &str,
    id: &str,
    used: Option<SecretRecord>,
) -> Result<(), Failure> {
    record_in(&host.pulls, dir(host), repository, id, used).await
}

/// Pods with secrets of their own may pull the same image at once: each adds to what is there.
async fn record_in(
    pulls: &PullsUnderWay,
    dir: PathBuf,
    repository: &str,
    id: &str,
    used: Option<SecretRecord>,
) -> Result<(), Failure> {
    pulls.records(id);
    let (repository, id) = (repository.to_owned(), id.to_owned());
    change(pulls, move || {
        write_used(&dir, &repository, &id, used)
            .map_err(local("write a record of a pull below", dir.display().to_string()))
    })
    .await
}

async fn change<T: Send + 'static>(
    pulls: &PullsUnderWay,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match pulls.write(work).await {
        Ok(done) => done,
        Err(_unanswered) => Err(unknown("the disk of the root directory does not answer")),
    }
}

fn dir(host: &Host) -> PathBuf {
    dir_of(&host.node().paths.root)
}

/// The directory of the records.
pub(super) fn dir_of(root: &str) -> PathBuf {
    Path::new(root).join(DIRECTORY)
}

fn path(dir: &Path, sort: &str, name: &str) -> PathBuf {
    let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(sort).join(format!("sha256-{digest}"))
}

fn read_access(dir: &Path, image: &str, repository: &str, id: &str) -> Access {
    match read(dir, id) {
        Ok(Some(record)) => match record.credential_mapping.get(repository) {
            Some(known) if known.node_pods_accessible => Access::All,
            Some(known) => Access::With(known.kubernetes_secrets.clone()),
            None => Access::Nobody,
        },
        Ok(None) => match path(dir, PULLING, image).try_exists() {
            Ok(false) => Access::All,
            Ok(true) | Err(_) => Access::Nobody,
        },
        Err(error) => {
            tracing::warn!(id, %error, "the record of a pulled image cannot be read");
            Access::Nobody
        }
    }
}

fn read(dir: &Path, id: &str) -> io::Result<Option<Record>> {
    let bytes = read_bounded(&path(dir, PULLED, id))?;
    bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from)).transpose()
}

/// What is in a record; `None` where there is none.
pub(super) fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, BYTES_MAX), &mut bytes)?;
            Ok(Some(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_used(dir: &Path, repository: &str, id: &str, used: Option<SecretRecord>) -> io::Result<()> {
    // One that cannot be read is written anew: it allowed nobody.
    let mut record = read(dir, id).ok().flatten().unwrap_or_default();
    let known = record.credential_mapping.entry(repository.to_owned()).or_default();
    match used {
        None => *known = Credentials { node_pods_accessible: true, ..Credentials::default() },
        Some(_) if known.node_pods_accessible => {}
        Some(used) => {
            let key = |one: &SecretRecord| (one.uid.clone(), one.namespace.clone(), one.name.clone());
            let secrets = &mut known.kubernetes_secrets;
            secrets.retain(|one| key(one) != key(&used));
            secrets.drain(..secrets.len().saturating_sub(SECRETS_MAX - 1));
            secrets.push(used);
        }
    }
    record.kind = "ImagePulledRecord".to_owned();
    record.api_version = VERSION.to_owned();
    record.image_ref = id.to_owned();
    record.last_updated_time = Some(jiff::Timestamp::now());
    put(&path(dir, PULLED, id), &serde_json::to_vec(&record)?)
}

fn remove_intent(dir: &Path, image: &str) -> io::Result<()> {
    match fs::remove_file(path(dir, PULLING, image)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let next = path.with_extension("tmp");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    io::Write::write_all(&mut file, bytes)?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(uid: &str, hash: &str) -> SecretRecord {
        let name = uid.to_owned();
        SecretRecord { uid: uid.into(), namespace: "shop".into(), name, credential_hash: hash.into() }
    }

    fn found(with: &[SecretRecord]) -> Vec<Tracked> {
        with.iter()
            .map(|source| Tracked {
                credential: crate::objects::Credential {
                    username: String::new().into(),
                    password: String::new().into(),
                },
                source: Some(source.clone()),
            })
            .collect()
    }

    fn may(access: &Access, with: &[SecretRecord]) -> bool {
        access.allows(&found(with))
    }

    #[test]
    fn a_secret_that_fits_allows_an_image_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let (root, image, repository, id) = (dir.path(), "a.io/web:1", "a.io/web", "sha256:01");
        write_used(root, repository, id, Some(secret("u1", "h1"))).unwrap();
        for (step, with, is_kept) in [
            ("it pulled the image", secret("u1", "h1"), false),
            ("another one with its account", secret("u2", "h1"), true),
            ("again", secret("u2", "h1"), false),
            ("its account is another now", secret("u2", "h2"), true),
            ("so is the first one's", secret("u1", "h3"), true),
        ] {
            let access = read_access(root, image, repository, id);
            let found = found(&[with]);
            assert!(access.allows(&found), "{step}");
            let kept = access.not_kept(&found);
            assert_eq!(kept.is_some(), is_kept, "{step}");
            if let Some(kept) = kept {
                write_used(root, repository, id, Some(kept.clone())).unwrap();
            }
        }
        let known: Vec<SecretRecord> = (0..FITTING_MAX).map(|one| secret(&one.to_string(), "h")).collect();
        assert_eq!(Access::With(known).not_kept(&found(&[secret("new", "h")])), None, "enough are known");
        assert_eq!(Access::All.not_kept(&found(&[secret("u1", "h1")])), None);
    }

    #[test]
    fn who_could_not_have_pulled_an_image_does_not_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let (root, image, repository, id) = (dir.path(), "a.io/web:1", "a.io/web", "sha256:01");
        let access = |repository: &str| read_access(root, image, repository, id);
        assert_eq!(access(repository), Access::All, "preloaded");

        put(&path(root, PULLING, image), b"{}").unwrap();
        assert_eq!(access(repository), Access::Nobody, "the agent died while it pulled it");
        write_used(root, repository, id, Some(secret("u1", "h1"))).unwrap();
        let known = access(repository);
        for (with, expected) in [
            (vec![], false),
            (vec![secret("u2", "h2")], false),
            (vec![secret("u1", "h9")], true),
            (vec![secret("u2", "h1")], true),
            (vec![secret("u2", "h2"), secret("u1", "h1")], true),
        ] {
            assert_eq!(may(&known, &with), expected, "{with:?}");
        }
        assert_eq!(access("b.io/web"), Access::Nobody, "by another name it was never pulled");
        let right = [secret("u1", "h1")];
        for (access, with, expected) in [
            (Access::Nobody, &right[..], false),
            (Access::Nobody, &[], false),
            (Access::All, &right, true),
            (Access::All, &[], true),
        ] {
            assert_eq!(may(&access, with), expected, "{access:?} with {with:?}");
        }
        write_used(root, repository, id, Some(secret("u1", "h2"))).unwrap();
        assert_eq!(access(repository), Access::With(vec![secret("u1", "h2")]));
        write_used(root, repository, id, None).unwrap();
        assert_eq!(access(repository), Access::All);
        write_used(root, repository, id, Some(secret("u1", "h2"))).unwrap();
        assert_eq!(access(repository), Access::All, "it stays so");
        fs::write(path(root, PULLED, id), "{").unwrap();
        assert_eq!(access(repository), Access::Nobody);
    }

    #[tokio::test]
    async fn pulls_that_end_together_are_all_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let (pulls, repository, id) = (PullsUnderWay::default(), "a.io/web", "sha256:01");
        let secrets: Vec<SecretRecord> = (0..16).map(|number| secret(&format!("u{number}"), "h")).collect();
        let ends = secrets
            .iter()
            .map(|used| record_in(&pulls, dir.path().to_owned(), repository, id, Some(used.clone())));
        futures::future::try_join_all(ends).await.unwrap();
        let access = read_access(dir.path(), "a.io/web:1", repository, id);
        let Access::With(known) = access else { panic!("{access:?}") };
        assert_eq!(known.len(), 16);
        assert!(secrets.iter().all(|one| known.contains(one)), "{known:?}");
    }

    #[test]
    fn of_too_many_secrets_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (root, repository, id) = (dir.path(), "a.io/web", "sha256:01");
        let secrets: Vec<SecretRecord> =
            (0..SECRETS_MAX).map(|number| secret(&number.to_string(), "h")).collect();
        let full = Credentials { kubernetes_secrets: secrets.clone(), ..Credentials::default() };
        let record =
            Record { credential_mapping: [(repository.to_owned(), full)].into(), ..Record::default() };
        put(&path(root, PULLED, id), &serde_json::to_vec(&record).unwrap()).unwrap();
        write_used(root, repository, id, Some(secret("new", "h"))).unwrap();
        let expected = [&secrets[1..], &[secret("new", "h")]].concat();
        assert_eq!(read_access(root, "a.io/web:1", repository, id), Access::With(expected));
    }
}
