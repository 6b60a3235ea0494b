//! Which pods a critical one takes the place of. Source: `pkg/kubelet/preemption/preemption.go`.

use super::{Insufficient, resources::requested};
use crate::spec::{Pod, QosClass, Source};

/// What is missing, and how much of it.
type Missing = Vec<(String, u64)>;

/// The pods that have to go so that there is enough for `pod`: of the lowest class first, as few as can be. An error says what would still
/// be missing when all were gone that give way to it.
pub(in crate::node) fn victims<'a>(
    pod: &Pod,
    others: &[&'a Pod],
    insufficient: &[Insufficient],
) -> Result<Vec<&'a Pod>, Missing> {
    let missing: Missing = insufficient.iter().map(|one| (one.resource.clone(), one.missing())).collect();
    let of_class = |class| -> Vec<&'a Pod> {
        others.iter().copied().filter(|other| other.qos == class && yields(other, pod)).collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let all = [&best_effort, &burstable, &guaranteed];
    let still = all.into_iter().fold(missing.clone(), |rest, gone| without(rest, gone));
    if !still.is_empty() {
        return Err(still);
    }
    let first = nearest(guaranteed, without(without(missing.clone(), &best_effort), &burstable))?;
    let second = nearest(burstable, without(without(missing.clone(), &best_effort), &first))?;
    let third = nearest(best_effort, without(without(missing, &second), &first))?;
    Ok([third, second, first].concat())
}

/// Whether a pod gives way to another. Source: `Preemptable` of `pkg/kubelet/types/pod_update.go`.
fn yields(pod: &Pod, to: &Pod) -> bool {
    // A pod of a manifest has no priority unless it says so; one of the API server always has.
    let has_priority = pod.source == Source::Api || pod.priority != 0;
    (to.is_critical() && !pod.is_critical()) || (has_priority && to.priority > pod.priority)
}

/// What is still missing when these are gone.
fn without(missing: Missing, gone: &[&Pod]) -> Missing {
    let rest = missing.into_iter().map(|(resource, amount)| {
        let freed = gone.iter().map(|pod| requested(pod, &resource)).fold(0, u64::saturating_add);
        (resource, amount.saturating_sub(freed))
    });
    rest.filter(|(_, amount)| *amount > 0).collect()
}

/// Those that come nearest to what is missing, one after the other; of two that come as near, the one that asks for less. An error says
/// what is missing without all of them.
fn nearest(mut pods: Vec<&Pod>, mut missing: Missing) -> Result<Vec<&Pod>, Missing> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let nearest = (0..pods.len()).min_by(|one, other| {
            let (one, other) = (pods[*one], pods[*other]);
            let by_distance = distance(one, &missing).total_cmp(&distance(other, &missing));
            by_distance.then_with(|| size(one).cmp(&size(other)))
        });
        let Some(nearest) = nearest else { return Err(missing) };
        let pod = pods.swap_remove(nearest);
        missing = without(missing, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// How much of each requirement a pod would leave open, each counted alike.
fn distance(pod: &Pod, missing: &Missing) -> f64 {
    let open = missing.iter().map(|(resource, amount)| {
        #[expect(clippy::cast_precision_loss, reason = "only compared")]
        let part = amount.saturating_sub(requested(pod, resource)) as f64 / *amount as f64;
        part * part
    });
    open.sum()
}

fn size(pod: &Pod) -> (u64, u64) {
    (requested(pod, "memory"), requested(pod, "cpu"))
}
