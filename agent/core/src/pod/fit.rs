//! Takes from an outcome what was asked for. An answer that does not fit leaves what was done unknown.

use std::sync::Arc;

use crate::{
    event::Outcome,
    failure::{Failure, FailureKind},
    image::ImageInfo,
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

/// What was done is not known.
pub(crate) fn unfitting(outcome: &Outcome) -> Failure {
    let message = format!("the effect ended with an outcome that does not fit it: {outcome:?}");
    Failure::new(FailureKind::Unknown, message)
}
