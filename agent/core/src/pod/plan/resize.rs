//! What comes next of a resize that is allocated.
//!
//! The pod's cgroup grows, then memory changes, then CPU, of each first in the containers that get less and then in those that get more;
//! at last the pod's cgroup shrinks, when what the pod uses fits. Before all of that containers end whose policy is to restart, and begin
//! with what is allocated.
//!
//! Source: `computePodResizeAction` and `doPodResizeAction` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.

use super::Planner;
use crate::{
    pod::{
        actual::Life,
        port::cgroup,
        resize::{actuated, changes_running, is_ending_to_resize, is_leaving, memory_held, whole},
        resource::Resource,
        step::{PodResource, Step},
    },
    spec::{Container, ContainerKind, CpuMemory, Resizable},
};

/// A change of a container's cgroup.
struct Change<'a> {
    container: &'a Container,
    resource: Resizable,
    is_more: bool,
}

impl<'a> Planner<'a> {
    pub(super) fn resize(&mut self) {
        if self.life.record.resizing.is_none() {
            return;
        }
        let actual = &self.life.actual;
        let fits = self.has_fitting_cgroup();
        if actual.cgroup.ready().is_some() && !fits {
            self.push(Step::Ensure(PodResource::Cgroup));
        }
        let mut containers = self.life.spec.fixed_containers();
        if containers.all(|container| actuated(self.life, container).is_none()) {
            let is_larger = whole(self.life).is_some() || memory_held(self.life).is_some();
            if fits && is_larger && self.is_due(&actual.resize) {
                self.push(Step::SettleWhole);
            } else if fits && !is_larger && !matches!(actual.resize, Resource::Ensuring(_)) {
                self.push(Step::Resized);
            }
            return;
        }
        // What gets less needs no room: of an agent that was killed the pod's cgroup may be the smaller one already.
        if let Some(Change { container, resource, is_more }) = self.next_change()
            && (!is_more || fits && !self.life.spec.fixed_containers().any(|one| is_leaving(self.life, one)))
            && !self.life.spec.fixed_containers().any(|container| is_ending_to_resize(self.life, container))
            && self.is_due(&actual.resize)
        {
            self.push(Step::Resize(container.name.clone(), resource));
        }
    }

    /// Whether the pod's cgroup is there, and as it is to be now.
    pub(super) fn has_fitting_cgroup(&self) -> bool {
        let Life { record, actual, .. } = self.life;
        let wanted = || cgroup::request(self.life, self.world.config).values;
        let is_as_wanted = || actual.cgroup_values.as_deref() == Some(&wanted());
        actual.cgroup.ready().is_some() && (record.resizing.is_none() || is_as_wanted())
    }

    fn next_change(&self) -> Option<Change<'a>> {
        let of = |resource| {
            let containers = self.life.spec.fixed_containers().map(|container| &**container);
            let changes = containers.filter_map(move |container| self.change(container, resource));
            changes.min_by_key(|change| change.is_more)
        };
        of(Resizable::Memory).or_else(|| of(Resizable::Cpu))
    }

    /// What one that runs and goes on lacks of a resource, or has too much.
    fn change(&self, container: &'a Container, resource: Resizable) -> Option<Change<'a>> {
        let has = changes_running(self.life, container)?;
        let wanted = CpuMemory::of(&self.life.spec, container);
        // No limit is more than any.
        let order = |amounts: CpuMemory| {
            let (limit, request) = amounts.amounts(resource);
            (limit.wrapping_sub(1), request)
        };
        (!has.is(resource, wanted)).then(|| Change {
            container,
            resource,
            is_more: order(wanted) > order(has.least()),
        })
    }
}

/// Whether a container can be resized while it runs. Source: `IsResizableContainer` of `pkg/kubelet/allocation/allocation_manager.go`.
pub(crate) fn is_resizable(container: &Container) -> bool {
    match container.kind {
        ContainerKind::Main | ContainerKind::Sidecar | ContainerKind::Init => true,
        ContainerKind::Ephemeral => false,
    }
}
