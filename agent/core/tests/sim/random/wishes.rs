//! What is wanted, and what is not any more.

use std::time::Duration;

use berth_core::{
    id::{ContainerName, ImageRef, PodUid},
    spec::{NetworkMode, Pod, RestartPolicy, UserMode},
};

use super::{NAMES, chaos::Chaos};
use crate::pods;

impl Chaos {
    pub(super) fn want(&mut self) {
        let wanted = self.run.wanted();
        let free: Vec<&str> = NAMES.into_iter().filter(|name| !wanted.contains(*name)).collect();
        let Some(name) = self.dice.pick(&free) else { return };
        let pod = match self.known.get(name) {
            Some(pod) if self.dice.is_one_in(2) => pod.clone(),
            Some(_) | None => self.random_pod(name),
        };
        self.known.insert(name, pod.clone());
        self.count("pods begun");
        self.run.want(pod);
    }

    pub(super) fn random_pod(&mut self, name: &str) -> Pod {
        let shapes: [&[&str]; 6] = [
            &["main"],
            &["main", "other"],
            &["init-a", "main"],
            &["side-a", "main"],
            &["init-a", "side-b", "init-c", "main", "other"],
            &["side-a", "side-b", "main"],
        ];
        let shape = self.dice.pick(&shapes).unwrap();
        let mut pod = pods::pod(name, shape);
        self.versions += 1;
        pod.uid = PodUid::new(format!("uid-{name}-{}", self.versions));
        let policies = [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];
        pod.restart_policy = self.dice.pick(&policies).unwrap();
        pod.grace = Duration::from_secs(self.dice.next() % 20);
        if self.dice.is_one_in(4) {
            pod.network = NetworkMode::Node;
        }
        // By its name, so that other lives stay as they were.
        if pod.network == NetworkMode::Pod && self.versions.is_multiple_of(3) {
            pod.users = UserMode::Pod;
        }
        if self.dice.is_one_in(2) {
            pod.volumes = vec![pods::empty_dir("data"), pods::empty_dir("more")];
            pods::mount_all(&mut pod, "main");
            // Nobody waits for this one.
            pod.volumes.push(pods::empty_dir("unused"));
        }
        // By its name too.
        if self.versions.is_multiple_of(4) {
            let image = if self.versions.is_multiple_of(8) { "pulled:1" } else { "busybox:1" };
            pods::add_image_volume(&mut pod, Some("main"), "assets", image);
        }
        if self.dice.is_one_in(6) {
            pod.active_deadline = Some(Duration::from_secs(60));
        }
        for name in shape {
            if self.dice.is_one_in(3) {
                pods::edit(&mut pod, name).image = ImageRef::new("pulled:1");
            }
        }
        self.add_probes(&mut pod);
        self.add_hooks(&mut pod);
        self.add_rules(&mut pod);
        self.add_resources(&mut pod);
        self.add_whole(&mut pod);
        if self.dice.is_one_in(5) {
            self.run.world.deaf.insert(ContainerName::new("main"));
        }
        pod
    }

    pub(super) fn unwant(&mut self) {
        let wanted: Vec<String> = self.run.wanted().into_iter().collect();
        if let Some(name) = self.dice.pick(&wanted) {
            self.count("pods removed");
            self.run.unwant(&name);
        }
    }

    /// The spec of a container changes under the same UID.
    pub(super) fn change(&mut self) {
        let wanted: Vec<String> = self.run.wanted().into_iter().collect();
        let Some(name) = self.dice.pick(&wanted) else { return };
        let mut pod = Pod::clone(&self.run.spec(&name).unwrap());
        let image = self.dice.is_one_in(2).then(|| self.dice.pick(&["busybox:1", "pulled:1"]).unwrap());
        let main = pods::edit(&mut pod, "main");
        main.hash += 1;
        main.image = image.map_or(main.image.clone(), ImageRef::new);
        self.run.want(pod);
    }
}
