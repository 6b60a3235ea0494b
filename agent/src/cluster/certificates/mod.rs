//! Who the node is at the API server: its client certificate, got with a bootstrap token where it has none, and replaced before it
//! ends.
//!
//! Sources: `pkg/kubelet/certificate/bootstrap/bootstrap.go`, `k8s.io/client-go/util/certificate`. When a certificate is to be
//! replaced is decided in `berth_core::cluster::certificate`.

mod kubeconfig;
pub(super) mod pem;
mod request;
mod serving;
#[cfg(test)]
mod signer;
mod store;

use berth_core::cluster::certificate::{Rotation, Validity, again_after};
use jiff::Timestamp;
use kube::Client;
use rcgen::KeyPair;
use tokio_rustls::rustls::sign::CertifiedKey;

use self::{
    kubeconfig::{Place, identity},
    request::{Wanted, obtain},
    store::Store,
};
pub use self::{
    serving::{Asking, Presented, serve},
    store::CertificateError,
};
use super::{
    Clients, ConnectError,
    client::Connection,
    connection::{connect, connect_as, follow},
    node::chance,
};
use crate::{
    causes::with_causes,
    clock,
    config::Cluster,
    metrics::{Certified, InCluster},
};

/// How long the certificate holds that a server presents.
#[must_use]
pub fn validity(presented: &CertifiedKey) -> Option<Validity> {
    pem::of_der(presented.cert.first()?).map(|told| told.validity)
}

/// Name of the client certificate's files.
const CLIENT: &str = "kubelet-client";

/// Clients of the node. Where it has to ask for a certificate first, there are none until [`bootstrap`] is done: as who it is before, the
/// node may ask for nothing else.
///
/// # Errors
/// The kubeconfig, or what it names, cannot be used.
pub async fn clients(cluster: &Cluster) -> Result<Clients, ConnectError> {
    Ok(match &cluster.bootstrap_kubeconfig {
        Some(bootstrap) if is_bootstrap_needed(cluster).await => {
            // Whether it can be used at all.
            drop(connect(cluster, bootstrap).await?);
            Clients::awaited()
        }
        Some(_) | None => Clients::new(client(cluster).await?),
    })
}

/// Whether the node has to ask for a certificate before it can do anything (`isClientConfigStillValid`).
async fn is_bootstrap_needed(cluster: &Cluster) -> bool {
    cluster.bootstrap_kubeconfig.is_some() && !kubeconfig::is_usable(&cluster.kubeconfig).await
}

/// The client of a node that has its kubeconfig. A certificate that was replaced counts more than the one that the kubeconfig
/// names.
async fn client(cluster: &Cluster) -> Result<Connection, ConnectError> {
    let current = Store::of(&cluster.cert_dir, CLIENT);
    if cluster.rotates && is_current(&current).await {
        return with_current(cluster, &current).await;
    }
    connect(cluster, &cluster.kubeconfig).await
}

/// As the kubeconfig says, with the certificate that was got last.
async fn with_current(cluster: &Cluster, store: &Store) -> Result<Connection, ConnectError> {
    connect_as(cluster, &cluster.kubeconfig, Some(&store.current())).await
}

/// As [`with_current`], as soon as it works: another one is asked for only when this one is nearly over, and the one before ends sooner.
async fn with_current_at_last(cluster: &Cluster, store: &Store) -> Connection {
    at_last("a certificate that was issued is not used yet; it is tried again", || {
        with_current(cluster, store)
    })
    .await
}

/// Tries until it works, ever later, and tells why it does not yet.
async fn at_last<T, E, F>(failed: &str, attempt: impl Fn() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0_u32;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(error = with_causes(&error), "{failed}");
            }
        }
        tokio::time::sleep(again_after(failures)).await;
    }
}

/// Gets a certificate with the bootstrap kubeconfig where the node has none, writes the kubeconfig, and has the clients use it.
/// Tries until it has one.
pub async fn bootstrap(cluster: &Cluster, clients: &Clients) {
    if !clients.are_awaited() && !is_bootstrap_needed(cluster).await {
        return;
    }
    let failed = "get a certificate for the node; it is tried again";
    clients.replace(at_last(failed, || bootstrap_once(cluster)).await);
}

