//! The certificate of the node's own server: from files, made here, or asked of the cluster.
//!
//! Sources: `InitializeTLS` of `cmd/kubelet/app/server.go`, `pkg/kubelet/certificate/kubelet.go`.

use std::{io::ErrorKind, path::Path, sync::Arc, time::Duration};

use berth_core::cluster::certificate::{
    InUse, Next, Rotation, ServerNames, Subject, again_after, next as decide,
};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::sync::watch;
use tokio_rustls::rustls::sign::CertifiedKey;

use super::{
    CertificateError, pem,
    request::{Wanted, obtain},
    store::{self, Pair, Store, of_disk, read},
    validity,
};
use crate::{
    causes::with_causes,
    clock,
    cluster::{Clients, node::chance},
    config::ServingCertificate,
    metrics::{Certified, InCluster},
};

/// Name of the files of certificates that the cluster gave.
const SERVER: &str = "kubelet-server";
/// How often files are read again. Whoever replaces them does so long before the old ones end.
const FILES_EVERY: Duration = Duration::from_secs(10);
/// How long a certificate holds that nobody else has signed, and how much earlier it begins, for clocks that differ.
const SELF_SIGNED_FOR: Duration = Duration::from_secs(365 * 24 * 3600);
const SELF_SIGNED_SINCE: Duration = Duration::from_secs(3600);

/// What the server presents; nothing as long as there is no certificate.
pub type Presented = watch::Sender<Option<Arc<CertifiedKey>>>;

/// Whom the cluster is asked through, and what it says of the node: type and text of each of its addresses.
#[derive(Debug)]
pub struct Asking {
    /// The API server.
    pub clients: Clients,
    /// Addresses of the Node object.
    pub addresses: watch::Receiver<Vec<(String, String)>>,
    /// What comes of it.
    pub measured: InCluster,
}

