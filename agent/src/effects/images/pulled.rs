//! What images were pulled with, so that a pod that could not have pulled one does not get it.
//!
//! Source: `pkg/kubelet/images/pullmanager` (KEP-2535). Who may have an image by what is kept is for `berth_core::image::access` to say.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{
    failure::Failure,
    id::ImageRef,
    image::{
        access::{self, Access, Origin, PullSecret},
        name::{self, ImageName},
    },
};

use super::{
    host::Host,
    inspect::{Located, documents_of, target},
    pull_records::{origin, remove_intent, write_intent, write_used},
};
use crate::effects::{
    PullsUnderWay,
    failure::{local, unknown},
    pulls::Came,
};

/// Directory of the records, below the root directory.
const DIRECTORY: &str = "image_manager";

/// Who may use an image that was found, by the name that a pod has. What cannot be read allows nobody.
pub(super) async fn access(host: &Arc<Host>, image: &ImageRef, name: &ImageName, found: &Located) -> Access {
    let origin = match origin_of(host, image, name, &found.info.id).await {
        Origin::Begun if was_there(host, name, target(&found.record)).await => Origin::Preloaded,
        origin => origin,
    };
    access::access(&host.config.image_verification, image.as_str(), origin)
}

/// Whether what a name points at was there before the pulls of it were begun. What an earlier agent began is not known, as by a kubelet that
/// begins anew.
async fn was_there(host: &Host, name: &ImageName, target: &str) -> bool {
    host.pulls.lock().await.get(&name.to_string()).is_some_and(|under_way| under_way.has_found(target))
}

/// What the name of an image points at, where no record of a pull tells of that.
pub(super) async fn preloaded(host: &Arc<Host>, image: &ImageRef, name: &ImageName) -> Option<String> {
    let (record, documents) = documents_of(host, &name.to_string()).await.ok()??;
    match origin_of(host, image, name, &documents.config_digest).await {
        Origin::Preloaded | Origin::Begun => Some(target(&record).to_owned()),
        Origin::Pulled(_) | Origin::Unreadable => None,
    }
}

async fn origin_of(host: &Arc<Host>, image: &ImageRef, name: &ImageName, id: &str) -> Origin {
    let (dir, bare, id) = (dir(host), bare(image), id.to_owned());
    // A kubelet begins pulls by the name as the pod has it.
    let names = [name.to_string(), image.as_str().to_owned()];
    let read = host.pulls.read(move || origin(&dir, &names, &bare, &id)).await;
    read.unwrap_or(Origin::Unreadable)
}

/// The name by which it is kept what an image was pulled with.
fn bare(image: &ImageRef) -> String {
    name::bare(image.as_str()).unwrap_or(image.as_str()).to_owned()
}

/// Keeps that an image is being pulled: should the agent die in between, nobody gets it without a pull of its own, and until then who could
/// have what was `preloaded`.
pub(super) async fn begin(host: &Arc<Host>, image: &str, preloaded: Option<String>) -> Result<(), Failure> {
    let mut under_way = host.pulls.lock().await;
    let (dir, name) = (dir(host), image.to_owned());
    let was_written = change(&host.pulls, move || {
        write_intent(&dir, &name).map_err(local("write a record of a pull below", dir.display().to_string()))
    })
    .await?;
    under_way.entry(image.to_owned()).or_default().begun(was_written, preloaded);
    Ok(())
}

/// A pull has ended. Where nobody knows what the pulls of a name brought, that they were begun stays written.
pub(super) async fn ended(host: &Arc<Host>, image: &str, came: Came) {
    let mut under_way = host.pulls.lock().await;
    let Some(is_known) = under_way.entry(image.to_owned()).or_default().ended(came) else { return };
    if is_known {
        under_way.remove(image);
        let (dir, name) = (dir(host), image.to_owned());
        let removed = change(&host.pulls, move || {
            remove_intent(&dir, &name).map_err(local("remove a record of a pull below", dir))
        });
        if let Err(failure) = removed.await {
            tracing::warn!(image, why = failure.message, "the image counts as being pulled");
        }
    }
}

/// Keeps what an image was pulled with: nothing means that everybody could.
pub(super) async fn record(
    host: &Arc<Host>,
    image: &ImageRef,
    id: &str,
    used: Option<PullSecret>,
) -> Result<(), Failure> {
    record_in(&host.pulls, dir(host), &bare(image), id, used).await
}

/// Pods with secrets of their own may pull the same image at once: each adds to what is there.
async fn record_in(
    pulls: &PullsUnderWay,
    dir: PathBuf,
    bare: &str,
    id: &str,
    used: Option<PullSecret>,
) -> Result<(), Failure> {
    pulls.records(id);
    let (bare, id) = (bare.to_owned(), id.to_owned());
    change(pulls, move || {
        write_used(&dir, &bare, &id, used)
            .map_err(local("write a record of a pull below", dir.display().to_string()))
    })
    .await
}

async fn change<T: Send + 'static>(
    pulls: &PullsUnderWay,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match pulls.write(work).await {
        Ok(done) => done,
        Err(_unanswered) => Err(unknown("the disk of the root directory does not answer")),
    }
}

fn dir(host: &Host) -> PathBuf {
    dir_of(&host.node().paths.root)
}

/// The directory of the records.
pub(super) fn dir_of(root: &str) -> PathBuf {
    Path::new(root).join(DIRECTORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pulls_that_end_together_are_all_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let (pulls, bare, id) = (PullsUnderWay::default(), "a.io/web", "sha256:01");
        let secret = |number: i32| PullSecret {
            uid: format!("u{number}"),
            namespace: "shop".to_owned(),
            name: "pull".to_owned(),
            credential_hash: "h".to_owned(),
        };
        let secrets: Vec<PullSecret> = (0..16).map(secret).collect();
        let ends =
            secrets.iter().map(|used| record_in(&pulls, dir.path().to_owned(), bare, id, Some(used.clone())));
        futures::future::try_join_all(ends).await.unwrap();
        let origin = origin(dir.path(), &[], bare, id);
        let Origin::Pulled(Access::With(known)) = origin else { panic!("{origin:?}") };
        assert_eq!(known.len(), 16);
        assert!(secrets.iter().all(|one| known.contains(one)), "{known:?}");
    }
}
