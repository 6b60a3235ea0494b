//! CNI by hand: the plugins of the lab's network, called as the specification says, nothing else.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::components;
use serde_json::{Value, json};

/// The interface in the pod.
const INTERFACE: &str = "eth0";

/// The lab's network.
#[derive(Debug)]
pub(crate) struct Plugins {
    list: Value,
}

/// What is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attachment<'a> {
    /// Of the container.
    pub(crate) id: &'a str,
    /// The network namespace.
    pub(crate) netns: &'a Path,
}

impl Plugins {
    /// Of a `conflist` file.
    pub(crate) fn read(conflist: &Path) -> Result<Self> {
        let text = std::fs::read(conflist).with_context(|| format!("read {}", conflist.display()))?;
        Ok(Self { list: serde_json::from_slice(&text)? })
    }

    /// Runs every plugin, each with the result of the one before.
    pub(crate) fn add(&self, attachment: Attachment<'_>) -> Result<Value> {
        let mut result = Value::Null;
        for plugin in self.plugins() {
            let said = self.call("ADD", plugin, &result, attachment)?;
            result = serde_json::from_slice(&said)?;
        }
        Ok(result)
    }

    /// Runs every plugin backwards with the result of ADD.
    pub(crate) fn del(&self, attachment: Attachment<'_>, result: &Value) -> Result<()> {
        for plugin in self.plugins().iter().rev() {
            self.call("DEL", plugin, result, attachment)?;
        }
        Ok(())
    }

    fn plugins(&self) -> &[Value] {
        self.list["plugins"].as_array().map_or(&[], Vec::as_slice)
    }

    fn call(&self, verb: &str, plugin: &Value, before: &Value, of: Attachment<'_>) -> Result<Vec<u8>> {
        let kind = plugin["type"].as_str().context("a plugin without a type")?;
        let mut config = plugin.clone();
        config["cniVersion"] = self.list["cniVersion"].clone();
        config["name"] = self.list["name"].clone();
        if !before.is_null() {
            config["prevResult"] = before.clone();
        }
        if !plugin["capabilities"]["portMappings"].is_null() {
            config["runtimeConfig"] = json!({ "portMappings": [] });
        }
        let bin = components::bin_dir();
        let program: PathBuf = bin.join(kind);
        let mut child = Command::new(program)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", of.id)
            .env("CNI_NETNS", of.netns)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", &bin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start plugin {kind}"))?;
        child.stdin.take().context("no standard input")?.write_all(config.to_string().as_bytes())?;
        let done = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(done.status.success(), "{verb} of {kind} ended with {}: {said}", done.status);
        Ok(done.stdout)
    }
}
