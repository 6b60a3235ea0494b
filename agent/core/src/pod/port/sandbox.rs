//! The sandbox: its record in containerd and its shim.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::node::Note,
    config::NodeConfig,
    derived::{
        hostname,
        resolv::{self, DnsWarning, PodDns, ResolvError},
        security,
    },
    effect::{Act, Effect, NodeAct},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{Attempt, SandboxId},
    pod::{
        actual::Life,
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::removal::{Leftover, Removal},
        resource::{EndedEffect, Resource, Retry},
        text::about_pod,
    },
    selinux,
    spec::{Pod, Sysctl, UserMode},
    status::Severity,
    time::{Mono, Now},
    users::HostIds,
};

/// What a shim gets to answer a question about itself, which it does from memory, before its removal counts it as silent.
pub const SHIM_ANSWER: Duration = Duration::from_secs(10);

/// A sandbox to start.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRequest {
    /// Its id.
    pub id: SandboxId,
    /// Which sandbox of the pod it is.
    pub attempt: Attempt,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Host name; empty in the node's UTS namespace.
    pub hostname: String,
    /// Sysctls of its namespaces, checked.
    pub sysctls: Vec<Sysctl>,
    /// Ids of its user namespace, where it has one.
    pub ids: Option<HostIds>,
}

/// A sandbox that is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Up {
    /// Process id of its shim; 0 when it has none.
    pub pid: u32,
    /// When the agent learned that it is up: what was read earlier may not have seen it.
    pub known_at: Mono,
}

/// DNS of the current sandbox; empty for one that has containers, and so has it already.
pub(in crate::pod) fn dns(life: &Life, config: &NodeConfig) -> Result<PodDns, ResolvError> {
    let sandbox = Some(life.record.sandbox);
    let is_in_use = life.record.containers.values().any(|run| run.started_in == sandbox);
    if is_in_use { Ok(PodDns::default()) } else { resolv::of(&life.spec, config) }
}

/// The current sandbox, or why it cannot be as the pod wants it.
fn request(life: &Life, config: &NodeConfig) -> Result<SandboxRequest, String> {
    let hostname = hostname::of(&life.spec, config).map_err(|error| error.to_string())?;
    // In the words of `sandboxContainerSpec` of containerd's `internal/cri/server/podsandbox/sandbox_run_linux.go`.
    selinux::check_sandbox(config.se_linux.as_ref(), &life.spec, life.record.level.as_deref())
        .map_err(|error| format!("failed to init selinux options: {error}"))?;
    let ids = match (life.spec.users, life.record.ids) {
        (UserMode::Pod, None) => {
            return Err(
                "create user namespace: could not find an empty slot to allocate a user namespace".to_owned()
            );
        }
        (UserMode::Pod | UserMode::Node, ids) => ids,
    };
    Ok(SandboxRequest {
        id: life.sandbox_id(),
        attempt: life.record.sandbox,
        pod: Arc::clone(&life.spec),
        hostname,
        sysctls: security::sandbox_sysctls(&life.spec, &config.unsafe_sysctls)
            .map_err(|error| error.to_string())?,
        ids,
    })
}

impl PodMachine {
    /// Asks for the current sandbox.
    pub(in crate::pod) fn ensure_sandbox(&mut self, shared: &mut Shared<'_>, now: Mono) {
        let tries = self.life.actual.sandbox.tries();
        let dns = dns(&self.life, shared.config).map_err(|error| error.to_string());
        match dns.and_then(|dns| Ok((dns, request(&self.life, shared.config)?))) {
            Ok((dns, request)) => {
                if self.life.actual.sandbox == Resource::Absent {
                    if let Some(warning) = dns.node_warning {
                        let (op, act) = (shared.ops.number(), NodeAct::Note(of_node(warning)));
                        shared.effects.push_back(Effect::Node { op, act });
                    }
                    let told = |it: DnsWarning| about_pod(Severity::Warning, it.reason, it.message);
                    self.notes.extend(dns.warnings.into_iter().map(told));
                }
                let slot = Slot::Sandbox(self.life.record.sandbox);
                let op = self.ask(shared, slot, tries, Act::EnsureSandbox(Box::new(request)));
                self.life.actual.sandbox = Resource::Ensuring(op);
            }
            Err(message) => {
                let failure = Failure::new(FailureKind::Config, message);
                let text = format!("Failed to create pod sandbox: {}", failure.message);
                self.notes.push(about_pod(Severity::Warning, "FailedCreatePodSandBox", text));
                self.life.actual.sandbox = Resource::Failed(Retry::after(failure, tries, now));
            }
        }
    }

