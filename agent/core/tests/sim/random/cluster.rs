//! What befalls a node in a cluster: pods are bound and deleted, others write, and the API server fails, is away or is late.

use std::{sync::Arc, time::Duration};

use berth_core::{
    cluster::sync::Answer,
    id::{ImageRef, PodName},
    spec::{Pod, Source},
};
use serde_json::json;

use super::{NAMES, chaos::Chaos};
use crate::{
    cluster::{Cluster, shown},
    pods,
    server::{Object, Server},
};

/// Nobody knows what came of a request.
const FAILED: Answer = Answer::Failed { retry_after: Duration::ZERO };

impl Chaos {
    pub(super) fn change_cluster(&mut self) {
        if self.run.cluster.is_none() {
            return;
        }
        match self.cluster.below(240) {
            0..14 => self.bind(),
            14..20 => self.delete(),
            20..24 => self.delete_a_mirror(),
            24..28 => self.change_object(),
            28..36 => self.write_as_another(),
            36..42 => {
                let server = self.server();
                server.is_away = !server.is_away;
                if server.is_away {
                    self.count("times that the server was away");
                }
            }
            42..50 => {
                self.server().relist();
                self.count("lists anew");
            }
            50..60 => self.server().is_away = false,
            _ => {}
        }
        for _ in 0..self.cluster.below(4) {
            self.cluster_step();
        }
        if self.is_another_order(15) {
            self.run.tell_manifests();
        }
    }

    /// One of so many times, where it may change in which order sources speak.
    pub(super) fn is_another_order(&mut self, bound: usize) -> bool {
        self.order.as_mut().is_some_and(|dice| dice.is_one_in(bound))
    }

    fn server(&mut self) -> &mut Server {
        &mut self.end().server
    }

    fn end(&mut self) -> &mut Cluster {
        self.run.cluster.as_mut().expect("a node in a cluster")
    }

    fn cluster_step(&mut self) {
        match self.cluster.below(7) {
            0 | 1 => drop(self.run.hear_server()),
            2 => self.tell_wanted(),
            3 => self.ask(),
            4 => self.carry_out(),
            _ => self.answer_request(),
        }
    }

    fn tell_wanted(&mut self) {
        if self.run.tell_wanted() && self.run.are_manifests_untold {
            self.count("API servers that were heard before manifests");
        }
    }

    fn ask(&mut self) {
        self.run.ask_server();
        self.note_requests();
    }

    /// The server was asked for something just now.
    pub(super) fn note_requests(&mut self) {
        let asked = self.run.world.oracle.take_requests();
        self.requests += asked;
        if asked > 0 {
            self.asked_at = self.run.now.mono;
        }
    }

    fn carry_out(&mut self) {
        let open = self.end().requests.len();
        let at = self.cluster.below(open);
        if open == 0 {
            return;
        }
        if self.cluster.is_one_in(8) {
            let request = self.end().requests.remove(at).expect("below their number");
            self.end().answers.push_back((request.op, FAILED));
            return self.count("requests that failed");
        }
        self.run.carry_out(at);
        if self.cluster.is_one_in(10) {
            self.end().answers.back_mut().expect("just carried out").1 = FAILED;
            self.count("requests whose answer was lost");
        }
    }

    fn answer_request(&mut self) {
        let answered = self.end().answers.len();
        let at = self.cluster.below(answered);
        self.run.answer_request(at);
    }

    /// What was under way when the agent was killed is carried out, or not.
    pub(super) fn carry_out_some(&mut self) {
        while self.run.cluster.as_ref().is_some_and(|cluster| !cluster.requests.is_empty()) {
            self.count("requests that nobody waited for");
            if self.cluster.is_one_in(2) {
                self.run.carry_out(0);
            } else {
                self.end().requests.pop_front();
            }
        }
    }

    /// A pod is bound to the node. Mirrors have their names as any other.
    fn bind(&mut self) {
        let Some(name) = self.cluster.pick(&NAMES) else { return };
        let mut pod = self.random_pod(name);
        pod.uid = berth_core::id::PodUid::new(format!("api-{name}-{}", self.versions));
        pod.source = Source::Api;
        if self.cluster.is_one_in(10) {
            pod.scheduling.selector.insert("disk".into(), "ssd".into());
            self.count("pods that do not fit");
        }
        if self.server().objects.contains_key(&pod.name) {
            return;
        }
        self.server().bind(pod.clone());
        self.run.world.oracle.published(&pod.name);
        self.count("pods bound");
    }

    fn pick(&mut self, which: impl Fn(&Object) -> bool) -> Option<Object> {
        let objects: Vec<Object> = self.server().objects.values().filter(|one| which(one)).cloned().collect();
        self.cluster.pick(&objects)
    }

