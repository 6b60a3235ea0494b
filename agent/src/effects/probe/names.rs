//! Names that probes look up. Each is a thread that may wait for a name server as long as that takes, so a pod has few of them, and
//! one whose name server never answers holds up no other pod.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use berth_core::id::PodUid;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};

use super::socket::DialError;
use crate::effects::{failure::unknown, host::blocking};

/// Lookups at once of a pod; more wait for each other. Once half of those of all pods are under way, each pod has one.
const OF_A_POD: u16 = 2;
/// Lookups at once of all pods: far below the threads that there are.
const OF_ALL: usize = 64;
static ALL: Semaphore = Semaphore::const_new(OF_ALL);
/// How long a lookup waits for others to end; then it is not begun. Short beside the time that a probe has (1 s at least): when that
/// is over, the container is said to have failed, of which this says nothing.
const TURN_WITHIN: Duration = Duration::from_millis(250);

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
    let permits = permits(pod).await.ok_or_else(|| DialError::Busy { name: host.to_owned() })?;
    let name = host.to_owned();
    let found = blocking(move || {
        let _permits = permits;
        let found = (name.as_str(), port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        Ok(found.take(ADDRESSES_MAX).collect())
    });
    found.await.map_err(|failure| failed(failure.message))
}

/// A turn of the pod's and one of all pods'; `None` where too many lookups of other pods do not end.
async fn permits(pod: &PodUid) -> Option<(OwnedSemaphorePermit, SemaphorePermit<'static>)> {
    let turns = turns(pod);
    let own = Arc::clone(&turns).acquire_owned().await.ok()?;
    let both = async {
        let own = if ALL.available_permits() > OF_ALL / 2 {
            own
        } else {
            drop(own);
            turns.acquire_many_owned(OF_A_POD.into()).await.ok()?
        };
        Some((own, ALL.acquire().await.ok()?))
    };
    timeout(TURN_WITHIN, both).await.ok().flatten()
}

/// Those of a pod, for as long as somebody has one.
fn turns(pod: &PodUid) -> Arc<Semaphore> {
    let mut pods = PODS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(turns) = pods.get(pod).and_then(Weak::upgrade) {
        return turns;
    }
    pods.retain(|_, turns| turns.strong_count() > 0);
    let turns = Arc::new(Semaphore::new(OF_A_POD.into()));
    pods.insert(pod.clone(), Arc::downgrade(&turns));
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    /// The turns of all pods are one test's at a time.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// A pod whose own lookups all hang waits, another one does not; and when there are too many of all pods, that is no verdict on
    /// any.
    #[tokio::test(start_paused = true)]
    async fn lookups_that_hang_hold_up_no_other_pod() {
        let _alone = ALONE.lock().await;
        let [ours, theirs] = ["ours", "theirs"].map(PodUid::new);
        let hanging = turns(&theirs).acquire_many_owned(2).await.unwrap();
        let waits = timeout(SHORT, addresses(&theirs, "localhost", 80)).await;
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

    #[tokio::test(start_paused = true)]
    async fn pods_whose_lookups_all_hang_leave_turns_to_others() {
        let _alone = ALONE.lock().await;
        let (pod, ours) = (|number: usize| PodUid::new(format!("hangs-{number}")), PodUid::new("ours"));
        let mut hanging = Vec::new();
        for number in 0..32 {
            hanging.push(permits(&pod(number)).await.unwrap());
            // A second one each, of those that come first.
            hanging.extend(timeout(SHORT, permits(&pod(number))).await.ok().flatten());
        }
        assert_eq!(hanging.len(), 48);
        addresses(&ours, "localhost", 80).await.unwrap();
        for number in 32..48 {
            hanging.push(permits(&pod(number)).await.unwrap());
        }
        let error = addresses(&ours, "localhost", 80).await.unwrap_err();
        assert!(matches!(error, DialError::Busy { .. }), "{error}");
        let one_ends = async {
            tokio::time::sleep(SHORT).await;
            hanging.pop();
        };
        let (found, ()) = tokio::join!(addresses(&ours, "localhost", 80), one_ends);
        found.expect("it has waited for its turn");
    }
}
