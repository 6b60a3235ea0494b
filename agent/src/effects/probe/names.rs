//! Names that probes look up. Each is a thread that may wait for a name server as long as that takes, so a pod has few of them, and
//! one whose name server never answers holds up no other pod.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use berth_core::id::PodUid;
use tokio::sync::Semaphore;

use super::socket::DialError;
use crate::effects::{failure::unknown, host::blocking};

/// Lookups at once of a pod; more wait for each other.
const OF_A_POD: usize = 2;
/// Lookups at once of all pods: far below the threads that there are. One more is not begun.
const OF_ALL: usize = 64;
static ALL: Semaphore = Semaphore::const_new(OF_ALL);

/// The turns of pods that look up a name now.
static PODS: Mutex<BTreeMap<PodUid, Weak<Semaphore>>> = Mutex::new(BTreeMap::new());

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Where a pod's probe goes to.
pub(super) async fn addresses(pod: &PodUid, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let failed = |why: String| DialError::Lookup { name: host.to_owned(), why };
    let stopping = || failed("the agent is stopping".to_owned());
    let own = turns(pod).acquire_owned().await.map_err(|_closed| stopping())?;
    let of_all = ALL.try_acquire().map_err(|_none_is_free| DialError::Busy { name: host.to_owned() })?;
    let name = host.to_owned();
    let found = blocking(move || {
        let _permits = (own, of_all);
        let found = (name.as_str(), port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        Ok(found.take(ADDRESSES_MAX).collect())
    });
    found.await.map_err(|failure| failed(failure.message))
}

/// Those of a pod, for as long as somebody has one.
fn turns(pod: &PodUid) -> Arc<Semaphore> {
    let mut pods = PODS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(turns) = pods.get(pod).and_then(Weak::upgrade) {
        return turns;
    }
    pods.retain(|_, turns| turns.strong_count() > 0);
    let turns = Arc::new(Semaphore::new(OF_A_POD));
    pods.insert(pod.clone(), Arc::downgrade(&turns));
    turns
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A pod whose own lookups all hang waits, another one does not; and when there are too many of all pods, that is no verdict on
    /// any.
    #[tokio::test]
    async fn lookups_that_hang_hold_up_no_other_pod() {
        let [ours, theirs] = ["ours", "theirs"].map(PodUid::new);
        let hanging = turns(&theirs).acquire_many_owned(2).await.unwrap();
        let short = Duration::from_millis(50);
        let waits = tokio::time::timeout(short, addresses(&theirs, "localhost", 80)).await;
        assert!(waits.is_err(), "it is not held up by its own");
        let found = addresses(&ours, "localhost", 80).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty(), "{found:?}");
        let all = ALL.acquire_many(64).await.unwrap();
        let error = addresses(&ours, "localhost", 80).await.unwrap_err();
        assert!(matches!(error, DialError::Busy { .. }), "{error}");
        assert_eq!(
            addresses(&ours, "127.0.0.1", 80).await.unwrap().len(),
            1,
            "an address needs no name server"
        );
        drop((hanging, all));
        addresses(&theirs, "localhost", 80).await.unwrap();
    }
}
