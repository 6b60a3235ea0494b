//! Images on the node: their record in containerd, and from there manifest and config.

use std::sync::Arc;

use berth_core::{
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::ImageRef,
    image::{
        self, ImageInfo, WantedImage,
        access::{Access, PullSecret, Verdict},
        name::ImageName,
    },
};
use containerd_client::{
    services::v1::{GetImageRequest, Image, ListImagesRequest, snapshots::StatSnapshotRequest},
    types::Descriptor,
};

use super::{
    credentials::{self, Found, Tracked},
    documents::{Documents, ImageError, read_documents},
    failure::{config, failed},
    host::Host,
    kinds::{Lane, RUNTIME},
    listed, pulled, unpack,
};
use crate::{causes::with_causes, runtime::CallError};

/// An image as found, unpacked or not.
#[derive(Debug)]
pub(in crate::effects) struct Located {
    pub(in crate::effects) info: ImageInfo,
    pub(in crate::effects) record: Image,
    /// Of all records of the same content.
    pub(in crate::effects) names: Vec<String>,
    pub(in crate::effects) is_unpacked: bool,
    /// As packed, lowest first.
    pub(in crate::effects) layers: Vec<Descriptor>,
    /// Digests of the layers unpacked, in the same order.
    pub(in crate::effects) diff_ids: Vec<String>,
}

/// Digest of what a record points at.
pub(super) fn target(record: &Image) -> &str {
    record.target.as_ref().map_or("", |target| target.digest.as_str())
}

/// Looks for an image, and unpacks what was only imported. One whose layers are not there is as good as absent, and one that is of no use here, by its
/// platform or its documents: a pull repairs it, where its registry has another one by now.
///
/// So is one that a pod with other secrets pulled, for a pod that could not have pulled it.
pub(in crate::effects) async fn inspect(host: &Arc<Host>, wanted: &WantedImage) -> Result<Outcome, Failure> {
    let name = parse(&wanted.image)?;
    tell_missing(host, wanted);
    let place = host.lanes.enter(Lane::Images, RUNTIME).await?;
    let record = record_of(host, wanted, &name).await?;
    let found = usable(locate(host, &record).await)?;
    drop(place);
    if let Some(found) = &found
        && !may_use(host, wanted, &name, found).await?
    {
        return Ok(Outcome::Image(None));
    }
    if let Some(packed) = found.as_ref().filter(|found| !found.is_unpacked)
        && !unpack::unpack(host, packed).await?
    {
        return Ok(Outcome::Image(None));
    }
    Ok(Outcome::Image(found.map(|found| Arc::new(found.info))))
}

/// Tells of secrets that are not there, whatever the image needs of them. It waits for nothing that the API server does not answer.
fn tell_missing(host: &Arc<Host>, wanted: &WantedImage) {
    if wanted.secrets.is_empty() {
        return;
    }
    let (host, wanted) = (Arc::clone(host), wanted.clone());
    tokio::spawn(async move {
        let names = credentials::missing(&host, &wanted).await;
        if !names.is_empty() {
            host.objects.tell(Event::PullSecretsMissing { image: wanted, names }).await;
        }
    });
}

/// The record of what is wanted: of what is wanted by its id, and was imported and has no record of that, another one.
async fn record_of(host: &Host, wanted: &WantedImage, name: &ImageName) -> Result<String, Failure> {
    let text = wanted.image.as_str();
    if !image::name::is_digest(text) {
        return Ok(name.to_string());
    }
    if get(host, text).await?.is_some() {
        return Ok(text.to_owned());
    }
    let found = listed::name_of(&host.containerd, &host.image_ids, text).await?;
    Ok(found.unwrap_or_else(|| text.to_owned()))
}

/// An image that can be used. Source: `getImage` of containerd's `internal/cri/store/image/image.go`, which knows no other.
fn usable<T>(located: Result<Option<T>, ImageError>) -> Result<Option<T>, ImageError> {
    match located {
        Err(ImageError::NoPlatform(_) | ImageError::Malformed { .. } | ImageError::TooLarge { .. }) => {
            Ok(None)
        }
        located => located,
    }
}

async fn may_use(
    host: &Arc<Host>,
    wanted: &WantedImage,
    name: &ImageName,
    image: &Located,
) -> Result<bool, Failure> {
    let access = pulled::access(host, &wanted.image, name, image).await;
    let found = match access {
        Access::All | Access::Nobody => Found::default(),
        Access::With(_) => credentials::find(host, wanted, &name.repository()).await,
    };
    // Source: `MustAttemptImagePull` of `image_pull_manager.go`, which fails with it whatever the policy.
    if let Some(malformed) = found.malformed {
        return Err(config(malformed.to_string()));
    }
    Ok(match access.verdict(Tracked::secrets(&found.credentials)) {
        Verdict::Refused => false,
        Verdict::Allowed => true,
        Verdict::Fits(secret) => {
            keep(host, &wanted.image, &image.info.id, secret.clone()).await;
            true
        }
    })
}

