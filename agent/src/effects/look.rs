//! The look: whether what was made for a pod is still there, and as it was made. Nothing is changed and nobody is asked: at
//! the kernel this process looks, at files a worker, at all of a pod's in one piece of work.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use berth_core::{
    config::Paths,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    oci::HostFile,
    paths,
    pod::port::look::{Finding, LookRequest},
    spec::{Medium, VolumeSource},
};

use super::{
    cgroups,
    failure::{failed, local, unknown},
    files::{
        dirs,
        wire::{Place, PlaceKind},
        work::{Answer, Called, FILES, Work},
    },
    host::{Host, blocking},
};
use crate::{netns, volumes::is_mount_point, workers::Sort};

/// Looks at a pod.
pub(super) async fn look(host: &Arc<Host>, pod: &PodUid, request: LookRequest) -> Result<Outcome, Failure> {
    let (findings, places): (Vec<Finding>, Vec<Place>) =
        places(&host.node().paths, pod, &request).into_iter().unzip();
    let mut found = at_kernel(host, pod, request).await?;
    if !places.is_empty() {
        let dir = host.pod_dir(pod);
        let called = Called { what: "look", path: &dir, sort: Sort::Own, within: FILES };
        let Answer::Missing(missing) = host.work(pod.as_str(), called, &Work::Look(places)).await? else {
            return Err(unknown("look: an answer to another request"));
        };
        found.extend(missing.into_iter().filter_map(|index| findings.get(index).cloned()));
    }
    Ok(Outcome::Looked(found))
}

/// Writes the files of a pod that are missing.
pub(super) async fn write_files(
    host: &Arc<Host>,
    pod: &PodUid,
    files: &[HostFile],
) -> Result<Outcome, Failure> {
    let dir = host.pod_dir(pod);
    let called = Called { what: "files", path: &dir, sort: Sort::Own, within: FILES };
    host.work(pod.as_str(), called, &Work::WriteFiles(files.iter().map(Into::into).collect())).await?;
    Ok(Outcome::Done)
}

/// What to look for in directories of the node, and what it means when it is missing.
fn places(node: &Paths, pod: &PodUid, request: &LookRequest) -> Vec<(Finding, Place)> {
    let place = |path: String, kind| Place { path, kind };
    let dirs = request.dirs.iter().flat_map(|name| dirs::of(node, pod, name));
    let dirs = dirs.map(|(dir, _mode)| (Finding::Dirs, place(dir, PlaceKind::Directory)));
    let mark =
        request.dirs.iter().map(|_name| (Finding::Dirs, place(paths::pod_mark(node, pod), PlaceKind::Link)));
    let volumes = request.volumes.iter().filter_map(|volume| {
        let path = paths::volume(node, pod, &volume.name, &volume.source)?;
        let kind = match &volume.source {
            VolumeSource::EmptyDir { medium, .. } => kind_of(*medium),
            VolumeSource::Content(content) => kind_of(content.kind.medium()),
            VolumeSource::HostPath { .. } => PlaceKind::Directory,
            VolumeSource::Claim(_) | VolumeSource::Image { .. } => PlaceKind::Mount,
        };
        Some((Finding::Volume(volume.name.clone()), place(path, kind)))
    });
    let bound = request.bound.iter();
    let bound =
        bound.map(|(name, path)| (Finding::Volume(name.clone()), place(path.clone(), PlaceKind::Mount)));
    let files = request.files.iter().map(|file| (Finding::Files, place(file.clone(), PlaceKind::File)));
    dirs.chain(mark).chain(volumes).chain(bound).chain(files).collect()
}

fn kind_of(medium: Medium) -> PlaceKind {
    match medium {
        Medium::Memory | Medium::HugePages(_) => PlaceKind::Mount,
        Medium::Disk => PlaceKind::Directory,
    }
}

async fn at_kernel(
    host: &Arc<Host>,
    pod: &PodUid,
    request: LookRequest,
) -> Result<BTreeSet<Finding>, Failure> {
    let level = request.cgroup.map(|cgroup| cgroups::level_of(host, pod, cgroup));
    let namespace = request.netns.map(|sandbox| paths::netns(&sandbox));
    let host = Arc::clone(host);
    blocking(move || {
        let mut found = BTreeSet::new();
        if namespace.is_some_and(|path| !netns::is_namespace(Path::new(&path))) {
            found.insert(Finding::Netns);
        }
        if let Some(level) = level
            && !level.is_kept(&host.cgroups).map_err(|error| failed(FailureKind::Transient, &error))?
        {
            found.insert(Finding::Cgroup);
        }
        Ok(found)
    })
    .await
}

