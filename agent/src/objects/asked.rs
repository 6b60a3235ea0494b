//! Objects that a pod names, asked for at once.

use std::sync::Arc;

use berth_core::{derived::references::Named, spec::Pod};
use futures::stream::FuturesOrdered;

use super::{Content, ObjectError, Objects};

/// Objects and tokens that are asked for at once: what has come of those that wait for an earlier one is kept beyond the bound on
/// what is made of them.
pub(super) const AT_ONCE: usize = 16;

/// Asks as much more as there is room for. Answers come in the order of the questions.
pub(super) fn ask_more<F: Future>(asked: &mut FuturesOrdered<F>, questions: impl Iterator<Item = F>) {
    let room = AT_ONCE.saturating_sub(asked.len());
    asked.extend(questions.take(room));
}

/// What is in the object; nothing where there is none and need not be.
pub(super) async fn read(
    objects: &Objects,
    pod: &Pod,
    named: Named<'_>,
) -> Result<Option<Arc<Content>>, ObjectError> {
    let Named { kind, name, optional } = named;
    let found = objects.get(&pod.uid, &pod.object_key(kind, name)).await?;
    if found.is_none() && !optional {
        return Err(ObjectError::NotFound { kind: kind.as_str(), name: name.to_owned() });
    }
    Ok(found)
}