/// Keeps what the server presents. Runs until the agent stops.
pub async fn serve(source: ServingCertificate, node: &str, asking: Option<Asking>, presented: Presented) {
    match (source, asking) {
        (ServingCertificate::Files { certificate, key }, _) => {
            follow(&certificate, &key, None, FILES_EVERY, &presented).await;
        }
        (ServingCertificate::SelfSigned { dir }, _) => {
            let (certificate, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
            follow(&certificate, &key, Some(node), FILES_EVERY, &presented).await;
        }
        (ServingCertificate::OfCluster { dir }, Some(asking)) => {
            ask(&Store::of(&dir, SERVER), node, asking, &presented).await;
        }
        (ServingCertificate::OfCluster { .. }, None) => {
            tracing::warn!("serverTLSBootstrap does nothing on a node without a cluster");
        }
    }
}

/// Presents what is in files, and what is there later; makes them for a host where they are to be ours, and are missing or over.
async fn follow(
    certificate: &Path,
    key: &Path,
    made_for: Option<&str>,
    every: Duration,
    presented: &Presented,
) {
    let mut last = String::new();
    loop {
        match look(certificate, key, made_for).await {
            Ok(pair) => {
                let text = format!("{}{}", pair.certificates, pair.key);
                if text != last {
                    present(&pair, certificate, presented);
                    last = text;
                }
            }
            Err(error) => {
                let why = with_causes(&error);
                if why != last {
                    tracing::error!(error = why, "the server keeps the certificate that it has");
                    last = why;
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

async fn look(certificate: &Path, key: &Path, made_for: Option<&str>) -> Result<Pair, CertificateError> {
    let found = in_files(certificate, key).await;
    let Some(host) = made_for else { return found };
    match found {
        Ok(pair) if pair.holds() => Ok(pair),
        // A key alone is what an agent left that was killed between the two.
        Err(CertificateError::Io { source, .. })
            if source.kind() != ErrorKind::NotFound || certificate.exists() =>
        {
            Err(CertificateError::Io { act: "read", path: certificate.to_owned(), source })
        }
        Ok(_) | Err(CertificateError::Io { .. }) => {
            let made = self_signed(host)?;
            tracing::info!(path = %certificate.display(), host, "a certificate for the server is made");
            write(certificate, key, made.clone()).await?;
            Ok(made)
        }
        Err(other) => Err(other),
    }
}

async fn in_files(certificate: &Path, key: &Path) -> Result<Pair, CertificateError> {
    let pair = Pair { certificates: read(certificate).await?, key: read(key).await? };
    // While one of them is already the next one, they do not belong together.
    pair.certified(certificate)?;
    Ok(pair)
}

async fn write(certificate: &Path, key: &Path, pair: Pair) -> Result<(), CertificateError> {
    let (certificate, key) = (certificate.to_owned(), key.to_owned());
    of_disk(move || {
        for path in [&certificate, &key] {
            let dir = path.parent().unwrap_or(path);
            std::fs::create_dir_all(dir).map_err(|source| CertificateError::Io {
                act: "make",
                path: dir.to_owned(),
                source,
            })?;
        }
        // One that has ended goes first: beside the next key it would belong to nothing, which only others can have made.
        store::remove(&certificate)?;
        store::write(&key, &pair.key, 0o600)?;
        store::write(&certificate, &pair.certificates, 0o644)
    })
    .await
}

/// A certificate for a host with one that signs it, as the kubelet makes them (`GenerateSelfSignedCertKey` of
/// `k8s.io/client-go/util/cert/cert.go`).
fn self_signed(host: &str) -> Result<Pair, CertificateError> {
    let began = Timestamp::now() - SELF_SIGNED_SINCE;
    let params = |name: String, hosts: Vec<String>| -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(hosts)?;
        let since = std::time::SystemTime::from(began);
        (params.not_before, params.not_after) = (since.into(), (since + SELF_SIGNED_FOR).into());
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(params)
    };
    let seconds = Timestamp::now().as_second();
    let mut signer = params(format!("{host}-ca@{seconds}"), Vec::new())?;
    signer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    signer.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let signer_key = KeyPair::generate()?;
    let authority = signer.self_signed(&signer_key)?;
    let mut server = params(format!("{host}@{seconds}"), vec![host.to_owned()])?;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let signed = server.signed_by(&key, &Issuer::new(signer, signer_key))?;
    Ok(Pair { certificates: format!("{}{}", signed.pem(), authority.pem()), key: key.serialize_pem() })
}

/// Presents it from now on. What cannot be presented leaves what was, and is told.
fn present(pair: &Pair, place: &Path, presented: &Presented) -> Option<InUse> {
    match try_to_present(pair, place, presented) {
        Ok(in_use) => Some(in_use),
        Err(error) => {
            tracing::error!(error = with_causes(&error), "the server keeps the certificate that it has");
            None
        }
    }
}

fn try_to_present(pair: &Pair, place: &Path, presented: &Presented) -> Result<InUse, CertificateError> {
    let certified = pair.certified(place)?;
    let none = || CertificateError::Malformed(place.display().to_string());
    let told = pem::told(&pair.certificates).ok_or_else(none)?;
    let until = told.validity.not_after;
    tracing::info!(path = %place.display(), %until, names = ?told.subject.names, "the server has a certificate");
    presented.send_replace(Some(Arc::new(certified)));
    Ok(InUse { subject: told.subject, rotation: Rotation::plan(told.validity, clock::now(), chance()) })
}

/// Asks the cluster whenever the node is reached otherwise than its certificate says, and before it ends.
async fn ask(store: &Store, node: &str, mut asking: Asking, presented: &Presented) {
    let mut in_use = match store.pair().await {
        Ok(pair) if pair.holds() => present(&pair, &store.current(), presented),
        Ok(_) | Err(_) => None,
    };
    let (mut asked, mut failures) = (None, 0_u32);
    loop {
        let wanted = wanted(node, &asking.addresses.borrow_and_update());
        let pause = match decide(in_use.as_ref(), wanted.as_ref(), asked.as_ref(), clock::now()) {
            Next::Wait => Duration::MAX,
            Next::Keep(time) => time,
            Next::Ask => {
                asked.clone_from(&wanted);
                let subject = wanted.clone().unwrap_or_default();
                let before = age(presented);
                // Where the addresses change meanwhile, another one is asked for.
                let answer = tokio::select! {
                    answer = ask_once(store, subject, &asking.clients, presented) => answer,
                    () = changed(&mut asking.addresses, node, wanted.as_ref()) => continue,
                };
                match answer {
                    Ok(other) => {
                        if let Some(age) = before {
                            asking.measured.rotated(age);
                        }
                        failures = 0;
                        in_use = Some(other);
                        Duration::ZERO
                    }
                    Err(error) => {
                        failures = failures.saturating_add(1);
                        asking.measured.not_renewed(Certified::Server);
                        tracing::warn!(
                            error = with_causes(&error),
                            "get a certificate for the server; it is tried again"
                        );
                        again_after(failures)
                    }
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed(&mut asking.addresses, node, wanted.as_ref()) => {}
        }
    }
}

/// How old the certificate is that the server presents.
fn age(presented: &Presented) -> Option<Duration> {
    let validity = validity(presented.borrow().as_ref()?)?;
    Duration::try_from(Timestamp::now().duration_since(validity.not_before)).ok()
}

async fn ask_once(
    store: &Store,
    wanted: Subject,
    clients: &Clients,
    presented: &Presented,
) -> Result<InUse, CertificateError> {
    let key = KeyPair::generate()?;
    let pair = obtain(clients.get(), &Wanted::of_server(wanted), &key, None).await?;
    store.update_at_last(pair).await?;
    try_to_present(&store.pair().await?, &store.current(), presented)
}

fn wanted(node: &str, addresses: &[(String, String)]) -> Option<Subject> {
    let addresses = addresses.iter().map(|(kind, text)| (kind.as_str(), text.as_str()));
    ServerNames::of(addresses).map(|names| Subject::of_node(node, names))
}

/// Waits until the node is reached otherwise than was seen.
async fn changed(addresses: &mut watch::Receiver<Vec<(String, String)>>, node: &str, seen: Option<&Subject>) {
    let differs = |now: &Vec<(String, String)>| {
        let now = wanted(node, now);
        now.is_some() && now.as_ref() != seen
    };
    if addresses.wait_for(differs).await.is_err() {
        // Who tells addresses has ended, and no others will come.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
