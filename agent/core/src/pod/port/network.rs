//! The network of a sandbox: its network namespace, and its CNI attachment.

use std::{path::PathBuf, sync::Arc};

use crate::{
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::{Attempt, SandboxId},
    pod::{
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
    spec::Pod,
    status::NetworkStatus,
    time::Now,
    users::HostIds,
};

/// A network namespace to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsRequest {
    /// The sandbox that it is for.
    pub sandbox: SandboxId,
    /// Ids of the pod: a new user namespace of these is its owner, else the node's is.
    pub ids: Option<HostIds>,
}

/// A CNI attachment, whole: what ADD needs. DEL needs the sandbox alone, and what was recorded then.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkRequest {
    /// The id that plugins see.
    pub sandbox: SandboxId,
    /// The pod: ports, annotations and DNS go to the plugins.
    pub pod: Arc<Pod>,
}

impl PodMachine {
    /// Asks for the network namespace of the current sandbox.
    pub(in crate::pod) fn ensure_netns(&mut self, shared: &mut Shared<'_>) {
        let slot = Slot::Netns(self.life.record.sandbox);
        let act =
            Act::EnsureNetns(NetnsRequest { sandbox: self.life.sandbox_id(), ids: self.life.record.ids });
        let op = self.ask(shared, slot, self.life.actual.netns.tries(), act);
        self.life.actual.netns = Resource::Ensuring(op);
    }

    /// Takes the outcome.
    pub(in crate::pod) fn netns_made(
        &mut self,
        sandbox: Attempt,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        self.sandbox_part_made(sandbox, ended, result, now, |life, result| {
            life.actual.netns.settle(ended, netns(result));
        });
    }

    /// Asks for the attachment of the current sandbox.
    pub(in crate::pod) fn ensure_network(&mut self, shared: &mut Shared<'_>) {
        let slot = Slot::Network(self.life.record.sandbox);
        // What an earlier attachment got: nobody takes it for what is made now.
        self.life.record.network = None;
        let (sandbox, pod) = (self.life.record.sandbox_id.clone(), Arc::clone(&self.life.spec));
        let act = Act::EnsureNetwork(Box::new(NetworkRequest { sandbox, pod }));
        let op = self.ask(shared, slot, self.life.actual.network.tries(), act);
        self.life.actual.network = Resource::Ensuring(op);
    }

    /// Takes the outcome: the addresses go into the record.
    pub(in crate::pod) fn network_made(
        &mut self,
        sandbox: Attempt,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        self.sandbox_part_made(sandbox, ended, result, now, |life, result| {
            let wired = addresses(result).map(|status| life.record.network = Some(status));
            life.actual.network.settle(ended, wired);
        });
    }
}

fn netns(result: Result<Outcome, Failure>) -> Result<PathBuf, Failure> {
    let outcome = result?;
    if let Outcome::Netns(path) = outcome { Ok(path) } else { Err(fit::unfitting(&outcome)) }
}

fn addresses(result: Result<Outcome, Failure>) -> Result<NetworkStatus, Failure> {
    let outcome = result?;
    if let Outcome::Network(status) = outcome { Ok(status) } else { Err(fit::unfitting(&outcome)) }
}
