//! All images on the node, by content, with what they weigh.

use std::collections::BTreeMap;

use berth_core::{cluster::node::Image, failure::Failure};
use containerd_client::{services::v1::ListImagesRequest, types::Descriptor};

use super::documents::{ImageError, read_documents};
use crate::{
    causes::with_causes,
    effects::image_ids::{KnownIds, Weighed},
    runtime::{CallError, Containerd},
};

/// What was listed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) images: Vec<Image>,
    /// Whether each one that is for this machine could be read.
    pub(super) is_whole: bool,
}

/// Lists them. Documents are read of those alone that were not there before.
///
/// # Errors
/// Containerd does not list them.
pub(super) async fn list_images(containerd: &Containerd, weighed: &mut Weighed) -> Result<Listed, CallError> {
    let mut listed = Listed { images: Vec::new(), is_whole: true };
    for (digest, (target, mut names)) in targets(containerd, weighed).await? {
        names.sort();
        // Records of containerd's CRI that stand for an id are no names.
        names.retain(|name| !name.starts_with("sha256:"));
        match weigh(containerd, weighed, &digest, target).await {
            Ok(None) => {}
            Ok(Some((id, bytes))) => {
                let (digests, tags) = names.into_iter().partition(|name| name.contains('@'));
                listed.images.push(Image { id, digests, tags, bytes });
            }
            Err(error) => {
                tracing::debug!(digest, why = with_causes(&error), "an image is not told of");
                listed.is_whole = false;
            }
        }
    }
    Ok(listed)
}

/// The first of the names of an image, which may have been imported and have no record by its id.
///
/// # Errors
/// Containerd does not list images, or stops to answer.
pub(super) async fn name_of(
    containerd: &Containerd,
    known: &KnownIds,
    id: &str,
) -> Result<Option<String>, Failure> {
    let mut weighed = known.lock().await;
    let mut first = None;
    for (digest, (target, names)) in targets(containerd, &mut weighed).await? {
        match weigh(containerd, &mut weighed, &digest, target).await {
            Ok(Some((found, _))) if found == id => first = first.into_iter().chain(names).min(),
            Ok(_) => {}
            Err(error) if error.is_lost() => return Err(error.into()),
            Err(error) => tracing::debug!(digest, why = with_causes(&error), "its id is not known"),
        }
    }
    Ok(first)
}

/// What records point at, with their names, by digest. Of what is there no more nothing is remembered.
async fn targets(
    containerd: &Containerd,
    weighed: &mut Weighed,
) -> Result<BTreeMap<String, (Descriptor, Vec<String>)>, CallError> {
    let mut client = containerd.images();
    let listed = client.list(ListImagesRequest::default());
    let records = containerd.call("list images", "", listed).await?.images;
    let mut all = BTreeMap::new();
    for record in records {
        let Some(target) = record.target else { continue };
        let entry = all.entry(target.digest.clone()).or_insert_with(|| (target, Vec::new()));
        entry.1.push(record.name);
    }
    weighed.0.retain(|digest, _| all.contains_key(digest));
    Ok(all)
}

/// Id and size. An image that is not for this machine, or has documents that are none, has neither, and is never pulled: nothing is kept of it.
async fn weigh(
    containerd: &Containerd,
    weighed: &mut Weighed,
    digest: &str,
    target: Descriptor,
) -> Result<Option<(String, u64)>, ImageError> {
    if let Some(known) = weighed.0.get(digest) {
        return Ok(known.clone());
    }
    let known = match read_documents(containerd, digest, target).await {
        Ok(documents) => {
            let bytes = documents.size_bytes();
            Some((documents.config_digest, bytes))
        }
        Err(error) if error.is_for_good() => {
            tracing::debug!(digest, why = with_causes(&error), "it is no image of this node");
            None
        }
        Err(error) => return Err(error),
    };
    weighed.0.insert(digest.to_owned(), known.clone());
    Ok(known)
}