async fn bootstrap_once(cluster: &Cluster) -> Result<Connection, CertificateError> {
    let bootstrap = match &cluster.bootstrap_kubeconfig {
        Some(bootstrap) if is_bootstrap_needed(cluster).await => bootstrap,
        // Somebody has written the kubeconfig meanwhile.
        Some(_) | None => return Ok(client(cluster).await?),
    };
    tracing::info!(kubeconfig = %bootstrap.display(), "asking for a client certificate");
    let store = Store::of(&cluster.cert_dir, CLIENT);
    let client = connect(cluster, bootstrap).await?.client;
    obtain_first(client, &Wanted::of_client(&cluster.node.name), &store).await?;
    kubeconfig::write_after(bootstrap, &cluster.kubeconfig, &store.current()).await?;
    tracing::info!(kubeconfig = %cluster.kubeconfig.display(), "the node has a client certificate");
    Ok(connect(cluster, &cluster.kubeconfig).await?)
}

/// Asks with the key with which was asked before. Where what is issued for that is of no use, it is issued again whenever that is asked:
/// the next try has another key, and so another request.
async fn obtain_first(client: Client, wanted: &Wanted, store: &Store) -> Result<(), CertificateError> {
    let key = store.pending_key().await?;
    let kept = match obtain(client, wanted, &key, Some(wanted.name(&key))).await {
        Ok(pair) => store.update_at_last(pair).await,
        Err(error) => Err(error),
    };
    match &kept {
        Ok(()) => store.forget_pending_key().await,
        Err(error) if error.is_of_no_use() => drop(store.another_pending_key().await?),
        Err(_) => {}
    }
    kept
}

/// Keeps the clients: the client certificate is replaced before it ends, where that is asked for, and what the kubeconfig names is
/// read again when it has changed: also after the agent's own change, for which the clients are made twice at worst. Runs until the agent
/// stops.
pub async fn keep(clients: Clients, cluster: Cluster, measured: InCluster) {
    let followed = follow(&clients, &cluster.kubeconfig, || client(&cluster));
    tokio::join!(followed, replace(&clients, &cluster, &measured));
}

async fn replace(clients: &Clients, cluster: &Cluster, measured: &InCluster) {
    if !cluster.rotates {
        return;
    }
    let store = Store::of(&cluster.cert_dir, CLIENT);
    if let Err(none) = adopt_at_last(cluster, &store).await {
        tracing::info!(why = with_causes(&none), "there is no client certificate to be replaced");
        return;
    }
    let mut failures = 0_u32;
    loop {
        wait_until_due(clients).await;
        match rotate(clients, cluster, &store).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures = failures.saturating_add(1);
                measured.not_renewed(Certified::Client);
                tracing::warn!(
                    error = with_causes(&error),
                    "replace the client certificate; it is tried again"
                );
                tokio::time::sleep(again_after(failures)).await;
            }
        }
    }
}

/// The same as [`adopt`], however often the disk refuses; an error where there is none: a kubeconfig with a token, or a plugin.
async fn adopt_at_last(cluster: &Cluster, store: &Store) -> Result<(), CertificateError> {
    let attempt = || async {
        match adopt(cluster, store).await {
            Err(error) if !matches!(error, CertificateError::NoIdentity(_)) => Err(error),
            ended => Ok(ended),
        }
    };
    at_last("keep the client certificate; it is tried again", attempt).await
}

/// Takes the certificate that a kubeconfig holds as the first one, as the kubelet does. One in files stays there: until the agent has got
/// another one, who keeps the files may replace it (`Current` of `certificate_store.go`).
async fn adopt(cluster: &Cluster, store: &Store) -> Result<(), CertificateError> {
    if is_current(store).await {
        return Ok(());
    }
    let held = identity(&cluster.kubeconfig).await?;
    match held.place {
        Place::Kubeconfig => store.update(held.pair).await,
        Place::Files => Ok(()),
    }
}

/// Whether there is a certificate that has not ended.
async fn is_current(store: &Store) -> bool {
    store.pair().await.is_ok_and(|pair| pair.holds())
}

/// Waits until the certificate is to be replaced that the clients use, whatever the files hold meanwhile.
async fn wait_until_due(clients: &Clients) {
    let mut planned: Option<(Validity, Rotation)> = None;
    loop {
        let now = clock::now();
        let (validity, rotation) = match (clients.validity(), planned) {
            (None, None) => {
                tracing::warn!("until when the client certificate holds is not known: it is replaced");
                return;
            }
            // Clients that have no certificate now do not change when the one before is replaced.
            (None, Some(planned)) => planned,
            (Some(validity), Some((of, rotation))) if of == validity => (validity, rotation),
            (Some(validity), _) => (validity, Rotation::plan(validity, now, chance())),
        };
        planned = Some((validity, rotation));
        tracing::debug!(seconds = rotation.due_in(now).as_secs(), "until the client certificate is replaced");
        let Some(pause) = rotation.look_again_in(now) else { return };
        tokio::time::sleep(pause).await;
    }
}

