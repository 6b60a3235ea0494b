//! Probes of running containers.
//!
//! A question costs one effect and its answer one event, neither of which plans the pod anew: that is done when a verdict
//! changes. What is known survives the agent in the record ([`Probed`](crate::record::Probed)), which is written then alone.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use crate::{
    derived::env::{Budget, TooLong, expand_known},
    effect::{Act, Effect},
    event::Outcome,
    failure::Failure,
    id::{ContainerId, ContainerName, OpId, SandboxId},
    ops::{Ops, Purpose},
    pod::{
        actual::{Life, Run, Running},
        fit, grace,
        machine::PodMachine,
        outcome::Slot,
        probe::{Rhythm, State, Worker, has_started, is_ready, is_wanted},
        restart::runs_again_unhealthy,
        text::about,
    },
    record::Afterwards,
    spec::{Container, ContainerKind, EnvSource, HttpGet, Probe, ProbeHandler, ProbeKind, ProbePort},
    status::{Note, Severity},
    time::{Mono, Now},
};

pub use crate::pod::probe::{Dial, redial_after};

/// Questions of one pod at a time: as many as its containers have probes, within reason. What hangs holds up the pod's own
/// probes and no other's.
const ASKED_MAX: usize = 16;

/// A question to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Which container.
    pub id: ContainerId,
    /// What the answer decides.
    pub kind: ProbeKind,
    /// What is asked.
    pub call: ProbeCall,
    /// How long the answer may take.
    pub timeout: Duration,
}

/// What is asked, with everything that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeCall {
    /// A command in a container.
    Exec(ExecProbe),
    /// An HTTP GET.
    Http(HttpProbe),
    /// A TCP connection.
    Tcp {
        /// Address or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// `grpc.health.v1.Health/Check`.
    Grpc {
        /// Address.
        host: String,
        /// Port.
        port: u16,
        /// Service; may be empty.
        service: String,
        /// What becomes of a connection that fails.
        dial: Dial,
    },
}

/// A command that is run in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecProbe {
    /// The sandbox, whose shim is asked.
    pub sandbox: SandboxId,
    /// The command, expanded.
    pub command: Vec<String>,
}

/// An HTTP GET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProbe {
    /// Whether it is HTTPS.
    pub tls: bool,
    /// Address or name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path, perhaps with a query, as written.
    pub path: String,
    /// Headers as written.
    pub headers: Vec<(String, String)>,
}

/// What a container answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// Well.
    Success,
    /// Well, and somebody should look.
    Warning(String),
    /// Badly, or not in time.
    Failure(String),
    /// It could not be asked: that counts for nothing.
    Errored {
        /// As the kubelet calls it: `unknown`, or `failure` where an answer had begun.
        state: &'static str,
        /// Why.
        message: String,
    },
}

/// Whether a pod is another than it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be planned anew.
    Changed,
    /// It goes on as it was.
    Same,
}

type Key = (ContainerName, ProbeKind);

/// The probes of a pod.
#[derive(Debug, Default)]
pub(in crate::pod) struct Probing {
    workers: BTreeMap<Key, Worker>,
}

impl Probing {
    fn asked(&self) -> usize {
        self.workers.values().filter(|worker| worker.is_asking()).count()
    }
}

impl PodMachine {
    /// When the next probe asks.
    #[must_use]
    pub fn probe_at(&self) -> Option<Mono> {
        if self.probing.workers.is_empty() || self.probing.asked() >= ASKED_MAX {
            return None;
        }
        self.probing.workers.values().filter_map(Worker::due_at).min()
    }

    /// Begins the probes that are wanted now, and ends the others.
    pub(in crate::pod) fn keep_probes(&mut self, now: Now) {
        let mut wanted = BTreeSet::new();
        let spec = std::sync::Arc::clone(&self.life.spec);
        for container in spec.all_containers().filter(|one| one.probes.is_any()) {
            for kind in ProbeKind::ALL {
                if is_wanted(&self.life, container, kind) {
                    self.keep_probe(container, kind, now);
                    wanted.insert((container.name.clone(), kind));
                }
            }
        }
        self.probing.workers.retain(|key, worker| wanted.contains(key) || worker.end());
    }

