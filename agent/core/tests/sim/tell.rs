//! Effects in words.

use std::{collections::BTreeMap, fmt::Write};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    id::{PodUid, SandboxId},
    pod::port::{hook::HookCall, look::LookRequest, network::NetnsRequest, signal::StopSignal},
    record::{Afterwards, PodRecord, PostStart},
    status::{ContainerState, ContainerStatus, PodStatus},
};

use crate::world;

/// An effect in a line; `names` are shown in place of UIDs.
pub(crate) fn effect(effect: &Effect, names: &BTreeMap<String, String>) -> String {
    match effect {
        Effect::Node { act: NodeAct::SetQos(values), .. } => {
            format!("node set-qos burstable={}", values.burstable.cpu_shares.unwrap_or(0))
        }
        Effect::Node { act: NodeAct::Note(note), .. } => {
            format!("node note {:?} {}: {}", note.severity, note.reason, note.message)
        }
        Effect::Node { act: NodeAct::RemoveImage(removal), .. } => {
            format!("node {} {} {}", kind_of(effect), removal.image.id, removal.reason.as_str())
        }
        Effect::Node {
            act:
                NodeAct::ReadNodeObject | NodeAct::MeasureImages | NodeAct::ListImages | NodeAct::GiveUpPull(_),
            ..
        } => format!("node {}", kind_of(effect)),
        Effect::Node { act: NodeAct::InspectImage(image) | NodeAct::PullImage(image), .. } => {
            format!("node {} {image}", kind_of(effect))
        }
        Effect::Pod { pod, act, .. } => {
            let name = names.get(pod.as_str()).cloned().unwrap_or_else(|| pod.to_string());
            format!("{name} {}{}", act.name(), describe_act(pod, act))
        }
    }
}

/// The effect in a word.
pub(crate) fn kind_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Node { act, .. } => act.name(),
        Effect::Pod { act, .. } => act.name(),
    }
}

fn describe_act(pod: &PodUid, act: &Act) -> String {
    match act {
        Act::Persist(record) => format!(" {}", describe_record(record)),
        Act::Publish(published) => format!(" {}", describe_status(&published.status)),
        Act::Note(note) => {
            let note = &note.event;
            let about = note.container.as_ref().map(|name| format!(" [{name}]")).unwrap_or_default();
            format!("{about} {:?} {}: {}", note.severity, note.reason, note.message)
        }
        Act::EnsureNetns(NetnsRequest { sandbox: id, .. })
        | Act::RemoveSandbox(id)
        | Act::KillShim(id)
        | Act::RemoveNetwork(id)
        | Act::RemoveNetns(id) => {
            format!(" {}", attempt_of(pod, id))
        }
        Act::EnsureNetwork(request) => format!(" {}", attempt_of(pod, &request.sandbox)),
        Act::EnsureSandbox(request) => format!(" {}", request.attempt),
        Act::EnsureVolume(request) => format!(" {}", request.volume.name),
        Act::EnsureRootfs(request) => format!(" {}", world::short(&request.id)),
        Act::StartContainer(request) => {
            format!(" {}#{} {}", request.container.name, request.attempt, world::short(&request.id))
        }
        Act::LookAtTask(request) => format!(" {}", world::short(&request.id)),
        Act::Signal(request) => match &request.signal {
            StopSignal::Stop(signal) => format!(" {} {signal}", world::short(&request.id)),
            StopSignal::Kill => format!(" {} kill", world::short(&request.id)),
        },
        Act::Look(request) => describe_look(request),
        Act::Probe(request) => format!(" {} {:?}", world::short(&request.id), request.kind).to_lowercase(),
        Act::RunHook(request) => {
            let what = match &request.call {
                HookCall::Exec { command, .. } => command.join(" "),
                HookCall::Http(get) => format!("http://{}:{}{}", get.host, get.port, get.path),
            };
            format!(" {} {:?} {what}", world::short(&request.id), request.moment)
        }
        Act::WriteFiles(files) => {
            let names = files.iter().filter_map(|file| file.path.rsplit('/').next());
            names.fold(String::new(), |text, name| text + " " + name)
        }
        Act::ResizeContainer(request) => {
            let resources = &request.resources;
            let memory = resources.memory().as_ref().and_then(|memory| memory.limit());
            let quota = resources.cpu().as_ref().and_then(|cpu| cpu.quota());
            let named = [("memory", memory), ("quota", quota)];
            let named = named.into_iter().filter_map(|(name, amount)| Some(format!(" {name}={}", amount?)));
            format!(" {}{}", request.name, named.collect::<String>())
        }
        Act::CheckMemory(request) => {
            request.bounds.iter().fold(String::new(), |text, bound| format!("{text} {}", bound.limit))
        }
        Act::EnsureCgroup(request) => {
            let values = &request.values;
            let named = [("memory", values.memory_bytes_max), ("quota", values.cpu_quota_us)];
            let named = named.into_iter().filter_map(|(name, amount)| Some(format!(" {name}={}", amount?)));
            named.collect()
        }
        Act::ReadTerminationMessage(request) => format!(" {}", world::short(&request.id)),
        Act::RemoveContainer(request) => format!(" {}", world::short(&request.id)),
        // Its name says all.
        _ => String::new(),
    }
}