    fn delete(&mut self) {
        let Some(object) = self.pick(|object| object.mirrors.is_none()) else { return };
        let own = object.spec.as_ref().map_or(Duration::ZERO, |spec| spec.grace);
        let seconds = Duration::from_secs;
        let graces = [Duration::ZERO, seconds(1), seconds(5), own, own, own, own + seconds(10)];
        let grace = self.cluster.pick(&graces).expect("some");
        self.count(if grace.is_zero() { "pods forced out" } else { "pods deleted" });
        if object.grace.is_some_and(|known| grace < known) {
            self.count("grace periods shortened");
        }
        self.server().delete(&object.name, grace);
    }

    fn delete_a_mirror(&mut self) {
        let Some(object) = self.pick(|object| object.mirrors.is_some()) else { return };
        let grace = self.cluster.pick(&[Duration::ZERO, Duration::from_secs(30)]).expect("some");
        self.server().delete(&object.name, grace);
        self.run.world.oracle.touched(&object);
        self.count("mirrors deleted by others");
    }

    fn change_object(&mut self) {
        let Some(object) = self.pick(|object| object.spec.is_some() && object.grace.is_none()) else {
            return;
        };
        let mut pod = Pod::clone(object.spec.as_ref().expect("picked so"));
        let main = pods::edit(&mut pod, "main");
        main.hash += 1;
        main.image = ImageRef::new(self.cluster.pick(&["busybox:1", "pulled:1"]).expect("some"));
        self.server().change(&object.name, |object| object.spec = Some(Arc::new(pod)));
    }

    /// Somebody else writes a status: what is the node's, and what is not.
    fn write_as_another(&mut self) {
        let Some(object) = self.pick(|_| true) else { return };
        if object.mirrors.is_none() && self.cluster.is_one_in(4) {
            return self.end_as_another(&object);
        }
        let which = self.cluster.below(3);
        self.server().change(&object.name, |object| match which {
            0 => object.status["podIPs"] = json!([{ "ip": "203.0.113.9" }]),
            // How it ended is never written again.
            1 if !object.has_ended() => object.status["message"] = json!("by another"),
            _ => {
                let gate = json!({ "type": "example.com/gate", "status": "True" });
                match object.status["conditions"].as_array_mut() {
                    Some(list) => list.push(gate),
                    None => object.status["conditions"] = json!([gate]),
                }
            }
        });
        self.run.world.oracle.touched(&object);
        self.count("writes of others");
    }

    /// Somebody else writes that a pod has ended. Of two who say so at the same time the last one is heard, so it is nothing that the node
    /// asks for just now, and it hears of it.
    fn end_as_another(&mut self, object: &Object) {
        let end = self.end();
        if object.has_ended() || end.server.is_away || !end.requests.is_empty() {
            return;
        }
        let phase = self.cluster.pick(&["Failed", "Succeeded"]).expect("some");
        self.server().change(&object.name, |object| {
            object.status["phase"] = json!(phase);
            object.status["reason"] = json!("ByAnother");
        });
        self.run.world.oracle.touched(object);
        self.count("pods ended by others");
        while self.run.hear_server() {}
    }

    /// Everything of the API is to be deleted.
    pub(super) fn delete_all(&mut self) {
        let Some(cluster) = &mut self.run.cluster else { return };
        let objects = cluster.server.objects.values().filter(|object| object.mirrors.is_none());
        let names: Vec<PodName> = objects.map(|object| object.name.clone()).collect();
        for name in names {
            let grace = Duration::from_secs(u64::try_from(self.cluster.below(30)).unwrap());
            self.server().delete(&name, grace);
        }
    }

    pub(super) fn calm_cluster(&mut self) {
        if let Some(cluster) = &mut self.run.cluster {
            cluster.server.is_away = false;
        }
    }

    /// The API has what is wanted here, as it is.
    pub(super) fn check_cluster(&mut self, wanted: &[Arc<Pod>]) {
        let Some(cluster) = &self.run.cluster else { return };
        let objects = cluster.server.objects.clone();
        for pod in wanted {
            let Some(object) = objects.get(&pod.name) else { continue };
            if pod.source == Source::Api && object.uid != pod.uid {
                self.fail(&format!("{} is wanted, {} is there", pod.uid, object.uid));
            }
            let is_anothers = object.mirrors.is_none() && pod.source != Source::Api;
            if is_anothers || self.run.world.oracle.is_told_by_others(pod) {
                continue;
            }
            let mut here = self.run.node.pods();
            let remains = here.find(|one| *one.uid() == pod.uid).map(|one| one.life().remains());
            // It was ended by others before anything of it began here.
            if remains.is_some_and(|remains| !remains.is_to_be_told()) {
                continue;
            }
            let shown = shown(&self.run.world.statuses[&pod.uid]);
            self.run.world.judge(|oracle| oracle.check_told(object, &shown));
        }
        let kept_out = self.run.all_wanted();
        let kept_out = kept_out.iter().filter(|pod| self.run.world.oracle.is_kept_out(pod)).count();
        *self.counts.entry("pods kept out by a name at rest").or_default() +=
            u64::try_from(kept_out).unwrap();
        self.run.world.judge(|oracle| oracle.check_objects(&objects));
        self.check();
    }
}
