//! Processor time: busy pods get it by their weights and within their bounds.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_integration::cgroup::{self, Group};
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{container_group, group, pod, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cpu_time::busy_pods_share_a_processor_by_their_weights", shares),
        test("cpu_time::a_pods_bound_holds_for_its_containers_together", pod_bound),
    ]
}

/// For processor time to be had on a machine with other work.
const LONG: Duration = Duration::from_secs(90);

/// Always on the first processor.
fn busy(name: &str, resources: Value) -> Value {
    shell(name, "exec taskset 1 sh -c 'while :; do :; done'", json!({ "resources": resources }))
}

fn shares() -> Result<()> {
    const MEASURED_US: u64 = 3_000_000;
    let node = Node::start()?;
    for (name, resources) in [
        ("one", json!({ "requests": { "cpu": "100m" } })),
        ("three", json!({ "requests": { "cpu": "300m" } })),
        ("rest", json!({})),
    ] {
        node.apply(name, &pod(name, json!({ "containers": [busy("main", resources)] })))?;
    }
    let level = |name: &str| group(&node.world, &node.ready(name)?);
    let groups = [level("one")?, level("three")?, level("rest")?];
    let used = || -> Result<[u64; 3]> { Ok([groups[0].cpu_us()?, groups[1].cpu_us()?, groups[2].cpu_us()?]) };
    let before = used()?;
    let [one, three, rest] = wait::until("pods to be busy", LONG, || {
        let now = used()?;
        let taken = [now[0] - before[0], now[1] - before[1], now[2] - before[2]];
        let done = taken.iter().sum::<u64>() >= MEASURED_US;
        Ok(if done { Look::Ready(taken) } else { Look::NotYet(format!("{taken:?}")) })
    })?;
    // 307 to 102 shares, or weights of 40 and 17: the weight does not grow as fast as the shares.
    let wanted_percent = if cgroup::is_unified() { 235 } else { 301 };
    let percent = three * 100 / one.max(1);
    ensure!(percent.abs_diff(wanted_percent) * 100 < 15 * wanted_percent, "{three} to {one} µs: {percent} %");
    // A class of 2 shares, or a weight of 1, beside one of 409 or 49.
    ensure!(rest * 100 < 6 * (one + three), "who asks for nothing got {rest} beside {one} and {three} µs");
    node.end()
}

/// Each of them alone would keep within its own.
fn pod_bound() -> Result<()> {
    const QUOTA_US: u64 = 20_000;
    const PERIODS: u64 = 20;
    let node = Node::start()?;
    let containers = [busy("a", json!({})), busy("b", json!({}))];
    let spec = json!({ "resources": { "limits": { "cpu": "200m" } }, "containers": containers });
    node.apply("two", &pod("two", spec))?;
    let two = node.ready("two")?;
    let level = group(&node.world, &two)?;
    same("bound", level.bounds()?.quota_us, Some(QUOTA_US))?;
    // Periods before used time here, and after it there: what is used is never too much by the order of looks.
    let periods = |group: &Group| group.count("cpu.stat", "nr_periods");
    let (before, used_before) = (periods(&level)?, level.cpu_us()?);
    let used = wait::until("periods to pass", LONG, || {
        let (used, now) = (level.cpu_us()?, periods(&level)?);
        let passed = now - before;
        Ok(if passed >= PERIODS {
            Look::Ready((used - used_before, passed))
        } else {
            Look::NotYet(passed.to_string())
        })
    })?;
    let (used, passed) = used;
    // A period may have begun before the first look, and the kernel hands time out in slices of 5 ms.
    let most = (passed + 2) * QUOTA_US;
    ensure!(used <= most, "{used} µs in {passed} periods, at most {most}");
    ensure!(level.count("cpu.stat", "nr_throttled")? > 0, "the pod was never held up");
    for name in ["a", "b"] {
        ensure!(container_group(&node.world, &two, name)?.cpu_us()? > 0, "{name} got nothing");
    }
    node.end()
}
