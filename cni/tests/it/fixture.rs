//! A directory with plugins, records and a runtime.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_cni::{
    Attachment, ContainerId, InterfaceName, Key, NetworkList, NetworkName, Runtime, RuntimeConfig,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The longest a test waits for anything.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Fixture {
    pub root: tempfile::TempDir,
    pub runtime: Runtime,
}

impl Fixture {
    /// A runtime with the named plugins installed.
    pub(crate) fn new(plugins: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let fixture = Self { runtime: runtime(root.path()), root };
        fs::create_dir(fixture.bin()).unwrap();
        for plugin in plugins {
            symlink(env!("CARGO_BIN_EXE_berth-cni-fake-plugin"), fixture.bin().join(plugin)).unwrap();
        }
        fixture
    }

    /// The same directories as a new process would see them.
    pub(crate) fn restarted(&self) -> Runtime {
        runtime(self.root.path())
    }

    /// Another runtime on the same node.
    pub(crate) fn neighbour(&self) -> Runtime {
        runtime_of(self.root.path(), "neighbour")
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.root.path().join("bin")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.root.path().join("cache")
    }

    /// Where the runtime's own records are.
    pub(crate) fn own(&self) -> PathBuf {
        self.root.path().join("own")
    }

    pub(crate) fn cached_result(&self, id: &str, ifname: &str) -> PathBuf {
        self.cache().join(format!("results/net-{id}-{ifname}"))
    }

    /// Tells a plugin how to behave, by verb.
    pub(crate) fn control(&self, plugin: &str, behaviour: &Value) {
        fs::write(self.bin().join(format!("{plugin}.json")), behaviour.to_string()).unwrap();
    }

    /// All calls so far, in order.
    pub(crate) fn calls(&self) -> Vec<Value> {
        lines(&self.bin().join("calls.jsonl"))
    }

    /// The calls that ended by themselves.
    pub(crate) fn done(&self) -> Vec<Value> {
        lines(&self.bin().join("done.jsonl"))
    }

    /// All calls so far as `VERB plugin`, and forgets them.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        let calls = self.calls();
        drop(fs::remove_file(self.bin().join("calls.jsonl")));
        calls
            .iter()
            .map(|call| format!("{} {}", call["verb"].as_str().unwrap(), call["plugin"].as_str().unwrap()))
            .collect()
    }

    pub(crate) async fn wait_for_calls(&self, count: usize) {
        wait_until("calls", || self.calls().len() >= count).await;
    }
}

fn runtime(root: &Path) -> Runtime {
    runtime_of(root, "own")
}

/// A runtime that shares plugins and cache with others, with records of its own.
fn runtime_of(root: &Path, records: &str) -> Runtime {
    let config = RuntimeConfig {
        bin_dirs: vec![root.join("bin")],
        cache_dir: root.join("cache"),
        records_dir: root.join(records),
    };
    Runtime::new(config).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits, level-triggered and bounded.
pub(crate) async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let latest = deadline();
    while !holds() {
        assert!(Instant::now() < latest, "waited too long for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + LONG
}

/// For what does not end before it, however slow the machine is.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

/// A list named `net`, whose plugins have nothing but a type.
pub(crate) fn list(version: &str, plugins: &[&str]) -> NetworkList {
    let plugins: Vec<_> = plugins.iter().map(|kind| json!({"type": kind})).collect();
    parse(&json!({"name": "net", "cniVersion": version, "plugins": plugins}))
}

pub(crate) fn parse(conf: &Value) -> NetworkList {
    NetworkList::parse(conf.to_string().as_bytes()).unwrap()
}

/// An attachment on `eth0`, in a namespace path that exists.
pub(crate) fn attachment(id: &str) -> Attachment {
    Attachment::new(ContainerId::new(id).unwrap(), "/proc/self/ns/net", InterfaceName::new("eth0").unwrap())
}

pub(crate) fn key(id: &str) -> Key {
    Key {
        network: NetworkName::new("net").unwrap(),
        container_id: ContainerId::new(id).unwrap(),
        ifname: InterfaceName::new("eth0").unwrap(),
    }
}

pub(crate) fn result_with_ip(ip: &str) -> Value {
    json!({"ADD": {"stdout": json!({"ips": [{"address": ip}]}).to_string()}})
}

/// An error with its causes, as it is logged.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(with_causes);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