    fn keep_probe(&mut self, container: &Container, kind: ProbeKind, now: Now) {
        let run = self.life.container_id(&container.name);
        let key = (container.name.clone(), kind);
        if let Some(known) = self.probing.workers.get_mut(&key)
            && (known.run == run || known.end())
        {
            return;
        }
        let (Some(probe), Run::Running(running)) =
            (container.probes.of(kind), self.life.run(&container.name))
        else {
            return;
        };
        let from = (self.began(container, running, now) + probe.initial_delay).max(now.mono);
        let rhythm = Rhythm::of(self.uid(), &container.name, kind, probe);
        let worker = Worker::new(run, rhythm, from, is_news(&self.life, container, kind));
        self.probing.workers.insert(key, worker);
    }

    /// When a container began to run. What the runtime says is a time of day, which may have been set since.
    fn began(&self, container: &Container, running: &Running, now: Now) -> Mono {
        let began = now.mono_of(running.started_at);
        let begun_at = self.life.record.containers.get(&container.name).map_or(began, |run| run.begun_at);
        began.max(begun_at.min(now.mono))
    }

    /// Asks what is due.
    pub fn begin_probes(&mut self, ops: &mut Ops, effects: &mut VecDeque<Effect>, now: Now) {
        let due = |worker: &Worker| worker.due_at().is_some_and(|at| at <= now.mono);
        let keys: Vec<Key> = self
            .probing
            .workers
            .iter()
            .filter(|(_, worker)| due(worker))
            .map(|(key, _)| key.clone())
            .collect();
        for (name, kind) in keys {
            if self.probing.asked() >= ASKED_MAX {
                return;
            }
            self.ask_probe(&name, kind, ops, effects, now);
        }
    }

    fn ask_probe(
        &mut self,
        name: &ContainerName,
        kind: ProbeKind,
        ops: &mut Ops,
        effects: &mut VecDeque<Effect>,
        now: Now,
    ) {
        let Some(container) = self.container(name) else { return };
        let Some(probe) = container.probes.of(kind) else { return };
        let uid = self.uid().clone();
        let slot = Slot::Probe(name.clone(), kind);
        let purpose = Purpose::Pod { uid: uid.clone(), slot, tries: 0 };
        let dial = self.probing.workers.get(&(name.clone(), kind)).map_or(Dial::Again, Worker::dial);
        match call(&self.life, &container, probe, self.probed_address(), dial) {
            Ok(call) => {
                let op = ops.open(purpose);
                let id = self.life.container_id(name);
                let request = ProbeRequest { id, kind, call, timeout: probe.timeout };
                effects.push_back(Effect::Pod { op, pod: uid, act: Act::Probe(Box::new(request)) });
                if let Some(worker) = self.probing.workers.get_mut(&(name.clone(), kind)) {
                    worker.ask(op, now.mono);
                }
            }
            Err(message) => {
                let op = ops.number();
                if let Some(worker) = self.probing.workers.get_mut(&(name.clone(), kind)) {
                    worker.ask(op, now.mono);
                }
                let answer = ProbeAnswer::Errored { state: "unknown", message };
                self.probed(op, name, kind, Ok(Outcome::Probed(answer)), now);
            }
        }
    }

