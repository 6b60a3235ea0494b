//! Volumes of claims over a pod's life: not bound yet, bound, lost behind the agent, and agents that are killed between.

use std::{collections::BTreeSet, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    id::{PodUid, VolumeName},
    pod::port::look::Finding,
    spec::{ClaimVolume, Pod, Volume, VolumeSource},
};

use crate::{pods, run::Run};

fn pod() -> Pod {
    let claim = ClaimVolume { name: "mine".into(), read_only: false, is_of_pod: false };
    let mut pod = pods::pod("web", &["main"]);
    pod.volumes = vec![Volume { name: data(), source: VolumeSource::Claim(claim) }];
    pods::mount_all(&mut pod, "main");
    pod
}

fn data() -> VolumeName {
    VolumeName::new("data")
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn made(run: &Run) -> u32 {
    run.world.contents.made.get(&(uid(), data())).copied().unwrap_or(0)
}

fn is_running(run: &Run) -> bool {
    run.world.running(&uid(), "main").is_some()
}

fn begun(is_missing: bool) -> Run {
    let mut run = Run::new();
    run.settle();
    run.world.contents.is_missing = is_missing;
    run.want(pod());
    run.settle();
    run
}

#[test]
fn a_claim_that_is_not_bound_is_told_in_its_own_words_and_asked_for_every_ten_seconds() {
    let mut run = begun(true);
    run.advance(Duration::from_secs(595), Run::settle);
    assert!(!is_running(&run));
    let tried = made(&run);
    assert!((59..=61).contains(&tried), "{tried}");
    let told: BTreeSet<String> =
        run.notes("FailedMount").map(|(_, note)| note.event.message.clone()).collect();
    assert_eq!(told, ["error processing PVC default/mine: PVC is not bound".to_owned()].into());

    run.world.contents.is_missing = false;
    run.advance(Duration::from_secs(10), Run::settle);
    assert!(is_running(&run), "it goes on within seconds");
    assert_eq!(made(&run), tried + 1);
    run.advance(Duration::from_secs(600), Run::settle);
    assert_eq!(made(&run), tried + 1, "what is there is not asked for again");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn agents_that_are_killed_while_it_waits_and_runs_start_it_once() {
    let mut run = begun(true);
    for _ in 0..3 {
        run.restart(None);
        run.settle();
        run.advance(Duration::from_secs(15), Run::settle);
        assert!(!is_running(&run));
    }
    run.world.contents.is_missing = false;
    run.advance(Duration::from_secs(10), Run::settle);
    let first = run.world.running(&uid(), "main");
    assert!(first.is_some());
    // The claim is being deleted, or the API server is away: what runs goes on.
    run.world.contents.is_missing = true;
    run.restart(None);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(run.world.running(&uid(), "main"), first);
    run.unwant("web");
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(!is_running(&run));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_bind_that_is_lost_behind_the_agent_is_made_again() {
    let mut run = begun(false);
    assert_eq!((made(&run), is_running(&run)), (1, true));
    assert!(run.world.change_behind(&uid(), Finding::Volume(data())));
    run.advance(Duration::from_secs(120), Run::settle);
    assert_eq!((made(&run), is_running(&run)), (2, true));
    assert_eq!(run.notes("ChangedOutside").count(), 1);
}

/// Each would be refused while the other is made.
#[test]
fn what_several_volumes_have_is_made_once_at_a_time() {
    let mut run = Run::new();
    run.settle();
    let mut pod = pod();
    let again = Volume { name: VolumeName::new("again"), ..pod.volumes[0].clone() };
    pod.volumes.push(again);
    pods::edit(&mut pod, "main").mounts.clear();
    pods::mount_all(&mut pod, "main");
    run.want(pod);
    let is_made = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureVolume(_), .. });
    let mut most = 0;
    while run.settle_one() {
        most = most.max(run.open.iter().filter(|effect| is_made(effect)).count());
    }
    assert_eq!(most, 1);
    assert!(is_running(&run));
    assert_eq!(run.told.iter().filter(|effect| is_made(effect)).count(), 2);
}
