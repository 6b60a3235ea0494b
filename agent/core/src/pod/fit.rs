//! Takes from an outcome what was asked for. An answer that does not fit leaves what was done unknown.

use std::sync::Arc;

use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
    image::{
        ImageInfo,
        collection::{ImageDisk, StoredImage},
    },
};

pub(crate) fn done(result: Result<Outcome, Failure>) -> Result<(), Failure> {
    let outcome = result?;
    let Outcome::Done = outcome else { return Err(unfitting(&outcome)) };
    Ok(())
}

pub(crate) fn image(result: Result<Outcome, Failure>) -> Result<Option<Arc<ImageInfo>>, Failure> {
    let outcome = result?;
    if let Outcome::Image(image) = outcome { Ok(image) } else { Err(unfitting(&outcome)) }
}

pub(crate) fn image_disk(result: Result<Outcome, Failure>) -> Result<ImageDisk, Failure> {
    let outcome = result?;
    if let Outcome::ImageDisk(disk) = outcome { Ok(disk) } else { Err(unfitting(&outcome)) }
}

pub(crate) fn images(result: Result<Outcome, Failure>) -> Result<Vec<StoredImage>, Failure> {
    let outcome = result?;
    if let Outcome::Images(images) = outcome { Ok(images) } else { Err(unfitting(&outcome)) }
}

/// Whether an image is gone; else something uses it.
pub(crate) fn is_removed(result: Result<Outcome, Failure>) -> Result<bool, Failure> {
    let outcome = result?;
    match outcome {
        Outcome::Done => Ok(true),
        Outcome::ImageKept => Ok(false),
        Outcome::Netns(_)
        | Outcome::Network(_)
        | Outcome::Sandbox { .. }
        | Outcome::Volume { .. }
        | Outcome::Image(_)
        | Outcome::ImageDisk(_)
        | Outcome::Images(_)
        | Outcome::Rootfs(_)
        | Outcome::Started(_)
        | Outcome::NotStarted(_)
        | Outcome::Task(_)
        | Outcome::TerminationMessage(_)
        | Outcome::Probed(_)
        | Outcome::Hooked(_)
        | Outcome::NodeObject(_)
        | Outcome::Looked(_) => Err(unfitting(&outcome)),
    }
}

/// What was done is not known.
pub(crate) fn unfitting(outcome: &Outcome) -> Failure {
    let message = format!("the effect ended with an outcome that does not fit it: {outcome:?}");
    Failure::new(FailureKind::Unknown, message)
}