/// Keeps that a secret fits an image. The image may be used all the same.
async fn keep(host: &Arc<Host>, image: &ImageRef, id: &str, secret: PullSecret) {
    if let Err(failure) = pulled::record(host, image, id, Some(secret)).await {
        tracing::warn!(%image, id, why = failure.message, "a secret that fits the image is not kept");
    }
}

/// The name, checked.
pub(in crate::effects) fn parse(image: &ImageRef) -> Result<ImageName, Failure> {
    image::name::parse(image.as_str()).map_err(|error| failed(FailureKind::InvalidImageName, &error))
}

/// Finds an image by the name of its record.
pub(in crate::effects) async fn locate(host: &Host, name: &str) -> Result<Option<Located>, ImageError> {
    let Some((record, documents)) = documents_of(host, name).await? else { return Ok(None) };
    let chain_id = documents.chain_id();
    let names = names(host, &record).await?;
    let (tag, repo_digest) = image::name::shown_of(names.iter().map(String::as_str));
    let (layers, diff_ids) = (documents.layers(), documents.diff_ids().to_vec());
    let info = ImageInfo {
        name: record.name.clone(),
        id: documents.config_digest.clone(),
        tag,
        repo_digest,
        chain_id: chain_id.clone(),
        size_bytes: documents.size_bytes(),
        config: documents.image_config(),
    };
    let is_unpacked = is_unpacked(host, &chain_id).await?;
    Ok(Some(Located { info, record, names, is_unpacked, layers, diff_ids }))
}

/// A record with what it points at.
pub(super) async fn documents_of(host: &Host, name: &str) -> Result<Option<(Image, Documents)>, ImageError> {
    let Some(record) = get(host, name).await? else { return Ok(None) };
    let Some(target) = record.target.clone() else { return Ok(None) };
    match read_documents(&host.containerd, &record.name, target).await {
        Ok(documents) => Ok(Some((record, documents))),
        // The record is there without its content: as good as absent, and a pull repairs it.
        Err(ImageError::Call(error)) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn get(host: &Host, name: &str) -> Result<Option<Image>, CallError> {
    let request = GetImageRequest { name: name.to_owned() };
    let mut client = host.containerd.images();
    match host.containerd.call("look for image", name, client.get(request)).await {
        Ok(answer) => Ok(answer.image),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an image is called: the names of all records of the same content. One that was given another name, or was pulled by another
/// tag, has those of before too; one that was imported has no digest among them.
pub(super) async fn names(host: &Host, record: &Image) -> Result<Vec<String>, CallError> {
    let target = target(record);
    let request = ListImagesRequest { filters: vec![format!("target.digest=={target}")] };
    let mut client = host.containerd.images();
    let images = host.containerd.call("list images with", target, client.list(request)).await?.images;
    Ok(images.into_iter().map(|image| image.name).collect())
}

/// Whether layers are there, up to that of a chain id. An image without layers needs none.
pub(in crate::effects) async fn is_unpacked(host: &Host, chain_id: &str) -> Result<bool, CallError> {
    if chain_id.is_empty() {
        return Ok(true);
    }
    let request =
        StatSnapshotRequest { snapshotter: host.settings().snapshotter.clone(), key: chain_id.to_owned() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("look for layers", chain_id, client.stat(request)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "layers cannot be looked for");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Cause;

    #[test]
    fn an_image_that_is_of_no_use_here_is_pulled() {
        let malformed = || serde_json::from_str::<u8>("x").unwrap_err();
        let call = CallError::new("look", "i", Cause::Timeout(std::time::Duration::ZERO));
        for (located, expected) in [
            (Ok(Some(1)), Some(Some(1))),
            (Ok(None), Some(None)),
            (Err(ImageError::NoPlatform("i".into())), Some(None)),
            (Err(ImageError::TooLarge { what: "config", digest: "d".into() }), Some(None)),
            (
                Err(ImageError::Malformed { what: "config", digest: "d".into(), source: malformed() }),
                Some(None),
            ),
            (Err(ImageError::Call(call)), None),
        ] {
            assert_eq!(usable(located).ok(), expected);
        }
    }
}
