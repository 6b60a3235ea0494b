//! What is made for pods, and found when it is there.

use std::sync::Arc;

use berth_core::{
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    observation::ObservedTask,
    oci::Accounts,
    paths,
    pod::port::{
        network::NetnsRequest,
        start::{StartRequest, TaskRequest},
        volume::VolumeRequest,
    },
    spec::{NetworkMode, VolumeSource},
    status::NetworkStatus,
    time::Now,
};

use crate::pods;

use super::{Container, Given, Sandbox, World, failure, users};

impl World {
    pub(super) fn look_at_task(&self, request: &TaskRequest) -> Result<Outcome, Failure> {
        let task = self.containers.get(&request.id).map_or(ObservedTask::Absent, |one| one.task.clone());
        let is_alive = self.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive);
        if is_alive || matches!(task, ObservedTask::Exited(_)) {
            return Ok(Outcome::Task(task));
        }
        Err(failure(FailureKind::SandboxGone, "the sandbox has gone"))
    }

    pub(super) fn ensure(&mut self, pod: &PodUid, act: &Act) -> Result<Outcome, Failure> {
        match act {
            Act::EnsureDirs(_) => {
                self.dirs.insert(pod.clone());
                Ok(Outcome::Done)
            }
            Act::EnsureCgroup(request) => {
                self.set_level(pod, Given::of_level(&request.values))?;
                self.cgroups.insert(pod.clone(), request.qos);
                self.check_level(pod);
                Ok(Outcome::Done)
            }
            Act::EnsureNetns(NetnsRequest { sandbox: id, ids }) => {
                self.netns_made(pod, id, *ids);
                self.netns.insert(id.clone(), pod.clone());
                Ok(Outcome::Netns(format!("/run/netns/{id}").into()))
            }
            Act::EnsureNetwork(request) => {
                if !self.netns.contains_key(&request.sandbox) {
                    self.violate(format!("{pod}: network before netns"));
                }
                self.networks.insert(request.sandbox.clone(), pod.clone());
                self.addresses = self.addresses.wrapping_add(1);
                let ip = std::net::Ipv4Addr::new(10, 0, 0, self.addresses);
                Ok(Outcome::Network(NetworkStatus { ips: vec![ip.into()] }))
            }
            Act::EnsureSandbox(request) => {
                if request.pod.network == NetworkMode::Pod && !self.netns.contains_key(&request.id) {
                    self.violate(format!("{pod}: sandbox before netns"));
                }
                if request.pod.network == NetworkMode::Pod {
                    self.check_ids(&request.pod, &request.id, request.ids);
                }
                if self.sandboxes.values().any(|one| one.pod == *pod && one.attempt != request.attempt) {
                    self.violate(format!("{pod}: two sandboxes"));
                }
                let new =
                    Sandbox { pod: pod.clone(), attempt: request.attempt, is_alive: true, is_recorded: true };
                let sandbox = self.sandboxes.entry(request.id.clone()).or_insert(new);
                sandbox.is_recorded = true;
                if sandbox.is_alive {
                    Ok(Outcome::Sandbox { pid: 100, recursive_read_only: false })
                } else {
                    Err(failure(FailureKind::SandboxGone, "the sandbox has ended"))
                }
            }
            Act::EnsureVolume(request) => self.make_volume(pod, request),
            Act::EnsureRootfs(request) => {
                self.make_layer(request);
                if let Some(record) = self.records.get(pod).filter(|record| record.ids != request.ids) {
                    self.violate(format!("{pod}: a layer for {:?} of {:?}", request.ids, record.ids));
                }
                self.snapshots.insert(request.id.clone(), pod.clone());
                Ok(Outcome::Rootfs(Arc::new(Accounts::default())))
            }
            other => panic!("not to be made: {}", other.name()),
        }
    }

    fn make_volume(&mut self, pod: &PodUid, request: &VolumeRequest) -> Result<Outcome, Failure> {
        if !self.dirs.contains(pod) {
            self.violate(format!("{pod}: volume before dirs"));
        }
        let volume = (pod.clone(), request.volume.name.clone());
        *self.contents.made.entry(volume.clone()).or_default() += 1;
        let claim = match &request.volume.source {
            VolumeSource::Claim(claim) => Some(&claim.name),
            _ => None,
        };
        if self.contents.is_missing {
            return Err(match claim {
                Some(name) => {
                    let why = format!("error processing PVC default/{name}: PVC is not bound");
                    failure(FailureKind::Config, &why)
                }
                None => failure(FailureKind::Transient, "configmap \"m\" not found"),
            });
        }
        match &request.image {
            Some(image) => self.make_volume_layer(request, image),
            None if request.volume.image().is_some() => {
                self.violate(format!("{pod}: volume {} of no image", request.volume.name));
            }
            None => {}
        }
        self.volumes.insert(volume);
        let again_in = self.contents.again_in;
        let path = match claim {
            Some(name) => paths::local_volume(&pods::node().paths, pod, name),
            None => format!("/volumes/{}", request.volume.name),
        };
        Ok(Outcome::Volume { path, again_in })
    }

    pub(super) fn start(
        &mut self,
        pod: &PodUid,
        request: &StartRequest,
        now: Now,
    ) -> Result<Outcome, Failure> {
        // A start that was asked for before its sandbox went finds nothing any more.
        if self.sandboxes.contains_key(&request.sandbox) && !self.snapshots.contains_key(&request.id) {
            self.violate(format!("{pod}: start without rootfs"));
        }
        let is_alive = self.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive);
        if is_alive {
            self.check_start(pod, request);
            self.check_ids(&request.pod, &request.sandbox, users::of_plan(&request.plan));
        }
        // The record is made first, and is there also when nothing comes of it.
        let new = || Container::of(pod, request, ObservedTask::Absent);
        let container = self.containers.entry(request.id.clone()).or_insert_with(new);
        if !is_alive {
            return Err(failure(FailureKind::SandboxGone, "the sandbox has gone"));
        }
        let task = container.task.clone();
        let target = request.target.as_ref().map(|target| &target.id);
        let has_target = target.is_none_or(|id| self.containers.get(id).is_some_and(Container::is_running));
        if !has_target && matches!(task, ObservedTask::Absent | ObservedTask::Created) {
            return Err(failure(FailureKind::Transient, "invalid target container"));
        }
        match task {
            ObservedTask::Absent | ObservedTask::Created => self.process_began(pod, request, now),
            ObservedTask::Starting
            | ObservedTask::Running { .. }
            | ObservedTask::Exited(_)
            | ObservedTask::Unknown => {}
        }
        Ok(Outcome::Started(self.containers[&request.id].task.clone()))
    }

    pub(super) fn process_began(&mut self, pod: &PodUid, request: &StartRequest, now: Now) {
        if let Some(container) = self.containers.get_mut(&request.id) {
            container.task = ObservedTask::Running { pid: 200, started_at: now.wall };
        }
        self.check_level(pod);
        let starts = self.starts.entry(request.id.clone()).or_insert((pod.clone(), 0));
        starts.1 += 1;
        if starts.1 > 1 {
            let text = format!("{pod}/{}: attempt {} ran twice", request.container.name, request.attempt);
            self.violations.push(text);
        }
        self.oracle.process_began(request, now);
    }
}
