//! Records of pulls whose image is no more.
//!
//! Source: `PruneUnknownRecords` of `pkg/kubelet/images/pullmanager/image_pull_manager.go`. A record is all that keeps an image from
//! pods that could not have pulled it, so nothing is removed as long as an image on the node could not be read.

use std::{collections::BTreeSet, fs, io, path::Path};

use berth_core::{cluster::node::Image, image::name};

use super::{
    pull_records::{PULLED, PULLING, read_bounded},
    pulled,
};
use crate::{causes::with_causes, effects::PullsUnderWay};

/// What was on the node at a moment.
#[derive(Debug, Clone)]
pub(super) struct There {
    ids: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl There {
    pub(super) fn of(images: &[Image]) -> Self {
        let names = images.iter().flat_map(|image| image.digests.iter().chain(&image.tags).cloned());
        Self { ids: images.iter().map(|image| image.id.clone()).collect(), names: names.collect() }
    }
}

/// Removes the records of images that are not there. Those stay of what this agent pulls or may have pulled, by its own account: a clock
/// may be set back meanwhile.
pub(super) async fn forget(pulls: &PullsUnderWay, root: &str, mut there: There) {
    // Held to the end: no pull begins meanwhile.
    let under_way = pulls.lock().await;
    there.names.extend(under_way.keys().cloned());
    let (dir, known) = (pulled::dir_of(root), pulls.clone());
    let work = move || {
        there.ids.extend(known.not_listed());
        let pulled = remove(&dir.join(PULLED), |path| is_there(path, "imageRef", &there.ids));
        let pulling = remove(&dir.join(PULLING), |path| is_there(path, "image", &there.names));
        pulled.and(pulling)
    };
    match pulls.write(work).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = with_causes(&error), "records of images that are gone stay");
        }
        Err(_unanswered) => {
            tracing::warn!("records of images that are gone stay: the disk does not answer");
        }
    }
}

/// Removes files that are not to stay.
fn remove(dir: &Path, stays: impl Fn(&Path) -> io::Result<bool>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if !stays(&entry.path())? {
            tracing::info!(file = %entry.path().display(), "the image of a pull is gone, and so is what was kept of it");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether what a record is of is there. One that cannot be read allows nobody anything, and stays.
fn is_there(path: &Path, field: &str, known: &BTreeSet<String>) -> io::Result<bool> {
    let Some(bytes) = read_bounded(path)? else { return Ok(true) };
    let record: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    let of = record.as_ref().and_then(|record| record.get(field)?.as_str());
    // A kubelet begins pulls by the name as the pod has it.
    let is_known =
        |of: &str| known.contains(of) || name::parse(of).is_ok_and(|of| known.contains(&of.to_string()));
    Ok(of.is_none_or(is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tag: &str) -> Image {
        Image { id: id.into(), digests: Vec::new(), tags: vec![tag.into()], bytes: 1 }
    }

    fn written(dir: &Path, sort: &str, name: &str, text: &str) {
        fs::create_dir_all(dir.join(sort)).unwrap();
        fs::write(dir.join(sort).join(name), text).unwrap();
    }

    fn left(dir: &Path) -> Vec<String> {
        let names = [PULLED, PULLING].into_iter().flat_map(|sort| fs::read_dir(dir.join(sort)).unwrap());
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn records_go_with_their_images() {
        let root = tempfile::tempdir().unwrap();
        let (path, pulls) = (root.path().display().to_string(), PullsUnderWay::default());
        let dir = pulled::dir_of(&path);
        forget(&pulls, &path, There::of(&[])).await;
        written(&dir, PULLED, "there", r#"{"imageRef":"sha256:01"}"#);
        written(&dir, PULLED, "gone", r#"{"imageRef":"sha256:02"}"#);
        written(&dir, PULLED, "unreadable", "{");
        written(&dir, PULLING, "pulling-there", r#"{"image":"a.io/web:1"}"#);
        written(&dir, PULLING, "pulling-as-written", r#"{"image":"web"}"#);
        written(&dir, PULLING, "pulling-gone", r#"{"image":"a.io/gone:1"}"#);
        let images = [image("sha256:01", "a.io/web:1"), image("sha256:03", "docker.io/library/web:latest")];

        // Whatever the times of the files are.
        pulls.list_begins();
        pulls.records("sha256:02");
        pulls.lock().await.entry("a.io/gone:1".to_owned()).or_default().begun(false, None);
        forget(&pulls, &path, There::of(&images)).await;
        assert_eq!(left(&dir).len(), 6, "what came after the list is not in it");
        pulls.list_begins();
        forget(&pulls, &path, There::of(&images)).await;
        assert_eq!(
            left(&dir),
            ["pulling-as-written", "pulling-gone", "pulling-there", "there", "unreadable"],
            "a pull is under way"
        );
        pulls.lock().await.clear();
        forget(&pulls, &path, There::of(&images)).await;
        assert_eq!(left(&dir), ["pulling-as-written", "pulling-there", "there", "unreadable"]);
    }
}