/// In a worker: which of them are missing, or something else.
pub(super) fn missing(places: &[Place]) -> Result<Answer, Failure> {
    let mut missing = Vec::new();
    for (index, Place { path, kind }) in places.iter().enumerate() {
        let there = fs::symlink_metadata(path).ok();
        let is_right = match kind {
            PlaceKind::Directory => there.is_some_and(|found| found.is_dir()),
            PlaceKind::File => there.is_some_and(|found| found.is_file()),
            PlaceKind::Link => there.is_some_and(|found| found.is_symlink()),
            PlaceKind::Mount => is_mount_point(path.as_ref()).map_err(local("look at", path))?,
        };
        if !is_right {
            missing.push(index);
        }
    }
    Ok(Answer::Missing(missing))
}

#[cfg(test)]
mod tests {
    use berth_core::{
        id::{ImageRef, PodName, VolumeName},
        spec::{HostPathType, ImagePullPolicy, Volume},
    };

    use super::*;

    #[test]
    fn each_place_is_looked_at_for_what_was_made_there() {
        let node = Paths {
            root: "/root".into(),
            pod_logs: "/logs".into(),
            container_logs: "/links".into(),
            run: "/run".into(),
            seccomp: "/seccomp".into(),
        };
        let pod = PodUid::new("u");
        let of = |request: &LookRequest| places(&node, &pod, request);
        let found =
            |finding: &Finding, path: &str, kind| (finding.clone(), Place { path: path.into(), kind });
        assert_eq!(of(&LookRequest::default()), []);

        let name = PodName { namespace: "default".into(), name: "web".into() };
        let dirs = LookRequest { dirs: Some(name), ..LookRequest::default() };
        let made = ["/root/pods/u", "/root/pods/u/volumes", "/root/pods/u/plugins", "/logs/default_web_u"];
        let mark = found(&Finding::Dirs, "/root/pods/u/berth-run-dir", PlaceKind::Link);
        let mut expected = made.map(|path| found(&Finding::Dirs, path, PlaceKind::Directory)).to_vec();
        expected.push(mark);
        assert_eq!(of(&dirs), expected);

        let empty_dir = |medium| VolumeSource::EmptyDir { medium, size_limit_bytes: None };
        let host_path = VolumeSource::HostPath { path: "/srv".into(), kind: HostPathType::Unset };
        let image =
            VolumeSource::Image { image: ImageRef::new("data:1"), pull_policy: ImagePullPolicy::Always };
        for (source, path, kind) in [
            (empty_dir(Medium::Disk), "/root/pods/u/volumes/kubernetes.io~empty-dir/v", PlaceKind::Directory),
            (empty_dir(Medium::Memory), "/root/pods/u/volumes/kubernetes.io~empty-dir/v", PlaceKind::Mount),
            (
                empty_dir(Medium::HugePages(None)),
                "/root/pods/u/volumes/kubernetes.io~empty-dir/v",
                PlaceKind::Mount,
            ),
            (host_path, "/srv", PlaceKind::Directory),
            (image, "/root/pods/u/volumes/kubernetes.io~image/v", PlaceKind::Mount),
        ] {
            let name = VolumeName::new("v");
            let volumes = vec![Volume { name: name.clone(), source: source.clone() }];
            let request = LookRequest { volumes, ..LookRequest::default() };
            assert_eq!(of(&request), [found(&Finding::Volume(name), path, kind)], "{source:?}");
        }

        let at = "/root/pods/u/volumes/kubernetes.io~local-volume/pv";
        let bound = LookRequest { bound: vec![(VolumeName::new("v"), at.into())], ..LookRequest::default() };
        assert_eq!(of(&bound), [found(&Finding::Volume(VolumeName::new("v")), at, PlaceKind::Mount)]);

        let files = LookRequest { files: vec!["/a".into(), "/b".into()], ..LookRequest::default() };
        assert_eq!(of(&files), ["/a", "/b"].map(|path| found(&Finding::Files, path, PlaceKind::File)));
    }

    #[test]
    fn what_is_missing_or_something_else_is_told_by_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let kinds = [PlaceKind::Directory, PlaceKind::File, PlaceKind::Mount, PlaceKind::Link];
        for (path, expected) in [
            (at("dir"), vec![PlaceKind::Directory]),
            (at("file"), vec![PlaceKind::File]),
            // Nobody but the agent makes what is there, and its only link is the mark.
            (at("link"), vec![PlaceKind::Link]),
            (at("none"), vec![]),
            (at("none/below"), vec![]),
            ("/proc".to_owned(), vec![PlaceKind::Directory, PlaceKind::Mount]),
        ] {
            let places: Vec<Place> = kinds.map(|kind| Place { path: path.clone(), kind }).into();
            let Ok(Answer::Missing(missing)) = missing(&places) else { panic!("{path}") };
            let there: Vec<PlaceKind> =
                (0..kinds.len()).filter(|index| !missing.contains(index)).map(|index| kinds[index]).collect();
            assert_eq!(there, expected, "{path}");
        }
    }
}
