//! Who a client certificate says that somebody is. Sources: `pkg/authentication/request/x509/x509.go` and
//! `pkg/server/dynamiccertificates/dynamic_cafile_content.go` of `k8s.io/apiserver`.

use std::{io::Read as _, path::Path, sync::Arc, time::Duration};

use berth_core::server::{CertificateNames, Credential, of_certificate};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_rustls::rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_cert::{
    Certificate,
    attr::AttributeTypeAndValue,
    der::{Decode as _, Tag, Tagged as _, asn1::ObjectIdentifier},
};

use super::turns::Turns;
use crate::causes::with_causes;

/// How often the file is read again.
const EVERY: Duration = Duration::from_secs(10);
/// Bytes of the file: some hundred authorities.
const BYTES_MAX: u64 = 1 << 20;
/// Judgements at once of those who are known, and as many of others.
pub(super) const JUDGES: usize = 1;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
/// A user's UID (`k8s.io/apimachinery/pkg/apis/asn1/oid.go`).
const UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");

/// Who says whether authorities have signed something.
pub(super) type Verifier = Arc<dyn ClientCertVerifier>;

/// The authorities of now; none before their file could be read.
#[derive(Debug, Clone)]
pub(super) struct ClientCa {
    verifier: watch::Receiver<Option<Verifier>>,
    turns: Arc<Turns>,
}

/// What authorities say of certificates.
#[derive(Debug)]
pub(super) struct Judged {
    /// Who they make of somebody.
    pub(super) credential: Credential,
    /// Their end, where they hold.
    pub(super) ends: Option<UnixTime>,
}

/// Why there are no authorities.
#[derive(Debug, thiserror::Error)]
enum CaError {
    #[error("read it")]
    Io(#[from] std::io::Error),
    #[error("it has more than {BYTES_MAX} bytes")]
    TooLarge,
    #[error("it has no certificate in PEM form")]
    Empty,
    #[error("one of its certificates cannot be used: {0}")]
    Malformed(String),
    #[error("the agent is stopping")]
    Stopping,
}

impl ClientCa {
    /// Those of a file, and a task that follows it.
    pub(super) fn of(file: &Path) -> (Self, impl Future<Output = ()> + use<>) {
        Self::of_each(file, EVERY)
    }

    fn of_each(file: &Path, every: Duration) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, receiver) = watch::channel(None);
        let file = file.to_owned();
        (Self::following(receiver), async move { follow(&file, every, &sender).await })
    }

    fn following(verifier: watch::Receiver<Option<Verifier>>) -> Self {
        Self { verifier, turns: Arc::new(Turns::new(JUDGES)) }
    }

    /// Whoever says now whether they have signed something; `None` where there are no authorities.
    pub(super) fn now(&self) -> Option<Verifier> {
        self.verifier.borrow().clone()
    }

    /// Turns at asking that.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Those of a file that is read without a pause.
    #[cfg(test)]
    pub(super) fn of_always(file: &Path) -> (Self, impl Future<Output = ()> + use<>) {
        Self::of_each(file, Duration::from_millis(1))
    }

    /// Waits for others than those of now.
    #[cfg(test)]
    pub(super) async fn changed(&mut self) {
        self.verifier.changed().await.unwrap();
    }

    /// Those of a text, for good.
    #[cfg(test)]
    pub(super) fn fixed(pem: &str) -> Self {
        Self::judged_by(verifier(pem).unwrap())
    }

    /// Those that somebody speaks for, for good.
    #[cfg(test)]
    pub(super) fn judged_by(verifier: Verifier) -> Self {
        Self::following(watch::channel(Some(verifier)).1)
    }
}

/// Judges a certificate with those between it and its authority, as of now.
pub(super) fn judge(by: &dyn ClientCertVerifier, chain: &[CertificateDer<'static>]) -> Judged {
    let refused = Judged { credential: Credential::Refused, ends: None };
    let Some((leaf, between)) = chain.split_first() else { return refused };
    if let Err(error) = by.verify_client_cert(leaf, between, UnixTime::now()) {
        tracing::debug!(error = with_causes(&error), "a client certificate does not hold");
        return refused;
    }
    let Ok(certificate) = Certificate::from_der(leaf) else { return refused };
    let fingerprint: String = Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
    let ends = certificate.tbs_certificate.validity.not_after.to_unix_duration();
    let Some(names) = names(certificate) else { return refused };
    let credential = of_certificate(names, &fingerprint);
    Judged { credential, ends: Some(UnixTime::since_unix_epoch(ends)) }
}

/// Reads the file again and again. What cannot be used leaves what was.
async fn follow(file: &Path, every: Duration, sender: &watch::Sender<Option<Verifier>>) {
    let mut last = String::new();
    loop {
        match read(file).await {
            Ok(text) if text == last => {}
            Ok(text) => match verifier(&text) {
                Ok(verifier) => {
                    tracing::info!(path = %file.display(), "client certificates of these authorities are let in");
                    sender.send_replace(Some(verifier));
                    last = text;
                }
                Err(error) => tell(file, &error, &mut last),
            },
            Err(error) => tell(file, &error, &mut last),
        }
        tokio::time::sleep(every).await;
    }
}

/// Says what is wrong, once.
fn tell(file: &Path, error: &CaError, last: &mut String) {
    let why = with_causes(error);
    if why != *last {
        tracing::error!(error = why, path = %file.display(), "clientCAFile cannot be used; what was read before counts");
        *last = why;
    }
}

async fn read(file: &Path) -> Result<String, CaError> {
    let file = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::fs::File::open(file)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
        Ok(text)
    });
    let text: std::io::Result<String> = reading.await.map_err(|_stopping| CaError::Stopping)?;
    text.map_err(CaError::from).and_then(|text| {
        let fits = u64::try_from(text.len()).is_ok_and(|bytes| bytes <= BYTES_MAX);
        fits.then_some(text).ok_or(CaError::TooLarge)
    })
}

fn verifier(pem: &str) -> Result<Verifier, CaError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| CaError::Malformed(error.to_string()))?;
        roots.add(certificate).map_err(|error| CaError::Malformed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(CaError::Empty);
    }
    let provider = Arc::new(ring::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|error| CaError::Malformed(error.to_string()))
}

/// What a certificate says; `None` where a name of it cannot be read.
fn names(certificate: Certificate) -> Option<CertificateNames> {
    let subject = certificate.tbs_certificate.subject;
    let attributes = || subject.0.iter().flat_map(|part| part.0.iter());
    let of = |kind| attributes().filter(|one| one.oid == kind).map(text).collect::<Option<Vec<_>>>();
    Some(CertificateNames {
        common_names: of(COMMON_NAME)?,
        organizations: of(ORGANIZATION)?,
        uids: of(UID)?,
    })
}

/// Of those kinds of texts that are UTF-8.
fn text(attribute: &AttributeTypeAndValue) -> Option<String> {
    let is_plain = matches!(
        attribute.value.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString
    );
    let text = str::from_utf8(attribute.value.value()).ok()?;
    is_plain.then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
