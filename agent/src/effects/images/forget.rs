//! Records of pulls whose image is no more.
//!
//! Source: `PruneUnknownRecords` of `pkg/kubelet/images/pullmanager/image_pull_manager.go`. A record is all that keeps an image from
//! pods that could not have pulled it, so nothing is removed as long as an image on the node could not be read.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use berth_core::cluster::node::Image;

use super::pulled::{self, PULLED, PULLING};
use crate::causes::with_causes;

/// How long the disk of the root directory may take.
const WITHIN: Duration = Duration::from_secs(20);

/// What was on the node at a moment.
#[derive(Debug, Clone)]
pub(super) struct There {
    ids: BTreeSet<String>,
    names: BTreeSet<String>,
    /// When it was begun to be listed: what was pulled since may be missing.
    since: SystemTime,
    /// When the agent began: pulls that are under way began later.
    began: SystemTime,
}

impl There {
    pub(super) fn of(images: &[Image], since: SystemTime, began: SystemTime) -> Self {
        let names = images.iter().flat_map(|image| image.digests.iter().chain(&image.tags).cloned());
        Self {
            ids: images.iter().map(|image| image.id.clone()).collect(),
            names: names.collect(),
            since,
            began,
        }
    }
}

/// Removes the records of images that are not there.
pub(super) async fn forget(root: &str, there: There) {
    let dir = pulled::dir_of(root);
    let work = tokio::task::spawn_blocking(move || {
        let pulled = remove(&dir.join(PULLED), there.since, |path| is_there(path, "imageRef", &there.ids));
        let pulling = remove(&dir.join(PULLING), there.began, |path| is_there(path, "image", &there.names));
        pulled.and(pulling)
    });
    match tokio::time::timeout(WITHIN, work).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => {
            tracing::warn!(error = with_causes(&error), "records of images that are gone stay");
        }
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("records of images that are gone stay: the disk does not answer");
        }
    }
}

/// Removes files that were written before a moment and are not to stay.
fn remove(dir: &Path, before: SystemTime, stays: impl Fn(&Path) -> io::Result<bool>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.metadata()?.modified()? < before && !stays(&entry.path())? {
            tracing::info!(file = %entry.path().display(), "the image of a pull is gone, and so is what was kept of it");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether what a record is of is there. One that cannot be read allows nobody anything, and stays.
fn is_there(path: &Path, field: &str, known: &BTreeSet<String>) -> io::Result<bool> {
    let Some(bytes) = pulled::read_bounded(path)? else { return Ok(true) };
    let record: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    let of = record.as_ref().and_then(|record| record.get(field)?.as_str());
    Ok(of.is_none_or(|of| known.contains(of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

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
        let path = root.path().display().to_string();
        let dir = pulled::dir_of(&path);
        forget(&path, There::of(&[], SystemTime::now(), SystemTime::now())).await;
        written(&dir, PULLED, "there", r#"{"imageRef":"sha256:01"}"#);
        written(&dir, PULLED, "gone", r#"{"imageRef":"sha256:02"}"#);
        written(&dir, PULLED, "unreadable", "{");
        written(&dir, PULLING, "pulling-there", r#"{"image":"a.io/web:1"}"#);
        written(&dir, PULLING, "pulling-gone", r#"{"image":"a.io/gone:1"}"#);
        let (now, images) = (SystemTime::now(), [image("sha256:01", "a.io/web:1")]);

        forget(&path, There::of(&images, now - HOUR, now - HOUR)).await;
        assert_eq!(left(&dir).len(), 5, "what came after the list is not in it");
        forget(&path, There::of(&images, now + HOUR, now - HOUR)).await;
        assert_eq!(
            left(&dir),
            ["pulling-gone", "pulling-there", "there", "unreadable"],
            "a pull is under way"
        );
        forget(&path, There::of(&images, now + HOUR, now + HOUR)).await;
        assert_eq!(left(&dir), ["pulling-there", "there", "unreadable"]);
    }
}
