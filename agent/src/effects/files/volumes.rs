//! Volumes of pods.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use berth_core::{
    config::NodeConfig,
    derived::content::nested_mount_points,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    paths,
    pod::port::volume::{NoPages, VolumeRequest},
    spec::{HostPathType, VolumeSource},
};

use super::{
    claims,
    failure::{config, failed},
    host::Host,
    work::{Called, FILES, PATH, TREE, Work},
};
use crate::{
    objects::{self, ObjectError, Objects},
    volumes::{self, ContentFile, EmptyDir, VolumeError},
    workers::Sort,
};

/// Content that is written within the time for a few files. What is larger waits for its turn among others as large.
const FEW_BYTES: usize = 1 << 20;

/// What is to be done for a volume.
#[derive(Debug)]
struct Asked {
    path: String,
    /// By whom, within what time. Nothing where nothing is looked at, so that nothing can hang.
    work: Option<(Sort, Duration, Work)>,
    /// When its content is to be made anew though nothing has changed.
    again_in: Option<Duration>,
}

impl Asked {
    /// What has come of it, when it is done.
    fn done(self) -> Outcome {
        Outcome::Volume { path: self.path, again_in: self.again_in }
    }
}

/// Makes and mounts one volume.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: VolumeRequest,
) -> Result<Outcome, Failure> {
    if let VolumeSource::Claim(claim) = &request.volume.source {
        let outcome = claims::ensure(host, pod, &request, claim).await?;
        made(host);
        return Ok(outcome);
    }
    let what = format!("volume {}", request.volume.name);
    let is_content = matches!(request.volume.source, VolumeSource::Content(_));
    let asked = asked(&host.objects, host.node(), pod, request).await?;
    if is_content {
        host.failpoint.reach("content.gathered");
    }
    if let Some((sort, within, work)) = &asked.work {
        let called = Called { what: &what, path: &asked.path, sort: *sort, within: *within };
        host.work(pod.as_str(), called, work).await?;
        made(host);
    }
    if is_content {
        host.failpoint.reach("content.written");
    }
    Ok(asked.done())
}

fn made(host: &Host) {
    host.failpoint.reach("volume.directory-made");
}

/// Reads what a volume shows, and says what is to be done for it.
async fn asked(
    objects: &Objects,
    node: &NodeConfig,
    pod: &PodUid,
    request: VolumeRequest,
) -> Result<Asked, Failure> {
    let VolumeRequest { pod: spec, volume, fs_group, backing, .. } = request;
    let backing = backing.map_err(|error: NoPages| failed(FailureKind::Config, &error))?;
    let mut again_in = None;
    let path = paths::volume(&node.paths, pod, &volume.name, &volume.source);
    let path = path.ok_or_else(|| config("nobody has asked for its claim"))?;
    let work = match &volume.source {
        VolumeSource::HostPath { kind: HostPathType::Unset, .. } => None,
        VolumeSource::Claim(_) | VolumeSource::Image { .. } => {
            return Err(config("nobody has looked for what it is made of"));
        }
        VolumeSource::HostPath { kind, .. } => {
            Some((Sort::Chosen, PATH, Work::HostPath { path: path.clone(), kind: (*kind).into() }))
        }
        VolumeSource::EmptyDir { .. } => {
            let empty = EmptyDir { backing, fs_group };
            let within = if fs_group.is_some() { TREE } else { FILES };
            let mark = paths::empty_dir_ready(&node.paths, pod, &volume.name);
            Some((Sort::Own, within, Work::EmptyDir { path: path.clone(), mark, request: empty.into() }))
        }
        VolumeSource::Content(content) => {
            let empty = EmptyDir { backing, fs_group };
            let gathered = objects::gather(objects, node, &spec, content).await;
            let payload = gathered.map_err(|error| missing(&error))?;
            again_in = payload.again_in;
            let mark = paths::content_ready(&node.paths, pod, &volume.name);
            let nested = nested_mount_points(&spec, &volume.name);
            let files = payload.files;
            let size: usize = files.iter().map(|file| file.bytes.len()).sum();
            let within = if size > FEW_BYTES { TREE } else { FILES };
            let work = Work::Content { path: path.clone(), mark, request: empty.into(), files, nested };
            Some((Sort::Own, within, work))
        }
    };
    Ok(Asked { path, work, again_in })
}

