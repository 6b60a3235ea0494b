//! Certificates on disk. Source: `k8s.io/client-go/util/certificate/certificate_store.go`.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rcgen::KeyPair;
use tokio_rustls::rustls::sign::CertifiedKey;

use super::{at_last, pem};
use crate::{
    causes::with_causes,
    cluster::{ApiError, ConnectError},
};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file or directory cannot be used.
    #[error("{act} {path}", path = .path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// What should be a certificate is none.
    #[error("read the certificate in {0}: it has none in PEM form")]
    Malformed(String),
    /// A certificate and a key do not belong together, or one of them cannot be used.
    #[error("use the certificate and the key in {place}: {why}")]
    Unusable {
        /// Where they are.
        place: String,
        /// Why not.
        why: String,
    },
    /// A kubeconfig has no certificate.
    #[error("find a client certificate in the kubeconfig {0}: it names another way to say who the node is")]
    NoIdentity(String),
    /// Keys or requests cannot be made.
    #[error("make a key and a request for a certificate")]
    Make(#[from] rcgen::Error),
    /// A kubeconfig.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server.
    #[error("ask the API server for a certificate")]
    Api(#[from] ApiError),
    /// Somebody said no.
    #[error("get the certificate of request {name}: {why}")]
    Refused {
        /// Of the CertificateSigningRequest.
        name: String,
        /// In the words of who refused.
        why: String,
    },
    /// Somebody said yes too long ago.
    #[error("use what was issued for request {0}: it has ended, and another one is asked for")]
    Ended(String),
    /// Somebody said yes, with something else.
    #[error("use what was issued for request {0}: it cannot be understood as a certificate")]
    NotUnderstood(String),
    /// Nobody said anything.
    #[error("get the certificate of request {0}: nobody approved it in time; see `kubectl get csr`")]
    Unanswered(String),
}

impl CertificateError {
    /// Whether something was issued that nobody can use: who asks for it again gets the same.
    pub(super) fn is_of_no_use(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::NotUnderstood(_) | Self::Unusable { .. })
    }
}

/// A certificate, its chain and its key, in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificates: String,
    pub(super) key: String,
}

impl Pair {
    /// Whether it has a certificate that has not ended.
    pub(super) fn holds(&self) -> bool {
        pem::validity(&self.certificates).is_some_and(|it| !it.has_ended(Timestamp::now()))
    }

    /// As it is presented; `place` is where it is, for who reads the error.
    pub(super) fn certified(&self, place: &Path) -> Result<CertifiedKey, CertificateError> {
        let unusable = |why| CertificateError::Unusable { place: place.display().to_string(), why };
        pem::certified(&self.certificates, &self.key).map_err(unusable)
    }

    /// What a text says that has all of it.
    fn of(text: &str) -> Self {
        Self { certificates: pem::only(text, "CERTIFICATE"), key: pem::only(text, "KEY") }
    }
}

/// Files of one kind of certificate: each of them with the time of its coming in its name, and a link to the current one.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    name: &'static str,
}

impl Store {
    pub(super) fn of(dir: &Path, name: &'static str) -> Self {
        Self { dir: dir.to_owned(), name }
    }

    /// The link to the current one.
    pub(super) fn current(&self) -> PathBuf {
        self.file("current")
    }

    /// The current one. A change that was cut off half-way is ended first, as far as it can be (`recover`).
    pub(super) async fn pair(&self) -> Result<Pair, CertificateError> {
        let (current, part) = (self.current(), self.file("updated"));
        of_disk(move || {
            if !current.exists() && part.is_symlink() {
                fs::rename(&part, &current).map_err(failed("replace", &current))?;
            }
            let text = fs::read_to_string(&current).map_err(failed("read", &current))?;
            Ok(Pair::of(&text))
        })
        .await
    }

    /// Makes another one the current one, where its key is its own, and it is not that already.
    pub(super) async fn update(&self, pair: Pair) -> Result<(), CertificateError> {
        self.update_in(self.file_of_now(), pair).await
    }