fn describe_look(request: &LookRequest) -> String {
    let LookRequest { netns, cgroup, dirs, volumes, bound, files } = request;
    let parts = [
        (netns.is_some(), "netns".to_owned()),
        (cgroup.is_some(), "cgroup".to_owned()),
        (dirs.is_some(), "dirs".to_owned()),
        (!files.is_empty(), "files".to_owned()),
    ];
    let volumes = volumes.iter().map(|volume| &volume.name).chain(bound.iter().map(|(name, _)| name));
    let volumes = volumes.map(|name| (true, name.to_string()));
    let named = parts.into_iter().chain(volumes).filter(|(is_there, _)| *is_there);
    named.fold(String::new(), |text, (_, name)| text + " " + &name)
}

fn attempt_of(pod: &PodUid, id: &SandboxId) -> String {
    let attempt = (0..100).find(|attempt| SandboxId::of(pod, *attempt) == *id);
    attempt.map_or_else(|| "?".into(), |attempt| attempt.to_string())
}

fn describe_record(record: &PodRecord) -> String {
    let mut text = format!("sandbox={}", record.sandbox);
    for (name, run) in &record.containers {
        write!(text, " {name}#{}", run.attempt).unwrap();
        match (&run.exit, run.started_in) {
            (Some(exit), _) => write!(text, "=exit:{}", exit.exit.code).unwrap(),
            (None, Some(_)) => text.push_str("=started"),
            (None, None) => {}
        }
        if run.stopping.is_some() {
            text.push_str(",stopping");
        }
        if run.anew {
            text.push_str(",anew");
        }
        for (it_is, word) in [
            (run.probed.started, "started"),
            (run.probed.ready, "ready"),
            (run.probed.afterwards == Afterwards::Never, "final"),
            (run.hooked.post_start == PostStart::Over, "begun"),
            (matches!(run.hooked.post_start, PostStart::Failed(_)), "not-begun"),
            (run.hooked.pre_stop, "pre-stopped"),
            (run.hooked.signalled.is_some(), "signalled"),
        ] {
            if it_is {
                write!(text, ",{word}").unwrap();
            }
        }
    }
    for (name, image) in &record.volume_images {
        write!(text, " {name}={}", image.name).unwrap();
    }
    if record.restarting.is_some() {
        text.push_str(" restarting");
    }
    if let Some(termination) = record.termination {
        let grace = termination.deadline.since(termination.began).as_secs();
        write!(text, " terminating({grace}s)").unwrap();
    }
    if let Some(terminal) = &record.terminal {
        write!(text, " ended({})", if terminal.succeeded { "well" } else { "badly" }).unwrap();
    }
    text
}

fn describe_status(status: &PodStatus) -> String {
    let mut text = format!("{:?}", status.phase);
    if !status.reason.is_empty() {
        write!(text, "({})", status.reason).unwrap();
    }
    let holds = status.conditions.iter().map(|one| if one.holds { 'T' } else { 'F' });
    write!(text, " {}", holds.collect::<String>()).unwrap();
    if let Some(ip) = status.pod_ips.first() {
        write!(text, " {ip}").unwrap();
    }
    for container in status.all_containers() {
        write!(text, " | {}", describe_container(container)).unwrap();
    }
    text
}

fn describe_container(status: &ContainerStatus) -> String {
    let mut text = format!("{}#{} ", status.name, status.restart_count);
    match &status.state {
        ContainerState::Waiting { reason, message } => {
            text.push_str(reason);
            if !message.is_empty() {
                write!(text, " {message:?}").unwrap();
            }
        }
        ContainerState::Running { .. } if !status.started => text.push_str("running, not started"),
        ContainerState::Running { .. } => text.push_str("running"),
        ContainerState::Terminated(end) => write!(text, "{}({})", end.reason, end.exit_code).unwrap(),
    }
    if let Some(last) = &status.last_state {
        write!(text, " last={}({})", last.reason, last.exit_code).unwrap();
    }
    if status.ready {
        text.push_str(" ready");
    }
    text
}
