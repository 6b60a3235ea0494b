//! Waits for pods on the agent's control socket.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth::control::PodObject;
use berth_integration::control::{Control, full_name};

/// Longest wait for a pod to be Ready, on a machine busy with other work.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// The same for each of many.
const EACH_LIMIT: Duration = Duration::from_millis(500);

/// Looks every `pause` until a pod is Ready, and gives the moment.
pub(crate) fn ready(control: &Control, manifest: &str, pause: Duration) -> Result<Instant> {
    let name = full_name(manifest);
    // The one object would cost its shim a question each time.
    wait(&format!("pod {manifest}"), READY_LIMIT, pause, || {
        let all = control.overview()?;
        let is_it = |pod: &&PodObject| pod.pod.metadata.name.as_deref() == Some(&name);
        Ok(all.pods.iter().find(is_it).is_some_and(is_ready))
    })
}

/// Looks every `pause` until this many pods are Ready, and gives the moment.
pub(crate) fn all_ready(control: &Control, count: usize, pause: Duration) -> Result<Instant> {
    let limit = READY_LIMIT + EACH_LIMIT * u32::try_from(count)?;
    wait(&format!("{count} pods"), limit, pause, || {
        let all = control.overview()?;
        ensure!(all.problems.is_empty(), "manifests cannot be used: {:?}", all.problems);
        Ok(all.pods.iter().filter(|pod| is_ready(pod)).count() == count)
    })
}

fn wait(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut ready: impl FnMut() -> Result<bool>,
) -> Result<Instant> {
    let begun = Instant::now();
    loop {
        if ready()? {
            return Ok(Instant::now());
        }
        ensure!(begun.elapsed() < limit, "{what} not Ready within {limit:?}");
        thread::sleep(pause);
    }
}

fn is_ready(pod: &PodObject) -> bool {
    let mut conditions = pod.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The id of a pod's first container, without `containerd://`.
pub(crate) fn container_id(pod: &PodObject) -> Result<String> {
    let mut statuses = pod.pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = statuses.next().and_then(|status| status.container_id.as_deref()).unwrap_or_default();
    Ok(id.strip_prefix("containerd://").context("the container has no id")?.to_owned())
}
