//! The rest after a life: nothing fails any more, and the node must come to what is wanted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    effect::{Act, Effect},
    event::Event,
    id::{PodUid, SandboxId},
    record::PodRecord,
    spec::{ContainerKind, Pod, Source},
    status::ConditionKind,
};

use super::{QUIET, REST_STEPS, chaos::Chaos};
use crate::{
    run::Run,
    tell,
    world::{Container, Disk},
};

impl Chaos {
    /// Nothing fails any more and init containers end well: the node must come to rest.
    pub(super) fn rest(&mut self) {
        self.is_calm = true;
        self.run.are_writes_slow = false;
        self.run.finish_writes();
        let began = self.run.now.mono;
        self.run.world.disk = Disk::Works;
        self.run.world.sick.clear();
        self.run.world.used.clear();
        self.run.world.files_beside_images = 0;
        self.run.world.hooks.clear();
        self.calm_cluster();
        // Those of pods that are to go stay silent, and must not keep them.
        let ending = |run: &Run, id: &SandboxId| {
            let pod = run.world.sandboxes.get(id).map(|one| &one.pod);
            let record = pod.and_then(|pod| run.world.records.get(pod));
            record.is_none_or(|record| record.termination.is_some())
        };
        let speaking: Vec<SandboxId> =
            self.run.world.silent.iter().filter(|id| !ending(&self.run, id)).cloned().collect();
        for id in speaking {
            self.run.world.speak(&id);
        }
        if self.run.world.runtime_is_down {
            self.run.set_runtime(false);
        }
        self.run.hear_runtime();
        self.run.handle(Event::NetworkReady(Ok(())));
        for _ in 0..REST_STEPS {
            self.check();
            self.end_starts();
            self.end_late();
            if !self.run.open.is_empty() {
                self.perform();
            } else if !self.run.finished.is_empty() {
                self.deliver();
            } else if self.run.world.has_news() {
                self.run.report();
            } else if self.run.settle_cluster_once() {
                self.note_requests();
            } else if self.run.look() || self.run.collect() || self.run.probe() {
            } else if !self.end_init_container() {
                self.check_overdue();
                let Some(at) = self.run.wake_at() else { return };
                if at > self.asked_at.max(began) + QUIET {
                    return;
                }
                let length = at.since(self.run.now.mono);
                self.run.advance(length, |_| {});
            }
        }
        self.fail(&format!("never at rest: {:?}", self.run.told.iter().rev().take(10).collect::<Vec<_>>()));
    }

    /// Processes that took their time after a signal come to their end.
    pub(super) fn end_late(&mut self) {
        let now = self.run.now;
        if self.run.world.end_late(now) {
            self.count("processes that ended late");
        }
    }

    fn check_overdue(&mut self) {
        let (now, silent) = (self.run.now, self.run.world.silent.clone());
        self.run.world.judge(|oracle| oracle.check_overdue(|id| silent.contains(id), now));
        self.check();
    }

    /// Starts that the runtime was at come to their end.
    pub(super) fn end_starts(&mut self) {
        while self.run.world.end_start(self.run.now) {
            self.count("starts that ended late");
        }
    }

    pub(super) fn end_init_container(&mut self) -> bool {
        let is_init = |one: &Container| one.name.as_str().starts_with("init-");
        let Some(id) = self.running().find(|(_, one)| is_init(one)).map(|(id, _)| id.clone()) else {
            return false;
        };
        let now = self.run.now;
        self.run.world.exit(&id, 0, now);
        true
    }

    pub(super) fn check(&mut self) {
        if !self.run.world.unwritten.is_empty() {
            self.count("records unwritten");
        }
        self.tell();
        if !self.run.world.violations.is_empty() {
            let violations = self.run.world.violations.join("\n");
            self.fail(&violations);
        }
    }

    fn tell(&mut self) {
        let kills = self.run.told.iter();
        let kills =
            kills.filter(|effect| matches!(effect, Effect::Pod { act: Act::KillShim(_), .. })).count();
        *self.counts.entry("shims killed").or_insert(0) += u64::try_from(kills).unwrap();
        for (reason, what) in [
            ("ResizeStarted", "resizes allocated"),
            ("ResizeDeferred", "resizes deferred"),
            ("ResizeCompleted", "resizes done"),
        ] {
            let count = u64::try_from(self.run.notes(reason).count()).unwrap();
            *self.counts.entry(what).or_insert(0) += count;
        }
        if self
            .run
            .told
            .iter()
            .any(|effect| !matches!(tell::kind_of(effect), "look" | "measure-images" | "probe"))
        {
            self.asked_at = self.run.now.mono;
        }
        if self.is_told {
            for effect in &self.run.told {
                println!(
                    "{:.3} {}",
                    self.run.now.mono.0.as_secs_f64(),
                    tell::effect(effect, &BTreeMap::new())
                );
            }
        }
        self.run.told.clear();
    }

    fn lives(&self) -> Vec<&berth_core::pod::actual::Life> {
        self.run.node.pods().map(|pod| pod.life()).collect()
    }

    pub(super) fn fail(&self, why: &str) -> ! {
        panic!("SEED={}: {why}", self.seed);
    }