    /// Where the pod is asked: `status.podIP`. The kubelet asks its own node while there is none.
    pub(in crate::pod) fn probed_address(&self) -> IpAddr {
        let shown = self.publishing.status().and_then(|status| status.pod_ips.first());
        shown.copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Takes an answer.
    pub fn probed(
        &mut self,
        op: OpId,
        name: &ContainerName,
        kind: ProbeKind,
        result: Result<Outcome, Failure>,
        now: Now,
    ) -> Verdict {
        let key = (name.clone(), kind);
        let Some(container) = self.container(name) else { return Verdict::Same };
        let Some(worker) = self.probing.workers.get_mut(&key) else { return Verdict::Same };
        match worker.state {
            State::Asking { op: asked, .. } if asked == op => {}
            State::Ending { op: asked } if asked == op => {
                let run = worker.run.clone();
                self.probing.workers.remove(&key);
                let verdict = self.probed_late(&run, &container, kind, answer(result), now.mono);
                self.keep_probes(now);
                return verdict;
            }
            State::Due { .. } | State::Asking { .. } | State::Ending { .. } => return Verdict::Same,
        }
        let Some(probe) = container.probes.of(kind) else { return Verdict::Same };
        let answer = answer(result);
        let is_success = match &answer {
            ProbeAnswer::Success | ProbeAnswer::Warning(_) => Some(true),
            ProbeAnswer::Failure(_) => Some(false),
            ProbeAnswer::Errored { .. } => None,
        };
        let rhythm = Rhythm::of(&self.life.record.uid, name, kind, probe);
        let is_news = is_news(&self.life, &container, kind);
        let step = worker.answer(probe, rhythm, is_success, is_news, now.mono);
        if step.is_told {
            self.tell_answer(name, kind, answer);
        }
        let verdict = match step.verdict {
            Some(verdict) => self.judge(&container, kind, probe, verdict, now.mono),
            None => Verdict::Same,
        };
        if verdict == Verdict::Changed {
            // A verdict changes which probes are wanted.
            self.keep_probes(now);
        }
        verdict
    }

    /// Takes an answer that is not wanted any more. That a container has started is so even though it is to stop by now. Source:
    /// `doProbe` of `pkg/kubelet/prober/worker.go`, which looks at nothing between its question and the answer.
    fn probed_late(
        &mut self,
        run: &ContainerId,
        container: &Container,
        kind: ProbeKind,
        answer: ProbeAnswer,
        now: Mono,
    ) -> Verdict {
        let name = &container.name;
        let is_there = self.life.container_id(name) == *run && matches!(self.life.run(name), Run::Running(_));
        let is_success = match answer {
            ProbeAnswer::Success | ProbeAnswer::Warning(_) => true,
            ProbeAnswer::Failure(_) | ProbeAnswer::Errored { .. } => false,
        };
        match (kind, container.probes.of(kind)) {
            (ProbeKind::Startup, Some(probe)) if is_there && is_success => {
                self.tell_answer(name, kind, answer);
                self.judge(container, kind, probe, true, now)
            }
            (ProbeKind::Startup | ProbeKind::Readiness | ProbeKind::Liveness, _) => Verdict::Same,
        }
    }

    fn tell_answer(&mut self, name: &ContainerName, kind: ProbeKind, answer: ProbeAnswer) {
        let kind = kind.as_str();
        let (reason, text) = match answer {
            ProbeAnswer::Success => return,
            ProbeAnswer::Warning(output) => ("ProbeWarning", format!("{kind} probe warning: {output}")),
            ProbeAnswer::Failure(output) => ("Unhealthy", format!("{kind} probe failed: {output}")),
            ProbeAnswer::Errored { state, message } => {
                ("Unhealthy", format!("{kind} probe errored and resulted in {state} state: {message}"))
            }
        };
        self.notes.push(about(name, Severity::Warning, reason, text));
    }

    fn judge(
        &mut self,
        container: &Container,
        kind: ProbeKind,
        probe: &Probe,
        is_success: bool,
        now: Mono,
    ) -> Verdict {
        let Some(run) = self.life.record.containers.get_mut(&container.name) else { return Verdict::Same };
        let before = run.probed;
        match (kind, is_success) {
            (ProbeKind::Liveness, true) => {}
            (ProbeKind::Readiness, is_ready) => run.probed.ready = is_ready,
            (ProbeKind::Startup, true) => run.probed.started = true,
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                self.stop_unhealthy(container, kind, probe, now);
                return Verdict::Changed;
            }
        }
        if run.probed == before { Verdict::Same } else { Verdict::Changed }
    }