async fn rotate(clients: &Clients, cluster: &Cluster, store: &Store) -> Result<(), CertificateError> {
    let holds = clients.validity().is_some_and(|it| !it.has_ended(Timestamp::now()));
    let asks = match &cluster.bootstrap_kubeconfig {
        Some(bootstrap) if !holds => connect(cluster, bootstrap).await?.client,
        _ => clients.get(),
    };
    let wanted = Wanted::of_client(&cluster.node.name);
    let issued = obtain(asks, &wanted, &KeyPair::generate()?, None).await?;
    store.update_at_last(issued).await?;
    clients.replace(with_current_at_last(cluster, store).await);
    tracing::info!("the client certificate was replaced");
    // One that cannot be read is due at once: it is a failure, which has a pause.
    let none = || CertificateError::Malformed(store.current().display().to_string());
    clients.validity().map(drop).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

    use rcgen::CertificateParams;
    use serde_json::{Value, json};

    use super::{store::Pair, *};
    use crate::{
        cluster::connection::tests::{Node, data},
        metrics::Metrics,
        view::View,
    };

    const LOOK: Duration = Duration::from_millis(50);
    const SOON: Duration = Duration::from_secs(30);

    /// A node without certificates whose kubeconfig has this user.
    fn node(user: Value) -> Node {
        Node::with(json!({ "server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true }), user)
    }

    #[tokio::test]
    async fn the_current_certificate_is_read_again_when_it_was_replaced() {
        let file = "pki/kubelet-client-current.pem";
        for rotates in [false, true] {
            let node = node(json!({ "client-certificate": file, "client-key": file }));
            let cluster = Cluster { rotates, ..node.cluster() };
            let store = Store::of(&cluster.cert_dir, CLIENT);
            let mut made_from = Vec::new();
            for until in [2998, 2999] {
                store.update(pair(until)).await.unwrap();
                made_from.push(connect(&cluster, &cluster.kubeconfig).await.unwrap().made_from.unwrap());
            }
            assert_ne!(made_from[0], made_from[1], "rotates: {rotates}");
        }
    }

    #[tokio::test]
    async fn what_counts_is_the_certificate_that_the_clients_use_until_they_use_the_one_that_others_wrote() {
        let file = "pki/kubelet-client-current.pem";
        let node = node(json!({ "client-certificate": file, "client-key": file }));
        let cluster = Cluster { rotates: true, ..node.cluster() };
        let store = Store::of(&cluster.cert_dir, CLIENT);
        let [before, after] = [2998, 2999].map(pair);
        let [first, second] = [&before, &after].map(|pair| pem::validity(&pair.certificates));
        store.update(before).await.unwrap();
        let clients = Clients::new(client(&cluster).await.unwrap());
        store.update(after).await.unwrap();
        assert_eq!((clients.validity(), first == second), (first, false));
        let used = async {
            while clients.validity() != second {
                tokio::time::sleep(LOOK).await;
            }
        };
        let metrics = Metrics::new("n", View::default()).unwrap();
        tokio::select! {
            () = keep(clients.clone(), cluster, metrics.in_cluster()) => panic!("it has ended"),
            used = tokio::time::timeout(SOON, used) => used.unwrap(),
        }
    }

    #[tokio::test]
    async fn a_certificate_in_files_is_replaced_by_who_keeps_them_and_that_of_a_kubeconfig_is_kept() {
        let kept = pair(2998);
        let (certificate, key) = (data(&kept.certificates), data(&kept.key));
        let in_kubeconfig = json!({ "client-certificate-data": certificate, "client-key-data": key });
        let in_files = json!({ "client-certificate": "pair.pem", "client-key": "pair.pem" });
        for (user, is_kept) in [(in_kubeconfig, true), (in_files, false)] {
            let node = node(user);
            let cluster = Cluster { rotates: true, ..node.cluster() };
            let store = Store::of(&cluster.cert_dir, CLIENT);
            let file = cluster.kubeconfig.with_file_name("pair.pem");
            let write = |it: &Pair| fs::write(&file, format!("{}{}", it.certificates, it.key)).unwrap();
            write(&kept);
            adopt(&cluster, &store).await.unwrap();
            assert_eq!(is_current(&store).await, is_kept);
            let before = client(&cluster).await.unwrap().validity.unwrap();
            write(&pair(2999));
            assert_eq!(client(&cluster).await.unwrap().validity.unwrap() == before, is_kept);
        }
    }

    /// A certificate until the beginning of a year.
    fn pair(until: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        Pair { certificates: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    #[tokio::test]
    async fn the_key_of_a_certificate_is_asked_with_again_as_long_as_that_holds() {
        let wanted = Wanted::of_client("n");
        for (until, is_again) in [(2999, true), (2001, false)] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::of(dir.path(), CLIENT);
            let pair = pair(until);
            let name = wanted.name(&KeyPair::from_pem(&pair.key).unwrap());
            store.update(pair).await.unwrap();
            let asked = wanted.name(&store.pending_key().await.unwrap());
            assert_eq!(asked == name, is_again, "until {until}");
        }
    }

    #[tokio::test]
    async fn a_key_that_waits_for_its_certificate_is_its_owners_alone_and_is_asked_with_again() {
        let dir = tempfile::tempdir().unwrap();
        let (store, wanted) = (Store::of(dir.path(), CLIENT), Wanted::of_client("n"));
        let name = wanted.name(&store.pending_key().await.unwrap());
        let mode = fs::metadata(store.pending()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = wanted.name(&store.pending_key().await.unwrap());
        assert_eq!(again, name, "another agent waits for the same request");
        store.forget_pending_key().await;
        assert!(!store.pending().exists());
        assert_ne!(wanted.name(&store.pending_key().await.unwrap()), name);
    }

    #[tokio::test]
    async fn what_is_issued_and_of_no_use_is_not_asked_for_with_the_same_key_again() {
        let (wanted, good) = (Wanted::of_client("n"), signer::Signer::of(2020, 2999));
        // No time before 1970 is understood.
        for (signer, is_used) in [
            (good.clone(), true),
            (signer::Signer::of(1960, 2999), false),
            (signer::Signer::of_another_key(), false),
        ] {
            for has_one in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let store = Store::of(&dir.path().join("pki"), CLIENT);
                if has_one {
                    store.update(pair(2999)).await.unwrap();
                }
                let name = wanted.name(&store.pending_key().await.unwrap());
                let first = obtain_first(signer.clients().get(), &wanted, &store).await;
                assert_eq!((first.is_ok(), store.pending().exists()), (is_used, !is_used), "{first:?}");
                let next = wanted.name(&store.pending_key().await.unwrap());
                assert_eq!(next == name, is_used, "{first:?}");
                if !is_used {
                    obtain_first(good.clients().get(), &wanted, &store).await.unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn a_certificate_that_was_replaced_is_used_as_soon_as_the_kubeconfig_can_be_read() {
        let node = node(json!({}));
        let cluster = node.cluster();
        let store = Store::of(&cluster.cert_dir, CLIENT);
        let signer = signer::Signer::of(2020, 2999);
        let clients = signer.clients();
        let text = fs::read_to_string(&cluster.kubeconfig).unwrap();
        fs::write(&cluster.kubeconfig, &text[..text.len() / 2]).unwrap();
        let written = async {
            while !store.current().exists() {
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(again_after(1) / 4).await;
            assert!(clients.made_from().is_none());
            fs::write(&cluster.kubeconfig, text).unwrap();
        };
        let rotated = async { tokio::join!(rotate(&clients, &cluster, &store), written).0 };
        tokio::time::timeout(SOON, rotated).await.unwrap().unwrap();
        assert!(clients.made_from().is_some());
        assert_eq!(signer.asked(), 1);
    }

    #[tokio::test]
    async fn what_is_issued_for_ever_is_used_and_what_nobody_understands_is_not() {
        // No time before 1970 is understood.
        for (from, until, is_used) in [(2020, 2999, true), (2020, 9999, true), (1960, 2999, false)] {
            let node = node(json!({}));
            let cluster = node.cluster();
            let store = Store::of(&cluster.cert_dir, CLIENT);
            let signer = signer::Signer::of(from, until);
            let rotated = rotate(&signer.clients(), &cluster, &store).await;
            assert_eq!((rotated.is_ok(), is_current(&store).await), (is_used, is_used), "{from} {until}");
            assert_eq!(signer.asked(), 1);
        }
    }
}