/// What a volume shows may come, or come back: its objects are watched.
fn missing(error: &ObjectError) -> Failure {
    failed(FailureKind::Transient, error)
}

/// Unmounts and removes all volumes of a pod, and the parts of them that were bound for containers.
pub(in crate::effects) async fn remove_all(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    let dir = host.pod_dir(pod);
    let called = Called { what: "removal of volumes", path: &dir, sort: Sort::Ends, within: TREE };
    host.work(pod.as_str(), called, &Work::Unmount(dir.clone())).await?;
    host.failpoint.reach("volumes.unmounted");
    let trees = ["volume-subpaths", "volumes"].map(|below| format!("{dir}/{below}")).to_vec();
    host.work(pod.as_str(), called, &Work::Remove(trees)).await?;
    Ok(Outcome::Done)
}

/// In a worker: makes an emptyDir.
pub(in crate::effects) fn empty_dir(path: &str, mark: &str, request: EmptyDir) -> Result<(), Failure> {
    volumes::ensure_empty_dir(Path::new(path), Path::new(mark), &request).map_err(failure)
}

/// In a worker: makes a volume with content, or exchanges what is in it.
pub(in crate::effects) fn content(
    path: &str,
    mark: &str,
    request: EmptyDir,
    files: &[ContentFile],
    nested: &BTreeSet<String>,
) -> Result<(), Failure> {
    volumes::ensure_empty_dir(Path::new(path), Path::new(mark), &request).map_err(failure)?;
    volumes::write_content(Path::new(path), files, nested, request.fs_group).map_err(failure)
}

/// In a worker: looks at a hostPath, or makes it.
pub(in crate::effects) fn host_path(path: &str, kind: HostPathType) -> Result<(), Failure> {
    volumes::ensure_host_path(Path::new(path), kind).map_err(failure)
}

pub(in crate::effects) fn failure(error: VolumeError) -> Failure {
    let kind = match &error {
        VolumeError::WrongType { .. }
        | VolumeError::WrongPath { .. }
        | VolumeError::NoSuchPath { .. }
        | VolumeError::NoDirectory { .. }
        | VolumeError::FileSystemOfDevice { .. }
        | VolumeError::NoBlockDevice { .. }
        | VolumeError::InUse => FailureKind::Config,
        VolumeError::BeingGiven { .. } | VolumeError::Io { .. } => FailureKind::Transient,
    };
    failed(kind, &error)
}

#[cfg(test)]
mod tests {
    use berth_core::{pod::port::volume::Backing, spec::Source};
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        config::tests::{facts, load_text},
        manifest::pod_from_json,
        objects::fake::Fake,
    };

    async fn asked_for(server: &Fake, source: Value) -> Asked {
        let (sender, _events) = mpsc::channel(8);
        let objects = Objects::new(server.clients(), sender);
        let config = load_text("", &[]).unwrap().resolve(&facts()).unwrap();
        let mut volume = source;
        volume["name"] = json!("v");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {"serviceAccountName": "web", "volumes": [volume], "containers": [{"name": "c", "image": "i"}]},
        });
        let pod = pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"));
        let volume = pod.volumes[0].clone();
        let (uid, backing) = (pod.uid.clone(), Ok(Backing::Disk));
        let request = VolumeRequest { pod, volume, fs_group: None, backing, image: None, ids: None };
        asked(&objects, &config.node, &uid, request).await.unwrap()
    }

    #[tokio::test]
    async fn a_volume_with_a_token_is_made_anew_before_that_ends_and_no_other_is() {
        let server = Fake::default();
        server.put("/api/v1/namespaces/shop/configmaps", "m", json!({"data": {"a": "1"}}));
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}});
        let map = json!({"configMap": {"name": "m"}});
        // At four fifths of its life, and a few seconds before that.
        let due = |outcome: &Outcome| {
            let Outcome::Volume { again_in, .. } = outcome else { panic!("{outcome:?}") };
            again_in.map(|time| (2870..=2880).contains(&time.as_secs()))
        };
        for (source, expected) in [
            (json!({"projected": {"sources": [token, map]}}), Some(true)),
            (map, None),
            (json!({"emptyDir": {}}), None),
            (json!({"hostPath": {"path": "/p"}}), None),
        ] {
            let outcome = asked_for(&server, source.clone()).await.done();
            assert_eq!(due(&outcome), expected, "{source}: {outcome:?}");
        }
    }
}
