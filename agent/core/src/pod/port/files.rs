//! The pod's directories, and the files in them that its containers mount.

use crate::{
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    oci::{ExistingFile, HostFile, pod_files},
    pod::{
        actual::{Life, Run},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
};

/// The files of the pod that its running containers have mounted: each start writes them.
pub(in crate::pod) fn files(life: &Life, config: &NodeConfig) -> Vec<HostFile> {
    let is_running = life.actual.containers.values().any(|run| matches!(run, Run::Running(_)));
    let is_written = is_running && life.actual.files.ready().is_some();
    if is_written { made_files(life, config) } else { Vec::new() }
}

/// The same, to be made where they are missing: what is there is seen by those who run.
fn made_files(life: &Life, config: &NodeConfig) -> Vec<HostFile> {
    // A pod whose files cannot be told of was never started.
    let mut files =
        pod_files(config, &life.spec, life.record.sandbox, life.record.network.as_ref()).unwrap_or_default();
    files.iter_mut().for_each(|file| file.existing = ExistingFile::Keep);
    files
}

impl PodMachine {
    /// Asks for the directories.
    pub(in crate::pod) fn ensure_dirs(&mut self, shared: &mut Shared<'_>) {
        let tries = self.life.actual.dirs.tries();
        let act = Act::EnsureDirs(self.life.record.name.clone());
        self.life.actual.dirs = Resource::Ensuring(self.ask(shared, Slot::Dirs, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn dirs_made(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.complain(&result, "Failed", "error making pod data directories: ");
        self.life.actual.dirs.settle(ended, fit::done(result));
    }

    /// Asks for the files that are missing.
    pub(in crate::pod) fn ensure_files(&mut self, shared: &mut Shared<'_>) {
        let tries = self.life.actual.files.tries();
        let act = Act::WriteFiles(made_files(&self.life, shared.config));
        self.life.actual.files = Resource::Ensuring(self.ask(shared, Slot::Files, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn files_written(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.complain(&result, "Failed", "error writing files of the pod: ");
        self.life.actual.files.settle(ended, fit::done(result));
    }
}
