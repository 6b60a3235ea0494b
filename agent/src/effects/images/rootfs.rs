//! Writable layers of containers, and the account files of their images.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::BorrowedFd,
    sync::Arc,
};

use berth_core::{
    event::Outcome,
    failure::Failure,
    id::{ContainerId, PodUid},
    oci::Accounts,
    pod::port::rootfs::RootfsRequest,
};
use containerd_client::types::Mount;
use rustix::fs::OFlags;
use tonic::Request;

use super::{
    failure::{config, local, unknown},
    files::work::{Answer, Called, FILES, Work},
    host::Host,
    image_root::{open_in, with_root},
    layers::FreshLayers,
    snapshot::{self, Prepared, Snapshot, prepare},
};
use crate::{
    runtime::{
        CallError, Containerd,
        labels::{GC_ROOT, POD_UID, RUN_DIR},
    },
    workers::Sort,
};

/// Largest account file that is read (CVE-2025-4437, CVE-2026-47262). Distributions' own are below 4 KiB.
const FILE_MAX: u64 = 1 << 20;

/// Prepares a container's layer, or finds it.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: &RootfsRequest,
) -> Result<Outcome, Failure> {
    // Until there is a container record nothing refers to the snapshot, and containerd's garbage collection would take
    // it. The label keeps it; it goes with the snapshot.
    let run_dir = host.node().paths.run.clone();
    let labels = [(GC_ROOT, "berth".to_owned()), (POD_UID, pod.to_string()), (RUN_DIR, run_dir)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
    let snapshotter = host.settings().snapshotter.clone();
    let snapshot = Snapshot {
        snapshotter: &snapshotter,
        key: request.id.as_str(),
        parent: &request.image.chain_id,
        ids: request.ids,
        labels,
    };
    let mounts = match prepare(host, "prepare root file system", snapshot, Request::new).await? {
        Prepared::New(mounts) => {
            host.fresh_layers.keep(&request.id, &snapshotter, &mounts);
            mounts
        }
        Prepared::Found => {
            host.fresh_layers.forget(&request.id);
            mounts(host, &request.id).await?
        }
    };
    Ok(Outcome::Rootfs(accounts(host, pod, request, &mounts).await?))
}

/// How a container's layer is mounted.
pub(in crate::effects) async fn mounts(host: &Host, id: &ContainerId) -> Result<Vec<Mount>, Failure> {
    Ok(ask(&host.containerd, &host.settings().snapshotter, id).await?)
}

/// How a container's layer is mounted for a start.
#[derive(Debug, PartialEq)]
pub(in crate::effects) enum Layer {
    /// It was just made, and never mounted.
    Fresh(Vec<Mount>),
    /// A start may have mounted it.
    Used(Vec<Mount>),
}

/// What a start takes. It leaves no layer fresh, whatever becomes of it.
pub(in crate::effects) async fn to_start(host: &Host, id: &ContainerId) -> Result<Layer, Failure> {
    let snapshotter = host.settings().snapshotter.clone();
    Ok(taken_or_asked(&host.fresh_layers, &host.containerd, &snapshotter, id).await?)
}

async fn taken_or_asked(
    fresh: &FreshLayers,
    containerd: &Containerd,
    snapshotter: &str,
    id: &ContainerId,
) -> Result<Layer, CallError> {
    match fresh.take(id, snapshotter) {
        Some(mounts) => Ok(Layer::Fresh(mounts)),
        None => ask(containerd, snapshotter, id).await.map(Layer::Used),
    }
}

async fn ask(containerd: &Containerd, snapshotter: &str, id: &ContainerId) -> Result<Vec<Mount>, CallError> {
    snapshot::mounts(containerd, "find root file system", snapshotter, id.as_str()).await
}

async fn accounts(
    host: &Host,
    pod: &PodUid,
    request: &RootfsRequest,
    mounts: &[Mount],
) -> Result<Arc<Accounts>, Failure> {
    let chain_id = &request.image.chain_id;
    if let Some(known) = host.accounts.get(chain_id) {
        return Ok(known);
    }
    let what = format!("account files for {}", request.id);
    let scratch = format!("{}/image", host.node().paths.run);
    let path = request.image.name.clone();
    let work = Work::Accounts { layers: mounts.iter().map(Into::into).collect(), scratch };
    let called = Called { what: &what, path: &path, sort: Sort::Own, within: FILES };
    let Answer::Accounts { passwd, group } = host.work(pod.as_str(), called, &work).await? else {
        return Err(unknown(format!("{what}: an answer to another request")));
    };
    let accounts = Arc::new(Accounts { passwd, group });
    host.accounts.put(chain_id.clone(), &accounts);
    Ok(accounts)
}

/// In a worker: reads the account files of an image.
pub(in crate::effects) fn read_accounts(mounts: &[Mount], scratch: &str) -> Result<Answer, Failure> {
    let read =
        with_root(mounts, scratch.as_ref(), |root| Ok([read(root, "etc/passwd")?, read(root, "etc/group")?]));
    let [passwd, group] = read.map_err(local("read the account files of an image at", scratch))?;
    Ok(Answer::Accounts { passwd: passwd.checked()?, group: group.checked()? })
}

/// An account file as it was found.
enum AccountFile {
    Text(String),
    TooLarge(&'static str),
}

impl AccountFile {
    fn checked(self) -> Result<String, Failure> {
        match self {
            Self::Text(text) => Ok(text),
            Self::TooLarge(path) => {
                Err(config(format!("read /{path} of the image: it is larger than {FILE_MAX} bytes")))
            }
        }
    }
}

/// Reads a regular file of an image. What is missing, or is no file, is empty. Anything else that a hostile image could
/// have there, such as a pipe, must not make the reader wait.
fn read(root: BorrowedFd<'_>, path: &'static str) -> io::Result<AccountFile> {
    let file = match open_in(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        Ok(file) => File::from(file),
        Err(_) => return Ok(AccountFile::Text(String::new())),
    };
    if !file.metadata()?.is_file() {
        return Ok(AccountFile::Text(String::new()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Ok(AccountFile::TooLarge(path));
    }
    Ok(AccountFile::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use containerd_client::services::v1::snapshots::MountsResponse;
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;
    use crate::runtime::fake::{Ending, Fake};

    #[tokio::test]
    async fn a_second_start_asks_how_its_layer_is_mounted() {
        let mounts = |source: &str| vec![Mount { source: source.to_owned(), ..Mount::default() }];
        let fake = Fake::answering(&[MountsResponse { mounts: mounts("asked") }], Ending::Whole).await;
        let (fresh, id) = (FreshLayers::default(), ContainerId::from_known("c1"));
        fresh.keep(&id, "overlayfs", &mounts("made"));
        for expected in [Layer::Fresh(mounts("made")), Layer::Used(mounts("asked"))] {
            let layer = taken_or_asked(&fresh, &fake.containerd, "overlayfs", &id).await;
            assert_eq!(layer.unwrap(), expected);
        }
    }

    fn text(root: &std::path::Path) -> Option<String> {
        let root = File::open(root).unwrap();
        match read(root.as_fd(), "etc/passwd").unwrap() {
            AccountFile::Text(text) => Some(text),
            AccountFile::TooLarge(_) => None,
        }
    }

    #[test]
    fn cve_2025_4437_a_huge_account_file_is_refused_and_a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let passwd = dir.path().join("etc/passwd");
        assert_eq!(text(dir.path()).as_deref(), Some(""));
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        mkfifo(&passwd, Mode::from_bits_truncate(0o644)).unwrap();
        assert_eq!(text(dir.path()).as_deref(), Some(""));
        std::fs::remove_file(&passwd).unwrap();
        std::fs::write(&passwd, "root:x:0:0::/:/bin/sh\n").unwrap();
        assert_eq!(text(dir.path()).as_deref(), Some("root:x:0:0::/:/bin/sh\n"));
        File::create(&passwd).unwrap().set_len(FILE_MAX + 1).unwrap();
        assert_eq!(text(dir.path()), None);
    }

    #[test]
    fn cve_2024_5154_a_link_in_etc_reads_the_image_not_the_node() {
        use std::os::unix::fs::symlink;
        let node = tempfile::tempdir().unwrap();
        std::fs::write(node.path().join("passwd"), "the node's").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path().join("etc");
        symlink("/etc", &etc).unwrap();
        assert_eq!(text(dir.path()).as_deref(), Some(""));
        std::fs::remove_file(&etc).unwrap();
        symlink(node.path(), &etc).unwrap();
        assert_eq!(text(dir.path()).as_deref(), Some(""), "a path of the node that the image has not");
        let same = dir.path().join(node.path().strip_prefix("/").unwrap());
        std::fs::create_dir_all(&same).unwrap();
        std::fs::write(same.join("passwd"), "the image's").unwrap();
        assert_eq!(text(dir.path()).as_deref(), Some("the image's"), "the link is followed in the image");
    }
}