    async fn update_in(&self, file: PathBuf, pair: Pair) -> Result<(), CertificateError> {
        let (dir, link, part) = (self.dir.clone(), self.current(), self.file("updated"));
        pair.certified(&file)?;
        of_disk(move || {
            let text = format!("{}{}", pair.certificates, pair.key);
            if fs::read_to_string(&link).is_ok_and(|now| Pair::of(&now) == Pair::of(&text)) {
                return Ok(());
            }
            make(&dir)?;
            let target = std::path::absolute(&file).map_err(failed("find", &file))?;
            write(&file, &text, 0o600)?;
            let led = lead(&link, &part, &target);
            if led.is_err() && fs::read_link(&link).ok().as_ref() != Some(&target) {
                // A key that nobody uses is kept nowhere.
                for path in [&part, &file] {
                    drop(fs::remove_file(path));
                }
            }
            led
        })
        .await
    }

    /// As [`update`](Self::update), as soon as the disk takes it: what was issued is not asked for again.
    pub(super) async fn update_at_last(&self, pair: Pair) -> Result<(), CertificateError> {
        // One name however often it is tried, so that nothing piles up.
        let file = self.file_of_now();
        let attempt = || async {
            match self.update_in(file.clone(), pair.clone()).await {
                Err(error @ CertificateError::Io { .. }) => Err(error),
                done => Ok(done),
            }
        };
        at_last("a certificate that was issued cannot be written", attempt).await
    }

    fn file(&self, of: &str) -> PathBuf {
        self.dir.join(format!("{}-{of}.pem", self.name))
    }

    fn file_of_now(&self) -> PathBuf {
        self.file(&Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S").to_string())
    }

    /// The key with which a node without a kubeconfig asks: that of the request that it made last, or of the certificate that it has. What
    /// was asked with the key of a certificate that has ended was answered with that one.
    pub(super) async fn pending_key(&self) -> Result<KeyPair, CertificateError> {
        let path = self.pending();
        let had = self.pair().await.ok().filter(Pair::holds).map(|pair| pair.key);
        let known = of_disk(move || {
            let mut keys = fs::read_to_string(&path).ok().into_iter().chain(had);
            Ok(keys.find_map(|pem| KeyPair::from_pem(&pem).ok()))
        });
        match known.await? {
            Some(key) => Ok(key),
            None => self.another_pending_key().await,
        }
    }

    /// Another one, and so another request.
    pub(super) async fn another_pending_key(&self) -> Result<KeyPair, CertificateError> {
        let (dir, path) = (self.dir.clone(), self.pending());
        of_disk(move || {
            let key = KeyPair::generate()?;
            make(&dir)?;
            write(&path, &key.serialize_pem(), 0o600)?;
            Ok(key)
        })
        .await
    }

    pub(super) async fn forget_pending_key(&self) {
        let path = self.pending();
        if let Err(error) = of_disk(move || remove(&path)).await {
            tracing::debug!(error = with_causes(&error), "a key that is in use elsewhere stays");
        }
    }

    /// The key of a request that nobody has answered yet, so that an agent that begins anew asks with the same one
    /// (`tmpPrivateKeyFile` of `pkg/kubelet/certificate/bootstrap/bootstrap.go`).
    pub(super) fn pending(&self) -> PathBuf {
        self.dir.join(format!("{}.key.tmp", self.name))
    }
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CertificateError + use<> {
    let path = path.to_owned();
    move |source| CertificateError::Io { act, path, source }
}

/// Has a link lead elsewhere, or leaves it.
fn lead(link: &Path, part: &Path, target: &Path) -> Result<(), CertificateError> {
    remove(part)?;
    symlink(target, part).map_err(failed("link", part))?;
    fs::rename(part, link).map_err(failed("replace", link))
}

/// Makes a directory, where it is not there.
fn make(dir: &Path) -> Result<(), CertificateError> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed("make", dir))
}

/// Writes a file whole, or leaves what was there, and nothing beside it.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let part = PathBuf::from(format!("{}.part", path.display()));
    let written = || {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&part)?;
        // One that was there before keeps its own.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&part))).map_err(failed("write", path))
}

/// Removes a file, where it is there.
pub(super) fn remove(path: &Path) -> Result<(), CertificateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Works on files in a thread.
pub(super) async fn of_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CertificateError> + Send + 'static,
) -> Result<T, CertificateError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_stopping) => Err(CertificateError::Malformed("an agent that stops".to_owned())),
    }
}

/// Reads a file.
pub(super) async fn read(path: &Path) -> Result<String, CertificateError> {
    let path = path.to_owned();
    of_disk(move || {
        fs::read_to_string(&path).map_err(|source| CertificateError::Io { act: "read", path, source })
    })
    .await
}

#[cfg(test)]
mod tests;
