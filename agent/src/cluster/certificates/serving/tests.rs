use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use super::*;
use crate::{cluster::certificates::signer::Signer, metrics::Metrics, view::View};

const SOON: Duration = Duration::from_secs(10);

type Server = watch::Receiver<Option<Arc<CertifiedKey>>>;

/// Waits until the server presents another certificate than this one.
async fn other(server: &mut Server, than: Option<&[u8]>) -> Vec<u8> {
    let der = |now: &Option<Arc<CertifiedKey>>| now.as_ref().map(|it| it.cert[0].to_vec());
    let now = server.wait_for(|now| now.is_some() && der(now).as_deref() != than);
    let now = tokio::time::timeout(SOON, now).await.unwrap().unwrap().clone();
    der(&now).unwrap()
}

fn begun(source: ServingCertificate) -> (tokio::task::JoinHandle<()>, Server) {
    let (presented, server) = watch::channel(None);
    (tokio::spawn(async move { serve(source, "node-1", None, presented).await }), server)
}

#[tokio::test]
async fn one_is_made_where_none_is_given_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pki");
    let files = ["kubelet.crt", "kubelet.key"].map(|name| dir.join(name));
    let mut last = None;
    for _ in 0..2 {
        let (task, mut server) = begun(ServingCertificate::SelfSigned { dir: dir.clone() });
        let presented = other(&mut server, None).await;
        task.abort();
        let modes = files.clone().map(|file| fs::metadata(file).unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o644, 0o600]);
        let told = pem::told(&fs::read_to_string(&files[0]).unwrap()).unwrap();
        assert!(told.subject.names.dns.contains("node-1") && told.subject.common_name.starts_with("node-1@"));
        let life = told.validity.not_after.duration_since(told.validity.not_before);
        assert_eq!(life.as_secs(), 365 * 24 * 3600);
        assert!(last.is_none_or(|last| last == presented), "the next agent makes none");
        last = Some(presented);
    }
}

#[tokio::test]
async fn one_that_is_over_is_made_again_and_what_others_left_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["kubelet.crt", "kubelet.key"].map(|name| dir.path().join(name));
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    fs::write(&files[0], params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    let made = look(&files[0], &files[1], Some("node-1")).await.unwrap();
    assert_ne!(made.key, key.serialize_pem());
    // What keeps the next key from being written, a kill as much as a full disk, leaves no certificate of another one.
    let no_file = dir.path().join("directory");
    fs::create_dir(&no_file).unwrap();
    write(&files[0], &no_file, made).await.unwrap_err();
    assert!(!files[0].exists());
    look(&files[0], &files[1], Some("node-1")).await.unwrap();
    // A certificate without its key is somebody's.
    fs::remove_file(&files[1]).unwrap();
    look(&files[0], &files[1], Some("node-1")).await.err().unwrap();
    fs::write(&files[0], "x").unwrap();
    fs::write(&files[1], "x").unwrap();
    look(&files[0], &files[1], Some("node-1")).await.err().unwrap();
    assert_eq!(fs::read_to_string(&files[0]).unwrap(), "x");
}

fn write_pair(dir: &Path, pair: &Pair) -> [PathBuf; 2] {
    let files = [dir.join("tls.crt"), dir.join("tls.key")];
    fs::write(&files[0], &pair.certificates).unwrap();
    fs::write(&files[1], &pair.key).unwrap();
    files
}

#[tokio::test]
async fn files_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [(); 2].map(|()| self_signed("node-1").unwrap());
    let [certificate, key] = write_pair(dir.path(), &first);
    let (presented, mut server) = watch::channel(None);
    let (every, at) = (Duration::from_millis(10), certificate.clone());
    let task = tokio::spawn(async move { follow(&at, &key, None, every, &presented).await });
    let shown = other(&mut server, None).await;
    write_pair(dir.path(), &second);
    assert_ne!(other(&mut server, Some(&shown)).await, shown);
    task.abort();
}

#[tokio::test]
async fn what_is_half_there_is_not_presented() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [(); 2].map(|()| self_signed("node-1").unwrap());
    let [certificate, key] = write_pair(dir.path(), &first);
    look(&certificate, &key, None).await.unwrap();
    // The next key is not there yet.
    fs::write(&certificate, &second.certificates).unwrap();
    let refused = look(&certificate, &key, None).await.err().unwrap();
    assert!(matches!(refused, CertificateError::Unusable { .. }), "{refused}");
    fs::remove_file(&certificate).unwrap();
    look(&certificate, &key, None).await.err().unwrap();
}

#[test]
fn the_addresses_of_a_node_are_what_is_asked_for() {
    let addresses = [("InternalIP", "10.0.0.1"), ("Hostname", "node-1")];
    let addresses = addresses.map(|(kind, text)| (kind.to_owned(), text.to_owned()));
    let subject = wanted("node-1", &addresses).unwrap();
    assert_eq!(subject.common_name, "system:node:node-1");
    assert_eq!(subject.names.dns.len() + subject.names.ips.len(), 2);
    assert_eq!(wanted("node-1", &addresses[1..]), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_issued_and_not_presented_is_asked_for_again_after_a_pause() {
    // No time before 1970 is understood.
    for (from, until, is_presented) in [(2020, 2999, true), (2020, 9999, true), (1960, 2999, false)] {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::of(from, until);
        let metrics = Metrics::new("n", View::default()).unwrap();
        let address = ("InternalIP".to_owned(), "10.0.0.1".to_owned());
        let (_node, addresses) = watch::channel(vec![address]);
        let asking = Asking { clients: signer.clients(), addresses, measured: metrics.in_cluster() };
        let (presented, server) = watch::channel(None);
        let store = Store::of(dir.path(), SERVER);
        let asked = ask(&store, "node-1", asking, &presented);
        tokio::time::timeout(again_after(1) / 2, asked).await.unwrap_err();
        assert_eq!(server.borrow().is_some(), is_presented, "{from} {until}");
        assert_eq!(signer.asked(), 1, "{from} {until}");
        let failures = u8::from(!is_presented);
        let text = metrics.text();
        let line = format!("kubelet_server_expiration_renew_errors {failures}\n");
        assert!(text.contains(&line), "{from} {until}: {text}");
        let ends = server.borrow().as_ref().and_then(|now| Some(validity(now)?.not_after.to_string()));
        assert_eq!(ends.is_some(), is_presented, "{ends:?}");
    }
}
