//! `berth check`: what the agent would say about manifests, before it has them. Asks no agent and no containerd.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use berth_core::{derived::security, image, selinux, spec::Pod};
use serde::Serialize;

use super::ask::Failure;
use crate::{
    config::{Settings, hostname},
    document::Faults,
    manifest::Manifest,
    source::file::{self, Looked},
};

/// What there is to say about a pod, or about a file without a usable one.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    file: String,
    /// Namespace and name; none when the file gives no usable pod.
    pod: Option<String>,
    /// Why it would not run, or not be looked at.
    errors: Vec<String>,
    /// What of it no release of the API that is known here has: a slip of the pen, most often.
    unknown: Vec<String>,
    /// What of it does nothing.
    not_acted_on: Vec<String>,
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        self.errors.is_empty() && self.unknown.is_empty()
    }
}

/// Looks at the files with the settings of an agent.
pub(super) fn verdicts(settings: &Settings, files: &[PathBuf]) -> Result<Vec<Verdict>, Failure> {
    let hostname = hostname().map_err(|error| Failure::from_error(&error))?;
    let node = settings.node_name(&hostname).map_err(|fault| super::run::wrong(Faults::from(fault)))?;
    let looked =
        file::look(files, &node).map_err(|error| Failure::Failed(format!("failed to read {error}")))?;
    Ok(looked.into_iter().map(|looked| verdict(looked, settings)).collect())
}

fn verdict(looked: Looked, settings: &Settings) -> Verdict {
    let Looked { place: file, manifest } = looked;
    match manifest {
        Err(fault) => {
            let errors = fault.lines().map(str::to_owned).collect();
            Verdict { file, pod: None, errors, unknown: Vec::new(), not_acted_on: Vec::new() }
        }
        Ok(Manifest { pod, unsupported, unknown }) => Verdict {
            file,
            pod: Some(pod.name.to_string()),
            errors: refusals(&pod, settings),
            unknown,
            not_acted_on: unsupported,
        },
    }
}

/// What a node would refuse of a pod that can be read.
fn refusals(pod: &Pod, settings: &Settings) -> Vec<String> {
    let allowed = settings.kubelet.allowed_unsafe_sysctls.as_deref().unwrap_or_default();
    let sysctls = security::check_sysctls(pod, allowed).err();
    let runtime = pod.runtime.as_deref().filter(|handler| !settings.has_handler(handler));
    let images = pod.init_containers.iter().chain(&pod.containers).filter_map(|container| {
        let error = image::name::parse(container.image.as_str()).err()?;
        Some(format!("InvalidImageName: container {}: {error}", container.name))
    });
    let sysctls = sysctls.map(|error| format!("SysctlForbidden: {error}"));
    let runtime = runtime.map(|handler| {
        format!("runtimeClassName {handler:?}: this node has no runtime handler of that name: name it in runtime.handlers, or in containerd's configuration")
    });
    sysctls.into_iter().chain(runtime).chain(levels(pod)).chain(images).collect()
}

/// SELinux levels that are none, which start nothing on any node.
fn levels(pod: &Pod) -> Vec<String> {
    let sandbox = selinux::check_sandbox(None, pod, None).err();
    let sandbox = sandbox.map(|error| format!("FailedCreatePodSandBox: seLinuxOptions: {error}"));
    let own = pod.all_containers().filter(|container| !container.security.se_linux.is_empty());
    let own = own.filter_map(|container| {
        let error = selinux::labels(None, pod, container, None).err()?;
        Some(format!("CreateContainerError: container {}: seLinuxOptions: {error}", container.name))
    });
    sandbox.into_iter().chain(own).collect()
}

/// Writes them for people.
pub(super) fn print(out: &mut impl Write, verdicts: &[Verdict]) -> io::Result<()> {
    for Verdict { file, pod, errors, unknown, not_acted_on } in verdicts {
        match pod {
            Some(pod) if !unknown.is_empty() && errors.is_empty() => {
                writeln!(out, "{file}: pod {pod} would run without what is not known")?;
            }
            Some(pod) if errors.is_empty() => writeln!(out, "{file}: pod {pod} is good")?,
            Some(pod) => writeln!(out, "{file}: pod {pod} would not run")?,
            None => writeln!(out, "{file}: not used")?,
        }
        for error in errors.iter().chain(unknown) {
            writeln!(out, "  {error}")?;
        }
        for field in not_acted_on {
            writeln!(out, "  does nothing: {field}")?;
        }
    }
    let bad = verdicts.iter().filter(|verdict| !verdict.is_good()).count();
    match (verdicts.len(), bad) {
        (0, _) => writeln!(out, "no pods"),
        (all, 0) => writeln!(out, "\n{all} good"),
        (all, bad) => writeln!(out, "\n{bad} of {all} would not run as written"),
    }
}
