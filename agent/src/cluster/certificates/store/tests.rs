use std::{os::unix::fs::MetadataExt as _, time::Duration};

use rcgen::CertificateParams;

use super::*;

fn pair() -> Pair {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap();
    Pair { certificates: certificate.pem().replace('\r', ""), key: key.serialize_pem().replace('\r', "") }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_current_one_is_a_link_to_a_file_of_the_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(&dir.path().join("pki"), "kubelet-server");
    store.pair().await.err().unwrap();
    let mut files = Vec::new();
    for pair in [pair(), pair()] {
        store.update(pair.clone()).await.unwrap();
        let held = store.pair().await.unwrap();
        assert_eq!((held.certificates, held.key), (pair.certificates, pair.key));
        let file = fs::read_link(store.current()).unwrap();
        assert!(file.is_absolute() && mode(&file) == 0o600, "{}", file.display());
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let time = name.strip_prefix("kubelet-server-").unwrap().strip_suffix(".pem").unwrap();
        assert_eq!(time.split('-').map(str::len).collect::<Vec<_>>(), [4, 2, 2, 2, 2, 2], "{name}");
        files.push(file);
    }
    let names: Vec<_> =
        fs::read_dir(dir.path().join("pki")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(names.iter().all(|path| files.contains(path) || *path == store.current()), "{names:?}");
}

#[tokio::test]
async fn a_change_that_was_cut_off_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path(), "kubelet-client");
    store.update(pair()).await.unwrap();
    fs::rename(store.current(), dir.path().join("kubelet-client-updated.pem")).unwrap();
    store.pair().await.unwrap();
    assert!(store.current().is_symlink());
}

#[tokio::test]
async fn what_is_of_another_key_leaves_the_current_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path(), "kubelet-client");
    let first = pair();
    store.update(first.clone()).await.unwrap();
    let foreign = Pair { key: pair().key, ..pair() };
    let refused = store.update(foreign).await.unwrap_err();
    assert!(matches!(refused, CertificateError::Unusable { .. }), "{refused}");
    assert_eq!(store.pair().await.unwrap().key, first.key);
}

#[tokio::test]
async fn what_was_issued_is_written_as_soon_as_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("pki");
    let store = Store::of(&place, "kubelet-client");
    // Nothing can be made there, as on a full disk.
    fs::write(&place, "").unwrap();
    let issued = pair();
    store.update(issued.clone()).await.unwrap_err();
    let room = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        fs::remove_file(&place).unwrap();
    };
    let (written, ()) = tokio::join!(store.update_at_last(issued.clone()), room);
    written.unwrap();
    assert_eq!(store.pair().await.unwrap().key, issued.key);
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_cannot_become_the_current_one_leaves_nothing_however_often_it_is_tried() {
    for in_the_way in ["kubelet-client-updated.pem", "kubelet-client-current.pem"] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::of(dir.path(), "kubelet-client");
        fs::create_dir(dir.path().join(in_the_way)).unwrap();
        store.update(pair()).await.unwrap_err();
        assert_eq!(names(dir.path()), [in_the_way]);
        let issued = pair();
        let room = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            fs::remove_dir(dir.path().join(in_the_way)).unwrap();
        };
        let (written, ()) = tokio::join!(store.update_at_last(issued.clone()), room);
        written.unwrap();
        assert_eq!(store.pair().await.unwrap().key, issued.key);
        assert_eq!(names(dir.path()).len(), 2, "a file, and the link to it");
    }
}

#[tokio::test]
async fn what_is_the_current_one_already_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path(), "kubelet-client");
    let (first, second) = (pair(), pair());
    let mut files = Vec::new();
    for pair in [&first, &first, &second] {
        store.update_at_last(pair.clone()).await.unwrap();
        assert_eq!(store.pair().await.unwrap().key, pair.key);
        files.push(fs::metadata(store.current()).unwrap().ino());
    }
    assert_eq!((files[0] == files[1], files[1] == files[2]), (true, false));
}

#[test]
fn a_file_that_cannot_be_written_leaves_no_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("directory");
    fs::create_dir(&path).unwrap();
    write(&path, "key", 0o600).unwrap_err();
    assert_eq!(names(dir.path()), ["directory"]);
}

#[test]
fn a_file_is_written_whole_and_with_its_mode_whatever_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "before").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(dir.path().join("file.part"), "left").unwrap();
    write(&file, "now", 0o600).unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("now", 0o600));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
