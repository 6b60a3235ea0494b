//! What each user may have of the places that all share: whoever asks for many answers and takes none has others wait for none.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::server::Refusal;
use http::Extensions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lanes::Lane;
use crate::large::Stopping;

/// Answers of a user that are made or taken at once.
pub(super) const OF_USER: usize = 4;
/// Requests of a user that wait for that.
pub(super) const WAITING_OF_USER: usize = 64;

/// The parts of all who have one.
#[derive(Debug, Default)]
pub(super) struct Parts {
    users: Mutex<BTreeMap<String, OfUser>>,
    /// Where those of this port have places of their own.
    lane: Option<Lane>,
}

/// The part of one user, which requests have for whoever answers them. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct OfUser {
    places: Arc<Semaphore>,
    /// For the node's own logs, whose disk may not answer.
    of_logs: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    lane: Option<Lane>,
}

impl Parts {
    /// Those of a port whose users have so many places, and none of others'.
    pub(super) fn apart(places: usize) -> Self {
        Self { lane: Some(Lane::new(places)), ..Self::default() }
    }

    /// That of a user.
    pub(super) fn of(&self, name: &str) -> OfUser {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        // A permit has what it is of.
        users.retain(|_, part| part.is_used());
        let lane = || self.lane.clone();
        users.entry(name.to_owned()).or_insert_with(|| OfUser { lane: lane(), ..OfUser::default() }).clone()
    }
}

impl Default for OfUser {
    fn default() -> Self {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        let (places, of_logs, waiting) = (semaphore(OF_USER), semaphore(OF_USER), semaphore(WAITING_OF_USER));
        Self { places, of_logs, waiting, lane: None }
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

    /// A place for one of the node's own logs.
    pub(super) async fn place_of_logs(&self) -> Result<OwnedSemaphorePermit, Stopping> {
        Arc::clone(&self.of_logs).acquire_owned().await.map_err(|_closed| Stopping)
    }

    /// The lane of those of its port, or else this one.
    pub(super) fn lane_or(&self, all: &Lane) -> Lane {
        self.lane.as_ref().unwrap_or(all).clone()
    }

    /// Whether somebody has it beside the table.
    fn is_used(&self) -> bool {
        [&self.places, &self.of_logs, &self.waiting].into_iter().any(|places| Arc::strong_count(places) > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_of_a_port_apart_have_no_place_of_others() {
        let (all, apart) = (Lane::new(1), Parts::apart(2));
        let [first, other] = ["a", "b"].map(|name| apart.of(name).lane_or(&all));
        let held = first.place().await.unwrap();
        assert_eq!((all.free(), other.free()), (1, 1), "they share theirs");
        drop(held);
        assert_eq!(Parts::default().of("a").lane_or(&all).free(), 1);
    }

    #[tokio::test]
    async fn a_user_has_one_part_for_as_long_as_somebody_uses_it() {
        let parts = Parts::default();
        let (first, again, other) = (parts.of("a"), parts.of("a"), parts.of("b"));
        let place = first.place().await.unwrap();
        assert_eq!([&again, &other].map(|part| part.places.available_permits()), [OF_USER - 1, OF_USER]);
        drop((first, again, other));
        assert_eq!(parts.of("a").places.available_permits(), OF_USER - 1, "a place is still held");
        drop(place);
        let of_logs = parts.of("d").place_of_logs().await.unwrap();
        assert_eq!(parts.of("d").places.available_permits(), OF_USER, "those of logs are others");
        drop(of_logs);
        parts.of("c");
        assert_eq!(parts.users.lock().unwrap().keys().collect::<Vec<_>>(), ["c"]);
    }
}
