//! Interfaces of pods: a thread goes from one network namespace to the next, and ends in the last.
//!
//! A namespace is reached by its name, which is the sandbox's. The shim's process holds it too, but its number may be another's by
//! the time it is looked up.

use std::{collections::BTreeMap, fs::File, path::Path, thread};

use berth_core::{
    id::PodUid,
    paths,
    stats::{Interface, Network, NetworkOf, PodSubject, interfaces},
};
use jiff::Timestamp;
use nix::sched::{CloneFlags, setns};

use super::proc;

/// What the namespace of a thread has.
const DEVICES: &str = "/proc/thread-self/net/dev";

/// The node's own.
pub(super) fn of_node() -> Network {
    Network { at: Timestamp::now(), interfaces: here() }
}

/// Those of pods with a network of their own. A namespace that has gone has none.
pub(super) fn of_pods(pods: &[PodSubject]) -> BTreeMap<PodUid, Network> {
    let sandboxes: Vec<_> = pods
        .iter()
        .filter_map(|pod| match &pod.network {
            NetworkOf::Sandbox(sandbox) => Some((pod.uid.clone(), paths::netns(sandbox))),
            NetworkOf::Node | NetworkOf::None => None,
        })
        .collect();
    if sandboxes.is_empty() {
        return BTreeMap::new();
    }
    let read = || {
        let one = |(uid, path): (PodUid, String)| Some((uid, of_namespace(Path::new(&path))?));
        sandboxes.into_iter().filter_map(one).collect()
    };
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("network-stats".to_owned()).spawn_scoped(scope, read);
        reader.ok().and_then(|reader| reader.join().ok()).unwrap_or_default()
    })
}

/// The calling thread stays there.
fn of_namespace(path: &Path) -> Option<Network> {
    let namespace = File::open(path).ok()?;
    setns(namespace, CloneFlags::CLONE_NEWNET).ok()?;
    Some(Network { at: Timestamp::now(), interfaces: here() })
}

fn here() -> Vec<Interface> {
    interfaces(&proc::text(Path::new(DEVICES)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use berth_core::id::{PodName, SandboxId};

    use super::*;

    #[test]
    fn a_namespace_that_has_gone_has_no_interfaces() {
        let pod = |network| PodSubject {
            uid: PodUid::new("u"),
            name: PodName { namespace: "n".to_owned(), name: "p".to_owned() },
            started_at: None,
            cgroup: String::new(),
            network,
            volumes: Vec::new(),
            containers: Vec::new(),
        };
        let gone = NetworkOf::Sandbox(SandboxId::from_known("there-is-no-such-sandbox"));
        assert_eq!(of_pods(&[pod(gone), pod(NetworkOf::Node), pod(NetworkOf::None)]), BTreeMap::new());
        // A file that is no namespace is none.
        assert_eq!(of_namespace(Path::new("/proc/self/stat")), None);
    }
}
