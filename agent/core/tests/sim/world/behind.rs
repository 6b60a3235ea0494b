//! What is done behind the agent's back, and what a look finds of it.

use std::collections::BTreeSet;

use berth_core::{
    effect::Act,
    id::{PodUid, SandboxId},
    pod::port::look::{Finding, LookRequest},
    time::Now,
};

use super::World;

/// What is there by the agent's account and was removed or changed behind its back.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    changed: BTreeSet<(PodUid, Finding)>,
    netns: BTreeSet<SandboxId>,
}

impl Behind {
    /// Whether everything of a pod is as it was made.
    pub(crate) fn is_repaired(&self, pod: &PodUid) -> bool {
        !self.changed.iter().any(|(owner, _)| owner == pod) && self.netns.is_empty()
    }

    fn made(&mut self, pod: &PodUid, finding: Finding) {
        self.changed.remove(&(pod.clone(), finding));
    }

    /// What an effect leaves is as it should be, or gone for good.
    pub(super) fn performed(&mut self, pod: &PodUid, act: &Act) {
        match act {
            Act::EnsureCgroup(_) | Act::RemoveCgroup(_) => self.made(pod, Finding::Cgroup),
            Act::EnsureDirs(_) => self.made(pod, Finding::Dirs),
            Act::WriteFiles(_) | Act::StartContainer(_) => self.made(pod, Finding::Files),
            Act::EnsureVolume(request) => self.made(pod, Finding::Volume(request.volume.name.clone())),
            Act::RemoveNetns(id) => drop(self.netns.remove(id)),
            Act::RemoveVolumes { .. } => {
                self.changed.retain(|(owner, what)| owner != pod || !matches!(what, Finding::Volume(_)));
            }
            Act::RemoveDirs(_) | Act::Sweep => self.changed.retain(|(owner, _)| owner != pod),
            _ => {}
        }
    }

    fn looked(&self, pod: &PodUid, request: &LookRequest) -> BTreeSet<Finding> {
        let is_gone = |finding: &Finding| self.changed.contains(&(pod.clone(), finding.clone()));
        let asked = [
            (request.cgroup.is_some(), Finding::Cgroup),
            (request.dirs.is_some(), Finding::Dirs),
            (!request.files.is_empty(), Finding::Files),
        ];
        let asked = asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, finding)| finding);
        let volumes = request.volumes.iter().map(|volume| Finding::Volume(volume.name.clone()));
        let bound = request.bound.iter().map(|(name, _)| Finding::Volume(name.clone()));
        let netns = request.netns.iter().filter(|id| self.netns.contains(*id)).map(|_| Finding::Netns);
        asked.chain(volumes).chain(bound).filter(is_gone).chain(netns).collect()
    }
}

impl World {
    /// Somebody removes or changes something of a pod; whether it was there.
    pub(crate) fn change_behind(&mut self, pod: &PodUid, finding: Finding) -> bool {
        let is_there = match &finding {
            Finding::Netns => {
                let sandbox = self.netns.iter().find(|(id, owner)| {
                    *owner == pod && self.sandboxes.get(*id).is_some_and(|one| one.is_alive)
                });
                let sandbox = sandbox.map(|(id, _)| id.clone());
                self.behind.netns.extend(sandbox.clone());
                return sandbox.is_some();
            }
            Finding::Cgroup => self.cgroups.contains_key(pod),
            Finding::Dirs | Finding::Files => self.dirs.contains(pod),
            Finding::Volume(name) => self.volumes.contains(&(pod.clone(), name.clone())),
        };
        if is_there {
            self.behind.changed.insert((pod.clone(), finding));
        }
        is_there
    }

    /// What a look finds. A sandbox without its network namespace is given up.
    pub(super) fn look(&mut self, pod: &PodUid, request: &LookRequest, now: Now) -> BTreeSet<Finding> {
        let found = self.behind.looked(pod, request);
        if let Some(id) = request.netns.as_ref().filter(|_| found.contains(&Finding::Netns)) {
            self.oracle.given_up(pod, id, now);
        }
        found
    }
}
