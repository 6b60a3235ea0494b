//! Hooks of containers: what is run after the start of one and before its stop signal, and what follows.
//!
//! ```text
//! postStart:  Due ──run──▶ asked ──done──▶ Over: the container counts as running
//!                            │    ╰─failed─▶ Failed: it is stopped, and its policy says what then
//! preStop:         to stop ──run──▶ asked ──done, failed, or the grace period is over──▶ stop signal
//! ```
//!
//! A hook that nobody answered, since the shim or the agent was away, is run again: each runs at least once. A hook that is asked for
//! nothing but time (`sleep`) is asked of nobody.
//!
//! Source: `Run` of `pkg/kubelet/lifecycle/handlers.go`; `startContainer`, `executePreStopHook` and `killContainer` of
//! `pkg/kubelet/kuberuntime/kuberuntime_container.go`.

use std::{net::IpAddr, time::Duration};

use crate::{
    derived::downward::go_quote,
    effect::{Act, Effect},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, ContainerName, OpId, SandboxId},
    pod::{
        actual::{Run, Running, Stage},
        fit, grace,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::probe::{HttpProbe, http},
        resource::growing,
        text::{about, about_pod, pod_text},
    },
    record::PostStart,
    short::{FAILURE_BYTES_MAX, short},
    spec::{Hook, HookMoment},
    status::{PodEvent, Severity},
    time::Mono,
};

/// How long a hook runs before its container shows that it waits for it.
const SHOWN_AFTER: Duration = Duration::from_secs(10);

/// A hook to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRequest {
    /// Which container's.
    pub id: ContainerId,
    /// When it is run.
    pub moment: HookMoment,
    /// What is done.
    pub call: HookCall,
}

/// What a hook does, with everything that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookCall {
    /// A command in the container.
    Exec {
        /// The sandbox, whose shim is asked.
        sandbox: SandboxId,
        /// The command.
        command: Vec<String>,
    },
    /// An HTTP GET.
    Http(HttpProbe),
}

/// What a hook came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAnswer {
    /// It was run.
    Done,
    /// It was run by HTTP, since the server at this address does not speak HTTPS.
    WithoutTls(String),
    /// It could not be run, or its command failed.
    Failed {
        /// Why.
        error: String,
        /// What the command wrote.
        output: String,
    },
}

/// A hook of a running container that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hooking {
    /// None is.
    #[default]
    No,
    /// It is being run.
    Asked {
        /// The effect.
        op: OpId,
        /// Which.
        moment: HookMoment,
        /// Earlier tries.
        tries: u32,
        /// When its container shows what it waits for; absent when it does.
        shown_at: Option<Mono>,
    },
    /// Nobody answered; it is run again.
    Again {
        /// When.
        at: Mono,
        /// Which.
        moment: HookMoment,
        /// Tries.
        tries: u32,
    },
}

impl Hooking {
    /// The effect that is under way, and which hook it is.
    pub(in crate::pod) fn under_way(self) -> Option<(OpId, HookMoment)> {
        match self {
            Self::Asked { op, moment, .. } => Some((op, moment)),
            Self::No | Self::Again { .. } => None,
        }
    }

    fn tries(self, of: HookMoment) -> u32 {
        match self {
            Self::Again { moment, tries, .. } if moment == of => tries,
            Self::No | Self::Asked { .. } | Self::Again { .. } => 0,
        }
    }
}

impl PodMachine {
    /// Asks to run a hook of a running container.
    pub(in crate::pod) fn run_hook(
        &mut self,
        name: &ContainerName,
        moment: HookMoment,
        shared: &mut Shared<'_>,
        now: Mono,
    ) {
        let Some(container) = self.container(name) else { return };
        let Run::Running(running) = self.life.run(name).clone() else { return };
        let Some(hook) = container.lifecycle.hook(moment) else { return };
        let call = match hook {
            Hook::Exec(command) => {
                Ok(HookCall::Exec { sandbox: self.life.sandbox_id(), command: command.clone() })
            }
            Hook::Http(get) => http(get, self.own_address()).map(HookCall::Http),
            Hook::Tcp => Err("invalid handler: a tcpSocket cannot be run".to_owned()),
            Hook::Sleep(_) => return,
        };
        let call = match call {
            Ok(call) => call,
            Err(error) => {
                let why = self.failed_text(name, hook, &error, "");
                return self.hook_failed(name, moment, why, now);
            }
        };
        let id = self.life.container_id(name);
        let act = Act::RunHook(Box::new(HookRequest { id, moment, call }));
        let tries = running.hook.tries(moment);
        let op = self.ask(shared, Slot::Hook(name.clone(), moment), tries, act);
        let hook = Hooking::Asked { op, moment, tries, shown_at: Some(now + SHOWN_AFTER) };
        self.set_run(name, Run::Running(Running { hook, ..running }));
    }

    fn own_address(&self) -> IpAddr {
        let own = self.life.record.network.as_ref().and_then(|network| network.ips.first());
        own.copied().unwrap_or_else(|| self.probed_address())
    }

