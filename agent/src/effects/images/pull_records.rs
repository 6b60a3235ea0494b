//! Files of what images were pulled with, and of pulls that were begun. Source: `fs_pullrecords.go` and `pulledRecordMergeNewCreds` of
//! `pkg/kubelet/images/pullmanager`, in whose directory and form they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use berth_core::image::access::{Access, Origin, PullSecret};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(super) const PULLED: &str = "pulled";
pub(super) const PULLING: &str = "pulling";

/// Version of their form.
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Largest record, which holds tens of thousands of names, and most secrets by one of them.
const BYTES_MAX: u64 = 16 << 20;
const SECRETS_MAX: usize = 500;

/// What an image was pulled with, by each name that it was pulled by: as pods write it, without tag and digest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: Option<jiff::Timestamp>,
    image_ref: String,
    #[serde(default)]
    credential_mapping: Option<BTreeMap<String, Credentials>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretRecord>,
    /// No credential of a pod is from its account here, so they fit nobody. They are kept for a kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountRecord>,
    #[serde(default, skip_serializing_if = "is_false")]
    node_pods_accessible: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretRecord {
    uid: String,
    namespace: String,
    name: String,
    #[serde(default)]
    credential_hash: String,
}

impl From<SecretRecord> for PullSecret {
    fn from(SecretRecord { uid, namespace, name, credential_hash }: SecretRecord) -> Self {
        Self { uid, namespace, name, credential_hash }
    }
}

impl From<PullSecret> for SecretRecord {
    fn from(PullSecret { uid, namespace, name, credential_hash }: PullSecret) -> Self {
        Self { uid, namespace, name, credential_hash }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AccountRecord {
    uid: String,
    namespace: String,
    name: String,
}

/// The file of an image's id or, of pulls, of its name.
pub(super) fn path(dir: &Path, sort: &str, name: &str) -> PathBuf {
    let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(sort).join(format!("sha256-{digest}"))
}

/// How the image of an id came here, asked for by a name without tag and digest. Of pulls, the names are those that one may have been begun by.
pub(super) fn origin(dir: &Path, names_of_pulls: &BTreeSet<String>, bare: &str, id: &str) -> Origin {
    match read(dir, id) {
        Ok(Some(record)) => {
            Origin::Pulled(match record.credential_mapping.unwrap_or_default().remove(bare) {
                Some(known) if known.node_pods_accessible => Access::All,
                Some(known) if known.kubernetes_secrets.is_empty() => Access::Nobody,
                Some(known) => {
                    Access::With(known.kubernetes_secrets.into_iter().map(PullSecret::from).collect())
                }
                None => Access::Nobody,
            })
        }
        Ok(None) => begun(dir, names_of_pulls),
        Err(error) => {
            tracing::warn!(id, %error, "the record of a pulled image cannot be read");
            Origin::Unreadable
        }
    }
}

fn begun(dir: &Path, names_of_pulls: &BTreeSet<String>) -> Origin {
    for name in names_of_pulls {
        match path(dir, PULLING, name).try_exists() {
            Ok(false) => {}
            Ok(true) => return Origin::Begun,
            Err(_) => return Origin::Unreadable,
        }
    }
    Origin::Preloaded
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

/// Keeps what an image was pulled with by a name: nothing means that everybody could.
pub(super) fn write_used(dir: &Path, bare: &str, id: &str, used: Option<PullSecret>) -> io::Result<()> {
    // One that cannot be read is written anew: it allowed nobody.
    let mut record = read(dir, id).ok().flatten().unwrap_or_default();
    let known = record.credential_mapping.get_or_insert_default().entry(bare.to_owned()).or_default();
    match used {
        None => *known = Credentials { node_pods_accessible: true, ..Credentials::default() },
        Some(_) if known.node_pods_accessible => {}
        Some(used) => {
            let secrets = &mut known.kubernetes_secrets;
            secrets.retain(|one| !PullSecret::from(one.clone()).has_place_of(&used));
            secrets.drain(..secrets.len().saturating_sub(SECRETS_MAX - 1));
            secrets.push(used.into());
        }
    }
    write(dir, id, record)
}

/// Keeps that an image was pulled, by nobody knows whom. A record that is there stays.
pub(super) fn write_nobody(dir: &Path, id: &str) -> io::Result<()> {
    if path(dir, PULLED, id).try_exists()? {
        return Ok(());
    }
    write(dir, id, Record { credential_mapping: Some(BTreeMap::new()), ..Record::default() })
}

fn write(dir: &Path, id: &str, mut record: Record) -> io::Result<()> {
    record.kind = "ImagePulledRecord".to_owned();
    record.api_version = VERSION.to_owned();
    record.image_ref = id.to_owned();
    record.last_updated_time = Some(jiff::Timestamp::now());
    let bytes = serde_json::to_vec(&record)?;
    // What cannot be read would take the image from all who have it.
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("it was pulled by too many names"));
    }
    put(&path(dir, PULLED, id), &bytes)
}

/// Keeps that a pull of a name was begun; whether that was kept before.
pub(super) fn write_intent(dir: &Path, image: &str) -> io::Result<bool> {
    let text = serde_json::json!({"kind": "ImagePullIntent", "apiVersion": VERSION, "image": image});
    let file = path(dir, PULLING, image);
    let was_written = file.try_exists().unwrap_or(true);
    put(&file, text.to_string().as_bytes())?;
    Ok(was_written)
}

pub(super) fn remove_intent(dir: &Path, image: &str) -> io::Result<()> {
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

    const ID: &str = "sha256:01";

    fn secret(uid: &str, hash: &str) -> PullSecret {
        PullSecret {
            uid: uid.into(),
            namespace: "shop".into(),
            name: uid.into(),
            credential_hash: hash.into(),
        }
    }

    fn origin_of(dir: &Path, bare: &str) -> Origin {
        let names = ["docker.io/library/web:1", "web:1"].map(str::to_owned);
        origin(dir, &BTreeSet::from(names), bare, ID)
    }

    #[test]
    fn what_an_earlier_agent_may_have_brought_was_pulled_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write_nobody(root, ID).unwrap();
        assert_eq!(origin_of(root, "web"), Origin::Pulled(Access::Nobody));
        assert_eq!(origin(root, &BTreeSet::new(), "b.io/other", ID), Origin::Pulled(Access::Nobody));
        write_used(root, "web", ID, Some(secret("u1", "h1"))).unwrap();
        write_nobody(root, ID).unwrap();
        let with = Origin::Pulled(Access::With(vec![secret("u1", "h1")]));
        assert_eq!(origin_of(root, "web"), with, "what is known stays");
    }

