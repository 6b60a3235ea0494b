//! Removal of unused images: how full their disk is, what there is with what uses it, and the end of one.
//!
//! Source: containerd, `RemoveImage` of `internal/cri/server/images/image_remove.go`, which removes every record of an image and waits
//! with the last one until its content and layers have gone.

use std::{sync::Arc, time::Duration};

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    image::collection::{ImageDisk, Removal, Stays, StoredImage},
};
use containerd_client::{services::v1::DeleteImageRequest, types::Descriptor};

use super::{files::measured, host::Host, stored, used::Used};
use crate::{
    runtime::layers_dir,
    usage::{Measured, Tree},
    workers::{Job, Sort},
};

/// How long containerd may take to say where layers are, which it does from memory.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// How long a file system may take to say how full it is, the wait for a worker included.
const MEASURED_WITHIN: Duration = Duration::from_secs(30);

/// How full the disk is that has the layers.
pub(in crate::effects) async fn measure(host: &Arc<Host>) -> Result<Outcome, Failure> {
    let snapshotter = host.settings().snapshotter.clone();
    let dir = layers_dir(&host.containerd, &snapshotter, ASKED_WITHIN).await?.ok_or_else(|| {
        transient(format!(
            "look how full the disk of images is: containerd does not say where {snapshotter} has them"
        ))
    })?;
    let job =
        Job { pod: "", what: "disk of images", path: &dir, sort: Sort::Measured, within: MEASURED_WITHIN };
    let found = measured(&host.workers, job, vec![Tree::FileSystem(dir.clone())]).await.map_err(transient)?;
    let Some(Some(Measured { file_system: [capacity, _, available, ..], .. })) = found.into_iter().next()
    else {
        return Err(transient(format!("look how full the disk of images is: {dir} is not there")));
    };
    Ok(Outcome::ImageDisk(ImageDisk { capacity, available }))
}

fn transient(message: String) -> Failure {
    Failure { kind: FailureKind::Transient, message }
}

/// All images, with what uses them.
pub(in crate::effects) async fn list(host: &Arc<Host>) -> Result<Outcome, Failure> {
    // What is used after that was not there before: it is too young to be removed, or a pod's.
    let images = stored::list(&host.containerd).await?;
    let used = Used::read(&host.containerd, &host.settings().snapshotter).await?;
    let images = images.into_iter().map(|image| {
        let stays = if used.has(&image) { Some(Stays::Used) } else { image.stays };
        StoredImage { stays, ..image }
    });
    Ok(Outcome::Images(images.collect()))
}

/// Removes an image, record by record. Records that others have made point at something else stay.
pub(in crate::effects) async fn remove(host: &Arc<Host>, removal: &Removal) -> Result<Outcome, Failure> {
    let image = &removal.image;
    if Used::read(&host.containerd, &host.settings().snapshotter).await?.has(image) {
        return Ok(Outcome::ImageKept);
    }
    let reason = removal.reason.as_str();
    tracing::info!(id = image.id, bytes = image.size_bytes, reason, "removing an image that nothing uses");
    let last = image.names.len().saturating_sub(1);
    for (number, record) in image.names.iter().enumerate() {
        let target = Descriptor { digest: record.target.clone(), ..Descriptor::default() };
        let delete =
            DeleteImageRequest { name: record.name.clone(), sync: number == last, target: Some(target) };
        let mut client = host.containerd.images();
        match host.containerd.call("remove image", &record.name, client.delete(delete)).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        host.failpoint.reach("image.record-removed");
    }
    Ok(Outcome::Done)
}
