//! What containers need before they start.

use std::collections::BTreeSet;

use super::{ERROR_SHOWN, Network, Planner};
use crate::{
    id::ContainerName,
    image,
    pod::{
        actual::{Actual, Preparing, Run},
        image_need::{Need, of_container, of_volume},
        port::{
            image::{ImageFor, ImageUse},
            removal::Leftover,
            sandbox,
            volume::Refresh,
        },
        restart::{could_not_start, due, due_after_a_stop, is_of_another, runs_again},
        step::{PodResource, Step},
        turn::is_initialized,
    },
    record::ContainerRecord,
    spec::{Container, ContainerKind, ImagePullPolicy, Volume},
    time::Mono,
};

/// Volumes of a pod that are made at once, or made anew: a pod may have thousands, and each takes memory while it is.
const VOLUMES_AT_ONCE: usize = 16;
/// How sysctls of a network namespace begin.
const NETWORK: &str = "net.";

impl Planner<'_> {
    /// Directories, cgroup, network, sandbox, volumes.
    pub(super) fn resources(&mut self) {
        let actual = &self.life.actual;
        if self.is_due(&actual.dirs) {
            self.push(Step::Ensure(PodResource::Dirs));
        }
        if self.is_due(&actual.cgroup) {
            self.push(Step::Ensure(PodResource::Cgroup));
        }
        if actual.dirs.ready().is_some() {
            if self.is_due(&actual.files) {
                self.push(Step::Ensure(PodResource::Files));
            }
            self.volumes();
        }
        if actual.has_old_sandbox() {
            return;
        }
        // Without ids the sandbox is refused, and tells so.
        if self.life.is_wired() && !self.life.lacks_ids() {
            self.wired_sandbox();
        } else if self.is_due(&actual.sandbox) {
            self.push(Step::Ensure(PodResource::Sandbox));
        }
    }

    fn volumes(&mut self) {
        let actual = &self.life.actual;
        let mut room = VOLUMES_AT_ONCE.saturating_sub(being_made(actual));
        let used = self.life.spec.used_volumes();
        // What a claim has brought is made once at a time, however many volumes have it.
        let is_made =
            |volume: &&Volume| actual.volumes.get(&volume.name).is_some_and(|state| state.op().is_some());
        let mut claims: BTreeSet<&str> =
            self.life.spec.volumes.iter().filter(is_made).filter_map(claim_of).collect();
        for volume in &self.life.spec.volumes {
            let due = match (actual.refreshes.get(&volume.name), actual.volumes.get(&volume.name)) {
                _ if !used.contains(&volume.name) || !self.can_be_made(volume) => false,
                // Found to be missing meanwhile: made once at a time.
                (Some(Refresh::Asked { .. }), _) => false,
                (Some(Refresh::At { .. }) | None, None) => true,
                (Some(Refresh::At { .. }) | None, Some(state)) => self.is_due(state),
            };
            if due && room > 0 && claim_of(volume).is_none_or(|claim| claims.insert(claim)) {
                room -= 1;
                self.push(Step::Ensure(PodResource::Volume(volume.name.clone())));
            }
        }
        self.refreshes(room);
    }

    /// Whether there is what a volume is made of: an image that is on the node, with the owners that the pod has.
    fn can_be_made(&self, volume: &Volume) -> bool {
        let has_image = || self.life.record.volume_images.contains_key(&volume.name);
        volume.image().is_none() || has_image() && !self.life.lacks_ids()
    }

    /// Content that has changed, or grows old, in volumes that are there.
    fn refreshes(&mut self, mut room: usize) {
        let actual = &self.life.actual;
        for (name, refresh) in &actual.refreshes {
            let is_there = actual.volumes.get(name).is_some_and(|state| state.ready().is_some());
            if let Refresh::At { at, .. } = refresh
                && is_there
                && self.has_come(*at)
                && room > 0
            {
                room -= 1;
                self.push(Step::Refresh(name.clone()));
            }
        }
    }

    fn wired_sandbox(&mut self) {
        let actual = &self.life.actual;
        match self.world.network {
            Network::Ready | Network::Unheard => {}
            Network::Unknown if actual.network.ready().is_none() => return,
            Network::NotReady(why) if actual.network.ready().is_none() => {
                self.plan.unwired = Some(why.clone());
                return;
            }
            Network::Unknown | Network::NotReady(_) => {}
        }
        if self.is_due(&actual.netns) {
            self.push(Step::Ensure(PodResource::Netns));
        }
        if actual.netns.ready().is_none() {
            return;
        }
        // The sandbox tells why not.
        let has_dns = sandbox::dns(self.life, self.world.config).is_ok();
        if has_dns && self.is_due(&actual.network) {
            self.push(Step::Ensure(PodResource::Network));
        }
        // What a pod itself sets in its network is set after CNI plugins have set theirs, and where their interfaces are.
        let sets_of_network =
            || self.life.spec.security.sysctls.iter().any(|one| one.name.starts_with(NETWORK));
        if self.is_due(&actual.sandbox)
            && (actual.network.ready().is_some() || !has_dns || !sets_of_network())
        {
            self.push(Step::Ensure(PodResource::Sandbox));
        }
    }

    /// Brings images of volumes, whoever mounts them.
    pub(super) fn volume_images(&mut self) {
        for volume in &self.life.spec.volumes {
            if let Some(need) = of_volume(self.life, volume) {
                self.bring_image(&ImageFor::Volume(volume.name.clone()), need);
            }
        }
    }

    /// Begins runs that are due and brings those that are not started yet forward, all at once: the image and the
    /// writable layer of a later container do not wait for an earlier one.
    pub(super) fn prepare_containers(&mut self) {
        if self.life.lacks_ids() {
            return;
        }
        for container in self.life.spec.all_containers() {
            match self.life.run(&container.name) {
                Run::Idle => self.idle(container, Announced::No),
                Run::BackingOff => self.idle(container, Announced::Yes),
                Run::Preparing(preparing) => self.preparing(container, preparing),
                Run::Starting(_) | Run::Running(_) | Run::Ended(_) => {}
            }
        }
    }

    fn idle(&mut self, container: &Container, announced: Announced) {
        match self.next_run(container) {
            Next::None => {}
            Next::At(at) if !self.has_come(at) => {
                if announced == Announced::No && self.is_start_error_shown(container) {
                    self.push(Step::BackOff(container.name.clone()));
                }
            }
            Next::At(_) | Next::Now => {
                if !self.is_being_removed(&container.name) {
                    self.push(Step::Begin(container.name.clone()));
                }
            }
        }
    }

    /// Whether the wait for the next run can be told: why a container could not be started is shown for a while first.
    fn is_start_error_shown(&mut self, container: &Container) -> bool {
        let record = self.life.record.containers.get(&container.name);
        match record.and_then(|record| record.exit.as_ref()) {
            Some(exit) if could_not_start(exit) || exit.post_start.is_some() => {
                self.has_come(exit.at + ERROR_SHOWN)
            }
            Some(_) | None => true,
        }
    }

    /// When the next run of a container that does not run may begin.
    fn next_run(&self, container: &Container) -> Next {
        let Some(record) = self.life.record.containers.get(&container.name) else { return Next::Now };
        let Some(exit) = &record.exit else {
            let before = record.last_exit.as_ref().filter(|_| is_of_another(record));
            return before.map_or(Next::Now, |before| Next::At(due(record, before)));
        };
        // Whatever it was stopped for, it was its only run.
        if container.kind == ContainerKind::Ephemeral {
            return Next::None;
        }
        if self.is_stale_init(container, record) {
            return Next::Now;
        }
        let is_replaced = self.life.record.is_replaced(record);
        let again = is_replaced || runs_again(container, self.life.spec.restart_policy, exit.exit.code);
        if !again || (container.kind == ContainerKind::Init && is_initialized(self.life)) {
            return Next::None;
        }
        Next::At(if is_replaced { due_after_a_stop(record, exit) } else { due(record, exit) })
    }

    /// Whether an init container ended well, but in an earlier sandbox: a new sandbox is initialized anew.
    fn is_stale_init(&self, container: &Container, record: &ContainerRecord) -> bool {
        container.kind == ContainerKind::Init
            && record.exit.as_ref().is_some_and(|exit| exit.exit.code == 0)
            && record.started_in != Some(self.life.record.sandbox)
            && !is_initialized(self.life)
    }

    pub(super) fn is_being_removed(&self, name: &ContainerName) -> bool {
        self.life.actual.removals.contains_key(&Leftover::Container(self.life.container_id(name)))
    }

    /// Whether a layer that is made now could be taken for one of an earlier sandbox.
    fn is_sandbox_being_removed(&self) -> bool {
        self.life.actual.removals.keys().any(|leftover| matches!(leftover, Leftover::Sandbox(_)))
    }

    fn preparing(&mut self, container: &Container, preparing: &Preparing) {
        let record = self.life.record.containers.get(&container.name);
        if preparing.hash != container.hash || record.is_some_and(is_of_another) {
            return self.give_up(container, preparing, true);
        }
        if let ImageUse::Ready(_) = &preparing.image {
            if self.is_due(&preparing.rootfs) && !self.is_sandbox_being_removed() {
                self.push(Step::Ensure(PodResource::Rootfs(container.name.clone())));
            }
        } else if let Some(need) = of_container(self.life, container) {
            self.bring_image(&ImageFor::Container(container.name.clone()), need);
        }
    }

    fn bring_image(&mut self, of: &ImageFor, need: Need<'_>) {
        match need.state {
            ImageUse::Wanted => self.look_for_image(of, need),
            ImageUse::Postponed if !need.is_early => self.look_for_image(of, need),
            ImageUse::Postponed
            | ImageUse::Inspecting { .. }
            | ImageUse::Pulling { .. }
            | ImageUse::Ready(_) => {}
            ImageUse::Missing => self.missing(of, need),
            ImageUse::Failed { look_at } => {
                if self.has_come(*look_at) {
                    self.look_for_image(of, need);
                } else {
                    self.announce_back_off(need);
                }
            }
            ImageUse::Refused { retry, .. } => {
                if self.has_come(retry.at) {
                    self.look_for_image(of, need);
                }
            }
        }
    }

    /// A name that is none is told before anything is pulled, whatever the policy. What is pulled at every start is pulled in its turn:
    /// a tag means what it means then. Source: `EnsureImageExists` of `pkg/kubelet/images/image_manager.go`.
    fn look_for_image(&mut self, of: &ImageFor, need: Need<'_>) {
        match need.policy {
            ImagePullPolicy::Always if need.is_early => {}
            ImagePullPolicy::Always if image::name::parse(need.image.as_str()).is_ok() => {
                self.missing(of, need);
            }
            ImagePullPolicy::Always | ImagePullPolicy::IfNotPresent | ImagePullPolicy::Never => {
                self.push(Step::Inspect(of.clone()));
            }
        }
    }

    fn missing(&mut self, of: &ImageFor, need: Need<'_>) {
        let pull = Step::Pull(of.clone());
        let Some(backoff) = self.life.actual.pull_backoffs.get(need.image) else {
            return self.push(pull);
        };
        if self.has_come(backoff.ends_at) {
            self.push(pull);
        } else {
            self.announce_back_off(need);
        }
    }

    fn announce_back_off(&mut self, need: Need<'_>) {
        let Some(backoff) = self.life.actual.pull_backoffs.get(need.image) else { return };
        if !backoff.announced && !need.is_early && self.has_come(backoff.failed_at + ERROR_SHOWN) {
            let announce = Step::BackOffPull(need.image.clone());
            if !self.plan.steps.contains(&announce) {
                self.push(announce);
            }
        }
    }
}

/// Name of a volume's claim.
fn claim_of(volume: &Volume) -> Option<&str> {
    volume.claim().map(|claim| claim.name.as_str())
}

/// How many volumes are being made, or made anew.
fn being_made(actual: &Actual) -> usize {
    let refreshes = actual.refreshes.values();
    actual.volumes.values().filter(|state| state.op().is_some()).count()
        + refreshes.filter(|refresh| matches!(refresh, Refresh::Asked { .. })).count()
}

/// When the next run of a container begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There is none.
    None,
    /// At once.
    Now,
    /// When its back-off is over.
    At(Mono),
}

/// Whether the wait for the next run was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    No,
    Yes,
}
