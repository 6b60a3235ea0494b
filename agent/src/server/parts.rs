//! What each user may have of the places that all share: whoever asks for many answers and takes none has others wait for none.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::server::Refusal;
use http::Extensions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::large::Stopping;

/// Answers of a user that are made or taken at once.
pub(super) const OF_USER: usize = 4;
/// Requests of a user that wait for that.
pub(super) const WAITING_OF_USER: usize = 64;

/// The parts of all who have one.
#[derive(Debug, Default)]
pub(super) struct Parts(Mutex<BTreeMap<String, OfUser>>);

/// The part of one user, which requests have for whoever answers them. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct OfUser {
    places: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Parts {
    /// That of a user.
    pub(super) fn of(&self, name: &str) -> OfUser {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A permit has what it is of.
        parts.retain(|_, part| Arc::strong_count(&part.places) > 1);
        parts.entry(name.to_owned()).or_default().clone()
    }
}

impl Default for OfUser {
    fn default() -> Self {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Self { places: semaphore(OF_USER), waiting: semaphore(WAITING_OF_USER) }
    }
}

impl OfUser {
    /// The one that a request has; another, where nobody has given it any.
    pub(super) fn had_by(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// A place among those that wait.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn waits(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let waits = Arc::clone(&self.waiting).try_acquire_owned();
        waits.map_err(|_none| {
            Refusal::too_many("the user", WAITING_OF_USER, "requests that wait for their turn")
        })
    }

    /// A place, for as long as it is held.
    pub(super) async fn place(&self) -> Result<OwnedSemaphorePermit, Stopping> {
        Arc::clone(&self.places).acquire_owned().await.map_err(|_closed| Stopping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_has_one_part_for_as_long_as_somebody_uses_it() {
        let parts = Parts::default();
        let (first, again, other) = (parts.of("a"), parts.of("a"), parts.of("b"));
        let place = first.place().await.unwrap();
        assert_eq!([&again, &other].map(|part| part.places.available_permits()), [OF_USER - 1, OF_USER]);
        drop((first, again, other));
        assert_eq!(parts.of("a").places.available_permits(), OF_USER - 1, "a place is still held");
        drop(place);
        parts.of("c");
        assert_eq!(parts.0.lock().unwrap().keys().collect::<Vec<_>>(), ["c"]);
    }
}
