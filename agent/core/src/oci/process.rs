//! The container's first process.
//!
//! Source: `pkg/kubelet/kubelet_pods.go` `makeEnvironmentVariables`, containerd `internal/cri/opts` `WithProcessArgs`
//! and `internal/cri/server` `buildLinuxSpec`.

use std::collections::BTreeMap;

use oci_spec::runtime::{Process, User};

use super::{ConfigError, ContainerInputs, ObjectValues, capabilities, mounts::step, oom};
use crate::{
    derived::downward,
    derived::env::{self, Budget, TooLong},
    derived::hostname,
    spec::{EnvSource, NetworkMode},
};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The pod's part of the environment, in the order in which it was declared.
pub(super) struct Environment {
    variables: Vec<(String, String)>,
    /// By name, for `$(NAME)`.
    pub(super) known: BTreeMap<String, String>,
    /// Whether values of objects and services are still to come.
    pub(super) is_partial: bool,
}

/// Values of the container's variables: each may refer to those before it, and to services. What objects give comes first, what
/// services give last, where no variable has that name.
pub(super) fn environment(
    inputs: &ContainerInputs<'_>,
    budget: &mut Budget,
) -> Result<Environment, ConfigError> {
    let ContainerInputs { node, pod, container, .. } = *inputs;
    let none = ObjectValues::default();
    let values = inputs.values.unwrap_or(&none);
    let mut known = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let set = |known: &mut BTreeMap<String, String>, name: &str, value: String| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ConfigError::EnvName { name: name.to_owned() });
        }
        let value = without_nul("environment variable", value)?;
        Ok(known.insert(name.to_owned(), value).is_none())
    };
    for (name, value) in &values.from {
        if set(&mut known, name, value.clone())? {
            order.push(name);
        }
    }
    for (index, variable) in container.env.iter().enumerate() {
        let value = match &variable.source {
            EnvSource::Value(text) => env::expand(text, budget, |name| {
                let value = known.get(name).or_else(|| values.services.get(name));
                value.cloned().unwrap_or_else(|| format!("$({name})"))
            })?,
            EnvSource::Field(path) => budget.count(downward::field(path, pod, node, inputs.pod_ips())?)?,
            EnvSource::Resource(selector) => downward::resource(selector, pod, container, node)?,
            EnvSource::Key(_) | EnvSource::File(_) => match values.keys.get(&index) {
                Some(value) => value.clone(),
                None => continue,
            },
        };
        if set(&mut known, &variable.name, value)? {
            order.push(&variable.name);
        }
    }
    for (name, value) in &values.services {
        if !known.contains_key(name) && set(&mut known, name, value.clone())? {
            order.push(name);
        }
    }
    let variables = order.into_iter().filter_map(|name| Some((name.to_owned(), known.get(name)?.clone())));
    Ok(Environment { variables: variables.collect(), known, is_partial: inputs.values.is_none() })
}

pub(super) fn process(
    inputs: &ContainerInputs<'_>,
    environment: &Environment,
    budget: &mut Budget,
    (user, label): (User, Option<String>),
) -> Result<Process, ConfigError> {
    let ContainerInputs { node, pod, container, .. } = *inputs;
    let escalation = container.security.allow_privilege_escalation;
    let mut process = Process::default();
    process
        .set_terminal(Some(container.stdio.tty))
        .set_user(user)
        .set_args(Some(arguments(inputs, &environment.known, budget)?))
        .set_env(Some(merged(inputs, environment)?))
        .set_cwd(working_dir(inputs)?.into())
        .set_capabilities(Some(capabilities::capabilities(node, &container.security)?))
        .set_no_new_privileges(Some(escalation == Some(false)))
        .set_rlimits(None)
        .set_apparmor_profile(None)
        .set_selinux_label(label)
        .set_oom_score_adj(Some(oom::score_adj(pod, container, node)));
    Ok(process)
}