    #[test]
    fn what_an_image_was_pulled_with_is_kept_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let of = |bare: &str| origin_of(root, bare);
        let with = |secrets: &[PullSecret]| Origin::Pulled(Access::With(secrets.to_vec()));
        assert_eq!(of("web"), Origin::Preloaded);
        assert!(!write_intent(root, "docker.io/library/web:1").unwrap());
        assert!(write_intent(root, "docker.io/library/web:1").unwrap());
        assert_eq!(of("web"), Origin::Begun, "the agent died while it pulled it");

        write_used(root, "web", ID, Some(secret("u1", "h1"))).unwrap();
        assert_eq!(of("web"), with(&[secret("u1", "h1")]));
        assert_eq!(of("b.io/web"), Origin::Pulled(Access::Nobody), "by another name it was never pulled");
        write_used(root, "web", ID, Some(secret("u2", "h1"))).unwrap();
        write_used(root, "web", ID, Some(secret("u1", "h2"))).unwrap();
        assert_eq!(of("web"), with(&[secret("u2", "h1"), secret("u1", "h2")]));
        write_used(root, "web", ID, None).unwrap();
        assert_eq!(of("web"), Origin::Pulled(Access::All));
        write_used(root, "web", ID, Some(secret("u1", "h2"))).unwrap();
        assert_eq!(of("web"), Origin::Pulled(Access::All), "it stays so");
        fs::write(path(root, PULLED, ID), "{").unwrap();
        assert_eq!(of("web"), Origin::Unreadable);
        remove_intent(root, "docker.io/library/web:1").unwrap();
        remove_intent(root, "docker.io/library/web:1").unwrap();
        fs::remove_file(path(root, PULLED, ID)).unwrap();
        assert_eq!(of("web"), Origin::Preloaded);
    }

    /// Files as kubelet 1.36 writes them: `encoder.Encode` of `fs_pullrecords.go`.
    #[test]
    fn records_of_a_kubelet_are_read_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let head = r#""kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-01-02T03:04:05Z","imageRef":"sha256:01""#;
        let account = r#"{"uid":"a1","namespace":"shop","name":"default"}"#;
        let secret_text = r#"{"uid":"u1","namespace":"shop","name":"u1","credentialHash":"h1"}"#;
        let with = |secrets: &[PullSecret]| Origin::Pulled(Access::With(secrets.to_vec()));
        for (mapping, expected) in [
            ("null".to_owned(), Origin::Pulled(Access::Nobody)),
            ("{}".to_owned(), Origin::Pulled(Access::Nobody)),
            (r#"{"web":{}}"#.to_owned(), Origin::Pulled(Access::Nobody)),
            (r#"{"web":{"nodePodsAccessible":true}}"#.to_owned(), Origin::Pulled(Access::All)),
            (format!(r#"{{"web":{{"kubernetesSecrets":[{secret_text}]}}}}"#), with(&[secret("u1", "h1")])),
            (
                format!(r#"{{"web":{{"kubernetesServiceAccounts":[{account}]}}}}"#),
                Origin::Pulled(Access::Nobody),
            ),
        ] {
            let text = format!("{{{head},\"credentialMapping\":{mapping}}}\n");
            put(&path(root, PULLED, ID), text.as_bytes()).unwrap();
            assert_eq!(origin_of(root, "web"), expected, "{mapping}");
        }
        write_used(root, "web", ID, Some(secret("u1", "h1"))).unwrap();
        let kept: serde_json::Value =
            serde_json::from_slice(&fs::read(path(root, PULLED, ID)).unwrap()).unwrap();
        let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(
            kept["credentialMapping"]["web"],
            serde_json::json!({
                "kubernetesServiceAccounts": [parsed(account)],
                "kubernetesSecrets": [parsed(secret_text)],
            })
        );
        fs::remove_file(path(root, PULLED, ID)).unwrap();
        write_intent(root, "web:1").unwrap();
        assert_eq!(origin_of(root, "web"), Origin::Begun, "by the name that the pod has");
    }

    /// Whoever pulls an image by ever more names takes it from nobody else.
    #[test]
    fn a_record_that_is_full_stays_readable() {
        let dir = tempfile::tempdir().unwrap();
        let all = Credentials { node_pods_accessible: true, ..Credentials::default() };
        let long = "x".repeat(200);
        let names = (0..60_000).map(|number| (format!("evil.example/{long}{number}"), all.clone()));
        let mapping = names.chain([("web".to_owned(), all.clone())]).collect();
        let record = Record { credential_mapping: Some(mapping), ..Record::default() };
        write(dir.path(), ID, record.clone()).unwrap();
        let fill = |(count, mut record): (usize, Record)| {
            let mapping = record.credential_mapping.get_or_insert_default();
            mapping.extend((0..count).map(|number| (format!("more.example/{long}{number}"), all.clone())));
            write(dir.path(), ID, record)
        };
        fill((20_000, record)).unwrap_err();
        assert_eq!(origin_of(dir.path(), "web"), Origin::Pulled(Access::All));
    }

    #[test]
    fn of_too_many_secrets_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let secrets: Vec<PullSecret> =
            (0..SECRETS_MAX).map(|number| secret(&number.to_string(), "h")).collect();
        let kubernetes_secrets = secrets.iter().cloned().map(SecretRecord::from).collect();
        let full = Credentials { kubernetes_secrets, ..Credentials::default() };
        let mapping = BTreeMap::from([("web".to_owned(), full)]);
        let record = Record { credential_mapping: Some(mapping), ..Record::default() };
        put(&path(dir.path(), PULLED, ID), &serde_json::to_vec(&record).unwrap()).unwrap();
        write_used(dir.path(), "web", ID, Some(secret("new", "h"))).unwrap();
        let expected = [&secrets[1..], &[secret("new", "h")]].concat();
        assert_eq!(origin_of(dir.path(), "web"), Origin::Pulled(Access::With(expected)));
    }
}
