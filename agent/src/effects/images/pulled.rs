//! What images were pulled with, so that a pod that could not have pulled one does not get it.
//!
//! Source: `pkg/kubelet/images/pullmanager` (KEP-2535). Who may have an image by what is kept is for `berth_core::image::access` to say.

use std::{
    collections::BTreeSet,
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
    documents::ImageError,
    host::Host,
    inspect::{self, Located, documents_of, target},
    pull_records::{origin, remove_intent, write_intent, write_nobody, write_used},
};
use crate::effects::{
    PullsUnderWay,
    failure::{local, unknown},
    pulls::{Came, UnderWay},
};

/// Directory of the records, below the root directory.
const DIRECTORY: &str = "image_manager";

/// Who may use an image that was found, by the name that a pod has. What cannot be read allows nobody.
pub(super) async fn access(host: &Arc<Host>, image: &ImageRef, name: &ImageName, found: &Located) -> Access {
    let names = names_of_pulls(host, image, name, &found.names, target(&found.record)).await;
    let origin = origin_of(host, image, names, &found.info.id).await;
    access::access(&host.config.image_verification, image.as_str(), origin)
}

/// What the name of an image points at before a pull of it: a digest, if anything.
#[derive(Debug, Default)]
pub(super) struct Before {
    pub(super) target: Option<String>,
    /// Whether no record of a pull tells of it.
    is_preloaded: bool,
}

/// What is there before a pull. What an earlier agent began to pull, and may have brought, is nobody's from now on by any name,
/// whatever the name points at later (`initialize` of `image_pull_manager.go`).
pub(super) async fn before(host: &Arc<Host>, image: &ImageRef, name: &ImageName) -> Result<Before, Failure> {
    let (record, documents) = match documents_of(host, &name.to_string()).await {
        Ok(Some(found)) => found,
        // Whoever does not know what was there would take it for what the pull has brought.
        Err(error @ (ImageError::Call(_) | ImageError::Stopping(_))) => return Err(error.into()),
        Ok(None) | Err(_) => return Ok(Before::default()),
    };
    let (target, id) = (target(&record), &documents.config_digest);
    let named = inspect::names(host, &record).await?;
    let names = names_of_pulls(host, image, name, &named, target).await;
    let origin = origin_of(host, image, names.clone(), id).await;
    if origin == Origin::Begun && !is_under_way(host, &names).await {
        pulled_by_nobody(host, id).await?;
    }
    Ok(Before { target: Some(target.to_owned()), is_preloaded: origin == Origin::Preloaded })
}

/// The names by which what they point at may have been pulled: those that pointed at it before their pulls were begun are none. What an
/// earlier agent began is not known, as by a kubelet that begins anew.
async fn names_of_pulls(
    host: &Host,
    image: &ImageRef,
    name: &ImageName,
    named: &[String],
    target: &str,
) -> BTreeSet<String> {
    let under_way = host.pulls.lock().await;
    // A kubelet begins pulls by the name as the pod has it.
    let names = [name.to_string(), image.as_str().to_owned()].into_iter().chain(named.iter().cloned());
    names.filter(|name| !under_way.get(name).is_some_and(|under_way| under_way.has_found(target))).collect()
}

async fn is_under_way(host: &Host, names: &BTreeSet<String>) -> bool {
    let under_way = host.pulls.lock().await;
    names.iter().any(|name| under_way.get(name).is_some_and(UnderWay::is_under_way))
}

async fn origin_of(host: &Arc<Host>, image: &ImageRef, names: BTreeSet<String>, id: &str) -> Origin {
    let (dir, bare, id) = (dir(host), bare(image), id.to_owned());
    let read = host.pulls.read(move || origin(&dir, &names, &bare, &id)).await;
    read.unwrap_or(Origin::Unreadable)
}

/// Whether it is written down what the image of an id was pulled with.
pub(super) async fn is_recorded(host: &Arc<Host>, image: &ImageRef, id: &str) -> bool {
    matches!(origin_of(host, image, BTreeSet::new(), id).await, Origin::Pulled(_))
}

async fn pulled_by_nobody(host: &Arc<Host>, id: &str) -> Result<(), Failure> {
    let (dir, id) = (dir(host), id.to_owned());
    change(&host.pulls, move || {
        write_nobody(&dir, &id).map_err(local("write a record of a pull below", dir.display().to_string()))
    })
    .await
}

/// The name by which it is kept what an image was pulled with.
fn bare(image: &ImageRef) -> String {
    name::bare(image.as_str()).unwrap_or(image.as_str()).to_owned()
}

/// Keeps that an image is being pulled: should the agent die in between, nobody gets it without a pull of its own, and until then who could
/// have what was there `before`.
pub(super) async fn begin(host: &Arc<Host>, image: &str, before: &Before) -> Result<(), Failure> {
    let preloaded = before.target.clone().filter(|_| before.is_preloaded);
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
        let origin = origin(dir.path(), &BTreeSet::new(), bare, id);
        let Origin::Pulled(Access::With(known)) = origin else { panic!("{origin:?}") };
        assert_eq!(known.len(), 16);
        assert!(secrets.iter().all(|one| known.contains(one)), "{known:?}");
    }
}