    /// Begins to stop a container whose probe failed. Source: `computePodActions` of
    /// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `computeInitContainerActions` and `setTerminationGracePeriod` of
    /// `kuberuntime_container.go`.
    fn stop_unhealthy(&mut self, container: &Container, kind: ProbeKind, probe: &Probe, now: Mono) {
        let runs_again = runs_again_unhealthy(container, self.life.spec.restart_policy);
        let grace = probe.grace.unwrap_or(self.life.spec.grace);
        let Some(run) = self.life.record.containers.get_mut(&container.name) else { return };
        run.stopping = Some(grace::stop_container(grace, now));
        run.probed.afterwards = if runs_again { Afterwards::Again } else { Afterwards::Never };
        let name = &container.name;
        let what = match kind {
            ProbeKind::Startup => "startup",
            ProbeKind::Liveness => "liveness",
            ProbeKind::Readiness => "readiness",
        };
        let text = match (container.kind, runs_again) {
            (ContainerKind::Sidecar, _) => format!("Init container {name} failed {what} probe"),
            (ContainerKind::Main | ContainerKind::Init | ContainerKind::Ephemeral, true) => {
                format!("Container {name} failed {what} probe, will be restarted")
            }
            (ContainerKind::Main | ContainerKind::Init | ContainerKind::Ephemeral, false) => {
                format!("Container {name} failed {what} probe")
            }
        };
        self.notes.push(about(name, Severity::Normal, "Killing", text));
    }

    /// Hands over what people are told, when nothing else has changed.
    pub(crate) fn tell_notes(&mut self, ops: &mut Ops, effects: &mut VecDeque<Effect>) {
        let uid = self.life.record.uid.clone();
        for event in std::mem::take(&mut self.notes) {
            let field_path = event.container.as_ref().map(|name| self.field_path(name)).unwrap_or_default();
            let (name, version) = (self.life.record.name.clone(), self.life.spec.version.clone());
            let note = Note { name, version, field_path, event };
            effects.push_back(Effect::Pod { op: ops.number(), pod: uid.clone(), act: Act::Note(note) });
        }
    }
}

/// Whether an answer can only bring good news: what it decides is not so yet.
fn is_news(life: &Life, container: &Container, kind: ProbeKind) -> bool {
    match kind {
        ProbeKind::Startup => !has_started(life, container),
        ProbeKind::Readiness => !is_ready(life, container),
        ProbeKind::Liveness => false,
    }
}

fn answer(result: Result<Outcome, Failure>) -> ProbeAnswer {
    let message = match result {
        Ok(Outcome::Probed(answer)) => return answer,
        Ok(other) => fit::unfitting(&other).message,
        Err(failure) => failure.message,
    };
    ProbeAnswer::Errored { state: "unknown", message }
}

fn call(
    life: &Life,
    container: &Container,
    probe: &Probe,
    address: IpAddr,
    dial: Dial,
) -> Result<ProbeCall, String> {
    let at = |host: &Option<String>| host.clone().unwrap_or_else(|| address.to_string());
    Ok(match &probe.handler {
        ProbeHandler::Exec(command) => {
            let command = expanded(container, command).map_err(|error| error.to_string())?;
            ProbeCall::Exec(ExecProbe { sandbox: life.sandbox_id(), command })
        }
        ProbeHandler::Http(get) => ProbeCall::Http(http(get, address)?),
        ProbeHandler::Tcp { host, port } => ProbeCall::Tcp { host: at(host), port: number(port)? },
        ProbeHandler::Grpc { port, service } => {
            ProbeCall::Grpc { host: at(&None), port: *port, service: service.clone(), dial }
        }
    })
}

/// A request to where it names, else to this address.
pub(in crate::pod) fn http(get: &HttpGet, address: IpAddr) -> Result<HttpProbe, String> {
    Ok(HttpProbe {
        tls: get.tls,
        host: get.host.clone().unwrap_or_else(|| address.to_string()),
        port: number(&get.port)?,
        path: get.path.clone(),
        headers: get.headers.clone(),
    })
}

/// Source: `ResolveContainerPort` of `pkg/probe/util.go`.
fn number(port: &ProbePort) -> Result<u16, String> {
    match port {
        ProbePort::Number(number) => Ok(*number),
        ProbePort::Unknown(name) => Err(format!("strconv.Atoi: parsing {name:?}: invalid syntax")),
    }
}