    /// Every wanted pod is as it should be, and nothing else is there.
    pub(super) fn check_arrival(&mut self) {
        let mut wanted = self.run.all_wanted();
        wanted.retain(|pod| !self.run.world.oracle.is_kept_out(pod));
        for pod in &wanted {
            self.check_pod(pod);
            self.count("arrivals");
        }
        self.check_cluster(&wanted);
        let wanted: Vec<PodUid> = wanted.iter().map(|pod| pod.uid.clone()).collect();
        let strangers: BTreeSet<&PodUid> =
            self.run.world.uids().filter(|uid| !wanted.contains(uid)).collect();
        if !strangers.is_empty() {
            self.fail(&format!("not removed: {strangers:?}\n{:#?}", self.lives()));
        }
    }

    fn check_pod(&mut self, pod: &Arc<Pod>) {
        let uid = &pod.uid;
        let Some(record) = self.run.world.records.get(uid).cloned() else {
            self.fail(&format!("{uid} has no record"))
        };
        let status = Arc::clone(&self.run.world.statuses[uid]);
        let now = self.run.now;
        self.run.world.judge(|oracle| oracle.check_rest(uid, &status, record.terminal.is_some(), now));
        self.check();
        let world = &self.run.world;
        if record.terminal.is_some() {
            let left = world.left_of(uid);
            // The API server knows of its own.
            if pod.source != Source::Api && !world.ends.contains_key(uid) {
                self.fail(&format!("{uid} has ended and nothing is kept of that"));
            }
            if left.iter().any(|what| what != "dirs" && what != "end") {
                self.fail(&format!("{uid} has ended and {left:?} is left"));
            }
            return;
        }
        if !world.behind.is_repaired(uid) {
            self.fail(&format!("{uid}: not repaired: {:?}", world.behind));
        }
        if world.sandboxes.values().filter(|one| one.pod == *uid && one.is_alive).count() != 1 {
            self.fail(&format!("{uid}: not one sandbox"));
        }
        let mut waiting = 0;
        for container in pod.all_containers() {
            let runs = world.containers.values().filter(|one| one.pod == *uid && one.name == container.name);
            let runs: Vec<&Container> = runs.collect();
            let is_over = match container.kind {
                ContainerKind::Init => true,
                ContainerKind::Sidecar => false,
                ContainerKind::Main => world.oracle.is_over(uid, &container.name),
                ContainerKind::Ephemeral => world.oracle.has_ended(uid, &container.name),
            };
            if world.oracle.waits_for_target(uid, container) {
                waiting += 1;
                continue;
            }
            let is_right = match runs.as_slice() {
                [] => is_over,
                [one] => !is_over && one.is_running() && one.hash == container.hash,
                [..] => false,
            };
            if !is_right {
                self.fail(&format!("{uid}/{}: {runs:?}\n{record:#?}", container.name));
            }
        }
        self.run.world.check_given(uid);
        self.run.world.check_waits(pod);
        self.check();
        let waits = status.conditions.iter().any(|one| one.kind == ConditionKind::PodResizePending);
        *self.counts.entry("resizes that wait at rest").or_default() += u64::from(waits);
        *self.counts.entry("ephemeral containers that wait for their target at rest").or_default() += waiting;
    }

    /// An agent that begins again finds everything as it is: no container starts, no status changes, and what time it is by the wall
    /// clock by then does not matter.
    pub(super) fn check_restart_changes_nothing(&mut self) {
        let starts = self.run.world.starts.clone();
        let statuses = self.run.world.statuses.clone();
        let records = self.records();
        let requests = self.requests;
        self.run.advance(Duration::from_secs(5), |_| {});
        if self.clock.is_one_in(2) {
            self.set_clock();
        }
        self.begin_again();
        let after_boot = self.run.world.statuses.clone();
        self.rest();
        for (uid, status) in &statuses {
            for now in [&after_boot[uid], &self.run.world.statuses[uid]] {
                if now != status {
                    self.fail(&format!("{uid}: a restart changed\n{status:#?}\ninto\n{now:#?}"));
                }
            }
        }
        if starts != self.run.world.starts {
            self.fail("a restart started containers");
        }
        if records != self.records() {
            self.fail("a restart changed records");
        }
        if requests != self.requests {
            self.fail("a restart told the API server something");
        }
        self.count("restarts that changed nothing");
    }

    /// Of what the API gave, each agent notes anew when it saw it first.
    fn records(&self) -> BTreeMap<PodUid, PodRecord> {
        let mut records = self.run.world.records.clone();
        for record in records.values_mut().filter(|record| record.source == Source::Api) {
            record.manifest = "".into();
        }
        records
    }

    pub(super) fn check_empty(&self) {
        let world = &self.run.world;
        let left = [
            (world.records.len(), "records"),
            (world.dirs.len(), "dirs"),
            (world.ends.len(), "ends"),
            (world.cgroups.len(), "cgroups"),
            (world.volumes.len(), "volumes"),
            (world.netns.len(), "netns"),
            (world.networks.len(), "networks"),
            (world.sandboxes.len(), "sandboxes"),
            (world.snapshots.len(), "snapshots"),
            (world.containers.len(), "containers"),
            (self.run.cluster.as_ref().map_or(0, |cluster| cluster.server.objects.len()), "objects"),
        ];
        for (count, what) in left {
            if count != 0 {
                self.fail(&format!("{count} {what} left: {world:#?}"));
            }
        }
    }
}
