//! Doing what was asked.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_cni::{
    Attachment, CapabilityArgs, CniArgs, Gc, Key, NetworkList, Runtime, RuntimeConfig, ValidAttachment, netns,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::options::{Command, Options, Target};

/// What is printed, and whether it is good news.
#[derive(Debug)]
pub(crate) struct Answer {
    pub value: Value,
    pub ok: bool,
}

pub(crate) async fn run(options: &Options) -> anyhow::Result<Answer> {
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let runtime = Runtime::new(RuntimeConfig {
        bin_dirs: options.bin_dir.clone(),
        cache_dir: options.cache_dir.clone(),
        records_dir: options.cache_dir.join("attachments"),
    })?;
    let load = || NetworkList::load(&options.conf_dir);
    let value = match &options.command {
        Command::Add(target) => add(&runtime, &load()?, target, deadline).await?,
        Command::Del(target) => {
            // The record is enough; the current configuration only serves attachments without one.
            runtime.del(&attachment(target)?, load().ok().as_ref(), deadline).await?;
            json!({"deleted": target.id})
        }
        Command::Check(target) => {
            runtime.check(&attachment(target)?, &load()?, deadline).await?;
            json!({"checked": target.id})
        }
        Command::Gc { keep, ask_plugins, .. } => {
            return gc(&runtime, &load()?, keep, *ask_plugins, deadline).await;
        }
        Command::Status => {
            let list = load()?;
            runtime.status(&list, deadline).await?;
            json!({"network": list.name, "ready": true})
        }
        Command::Version { plugins } => {
            let mut plugins = plugins.clone();
            if plugins.is_empty() {
                plugins = load()?.plugins().iter().map(|plugin| plugin.kind.clone()).collect();
            }
            let mut supported = serde_json::Map::new();
            for plugin in plugins {
                supported.insert(plugin.to_string(), runtime.version(&plugin, deadline).await?.into());
            }
            supported.into()
        }
        Command::List => {
            let networks = berth_cni::load_dir(&options.conf_dir, usize::MAX)?;
            networks.iter().map(describe).collect()
        }
    };
    Ok(Answer { value, ok: true })
}

async fn add(
    runtime: &Runtime,
    list: &NetworkList,
    target: &Target,
    deadline: Instant,
) -> anyhow::Result<Value> {
    let Some(path) = &target.netns else {
        bail!("add needs --netns; make one with `ip netns add NAME` and give /run/netns/NAME");
    };
    netns::bring_up_loopback(path)?;
    let attachment = attachment(target)?;
    match runtime.add(list, &attachment, deadline).await {
        Ok(result) => Ok(result.to_value(list.version)?),
        Err(error) => Err(error).context("nothing is attached; run del to remove what the plugins left"),
    }
}

async fn gc(
    runtime: &Runtime,
    list: &NetworkList,
    keep: &[ValidAttachment],
    ask_plugins: bool,
    deadline: Instant,
) -> anyhow::Result<Answer> {
    let keep: BTreeSet<_> = keep.iter().cloned().collect();
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for record in runtime.own().await? {
        let Key { network, container_id, ifname } = record.key.clone();
        let valid = ValidAttachment { container_id: container_id.clone(), ifname: ifname.clone() };
        if network != list.name || keep.contains(&valid) {
            continue;
        }
        match runtime.del(&record.attachment(record.netns.clone()), Some(list), deadline).await {
            Ok(()) => removed.push(format!("{network}/{container_id}/{ifname}")),
            Err(failure) => failures.push(with_causes(&failure)),
        }
    }
    if ask_plugins {
        match runtime.gc(list, &keep, deadline).await? {
            Gc::Asked { failures: told } => failures.extend(told.iter().map(|failure| with_causes(failure))),
            Gc::NotWanted => {}
            Gc::Busy => failures.push("the network is in use".to_owned()),
            Gc::Unsure(files) => failures.push(format!(
                "no plugin was asked: {files:?} may be records of attachments and cannot be read"
            )),
        }
    }
    Ok(Answer { ok: failures.is_empty(), value: json!({"removed": removed, "failures": failures}) })
}

fn attachment(target: &Target) -> anyhow::Result<Attachment> {
    let capability_args: CapabilityArgs =
        serde_json::from_str(&target.capability_args).context("--capability-args is not a JSON object")?;
    Ok(Attachment {
        args: CniArgs::new(target.args.iter().cloned())?,
        capability_args,
        ..Attachment::new(target.id.clone(), target.netns.clone().unwrap_or_default(), target.ifname.clone())
    })
}

fn describe(list: &NetworkList) -> Value {
    let plugins: Vec<_> = list.plugins().iter().map(|plugin| plugin.kind.as_str()).collect();
    json!({"name": list.name, "cniVersion": list.version, "plugins": plugins})
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
