//! Processor time: busy pods get it by their weights and within their bounds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::cgroup::{self, Group};
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
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

/// How long three counters may take to be read as if at once: what is used meanwhile is little beside what is measured.
const AT_ONCE: Duration = Duration::from_millis(20);

/// Always on the last processor that this test may use.
fn busy(name: &str, resources: Value) -> Result<Value> {
    let usable = sched_getaffinity(Pid::this())?;
    let last = (0..128).rev().find(|one| usable.is_set(*one).unwrap_or(false));
    let mask = format!("{:x}", 1_u128 << last.context("no processor")?);
    let script = format!("exec taskset {mask} sh -c 'while :; do :; done'");
    Ok(shell(name, &script, json!({ "resources": resources })))
}

fn shares() -> Result<()> {
    // Whoever runs in a guest while that has no processor is charged for it, up to half a second at a time on a busy machine.
    let measured_us = if cgroup::is_unified() { 12_000_000 } else { 3_000_000 };
    let node = Node::start()?;
    for (name, resources) in [
        ("one", json!({ "requests": { "cpu": "100m" } })),
        ("three", json!({ "requests": { "cpu": "300m" } })),
        ("rest", json!({})),
    ] {
        node.apply(name, &pod(name, json!({ "containers": [busy("main", resources)?] })))?;
    }
    let level = |name: &str| group(&node.world, &node.ready(name)?);
    let groups = [level("one")?, level("three")?, level("rest")?];
    let used = || {
        wait::until("the counters to be read at once", LONG, || {
            let began = Instant::now();
            let read = [groups[0].cpu_us()?, groups[1].cpu_us()?, groups[2].cpu_us()?];
            let taken = began.elapsed();
            Ok(if taken < AT_ONCE { Look::Ready(read) } else { Look::NotYet(format!("it took {taken:?}")) })
        })
    };
    let before = used()?;
    let [one, three, rest] = wait::until("pods to be busy", LONG, || {
        let now = used()?;
        let taken = [now[0] - before[0], now[1] - before[1], now[2] - before[2]];
        let done = taken.iter().sum::<u64>() >= measured_us;
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
    let containers = [busy("a", json!({}))?, busy("b", json!({}))?];
    let spec = json!({ "resources": { "limits": { "cpu": "200m" } }, "containers": containers });
    node.apply("two", &pod("two", spec))?;
    let two = node.ready("two")?;
    let level = group(&node.world, &two)?;
    same("bound", level.bounds()?.quota_us, Some(QUOTA_US))?;
    // Periods before used time here, and after it there: what is used is never too much by the order of looks.
    let periods = |group: &Group| group.count("cpu.stat", "nr_periods");
    let (before, used_before) = (periods(&level)?, level.cpu_us()?);
    let of = |name| container_group(&node.world, &two, name);
    let (a, b) = (of("a")?, of("b")?);
    let (used, passed) = wait::until("both to be busy and held up for many periods", LONG, || {
        let (used, now) = (level.cpu_us()?, periods(&level)?);
        let passed = now - before;
        let (throttled, of_both) = (level.count("cpu.stat", "nr_throttled")?, [a.cpu_us()?, b.cpu_us()?]);
        Ok(if passed >= PERIODS && throttled > 0 && of_both.iter().all(|used| *used > 0) {
            Look::Ready((used - used_before, passed))
        } else {
            Look::NotYet(format!("{passed} periods, {throttled} times held up, {of_both:?} µs"))
        })
    })?;
    // A period may have begun before the first look, and the kernel hands time out in slices of 5 ms.
    let most = (passed + 2) * QUOTA_US;
    ensure!(used <= most, "{used} µs in {passed} periods, at most {most}");
    node.end()
}