/// A command with what is written of the container's variables. Source: `ExpandContainerCommandOnlyStatic` of
/// `pkg/kubelet/container/helpers.go`.
fn expanded(container: &Container, command: &[String]) -> Result<Vec<String>, TooLong> {
    if !command.iter().any(|word| word.contains('$')) {
        return Ok(command.to_vec());
    }
    let known: BTreeMap<String, String> = container
        .env
        .iter()
        .map(|var| match &var.source {
            EnvSource::Value(text) => (var.name.clone(), text.clone()),
            EnvSource::Field(_) | EnvSource::Resource(_) | EnvSource::Key(_) | EnvSource::File(_) => {
                (var.name.clone(), String::new())
            }
        })
        .collect();
    let mut budget = Budget::whole();
    command.iter().map(|word| expand_known(word, &mut budget, &known)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, spec::EnvVar};

    fn at(host: &str) -> ProbeCall {
        ProbeCall::Tcp { host: host.to_owned(), port: 9 }
    }

    /// An HTTP GET as it is written, and as it is asked.
    fn http(written: Option<&str>, host: &str) -> (ProbeHandler, ProbeCall) {
        let (path, headers) = ("/x?y".to_owned(), vec![("A".to_owned(), "b".to_owned())]);
        let (port, host) = (ProbePort::Number(9), host.to_owned());
        let asked = HttpProbe { tls: true, host, port: 9, path: path.clone(), headers: headers.clone() };
        let written = HttpGet { tls: true, host: written.map(str::to_owned), port, path, headers };
        (ProbeHandler::Http(written), ProbeCall::Http(asked))
    }

    #[test]
    fn a_question_has_all_that_the_probe_says_and_goes_to_the_pod() {
        let pod = fixtures::pod(vec![fixtures::container("web")]);
        let now = Now { mono: Mono::default(), wall: jiff::Timestamp::UNIX_EPOCH };
        let pod = PodMachine::new(std::sync::Arc::new(pod), now);
        let (life, container) = (pod.life(), fixtures::container("web"));
        let (address, own, other) = (IpAddr::from([192, 0, 2, 7]), "192.0.2.7", "a.example");
        let command = || vec!["cat".to_owned(), "/a b".to_owned()];
        let tcp = |host: Option<&str>| ProbeHandler::Tcp {
            host: host.map(str::to_owned),
            port: ProbePort::Number(9),
        };
        let exec = ExecProbe { sandbox: life.sandbox_id(), command: command() };
        let service = || "live".to_owned();
        let grpc = ProbeCall::Grpc { host: own.to_owned(), port: 9, service: service(), dial: Dial::Once };
        for (handler, expected) in [
            (ProbeHandler::Exec(command()), ProbeCall::Exec(exec)),
            http(None, own),
            http(Some(other), other),
            (tcp(None), at(own)),
            (tcp(Some(other)), at(other)),
            (ProbeHandler::Grpc { port: 9, service: service() }, grpc),
        ] {
            let probe = Probe { handler, ..fixtures::probe() };
            assert_eq!(call(life, &container, &probe, address, Dial::Once), Ok(expected));
        }
        let handler = ProbeHandler::Tcp { host: None, port: ProbePort::Unknown("web".to_owned()) };
        let probe = Probe { handler, ..fixtures::probe() };
        let why = "strconv.Atoi: parsing \"web\": invalid syntax".to_owned();
        assert_eq!(call(life, &container, &probe, address, Dial::Again), Err(why));
    }

    #[test]
    fn a_command_that_comes_to_too_much_is_not_asked() {
        let mut container = fixtures::container("web");
        container.env = vec![EnvVar { name: "A".into(), source: EnvSource::Value("x".repeat(1 << 10)) }];
        for (word, expected) in [
            ("$(A)$(B)".to_owned(), Ok((1 << 10) + 4)),
            ("x".repeat(8 << 20), Ok(8 << 20)),
            ("$(A)".repeat(250_000), Err(TooLong)),
        ] {
            let bytes = expanded(&container, &[word]).map(|words| words.concat().len());
            assert_eq!(bytes, expected);
        }
    }
}
