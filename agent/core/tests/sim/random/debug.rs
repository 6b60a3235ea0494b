//! Ephemeral containers come to pods at any moment, and end with any code.

use std::sync::Arc;

use berth_core::{
    id::{ContainerId, ImageRef},
    spec::{ContainerKind, Pod},
};

use super::chaos::Chaos;
use crate::pods;

/// Ephemeral containers of one pod.
const MOST: usize = 3;

impl Chaos {
    pub(super) fn change_debugging(&mut self) {
        match self.debugging.below(40) {
            0 | 1 => self.debug_of_a_manifest(),
            2 | 3 if self.run.cluster.is_some() => self.debug_of_the_server(),
            4 | 5 => self.end_debugging(),
            _ => {}
        }
    }

    /// No manifest could bring one, but that is not known here.
    fn debug_of_a_manifest(&mut self) {
        let wanted: Vec<String> = self.run.wanted().into_iter().collect();
        let Some(name) = self.debugging.pick(&wanted) else { return };
        let mut pod = Pod::clone(&self.run.spec(&name).unwrap());
        if !self.add_debugger(&mut pod) {
            return;
        }
        // Should it come back under the same UID, it has all that came to it.
        if let Some(known) = self.known.get_mut(name.as_str()).filter(|known| known.uid == pod.uid) {
            known.ephemeral_containers.clone_from(&pod.ephemeral_containers);
        }
        self.run.want(pod);
    }

    fn debug_of_the_server(&mut self) {
        let server = &mut self.run.cluster.as_mut().expect("asked for").server;
        let objects: Vec<_> = server.objects.values().filter(|one| one.spec.is_some()).cloned().collect();
        let Some(object) = self.debugging.pick(&objects) else { return };
        let mut pod = Pod::clone(object.spec.as_ref().expect("picked so"));
        if object.grace.is_none() && self.add_debugger(&mut pod) {
            let server = &mut self.run.cluster.as_mut().expect("asked for").server;
            server.change(&object.name, |object| object.spec = Some(Arc::new(pod)));
        }
    }

    fn add_debugger(&mut self, pod: &mut Pod) -> bool {
        let number = pod.ephemeral_containers.len();
        if number == MOST {
            return false;
        }
        let others: Vec<String> = pod.fixed_containers().map(|one| one.name.to_string()).collect();
        let target = self.debugging.pick(&others).filter(|_| self.debugging.is_one_in(2));
        let name = format!("debug-{number}");
        pods::debug(pod, &name, target.as_deref());
        if self.debugging.is_one_in(3) {
            pods::edit(pod, &name).image = ImageRef::new("pulled:1");
        }
        // The server keeps them in no order.
        if self.debugging.is_one_in(2) {
            pod.ephemeral_containers.reverse();
        }
        self.count("ephemeral containers added");
        true
    }

    fn end_debugging(&mut self) {
        let is_one = |name: &str| pods::container(name).kind == ContainerKind::Ephemeral;
        let running = self.running().filter(|(_, one)| is_one(one.name.as_str()));
        let running: Vec<ContainerId> = running.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.debugging.pick(&running) else { return };
        let code = self.debugging.pick(&[0, 0, 1, 137]).unwrap();
        let now = self.run.now;
        self.run.world.end(&id, code, false, now);
        self.count("ephemeral containers that ended");
    }
}