/// The container's command and arguments, each with the image's in its place when it has none; a command of the
/// container's own leaves the image's arguments out.
fn arguments(
    inputs: &ContainerInputs<'_>,
    known: &BTreeMap<String, String>,
    budget: &mut Budget,
) -> Result<Vec<String>, ConfigError> {
    let (container, image) = (inputs.container, &inputs.image.config);
    let mut expand = |words: &[String]| -> Result<Vec<String>, TooLong> {
        words.iter().map(|word| env::expand_known(word, budget, known)).collect()
    };
    let mut command = expand(&container.command)?;
    let mut arguments = expand(&container.args)?;
    if command.is_empty() {
        if arguments.is_empty() {
            arguments.clone_from(&image.cmd);
        }
        // `ENTRYPOINT [""]` is how an image undoes that of its base.
        if image.entrypoint != [""] {
            command.clone_from(&image.entrypoint);
        }
    }
    command.append(&mut arguments);
    if command.is_empty() {
        return Err(ConfigError::NoCommand);
    }
    command.into_iter().map(|word| without_nul("argument", word)).collect()
}

/// `PATH`, `TERM` and `HOSTNAME`, then the image's variables, then the pod's. A later value takes the place of an earlier
/// one; an entry of the image without `=` removes the variable.
fn merged(inputs: &ContainerInputs<'_>, environment: &Environment) -> Result<Vec<String>, ConfigError> {
    let mut all = Variables::default();
    all.put("PATH", DEFAULT_PATH.to_owned());
    if inputs.container.stdio.tty {
        all.put("TERM", "TERM=xterm".to_owned());
    }
    let hostname = match inputs.pod.network {
        NetworkMode::Node => inputs.node.hostname.clone(),
        NetworkMode::Pod => hostname::of(inputs.pod, inputs.node)?,
    };
    all.put("HOSTNAME", format!("HOSTNAME={hostname}"));
    for entry in &inputs.image.config.env {
        let whole = without_nul("environment variable of the image", entry.clone())?;
        match entry.split_once('=') {
            Some((name, _)) if !name.is_empty() => all.put(name, whole),
            Some(_) => return Err(ConfigError::EnvName { name: String::new() }),
            None => all.remove(entry),
        }
    }
    for (name, value) in &environment.variables {
        all.put(name, format!("{name}={value}"));
    }
    Ok(all.in_order())
}

/// Entries by the names of their variables: there may be many.
#[derive(Default)]
struct Variables<'a> {
    /// Each with its place.
    entries: BTreeMap<&'a str, (usize, String)>,
    next: usize,
}

impl<'a> Variables<'a> {
    /// Gives a variable a value: in its place, or in the last when it has none.
    fn put(&mut self, name: &'a str, entry: String) {
        let (_, old) = self.entries.entry(name).or_insert((self.next, String::new()));
        *old = entry;
        self.next += 1;
    }

    fn remove(&mut self, name: &str) {
        self.entries.remove(name);
    }

    fn in_order(self) -> Vec<String> {
        let mut all: Vec<(usize, String)> = self.entries.into_values().collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

/// The container's working directory, the image's, or the root. Descriptors of a process are refused: through one that the
/// runtime leaked, a container would start outside its root (CVE-2024-21626).
fn working_dir(inputs: &ContainerInputs<'_>) -> Result<String, ConfigError> {
    let own = inputs.container.working_dir.as_deref().filter(|path| !path.is_empty());
    let image = Some(inputs.image.config.working_dir.as_str()).filter(|path| !path.is_empty());
    let path = own.or(image).unwrap_or("/");
    if !path.starts_with('/') || path.contains('\0') || leads_to_descriptors(path) {
        return Err(ConfigError::WorkingDir { path: path.to_owned() });
    }
    Ok(path.to_owned())
}

/// Whether a path goes through `/proc/<process>/…fd…` or `/dev/fd` at any point: a `..` behind a descriptor does not lead
/// back.
fn leads_to_descriptors(path: &str) -> bool {
    let mut parts = Vec::new();
    for part in path.split('/') {
        step(&mut parts, part);
        let through = match parts.as_slice() {
            ["proc", _, .., last] => matches!(*last, "fd" | "fdinfo" | "cwd" | "root" | "exe" | "map_files"),
            ["dev", "fd"] => true,
            _ => false,
        };
        if through {
            return true;
        }
    }
    false
}

fn without_nul(what: &'static str, text: String) -> Result<String, ConfigError> {
    if text.contains('\0') { Err(ConfigError::Nul { what }) } else { Ok(text) }
}
