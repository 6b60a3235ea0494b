//! What is done on files, as a worker process performs it.

use std::path::Path;

use berth_core::{
    failure::{Failure, FailureKind},
    oci::SubPathBind,
};

use super::{
    failure::{local, unknown},
    files::{
        claims, dirs, env_file, host_files, mount_source, relabel, sub_path, termination, volumes,
        work::{Answer, Refused, Work},
    },
    images::{image_volumes, mounted, rootfs},
    look,
    runtime::prepare,
};
use crate::{
    absent::absent_is_fine,
    causes::with_causes,
    source::file::Found,
    usage::measure,
    volumes::{remove_tree, unmount_below},
};

/// Performs a request in a worker, and gives the answer to it.
#[must_use]
pub fn perform_work(request: &[u8]) -> Vec<u8> {
    let done = match serde_json::from_slice(request) {
        Ok(work) => perform(work),
        Err(error) => Err(unknown(format!("read a request: {}", with_causes(&error)))),
    };
    let answer =
        done.map_err(|Failure { kind, message }| Refused { is_config: kind == FailureKind::Config, message });
    // A value of these types always has a form in JSON; an empty answer would be a failure.
    serde_json::to_vec(&answer).unwrap_or_default()
}

fn perform(work: Work) -> Result<Answer, Failure> {
    match work {
        Work::Changeable(directories) => directories.iter().for_each(|path| dirs::wait_for_changes(path)),
        Work::Manifests(path) => return Ok(Answer::Manifests(Found::at(&path))),
        Work::Measure(trees) => return Ok(Answer::Measured(measure(&trees))),
        Work::EmptyDir { path, mark, request } => volumes::empty_dir(&path, &mark, request.into())?,
        Work::Content { path, mark, request, files, nested } => {
            volumes::content(&path, &mark, request.into(), &files, &nested)?;
        }
        Work::HostPath { path, kind } => volumes::host_path(&path, kind.into())?,
        Work::Local(text) => return claims::bind(&text.into()),
        Work::BlockDevice(path) => return claims::look_at_device(&path),
        Work::MakePodDirs { pod, run, dirs } => dirs::make(&pod, &run, &dirs)?,
        Work::Unmount(dir) => unmount_below(dir.as_ref()).map_err(volumes::failure)?,
        Work::Remove(trees) => trees.iter().try_for_each(remove)?,
        Work::RemovePodDir(dir) => dirs::remove_pod_dir(&dir)?,
        Work::RemoveLogs { logs, links } => dirs::remove_logs(&logs, &links)?,
        Work::SweepLogs { all, suffix, links } => dirs::sweep_logs(&all, &suffix, &links)?,
        Work::Container {
            files,
            sub_paths,
            mount_sources,
            log_dir,
            profile,
            app_armor,
            devices,
            volumes,
        } => {
            files.into_iter().try_for_each(|file| host_files::write(&file.into()))?;
            for bind in sub_paths.into_iter().map(SubPathBind::from) {
                if let Err((stage, failure)) = sub_path::bind(&bind) {
                    let mount = bind.mount.to_string();
                    return Ok(Answer::Withheld { mount, stage, why: failure.message });
                }
            }
            mount_sources.into_iter().try_for_each(|source| mount_source::prepare(&source.into()))?;
            if let Some(dir) = log_dir {
                host_files::make_dir(dir, 0o755)?;
            }
            return prepare::parts(profile.as_deref(), app_armor, devices, &volumes);
        }
        Work::Relabel { label, places } => {
            places.iter().try_for_each(|place| relabel::relabel(&label, place))?;
        }
        Work::ImageVolumes { layers, scratch, volumes } => {
            image_volumes::make(&all(layers), &scratch, &all(volumes))?;
        }
        Work::MountImage { layers, scratch, path } => mounted::mount_image(&all(layers), &scratch, &path)?,
        Work::Accounts { layers, scratch } => return rootfs::read_accounts(&all(layers), &scratch),
        Work::Clear(tree) => {
            absent_is_fine(std::fs::remove_dir_all(&tree)).map_err(local("remove", &tree))?;
        }
        Work::Link { target, link } => host_files::link(&target, &link)?,
        Work::Unlink { link, log } => {
            host_files::remove_log(&log)?;
            // A link that stays leads nowhere, and holds nobody up.
            let _stays = host_files::remove_file(link);
        }
        Work::RemoveRunVolumes(volumes) => image_volumes::remove(&volumes.into())?,
        Work::Look(places) => return look::missing(&places),
        Work::WriteFiles(files) => {
            files.into_iter().try_for_each(|file| host_files::write(&file.into()))?;
        }
        Work::EnvFiles(wanted) => return env_file::read(&wanted).map(Answer::EnvFiles),
        Work::TerminationMessage { file, log } => {
            let path = |text: &'_ Option<String>| text.as_deref().map(Path::new).map(Path::to_owned);
            return termination::message(path(&file).as_deref(), path(&log).as_deref())
                .map(Answer::TerminationMessage);
        }
    }
    Ok(Answer::Done)
}

/// Values of the core, from those of a request.
fn all<T, U: From<T>>(texts: Vec<T>) -> Vec<U> {
    texts.into_iter().map(Into::into).collect()
}

fn remove(tree: &String) -> Result<(), Failure> {
    remove_tree(tree.as_ref()).map_err(local("remove", tree))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::lgetxattr;

    use super::{
        super::files::wire::{HostPathText, MountedText, RelabelText},
        *,
    };

    #[test]
    fn what_a_worker_cannot_read_it_refuses() {
        for request in [&b""[..], b"{", b"{\"Format\":\"/\"}", b"\"Remove\"", &[0xff; 64]] {
            let answer: Result<Answer, Refused> = serde_json::from_slice(&perform_work(request)).unwrap();
            assert!(answer.unwrap_err().message.starts_with("read a request: "));
        }
    }

    #[test]
    fn each_place_is_labelled() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["a", "b"].map(|name| dir.path().join(name));
        for place in &places {
            fs::write(place, "").unwrap();
        }
        let text = |root: String| RelabelText { root, part: None, mounted: MountedText::Nothing };
        let work = Work::Relabel {
            label: "u:r:t".to_owned(),
            places: places.iter().map(|place| text(place.display().to_string())).collect(),
        };
        let answer = perform_work(&serde_json::to_vec(&work).unwrap());
        let answer: Result<Answer, Refused> = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer.unwrap(), Answer::Done);
        for place in &places {
            let mut found = [0; 16];
            let length = lgetxattr(place, c"security.selinux", &mut found).unwrap();
            assert_eq!(found[..length], *b"u:r:t");
        }
    }

    #[test]
    fn a_host_path_that_is_not_as_it_is_to_be_is_the_pods_fault() {
        let ask = |path: &str| {
            let work = Work::HostPath { path: path.to_owned(), kind: HostPathText::Directory };
            let answer = perform_work(&serde_json::to_vec(&work).unwrap());
            serde_json::from_slice::<Result<Answer, Refused>>(&answer).unwrap()
        };
        assert_eq!(ask("/proc").unwrap(), Answer::Done);
        assert!(ask("/dev/null").unwrap_err().is_config);
        assert!(ask(&format!("/{}", "x".repeat(300))).unwrap_err().is_config);
    }
}
