//! Writable layers of containers, and the account files of their images.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::fd::BorrowedFd,
    sync::Arc,
    time::Duration,
};

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, PodUid},
    oci::Accounts,
    pod::port::rootfs::RootfsRequest,
    users::HostIds,
};
use containerd_client::{
    services::v1::snapshots::{MountsRequest, PrepareSnapshotRequest},
    types::Mount,
};
use rustix::fs::OFlags;

use super::{
    failure::{config, failed, local, unknown},
    files::work::{Answer, Called, FILES, Work},
    host::Host,
    image_root::{open_in, with_root},
    layers::FreshLayers,
};
use crate::{
    runtime::{
        CallError, Containerd, REMAP_IDS,
        labels::{GC_ROOT, GID_MAPPING, POD_UID, UID_MAPPING},
        shifts_owners,
    },
    workers::Sort,
};

/// What containerd gets to tell of a snapshotter, which it does from memory.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// Largest account file that is read (CVE-2025-4437, CVE-2026-47262). Distributions' own are below 4 KiB.
const FILE_MAX: u64 = 1 << 20;

/// Prepares a container's layer, or finds it.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: &RootfsRequest,
) -> Result<Outcome, Failure> {
    let id = request.id.as_str();
    // Until there is a container record nothing refers to the snapshot, and containerd's garbage collection would take
    // it. The label keeps it; it goes with the snapshot.
    let mut labels =
        HashMap::from([(GC_ROOT.to_owned(), "berth".to_owned()), (POD_UID.to_owned(), pod.to_string())]);
    let snapshotter = host.settings().snapshotter.clone();
    if let Some(HostIds { first, count }) = request.ids {
        can_shift_owners(host, &snapshotter).await?;
        let map = format!("0:{first}:{count}");
        labels.extend([UID_MAPPING, GID_MAPPING].map(|label| (label.to_owned(), map.clone())));
    }
    let prepare = PrepareSnapshotRequest {
        snapshotter: snapshotter.clone(),
        key: id.to_owned(),
        parent: request.image.chain_id.clone(),
        labels,
    };
    let mut client = host.containerd.snapshots();
    let mounts = match host.containerd.call("prepare root file system", id, client.prepare(prepare)).await {
        Ok(answer) => {
            host.fresh_layers.keep(&request.id, &snapshotter, &answer.mounts);
            answer.mounts
        }
        Err(error) if error.is_already_exists() => {
            host.fresh_layers.forget(&request.id);
            mounts(host, &request.id).await?
        }
        Err(error) => return Err(not_prepared(error)),
    };
    Ok(Outcome::Rootfs(accounts(host, pod, request, &mounts).await?))
}

/// Whether a snapshotter has a layer's files belong to others, without a copy of the image for each pod.
async fn can_shift_owners(host: &Host, snapshotter: &str) -> Result<(), Failure> {
    if shifts_owners(&host.containerd, snapshotter, ASKED_WITHIN).await? {
        return Ok(());
    }
    Err(config(format!(
        "prepare root file system of a pod with a user namespace: snapshotter {snapshotter} cannot shift owners \
        (capability {REMAP_IDS}); overlayfs can since Linux 5.19"
    )))
}

/// What containerd does not find is the image's layers: somebody removed the image since it was looked at.
fn not_prepared(error: CallError) -> Failure {
    if error.is_not_found() { failed(FailureKind::LayersGone, &error) } else { error.into() }
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
    let request = MountsRequest { snapshotter: snapshotter.to_owned(), key: id.to_string() };
    let mut client = containerd.snapshots();
    let answer = containerd.call("find root file system", id.as_str(), client.mounts(request)).await?;
    Ok(answer.mounts)
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
    use tonic::Code;

    use super::*;
    use crate::runtime::{
        Cause,
        fake::{Ending, Fake},
    };

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

    #[test]
    fn layers_that_containerd_does_not_find_are_gone() {
        for (code, kind) in
            [(Code::NotFound, FailureKind::LayersGone), (Code::Internal, FailureKind::Transient)]
        {
            let cause = Cause::Refused { code, message: "parent snapshot x".to_owned() };
            assert_eq!(not_prepared(CallError::new("prepare", "c1", cause)).kind, kind);
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
