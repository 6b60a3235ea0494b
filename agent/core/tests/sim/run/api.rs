//! Between the node and the API server.

use berth_core::{
    cluster::sync::Call,
    effect::{Act, Effect},
    event::Event,
    spec::Source,
    time::Mono,
};

use super::Run;
use crate::{
    cluster::{Cluster, shown},
    oracle::Carried,
};

impl Run {
    /// What of an effect the agent's loop for the cluster is told.
    pub(super) fn tell_cluster(&mut self, effect: &Effect) {
        let Effect::Pod { pod, act, .. } = effect else { return };
        if let Act::Note(note) = act {
            self.world.judge(|oracle| oracle.noted(pod, note));
        }
        let Some(cluster) = &mut self.cluster else { return };
        match act {
            Act::Publish(published) => {
                cluster.published(published);
                self.world.oracle.is_shown(&published.pod, shown(&published.status));
            }
            Act::Withdraw => {
                cluster.withdrawn(pod);
                self.world.oracle.withdrawn(pod);
            }
            _ => {}
        }
        if let Some(heard) = self.node.sources_have_spoken() {
            cluster.sources_have_spoken(heard);
        }
    }

    /// The agent's loop hears what the API server tells next; whether there was something.
    pub(crate) fn hear_server(&mut self) -> bool {
        let Some(cluster) = &mut self.cluster else { return false };
        if cluster.server.is_away || cluster.server.news.is_empty() {
            return false;
        }
        for pod in cluster.hear() {
            self.world.learn(&pod);
        }
        true
    }

    /// The node hears what the API server wants; whether there was something.
    pub(crate) fn tell_wanted(&mut self) -> bool {
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.is_untold) else { return false };
        let pods = cluster.desired();
        self.desired.insert(Source::Api, pods.clone());
        self.world.oracle.hears(Source::Api);
        self.world.oracle.desired(self.desired.values().flatten(), self.now);
        self.handle(Event::Desired { source: Source::Api, pods, is_whole: true });
        self.note_sources();
        true
    }

    pub(super) fn note_sources(&mut self) {
        if let (Some(cluster), Some(heard)) = (&mut self.cluster, self.node.sources_have_spoken()) {
            cluster.sources_have_spoken(heard);
        }
    }

    /// The loop takes what the node tells, and asks the server for what follows; whether there was something.
    pub(crate) fn ask_server(&mut self) -> bool {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return false };
        let mut is_something = cluster.take_reports();
        while let Some(request) = cluster.poll(now) {
            let object = cluster.server.objects.get(&request.name).cloned();
            self.world.judge(|oracle| oracle.request_asked(&request, object.as_ref()));
            cluster.requests.push_back(request);
            is_something = true;
        }
        is_something
    }

    /// The server carries a request out, or is away; the agent does not know yet.
    pub(crate) fn carry_out(&mut self, at: usize) -> bool {
        let Some(cluster) = &mut self.cluster else { return false };
        let Some(request) = cluster.requests.remove(at) else { return false };
        let before = cluster.server.objects.get(&request.name).cloned();
        let answer = cluster.server.perform(&request);
        let after = cluster.server.objects.get(&request.name).cloned();
        let left = match &request.call {
            Call::Delete { uid } => self.world.left_of(uid),
            Call::PatchStatus { .. } | Call::CreateMirror(_) => Vec::new(),
        };
        let is_there = before.is_some();
        let done = Carried { request: &request, before, after, left };
        self.world.judge(|oracle| oracle.carried_out(&done));
        cluster.answers.push_back((request.op, answer));
        is_there
    }

    /// The agent learns what came of a request.
    pub(crate) fn answer_request(&mut self, at: usize) -> bool {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return false };
        let Some((op, answer)) = cluster.answers.remove(at) else { return false };
        self.world.oracle.request_answered(op, &answer);
        cluster.sync.answered(op, answer, now.mono, 1.0);
        true
    }

    /// Does one thing between the agent and the API server; whether there was one.
    pub(crate) fn settle_cluster_once(&mut self) -> bool {
        let has = |cluster: &Cluster| (!cluster.requests.is_empty(), !cluster.answers.is_empty());
        let (is_asked, is_answered) = self.cluster.as_ref().map_or((false, false), has);
        if is_answered {
            return self.answer_request(0);
        }
        if is_asked {
            self.carry_out(0);
            return true;
        }
        self.hear_server() || self.tell_wanted() || self.ask_server() || self.tell_manifests()
    }

    /// Does all between the agent and the API server that can be done without time passing.
    pub(crate) fn settle_cluster(&mut self) {
        while self.settle_cluster_once() {}
    }

    /// Does all that can be done without time passing, on the node and between it and the API server.
    pub(crate) fn rest(&mut self) {
        loop {
            self.settle();
            self.settle_cluster();
            if !self.settle_one() {
                return;
            }
        }
    }

    /// When something is to be done next, were nothing to happen.
    pub(crate) fn wake_at(&self) -> Option<Mono> {
        let of_cluster = self.cluster.as_ref().and_then(|cluster| cluster.sync.poll_timeout());
        [self.node.poll_timeout(), of_cluster].into_iter().flatten().min()
    }
}