    /// Takes what a hook came to.
    pub(in crate::pod) fn hook_ended(
        &mut self,
        op: OpId,
        name: &ContainerName,
        moment: HookMoment,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) else { return };
        let tries = match running.hook {
            Hooking::Asked { op: asked, tries, .. } if asked == op => tries,
            Hooking::No | Hooking::Asked { .. } | Hooking::Again { .. } => return,
        };
        running.hook = Hooking::No;
        let (error, output) = match result {
            Ok(Outcome::Hooked(HookAnswer::Done)) => return self.hook_done(name, moment),
            Ok(Outcome::Hooked(HookAnswer::WithoutTls(server))) => {
                let text = format!(
                    "request to HTTPS lifecycle hook {server} got HTTP response, retry with HTTP succeeded"
                );
                self.notes.push(about_pod(Severity::Warning, "LifecycleHTTPFallback", text));
                return self.hook_done(name, moment);
            }
            Ok(Outcome::Hooked(HookAnswer::Failed { error, output })) => (error, output),
            Ok(other) => (fit::unfitting(&other).message, String::new()),
            Err(failure) if may_be_run_again(failure.kind) => {
                let again =
                    Hooking::Again { at: now + growing(tries), moment, tries: tries.saturating_add(1) };
                running.hook = again;
                return;
            }
            Err(failure) => (failure.message, String::new()),
        };
        let Some(container) = self.container(name) else { return };
        let Some(hook) = container.lifecycle.hook(moment) else { return };
        let why = self.failed_text(name, hook, &error, &output);
        self.hook_failed(name, moment, why, now);
    }

    /// A container shows from now on that it waits for its hook.
    pub(in crate::pod) fn show_hook(&mut self, name: &ContainerName) {
        if let Some(Run::Running(Running { hook: Hooking::Asked { shown_at, .. }, .. })) =
            self.life.actual.containers.get_mut(name)
        {
            *shown_at = None;
        }
    }

    /// A container counts as running from now on.
    pub(in crate::pod) fn begun(&mut self, name: &ContainerName) {
        self.hook_done(name, HookMoment::PostStart);
    }

    fn hook_done(&mut self, name: &ContainerName, moment: HookMoment) {
        let Some(record) = self.life.record.containers.get_mut(name) else { return };
        match moment {
            HookMoment::PostStart => record.hooked.post_start = PostStart::Over,
            HookMoment::PreStop => record.hooked.pre_stop = true,
        }
    }

    fn hook_failed(&mut self, name: &ContainerName, moment: HookMoment, why: String, now: Mono) {
        let (pod, stage) = (&self.life.record, self.life.stage());
        let ends = stage == Stage::Stop || pod.replacing.is_some() || pod.restarting.is_some();
        let Some(record) = self.life.record.containers.get_mut(name) else { return };
        let is_to_stop = ends || record.stopping.is_some();
        self.notes.push(hook_has_failed(name, moment));
        match moment {
            HookMoment::PreStop => record.hooked.pre_stop = true,
            // What is to stop for another reason does what that says.
            HookMoment::PostStart if is_to_stop => {}
            HookMoment::PostStart => {
                record.hooked.post_start = PostStart::Failed(why);
                record.stopping = Some(grace::stop_container(self.life.spec.grace, now));
                self.notes.push(about(name, Severity::Normal, "Killing", "FailedPostStartHook"));
            }
        }
    }

    fn failed_text(&self, name: &ContainerName, hook: &Hook, error: &str, output: &str) -> String {
        let of = format!(
            "for Container {:?} in Pod {:?} failed - error: {error}",
            name.as_str(),
            pod_text(&self.life.record)
        );
        let text = match hook {
            Hook::Exec(command) => {
                format!("Exec lifecycle hook ([{}]) {of}, message: {}", command.join(" "), go_quote(output))
            }
            Hook::Http(get) => format!("HTTP lifecycle hook ({}) {of}", get.path),
            Hook::Tcp | Hook::Sleep(_) => format!("Cannot run handler: {error}"),
        };
        short(text, FAILURE_BYTES_MAX)
    }

    /// Gives up what is run of hooks whose containers have ended, or are to stop. One that waited for the record is not begun.
    pub(in crate::pod) fn give_up_hooks(&mut self, shared: &mut Shared<'_>) {
        for op in std::mem::take(&mut self.given_up) {
            let is_unasked = self.acts.extract_if(.., |(asked, _)| *asked == op).next().is_some();
            if shared.ops.close(op).is_some() && !is_unasked {
                let pod = self.life.record.uid.clone();
                let (op, act) = (shared.ops.number(), Act::GiveUpHook(op));
                shared.effects.push_back(Effect::Pod { op, pod, act });
            }
        }
    }
}

/// Why is not in the event, since it may be secret.
pub(in crate::pod) fn hook_has_failed(name: &ContainerName, moment: HookMoment) -> PodEvent {
    let (reason, text) = match moment {
        HookMoment::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
        HookMoment::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
    };
    about(name, Severity::Warning, reason, text)
}

fn may_be_run_again(kind: FailureKind) -> bool {
    match kind {
        FailureKind::Unknown
        | FailureKind::RuntimeDown
        | FailureKind::Transient
        | FailureKind::SandboxGone
        | FailureKind::Silent
        | FailureKind::Unrecorded => true,
        FailureKind::Config
        | FailureKind::InvalidImageName
        | FailureKind::ImagePull
        | FailureKind::LayersGone
        | FailureKind::StartFailed => false,
    }
}