    /// Takes the outcome.
    pub(in crate::pod) fn sandbox_made(
        &mut self,
        sandbox: Attempt,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        self.sandbox_part_made(sandbox, ended, result, now, |life, result| {
            let up = made(result).map(|(pid, recursive_read_only)| {
                life.record.recursive_read_only = recursive_read_only;
                Up { pid, known_at: now.mono }
            });
            if matches!(up, Ok(Up { pid: 0, .. })) {
                // Without a shim nobody tells more than this.
                life.actual.end_trust(now.mono);
            }
            life.actual.sandbox.settle(ended, up);
        });
    }

    /// Takes the outcome of an effect for a sandbox or its network. What was made for an earlier sandbox can be removed now.
    pub(in crate::pod) fn sandbox_part_made(
        &mut self,
        sandbox: Attempt,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
        now: Now,
        settle: impl FnOnce(&mut Life, Result<Outcome, Failure>),
    ) {
        if sandbox != self.life.record.sandbox {
            return self.made_too_late(ended.op);
        }
        self.complain(&result, "FailedCreatePodSandBox", "Failed to create pod sandbox: ");
        let gone = matches!(&result, Err(failure) if failure.kind == FailureKind::SandboxGone);
        settle(&mut self.life, result);
        if gone {
            self.lose_sandbox(now.wall, now);
        }
    }

    /// Something that runs in the current sandbox was asked for and answered: the sandbox is up.
    pub(in crate::pod) fn sandbox_answered(&mut self, now: Mono) {
        if let Resource::Ready(up) = &mut self.life.actual.sandbox {
            up.known_at = now;
        }
    }

    /// Asks to kill the shim of a sandbox, in the place of one more try at its removal.
    pub(in crate::pod) fn kill_shim(&mut self, sandbox: SandboxId, shared: &mut Shared<'_>) {
        let leftover = Leftover::Sandbox(sandbox.clone());
        let Some(Removal::Stuck(retry)) = self.life.actual.removals.get(&leftover) else { return };
        let tries = retry.tries;
        let text =
            "The sandbox's shim does not answer while it is removed: it is killed, with everything in it";
        self.notes.push(about_pod(Severity::Warning, "FailedKillPod", text));
        let op = self.ask(shared, Slot::Shim(sandbox.clone()), tries, Act::KillShim(sandbox));
        self.life.actual.removals.insert(leftover, Removal::Removing { op, tries });
    }

    /// Takes the outcome: what waited for the shim need not wait any more.
    pub(in crate::pod) fn shim_killed(
        &mut self,
        sandbox: SandboxId,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        self.complain(&result, "FailedKillPod", "error killing pod: ");
        let actual = &mut self.life.actual;
        if let Err(failure) = fit::done(result) {
            let stuck = Removal::Stuck(Retry::after(failure, tries, now));
            actual.removals.insert(Leftover::Sandbox(sandbox), stuck);
            return;
        }
        actual.unanswered.remove(&sandbox);
        actual.removals.insert(Leftover::Sandbox(sandbox), Removal::Due);
        for removal in actual.removals.values_mut() {
            match removal {
                Removal::Stuck(retry) if retry.failure.kind == FailureKind::Silent => *removal = Removal::Due,
                // It asks the shim that is gone now, and begins anew with short delays.
                Removal::Removing { tries, .. } => *tries = 0,
                Removal::Due | Removal::After(_) | Removal::Stuck(_) => {}
            }
        }
    }
}

fn of_node(DnsWarning { reason, message }: DnsWarning) -> Note {
    Note { severity: Severity::Warning, reason: reason.to_owned(), message }
}

fn made(result: Result<Outcome, Failure>) -> Result<(u32, bool), Failure> {
    let outcome = result?;
    if let Outcome::Sandbox { pid, recursive_read_only } = outcome {
        Ok((pid, recursive_read_only))
    } else {
        Err(fit::unfitting(&outcome))
    }
}
