//! Certificates on disk. Source: `k8s.io/client-go/util/certificate/certificate_store.go`.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
};

use berth_core::cluster::certificate::Validity;
use jiff::Timestamp;
use x509_cert::{Certificate, der::DecodePem as _};

use crate::cluster::{ApiError, ConnectError};

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
    /// Nobody said anything.
    #[error("get the certificate of request {0}: nobody approved it in time; see `kubectl get csr`")]
    Unanswered(String),
}

/// A certificate, its chain and its key, in PEM form.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) certificates: String,
    pub(super) key: String,
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
        self.dir.join(format!("{}-current.pem", self.name))
    }

    /// Makes another one the current one.
    pub(super) async fn update(&self, pair: Pair) -> Result<(), CertificateError> {
        let time = Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let (dir, file) = (self.dir.clone(), self.dir.join(format!("{}-{time}.pem", self.name)));
        let (link, part) = (self.current(), self.dir.join(format!("{}-updated.pem", self.name)));
        of_disk(move || {
            let failed = |act, path: &Path| {
                let path = path.to_owned();
                move |source| CertificateError::Io { act, path, source }
            };
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir);
            made.map_err(failed("make", &dir))?;
            write(&file, &format!("{}{}", pair.certificates, pair.key), 0o600)
                .map_err(failed("write", &file))?;
            match fs::remove_file(&part) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &part)(error));
                }
                Ok(()) | Err(_) => {}
            }
            symlink(&file, &part).map_err(failed("link", &part))?;
            fs::rename(&part, &link).map_err(failed("replace", &link))
        })
        .await
    }
}

/// Writes a file that nobody but its owner changes, whole.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
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

/// From when until when the first certificate of a file holds.
pub(super) async fn validity(path: &Path) -> Result<Validity, CertificateError> {
    let text = read(path).await?;
    validity_of(&text).ok_or_else(|| CertificateError::Malformed(path.display().to_string()))
}

/// From when until when the first certificate of a text holds.
pub(super) fn validity_of(pem: &str) -> Option<Validity> {
    const END: &str = "-----END CERTIFICATE-----";
    let begin = pem.find("-----BEGIN CERTIFICATE-----")?;
    let end = begin + pem.get(begin..)?.find(END)? + END.len();
    let certificate = Certificate::from_pem(pem.get(begin..end)?).ok()?;
    let validity = &certificate.tbs_certificate.validity;
    let time = |time: x509_cert::time::Time| {
        Timestamp::from_second(i64::try_from(time.to_unix_duration().as_secs()).ok()?).ok()
    };
    Some(Validity { not_before: time(validity.not_before)?, not_after: time(validity.not_after)? })
}
